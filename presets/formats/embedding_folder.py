"""Read and write folders of text embedding models from sentence-transformers.

Folders are written in the layout of versions 2 to 5.3, which version 6 can also read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from encoder_zoo.common.lazy import keras
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.files.json_data import encode_json_files
from encoder_zoo.presets.formats import embedding_modules, preset_files
from encoder_zoo.presets.formats import sentence_transformers as theirs
from encoder_zoo.presets.formats.checkpoint import Checkpoint, Preset, warn_new_weights
from encoder_zoo.presets.formats.preset_task import FolderFormat
from encoder_zoo.presets.formats.static_folder import StaticCheckpoint, make_static_files

logger = logging.getLogger("encoder_zoo")

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_TYPES = "sentence_transformers.models."
_ADVICE = (
    " The `pooling` argument does not match the dense layers of the preset. Remove this argument, "
    "or also pass dense=()."
)


class EmbeddingFolderFormat(FolderFormat):
    """Folder format of `TextEmbedder`, as in SentenceTransformer of sentence-transformers.

    A folder without `modules.json` only contains an encoder. If neither the caller nor
    `list_presets()` defines the pooling, the default pooling is used with a warning.
    """

    opened_by = "SentenceTransformer"
    settings = ("pooling", "dense", "normalize", "dim", "similarity_function")
    settings += ("max_length", "prompts", "default_prompt", "include_prompt")

    def read_arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        files = checkpoint.files.root
        names = ("pooling", "normalize")
        listed = {n: v for n, v in checkpoint.listed_settings.items() if n in names}
        is_static = isinstance(checkpoint, StaticCheckpoint)
        if is_static and preset_files.MODULES not in files:
            return {"pooling": "mean", "normalize": False, **checkpoint.read_model2vec_arguments()}
        if preset_files.MODULES not in files:
            if "pooling" not in {**listed, **given}:
                logger.warning(
                    "%s does not specify a pooling method. Using the default, pooling='mean'.",
                    checkpoint.folder.name,
                )
            return listed
        _, *others = theirs.read_embedding_modules(files)
        width, pooling = checkpoint.get_size("hidden_dim"), "mean"
        if not is_static:
            pooling_module, *others = others
            theirs.check_transformer(checkpoint.files, "feature-extraction")
            pooling, _ = embedding_modules.read_pooling(files, pooling_module, width)
            width *= 1 if isinstance(pooling, str) else len(pooling)
        dense = embedding_modules.read_dense_layers(files, others, width)
        width = dense[-1]["units"] if dense else width
        normalizing = theirs.select_modules(others, "Normalize")
        for module in normalizing:
            embedding_modules.check_normalize(files, module)
        arguments = {"pooling": pooling, "dense": dense, "normalize": bool(normalizing)}
        arguments |= checkpoint.read_model2vec_arguments() if is_static else {}
        return {**arguments, **_read_model_arguments(files, width)}

    def read_preprocessor_arguments(self, preset: Preset, tokenizer) -> dict[str, object]:
        files, root = preset.files, preset.files.root
        if isinstance(preset, StaticCheckpoint):
            return {"max_length": preset.read_length(), **theirs.read_prompts(root)}
        theirs.check_case(files, tokenizer)
        names = ("prompts", "default_prompt")
        arguments = {n: v for n, v in preset.listed_settings.items() if n in names}
        arguments |= {"max_length": theirs.read_length(files), **theirs.read_prompts(root)}
        if (
            preset_files.MODULES in root
            and (modules := theirs.read_embedding_modules(root))[0].kind != theirs.STATIC
        ):
            pooling = modules[1]
            _, arguments["include_prompt"] = embedding_modules.read_pooling(root, pooling, None)
        return arguments

    def restore(self, task: keras.Model, checkpoint: Checkpoint, given: Mapping) -> set[str]:
        if not task.dense_layers:
            return set()
        if "dense" in given:
            message = "%s: the dense layers start from random weights."
            warn_new_weights(message, checkpoint.folder.name)
            return set()
        files = checkpoint.files.root
        modules = theirs.select_modules(theirs.read_embedding_modules(files), "Dense")
        for layer, module in zip(task.dense_layers, modules, strict=True):
            weights = embedding_modules.ModuleCheckpoint(files, module)
            embedding_modules.load_dense(layer, weights, _ADVICE)
        return set()

    def list_additional_weights(self, task: keras.Model) -> list[keras.Variable]:
        return [weight for layer in task.dense_layers for weight in layer.weights]

    def make_files(self, task: keras.Model, dtype: object = None) -> dict[str, bytes]:
        from encoder_zoo.encoders.families.token_table import TokenTable  # needs Keras

        is_static = isinstance(task.backbone, TokenTable)
        kinds = [theirs.STATIC] if is_static else ["Transformer", "Pooling"]
        kinds += ["Dense"] * len(task.dense_layers) + ["Normalize"] * task.normalize
        paths = ["." if is_static else "", *(f"{i}_{kind}" for i, kind in enumerate(kinds[1:], 1))]
        modules = [(path, f"{_TYPES}{kind}") for kind, path in zip(kinds, paths, strict=True)]
        files: dict[str, object] = {
            preset_files.MODULES: theirs.make_modules_json(modules),
            preset_files.MODEL_SETTINGS: make_embedder_settings(task),
        }
        if is_static:
            files |= make_static_files(task, dtype)
        else:
            length = (task.preprocessor or task.backbone).max_sequence_length
            files[preset_files.TRANSFORMER_SETTINGS[0]] = theirs.make_length_json(length)
            files[f"{paths[1]}/{preset_files.CONFIG}"] = _make_pooling_config(task)
        width = task.backbone.hidden_dim * len(_wrap_in_list(task.pooling))
        of_dense = [path for path in paths if path.endswith("_Dense")]
        files |= embedding_modules.make_dense_files(
            task.dense_layers, of_dense, width, "dense", dtype
        )
        return encode_json_files(files)


def _read_model_arguments(files: FolderFiles, width: int) -> dict[str, object]:
    similarity = theirs.read_similarity(files, SIMILARITIES)
    dim = theirs.read_count(files, "truncate_dim")
    dim = None if dim is None or dim >= width else dim
    return {"similarity_function": similarity, "dim": dim}


def make_embedder_settings(task: keras.Model) -> dict[str, object]:
    """Create the contents of `config_sentence_transformers.json` for a `TextEmbedder`."""
    return theirs.make_settings_json(task, "SentenceTransformer", truncate_dim=task.dim)


def _make_pooling_config(task: keras.Model) -> dict[str, object]:
    """Create the configuration of a Pooling module, for old versions of sentence-transformers.

    Version 2.2 rejects the fields of later versions, so these fields are only written if necessary.
    If vectors are concatenated in an unusual order, a list is written, which versions before 5.4
    reject.
    """
    modes, width = _wrap_in_list(task.pooling), task.backbone.hidden_dim
    if modes == [mode for mode in embedding_modules.POOLING_FLAGS.values() if mode in modes]:
        always = list(embedding_modules.POOLING_FLAGS.values())[:4]
        flags = {
            flag: mode in modes
            for flag, mode in embedding_modules.POOLING_FLAGS.items()
            if mode in (*always, *modes)
        }
        config = {"word_embedding_dimension": width, **flags}
    else:
        config = {"embedding_dimension": width, "pooling_mode": modes}
    includes_prompt = task.preprocessor is None or task.preprocessor.include_prompt
    return config if includes_prompt else {**config, "include_prompt": False}


def _wrap_in_list(pooling: str | list[str]) -> list[str]:
    return [pooling] if isinstance(pooling, str) else pooling
