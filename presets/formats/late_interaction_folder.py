"""Read and write folders of late interaction models.

The layouts of ColBERT, PyLate, BGE-M3 and sentence-transformers since version 6 can be read. Models
are saved in the PyLate layout, which sentence-transformers can also read. Models without a vector
for the first token are saved in the BGE-M3 layout. With a new projection, any encoder or text
embedding model can be used as a late interaction model.
"""

from __future__ import annotations

import string
from collections.abc import Mapping

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.files.json_data import encode_json, encode_json_files
from encoder_zoo.presets.formats import colbert_settings
from encoder_zoo.presets.formats import sentence_transformers as theirs
from encoder_zoo.presets.formats.checkpoint import Checkpoint, Preset, warn_new_weights
from encoder_zoo.presets.formats.embedding_folder import make_embedder_settings
from encoder_zoo.presets.formats.embedding_modules import (
    SENTENCE,
    TOKEN_OUTPUTS,
    LinearFile,
    ModuleCheckpoint,
    check_normalize,
    encode_linear_file,
    load_dense,
    make_dense_files,
    read_dense_layers,
)
from encoder_zoo.presets.formats.preset_files import (
    COLBERT_LINEAR,
    COLBERT_SETTINGS,
    MODEL_SETTINGS,
    MODULES,
    SPARSE_LINEAR,
    TRANSFORMER_SETTINGS,
)
from encoder_zoo.presets.formats.preset_task import FolderFormat
from encoder_zoo.presets.formats.sentence_transformers import Module

# Default markers, as in PyLate. Each marker and the space after it are a single token.
NEW_MARKERS = {"query_marker": "[Q] ", "document_marker": "[D] "}
_STANFORD, _PYLATE, _ST, _ENCODER = "HF_ColBERT", "ColBERT", "MultiVectorEncoder", "encoder"
_BGE_M3 = "BGE-M3"
# {name in this package: name in the libraries}
_SIMILARITIES = {"maxsim": "MaxSim", "meanmaxsim": "meanmaxsim"}
# Similarities of text embedding models. Old versions of PyLate also write these names.
_OF_SINGLE_VECTORS = ("cosine", "dot", "euclidean", "manhattan")


def _find_layout(preset: Preset) -> str:
    """Return the name of the layout of a preset."""
    settings = theirs.read_model_settings(preset.files.root)
    if _STANFORD in (preset.config.get("architectures") or []):
        return _STANFORD
    if settings.get("model_type") == _PYLATE or "query_prefix" in settings:
        return _PYLATE
    if settings.get("model_type") == _ST:
        return _ST
    return _BGE_M3 if COLBERT_LINEAR in preset.files else _ENCODER


class LateInteractionFolderFormat(FolderFormat):
    """Folder format for `LateInteraction`, with the layouts of four libraries.

    The libraries are ColBERT by Stanford, PyLate, sentence-transformers and BGE-M3.
    """

    opened_by = "MultiVectorEncoder"
    settings = ("projections", "normalize", "query_length", "document_length", "prompts")
    settings += ("skiplist", *colbert_settings.MARKERS, "expand_queries", "expansion_length")
    settings += ("attend_to_expansion", "similarity_function", "score_first")

    def list_tokens_to_add(self, preset: Checkpoint, tokenizer, given: Mapping) -> list[str]:
        known = set(tokenizer.get_vocabulary())
        markers = {**_read_settings(preset, tokenizer), **given}
        needed = dict.fromkeys(markers.get(name) for name in colbert_settings.MARKERS)
        return [one for one in needed if isinstance(one, str) and one and one not in known]

    def read_preprocessor_arguments(self, preset: Preset, tokenizer) -> dict[str, object]:
        theirs.check_case(preset.files, tokenizer)
        known = set(tokenizer.get_vocabulary())
        found = _read_settings(preset, tokenizer)
        return {
            n: None if n in colbert_settings.MARKERS and v not in known else v
            for n, v in found.items()
        }

    def read_arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        form = _find_layout(checkpoint)
        similarity = _read_similarity(checkpoint.files.root, form)
        projections, normalize, width = [], True, checkpoint.get_size("hidden_dim")
        if form == _STANFORD:
            projections = [_read_stanford_projection(checkpoint)]
        elif form == _BGE_M3:
            layer = LinearFile(checkpoint.files, COLBERT_LINEAR)
            layer.check_width(width)
            projections = [_make_projection_settings(layer.units, "linear", layer.use_bias, False)]
        elif MODULES in checkpoint.files.root:
            theirs.check_transformer(checkpoint.files, "feature-extraction", has_roles=form == _ST)
            modules = _read_modules(checkpoint.files.root, form)
            embedding = SENTENCE if form == _ENCODER else TOKEN_OUTPUTS
            dense = read_dense_layers(checkpoint.files.root, modules, width, embedding)
            projections = [_make_projection_settings(**one) for one in dense]
            normalize = form != _ST or bool(theirs.select_modules(modules, "Normalize"))
        arguments = {"normalize": normalize, "similarity_function": similarity}
        if not projections or "projections" in given:
            return arguments
        width = projections[-1]["units"]
        if given.get("dim") not in (None, width):
            raise ValueError(
                f"`dim` is {quote(given['dim'])}, but the projections in {checkpoint.folder} have "
                f"dimension {width}. Remove this argument, or also pass projections=[] to create a "
                "new projection."
            )
        return {"projections": projections, **arguments}

    def restore(self, task: keras.Model, checkpoint: Checkpoint, given: Mapping) -> set[str]:
        stored = [] if "projections" in given else _open_projections(checkpoint)
        if not stored and task.projection_layers:
            message = "%s: the projection starts from random weights."
            warn_new_weights(message, checkpoint.folder.name)
            return set()
        for layer, weights in zip(task.projection_layers, stored, strict=True):
            load_dense(layer, weights)
        return {"linear.weight"} if checkpoint in stored else set()

    def list_additional_weights(self, task: keras.Model) -> list[keras.Variable]:
        return [weight for layer in task.projection_layers for weight in layer.weights]

    def make_files(self, task: keras.Model, dtype: object = None) -> dict[str, bytes]:
        if not task.normalize:
            raise ValueError(
                "A model with normalize=False cannot be saved, because PyLate always normalizes "
                "vectors. Pass normalize=True."
            )
        if task.preprocessor is not None and not task.preprocessor.score_first:
            return _make_bge_m3_files(task, dtype)
        layers = task.projection_layers
        paths = [f"{i}_Dense" for i in range(1, 1 + len(layers))]
        modules = [("", "sentence_transformers.models.Transformer")]
        modules += [(path, "pylate.models.Dense.Dense") for path in paths]
        settings = _make_pylate_settings(task)
        files = {
            MODULES: theirs.make_modules_json(modules),
            MODEL_SETTINGS: settings,
            TRANSFORMER_SETTINGS[0]: theirs.make_length_json(settings["document_length"]),
        }
        files |= make_dense_files(layers, paths, task.backbone.hidden_dim, "projections", dtype)
        return encode_json_files(files)


def _read_settings(preset: Preset, tokenizer) -> dict[str, object]:
    """Read the preprocessor settings of a preset, such as markers and lengths."""
    form, files = _find_layout(preset), preset.files
    if form == _STANFORD:
        return colbert_settings.read_stanford(files)
    if form == _PYLATE:
        return colbert_settings.read_pylate(files, tokenizer)
    if form == _ST:
        masks = theirs.select_modules(theirs.read_modules(files.root), "MultiVectorMask")
        return colbert_settings.read_sentence_transformers(files, masks, tokenizer)
    return colbert_settings.read_bge_m3(files) if form == _BGE_M3 else dict(NEW_MARKERS)


def _read_similarity(files: FolderFiles, form: str) -> str:
    """Read the similarity function for token vectors."""
    found = theirs.read_model_settings(files).get("similarity_fn_name")
    if not isinstance(found, str) or found in _OF_SINGLE_VECTORS:
        return "meanmaxsim" if form == _BGE_M3 else "maxsim"
    if found.lower() not in ("maxsim", "meanmaxsim"):
        raise invalid(
            f"{files.path / MODEL_SETTINGS}: similarity_fn_name", found, "'maxsim' or 'meanmaxsim'"
        )
    return found.lower()


def _read_stanford_projection(checkpoint: Checkpoint) -> dict[str, object]:
    shape = checkpoint.shapes.get("linear.weight", ())
    width = checkpoint.get_size("hidden_dim")
    if len(shape) != 2 or shape[1] != width:
        raise invalid(f"{checkpoint.folder}: linear.weight", shape or None, f"(width, {width})")
    files = checkpoint.files
    dim = files.read_json(COLBERT_SETTINGS).get("dim") if COLBERT_SETTINGS in files else None
    if dim not in (None, shape[0]):
        raise invalid(
            f"{files.path / COLBERT_SETTINGS}: dim",
            dim,
            f"{shape[0]}, the output dimension of linear.weight",
        )
    return _make_projection_settings(shape[0], "linear", use_bias=False, residual=False)


def _open_projections(checkpoint: Checkpoint) -> list[Checkpoint]:
    """Open the weights of all projections in a preset."""
    form, files = _find_layout(checkpoint), checkpoint.files.root
    if form == _STANFORD:
        return [checkpoint]
    if form == _BGE_M3:
        return [LinearFile(checkpoint.files, COLBERT_LINEAR)]
    modules = _read_modules(files, form) if MODULES in files else []
    return [ModuleCheckpoint(files, m) for m in theirs.select_modules(modules, "Dense")]


def _make_projection_settings(units: int, activation: str, use_bias: bool, residual: bool) -> dict:
    """Create an entry for the argument `projections`, without default values."""
    chosen = {"activation": activation, "use_bias": use_bias, "residual": residual}
    defaults = {"activation": "linear", "use_bias": False, "residual": False}
    return {"units": units, **{n: v for n, v in chosen.items() if v != defaults[n]}}


def _read_modules(files: FolderFiles, form: str) -> list[Module]:
    """Read and validate all modules."""
    modules = theirs.read_modules(files)
    kinds = [module.kind for module in modules]
    allowed = {
        _PYLATE: {"Dense"},
        _ST: {"Dense", "MultiVectorMask", "Normalize"},
        _ENCODER: {"Pooling", "Dense", "Normalize"},
    }[form]
    if kinds[:1] != ["Transformer"] or not set(kinds[1:]) <= allowed:
        raise ValueError(
            f"{files.path / MODULES}: the modules are {', '.join(kinds) or 'none'}. Expected a "
            f"Transformer, optionally followed by {', '.join(sorted(allowed))}."
        )
    for module in theirs.select_modules(modules, "Normalize"):
        check_normalize(files, module, SENTENCE if form == _ENCODER else TOKEN_OUTPUTS)
    return modules


def make_hybrid_files(
    dense: keras.Model, terms: keras.Model, tokens: keras.Model, dtype: object
) -> dict[str, bytes]:
    """Create the files of BGE-M3 that are saved next to the files of `TextEmbedder`.

    Args:
        dense: The `TextEmbedder` to save.
        terms: The `SparseEncoder` with token weights.
        tokens: The `LateInteraction` with token vectors.
        dtype: Dtype of the stored weights. If None, every weight keeps its dtype.

    Returns:
        A dict {file name: content}.

    Raises:
        ValueError: If the BGE-M3 format does not support a setting.
    """
    found = (terms.pooling, terms.similarity_function), tokens.similarity_function
    expected = ("token_weights", "dot"), "meanmaxsim"
    if found != expected:
        raise ValueError(
            "(terms.pooling, terms.similarity_function), tokens.similarity_function are "
            f"{found}, but the BGE-M3 format can only store {expected}. To keep other settings, "
            "save the models separately."
        )
    files = _make_bge_m3_files(tokens, dtype)
    settings = make_embedder_settings(dense)
    if terms.max_terms:
        settings["max_active_dims"] = terms.max_terms
    return {
        SPARSE_LINEAR: encode_linear_file(terms.head, dtype),
        COLBERT_LINEAR: files[COLBERT_LINEAR],
        MODEL_SETTINGS: encode_json(settings),
    }


def _make_bge_m3_files(task: keras.Model, dtype: object) -> dict[str, bytes]:
    """Create the files of BGE-M3 for a `LateInteraction`."""
    preprocessor, [first, *others] = task.preprocessor, task.projection_layers
    plain = {"expand_queries": False, "skiplist": [], "query_marker": None, "document_marker": None}
    found = {name: getattr(preprocessor, name) for name in plain}
    plain |= {"projections": 1, "activation": "linear", "residual": False}
    found |= {"projections": 1 + len(others)}
    found |= {name: getattr(first, name) for name in ("activation", "residual")}
    for name, expected in plain.items():
        if found[name] != expected:
            raise ValueError(
                f"`{name}` is {quote(found[name])}, but the files of BGE-M3 (score_first=False) "
                f"can only store {expected!r}."
            )
    settings = {
        "prompts": dict(preprocessor.prompts),
        "query_length": preprocessor.get_max_length("query"),
        "document_length": preprocessor.get_max_length("document"),
        "similarity_fn_name": task.similarity_function,
    }
    length = max(preprocessor.get_max_length("query"), preprocessor.get_max_length("document"))
    files = {MODEL_SETTINGS: settings, TRANSFORMER_SETTINGS[0]: theirs.make_length_json(length)}
    return encode_json_files({**files, COLBERT_LINEAR: encode_linear_file(first, dtype)})


def _make_pylate_settings(task: keras.Model) -> dict[str, object]:
    """Create the model settings of PyLate. Without a preprocessor, the defaults are written."""
    preprocessor, longest = task.preprocessor, task.backbone.max_sequence_length
    settings = {"model_type": _PYLATE, "default_prompt_name": None}
    settings["similarity_fn_name"] = _SIMILARITIES[task.similarity_function]
    if preprocessor is None:
        words = list(string.punctuation)
        return {**settings, "document_length": longest, "prompts": {}, "skiplist_words": words}
    settings |= {
        "prompts": dict(preprocessor.prompts),
        "query_prefix": preprocessor.query_marker or "",
        "document_prefix": preprocessor.document_marker or "",
        "query_length": preprocessor.query_length or longest,
        "document_length": preprocessor.document_length or longest,
        "do_query_expansion": preprocessor.expand_queries,
        "attend_to_expansion_tokens": preprocessor.attend_to_expansion,
        "skiplist_words": list(preprocessor.skiplist),
    }
    if 0 < preprocessor.expanded_length < preprocessor.get_max_length("query"):
        # Only sentence-transformers reads this field. PyLate always expands to the full length.
        settings["query_expansion"] = {
            "strategy": "min",
            "attend": preprocessor.attend_to_expansion,
            "length": preprocessor.expanded_length,
        }
    return settings
