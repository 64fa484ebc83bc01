"""Read and write folders of SparseEncoder models from sentence-transformers.

Folders are written in the layout of versions 5.0 to 5.3, which later versions can also read. Token
weights are stored in `sparse_linear.pt`, as in BGE-M3. The document encoder is stored in the root,
so that transformers can load it. A separate query encoder is stored in a subfolder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import check_argument
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder
from encoder_zoo.presets.files.json_data import JSON_FLAG, encode_json_files
from encoder_zoo.presets.formats import embedding_modules
from encoder_zoo.presets.formats import sentence_transformers as theirs
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    Preset,
    StoredWeight,
    check_finite,
    convert_to_float32,
    warn_new_weights,
)
from encoder_zoo.presets.formats.preset_files import (
    CONFIG,
    IDF,
    MODEL_SETTINGS,
    MODULES,
    ROUTER,
    SAFETENSORS,
    SPARSE_LINEAR,
    TRANSFORMER_SETTINGS,
)
from encoder_zoo.presets.formats.preset_task import FolderFormat
from encoder_zoo.presets.formats.sentence_transformers import Module
from encoder_zoo.presets.formats.stored_tokenizer import make_tokenizer_files

SPARSE_SIMILARITIES = ("dot", "cosine")
TOKEN_WEIGHTS = "token_weights"
# Similarities of dense vectors and token vectors. BGE-M3 has these vectors in addition.
DENSE_SIMILARITIES = ("cosine", "euclidean", "manhattan", "maxsim", "MaxSim", "meanmaxsim")
_TYPES = "sentence_transformers.sparse_encoder.models."
_ROUTER = "sentence_transformers.models.Router"
_TABLE, _OLD_TABLE = ["SparseStaticEmbedding"], ["IDF"]
_OF_ENCODERS = ["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]
QUERY_MODEL = "query_0_MLMTransformer"  # folder of a query encoder


class SparseFolderFormat(FolderFormat):
    """Folder format of `SparseEncoder`: sentence-transformers or BGE-M3.

    Args:
        load_table_class: A function that imports and returns the layer class for the table of term
            weights.
        read_tokenizer: A function that takes the table files and a family, and returns the
            tokenizer.
    """

    opened_by = "SparseEncoder"
    settings = ("pooling", "activation", "max_terms", "similarity_function")
    settings += ("max_length", "prompts", "default_prompt")

    def __init__(self, load_table_class: Callable[[], type], read_tokenizer: Callable):
        self._load_table_class, self._read_tokenizer = load_table_class, read_tokenizer

    def make_config_fields(self, task: keras.Model) -> dict[str, object]:
        task.check_savable()
        return {}

    def read_arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        arguments = self._read_encoder_arguments(checkpoint)
        if given.get("pooling") == TOKEN_WEIGHTS:
            arguments.pop("activation", None)  # only affects logits, not token weights
        if "query_encoder" in given:
            return arguments
        if (files := _find_query_model(checkpoint)) is not None:
            arguments["query_encoder"] = files
        if (found := _read_query_table(checkpoint)) is not None:
            arguments["query_encoder"] = self._load_table_class()(
                self._read_tokenizer(found.files, checkpoint.family),
                theirs.read_tokenizer_length(found.files),
                checkpoint.get_size("vocabulary_size"),
                trainable=found.is_trained,
            )
        return arguments

    def _read_encoder_arguments(self, checkpoint: Checkpoint) -> dict[str, object]:
        """Return all task arguments except `query_encoder`.

        A folder without `SpladePooling` and without token weights contains an encoder or a masked
        language model, which does not need any arguments.
        """
        files = checkpoint.files.root
        modules = _list_modules(checkpoint)
        if not theirs.select_modules(modules, "SpladePooling"):
            if SPARSE_LINEAR not in checkpoint.files:
                return {}
            _open_token_weights(checkpoint)
            return {"pooling": TOKEN_WEIGHTS, **_read_model_arguments(files, DENSE_SIMILARITIES)}
        _check_modules(files, modules, checkpoint.files)
        pooling, activation = embedding_modules.read_splade_pooling(files, modules[1])
        return {"pooling": pooling, "activation": activation, **_read_model_arguments(files)}

    def read_preprocessor_arguments(self, preset: Preset, tokenizer) -> dict[str, object]:
        theirs.check_case(preset.files, tokenizer)
        length, root = theirs.read_length(preset.files), preset.files.root
        found = {"max_length": length, **theirs.read_prompts(root)}
        routes = theirs.read_routes(root)
        if routes is not None and routes.default == "query" and "default_prompt" not in found:
            prompts = {"query": "", **found.get("prompts", {})}
            found |= {"prompts": prompts, "default_prompt": "query"}
        return found

    def restore(self, task: keras.Model, checkpoint: Checkpoint, given: Mapping) -> set[str]:
        table = task.query_encoder
        if isinstance(table, self._load_table_class()) and "query_encoder" not in given:
            _restore_query_table(table.weight, table.tokenizer, checkpoint)
        if task.pooling == TOKEN_WEIGHTS and SPARSE_LINEAR in checkpoint.files:
            embedding_modules.load_dense(task.head, _open_token_weights(checkpoint))
        elif task.pooling == TOKEN_WEIGHTS:
            message = "%s: the token weight layer starts from random weights."
            warn_new_weights(message, checkpoint.folder.name)
        return set()

    def list_additional_weights(self, task: keras.Model) -> list[keras.Variable]:
        of_queries = task.query_encoder.weights if task.query_encoder is not None else []
        own = task.head.weights if task.pooling == TOKEN_WEIGHTS else []
        return [*of_queries, *own, task.schedule]

    def make_files(self, task: keras.Model, dtype: object = None) -> dict[str, object]:
        preprocessor = task.preprocessor
        length = (preprocessor or task.backbone).max_sequence_length
        files: dict[str, object] = {
            MODEL_SETTINGS: theirs.make_settings_json(
                task, "SparseEncoder", max_active_dims=task.max_terms
            ),
            TRANSFORMER_SETTINGS[0]: theirs.make_length_json(length),
        }
        if task.pooling == TOKEN_WEIGHTS:
            files[SPARSE_LINEAR] = embedding_modules.encode_linear_file(task.head, dtype)
            return encode_json_files(files)
        if task.query_encoder is None:
            paths = {"": "MLMTransformer", "1_SpladePooling": "SpladePooling"}
            modules = [(path, f"{_TYPES}{kind}") for path, kind in paths.items()]
            files[MODULES] = theirs.make_modules_json(modules)
            files[f"1_SpladePooling/{CONFIG}"] = _make_pooling_config(task)
            return encode_json_files(files)
        files[f"document_1_SpladePooling/{CONFIG}"] = _make_pooling_config(task)
        of_queries, others = _make_query_files(task, dtype)
        document = ["", "document_1_SpladePooling"]
        kinds = {name: name.split("_")[-1] or "MLMTransformer" for name in (*of_queries, *document)}
        is_default = preprocessor is not None and preprocessor.default_prompt == "query"
        files |= {
            MODULES: theirs.make_modules_json([("", _ROUTER)]),
            ROUTER: {
                "types": {name: f"{_TYPES}{kind}" for name, kind in kinds.items()},
                "structure": {"query": of_queries, "document": document},
                "parameters": {
                    "default_route": "query" if is_default else "document",
                    "allow_empty_key": True,
                },
            },
        }
        model = {QUERY_MODEL: task.query_encoder} if QUERY_MODEL in of_queries else {}
        return {**encode_json_files({**files, **others}), **model}


def _list_modules(checkpoint: Checkpoint) -> Sequence[Module]:
    """Return all modules in a folder. For a Router, return the modules on one route.

    The route starts with the encoder of the checkpoint.
    """
    files = checkpoint.files.root
    if (routes := theirs.read_routes(files)) is not None:
        same = (r for r in (routes.document, routes.query) if r[0].path == checkpoint.files.inside)
        return next(same)
    return theirs.read_modules(files) if MODULES in files else []


class QueryTable(NamedTuple):
    """Files of a table with one weight for each query term.

    Attributes:
        files: `FolderFiles`. The files of the table folder.
        module: Optional `Module`. None for the file `idf.json` without modules.
        is_trained: Boolean. Whether `fit` updates the weights.
    """

    files: FolderFiles
    module: Module | None
    is_trained: bool


def _read_query_table(checkpoint: Checkpoint) -> QueryTable | None:
    """Find the table of query term weights in a preset. Return None if there is no table.

    Args:
        checkpoint: An open `Checkpoint` to load from.

    Raises:
        ValueError: If the query route is neither a table nor an encoder, or if a field is invalid.
    """
    files, routes = checkpoint.files.root, theirs.read_routes(checkpoint.files.root)
    if routes is None:
        alone = MODULES not in files and IDF in files
        return QueryTable(files, None, is_trained=False) if alone else None
    if routes.document[0].path != checkpoint.files.inside:
        return None
    kinds = [module.kind for module in routes.query]
    if kinds not in (*(_TABLE, _OLD_TABLE), *_OF_ENCODERS):
        raise ValueError(
            f"{files.path / ROUTER}: the query route is {', '.join(kinds)}. Expected a "
            "SparseStaticEmbedding or IDF, or an MLMTransformer or Transformer, followed by a "
            "SpladePooling."
        )
    if kinds in _OF_ENCODERS:
        return None
    inner, path = Subfolder(files, routes.query[0].path), routes.query[0].path
    config = inner.read_json(CONFIG) if CONFIG in inner else {}
    frozen = config.get("frozen", False)
    check_argument(f"{files.path / path / CONFIG}: frozen", frozen, JSON_FLAG)
    return QueryTable(inner, routes.query[0], not frozen)


def _find_query_model(checkpoint: Checkpoint) -> FolderFiles | None:
    """Find the files of a separate query encoder. Return None if there is no query encoder.

    Args:
        checkpoint: An open `Checkpoint` to load from.
    """
    routes = theirs.read_routes(checkpoint.files.root)
    if routes is None or routes.document[0].path != checkpoint.files.inside:
        return None
    first = routes.query[0]
    if first.kind not in theirs.ENCODERS or first == routes.document[0]:
        return None
    files = checkpoint.files.root
    return Subfolder(files, first.path) if first.path else files


def _restore_query_table(weight: keras.Variable, tokenizer, checkpoint: Checkpoint) -> None:
    """Load the weights of a query table.

    Args:
        weight: Variable of shape (vocabulary,) to assign the weights to.
        tokenizer: Tokenizer for queries.
        checkpoint: An open `Checkpoint` to load from.

    Raises:
        ValueError: If the weights have an unexpected shape, or if a token is not in the vocabulary.
    """
    table = _read_query_table(checkpoint)
    files = table.files
    given = files.read_json(CONFIG).get("path") if table.module and CONFIG in files else None
    if table.module is None or given is not None:
        values, path = _read_token_weights(given or IDF, files, tokenizer)
    else:
        weights = embedding_modules.ModuleCheckpoint(files.root, table.module)
        path = f"{files.path}: weight"
        found = weights.shapes.get("weight")
        if found not in ((tokenizer.vocabulary_size,), tuple(weight.shape)):
            raise invalid(path, found, f"{tuple(weight.shape)}, one weight per term")
        values = convert_to_float32(weights.read_tensor("weight"))
    check_finite(values, path, files)
    # Embeddings can have additional rows without tokens, which do not occur in queries.
    weight.assign(np.pad(values, (0, weight.shape[0] - len(values))))


def _read_token_weights(given: object, files: FolderFiles, tokenizer) -> tuple[np.ndarray, str]:
    """Read weights from a JSON file that maps tokens to weights.

    Args:
        given: String. The path in the configuration. Only its file name is used.
        files: `FolderFiles`. The files of the table.
        tokenizer: Tokenizer for queries.

    Returns:
        A tuple (float array of shape (vocabulary,), file path).
    """
    name = given.replace("\\", "/").split("/")[-1] if isinstance(given, str) else None
    where = next((part for part in (files, files.root) if name in part), None)
    if where is None:
        raise invalid(
            f"{files.path / CONFIG}: path", given, "a JSON file in the preset, such as 'idf.json'"
        )
    weights, path = where.read_json(name), str(where.path / name)
    known = {token: i for i, token in enumerate(tokenizer.get_vocabulary())}
    if missing := [token for token in weights if token not in known]:
        raise ValueError(
            f"{path}: {len(missing)} tokens are not in the vocabulary, such as "
            f"{quote(missing[0])}. Expected tokens of the tokenizer in the preset."
        )
    values = np.zeros(len(known))
    for token, value in weights.items():
        if type(value) not in (int, float):
            raise invalid(f"{path}: {quote(token)}", value, "a number")
        values[known[token]] = value
    return convert_to_float32(values), path


def _read_model_arguments(files: FolderFiles, of_others: tuple[str, ...] = ()) -> dict[str, object]:
    """Read `max_terms` and the similarity from the model settings.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        of_others: Tuple of strings. Similarities of dense vectors or token vectors in the same
            folder, which are ignored. Defaults to ().
    """
    settings, similarity = theirs.read_model_settings(files), SPARSE_SIMILARITIES[0]
    found, model_type = (settings.get(n) for n in ("similarity_fn_name", "model_type"))
    if found not in of_others or model_type == "SparseEncoder":
        similarity = theirs.read_similarity(files, SPARSE_SIMILARITIES)
    most = theirs.read_count(files, "max_active_dims")
    return {"max_terms": most, "similarity_function": similarity}


def _open_token_weights(checkpoint: Checkpoint) -> embedding_modules.LinearFile:
    """Open the layer that computes token weights, and check the shape."""
    layer = embedding_modules.LinearFile(checkpoint.files, SPARSE_LINEAR)
    if layer.units != 1:
        raise ValueError(
            f"{checkpoint.folder / SPARSE_LINEAR}: the layer has {layer.units} outputs per token. "
            "Expected one output."
        )
    layer.check_width(checkpoint.get_size("hidden_dim"))
    return layer


def _check_modules(files: FolderFiles, modules: list[Module], encoder: FolderFiles) -> None:
    """Check that the modules are a masked language model, followed by a SpladePooling."""
    kinds = [module.kind for module in modules]
    if kinds not in _OF_ENCODERS:
        raise ValueError(
            f"{files.path / MODULES}: the modules are {', '.join(kinds)}. Expected an "
            "MLMTransformer or Transformer, followed by a SpladePooling."
        )
    name, settings = theirs.read_transformer_settings(encoder)
    if kinds[0] == "Transformer" and "transformer_task" not in settings:
        raise ValueError(
            f"{encoder.path / name}: transformer_task is missing, so the Transformer has no head. "
            "Expected 'fill-mask'."
        )
    theirs.check_transformer(encoder, "fill-mask")


def _make_pooling_config(task: keras.Model) -> dict[str, object]:
    return {
        "pooling_strategy": task.pooling,
        "activation_function": task.activation,
        "word_embedding_dimension": task.backbone.vocabulary_size,
    }


def _make_query_files(task: keras.Model, dtype: object) -> tuple[list[str], dict[str, object]]:
    """Create the files of the query modules.

    The configuration, weights and tokenizer of a query encoder are not included.

    Returns:
        A tuple (list of module folders, dict {file path: content}).
    """
    queries = task.query_encoder
    if isinstance(queries, keras.Model):
        length = queries.preprocessor.max_sequence_length
        return [QUERY_MODEL, "query_1_SpladePooling"], {
            f"{QUERY_MODEL}/{TRANSFORMER_SETTINGS[0]}": theirs.make_length_json(length),
            f"query_1_SpladePooling/{CONFIG}": _make_pooling_config(queries),
        }
    name = "query_0_SparseStaticEmbedding"
    files: dict[str, object] = {CONFIG: {"frozen": not queries.trainable}}
    weight = {"weight": StoredWeight(queries.weight, transposed=False).make_array(dtype)}
    files[SAFETENSORS.file] = save(weight, metadata=embedding_modules.SAFETENSORS_METADATA)
    for file, content in make_tokenizer_files(queries.tokenizer, queries.max_length).items():
        files[file] = content.encode("utf-8") if isinstance(content, str) else content
    return [name], {f"{name}/{file}": content for file, content in files.items()}
