"""A folder of sentence-transformers' SparseEncoder as arguments of `SparseEncoder`, and back.

Written is the layout of versions 5.0 to 5.3, which later ones read as well. Token weights are read
from, and written to, `sparse_linear.pt`, as BGE-M3 has it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.files.json_data import json_bytes
from encoder_zoo.presets.formats import sentence_transformers as theirs
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.embedding_modules import (
    LinearFile,
    linear_bytes,
    read_splade_pooling,
)
from encoder_zoo.presets.formats.preset_files import (
    CONFIG,
    MODEL_SETTINGS,
    MODULES,
    SPARSE_LINEAR,
    TRANSFORMER_SETTINGS,
)
from encoder_zoo.presets.formats.sentence_transformers import Module

if TYPE_CHECKING:
    from encoder_zoo.presets.opening import TokenizerPreset

logger = logging.getLogger("encoder_zoo")

SIMILARITIES = ("dot", "cosine")
TOKEN_WEIGHTS = "token_weights"
# Of the vectors of texts and of tokens that BGE-M3 has beside the weights.
THEIRS_OF_VECTORS = ("cosine", "euclidean", "manhattan", "maxsim", "MaxSim", "meanmaxsim")
# Of `SparseEncoder` and its preprocessor, that these files hold.
ARGUMENTS = ("pooling", "activation", "max_terms", "similarity_function")
ARGUMENTS += ("max_length", "prompts", "default_prompt")
_TYPES = "sentence_transformers.sparse_encoder.models."


def encoder_arguments(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the arguments of `SparseEncoder` that a preset's files hold.

    A folder without a `SpladePooling` is an encoder, or a masked language model: {}.

    Args:
        checkpoint: the opened preset.

    Raises:
        ValueError: naming the file and what is expected there.
    """
    files = checkpoint.files.root
    modules = theirs.read_modules(files) if MODULES in files else []
    if not any(module.kind == "SpladePooling" for module in modules):
        if SPARSE_LINEAR not in checkpoint.files:
            return {}
        _token_weights(checkpoint)
        return {"pooling": TOKEN_WEIGHTS, **_model_arguments(files, THEIRS_OF_VECTORS)}
    _check_modules(files, modules, checkpoint.files)
    pooling, activation = read_splade_pooling(files, modules[1])
    return {"pooling": pooling, "activation": activation, **_model_arguments(files)}


def _model_arguments(files: FolderFiles, of_others: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the number of terms and the similarity that a folder says.

    Args:
        files: of the whole folder.
        of_others: similarities of other vectors of the same folder, which say nothing of these.
    """
    settings, path = theirs.model_settings(files), files.path / MODEL_SETTINGS
    similarity, most = settings.get("similarity_fn_name"), settings.get("max_active_dims")
    similarity = None if similarity in of_others else similarity
    if similarity not in (None, *SIMILARITIES):
        raise ValueError(
            f"{path}: similarity_fn_name is {shown(similarity)}. Expected one of "
            f"{', '.join(SIMILARITIES)}."
        )
    if most is not None and (type(most) is not int or most < 1):
        raise ValueError(
            f"{path}: max_active_dims is {shown(most)}. Expected an integer of 1 or more."
        )
    return {"max_terms": most, "similarity_function": similarity or "dot"}


def _token_weights(checkpoint: Checkpoint) -> LinearFile:
    """Return the layer of token weights, checked.

    Raises:
        ValueError: ".../sparse_linear.pt: weight makes 3 numbers of a token. Expected one.", and
            see `LinearFile`.
    """
    layer = LinearFile(checkpoint.files, SPARSE_LINEAR)
    if layer.units != 1:
        raise ValueError(
            f"{checkpoint.folder / SPARSE_LINEAR}: weight makes {layer.units} numbers of a token. "
            "Expected one."
        )
    layer.check_width(checkpoint.config[checkpoint.family.config_keys["hidden_dim"]])
    return layer


def restore_token_weights(
    layer: keras.layers.Layer, checkpoint: Checkpoint, allow_nonfinite: bool
) -> None:
    """Load the weights of the layer of token weights; logs it where a preset has none.

    Args:
        layer: a `Projection`.
        checkpoint: the opened preset.
        allow_nonfinite: see `Safeguards`.
    """
    if SPARSE_LINEAR in checkpoint.files:
        _token_weights(checkpoint).load(layer, allow_nonfinite)
        return
    message = "%s: the layer of token weights starts from random weights. Fine-tune before use."
    logger.warning(message, checkpoint.folder.name)


def _check_modules(files: FolderFiles, modules: list[Module], encoder: FolderFiles) -> None:
    """Raise an error for other modules than a masked language model and its pooling."""
    kinds = [module.kind for module in modules]
    if kinds not in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
        raise ValueError(
            f"{files.path / MODULES}: the modules are {', '.join(kinds)}. Expected an "
            "MLMTransformer, or a Transformer, and a SpladePooling, in this order."
        )
    name, settings = theirs.transformer_settings(encoder)
    if kinds[0] == "Transformer" and "transformer_task" not in settings:
        raise ValueError(
            f"{encoder.path / name}: transformer_task is missing, and the Transformer has no head "
            "then. Expected 'fill-mask'."
        )
    theirs.check_transformer(encoder, "fill-mask")


def preprocessor_arguments(preset: Checkpoint | TokenizerPreset, tokenizer) -> dict[str, object]:
    """Return the arguments of `SparseEncoderPreprocessor` that a preset's files hold.

    Args:
        preset: opened.
        tokenizer: of the preset.

    Raises:
        ValueError: naming the file and what is expected there.
    """
    theirs.check_case(preset.files, tokenizer)
    length = theirs.read_length(preset.files)
    return {"max_length": length, **theirs.read_prompts(preset.files.root)}


def encoder_files(task: keras.Model, dtype: object = None) -> dict[str, bytes]:
    """Return the files of sentence-transformers for a `SparseEncoder`, or those of BGE-M3.

    Args:
        task: the encoder.
        dtype: of the layer of token weights; None stores it in its own.

    Returns:
        {path in the folder: contents}.
    """
    preprocessor = task.preprocessor
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_TYPES}{kind}"}
        for i, (kind, path) in enumerate(
            [("MLMTransformer", ""), ("SpladePooling", "1_SpladePooling")]
        )
    ]
    settings = {
        "model_type": "SparseEncoder",
        "prompts": preprocessor.prompts if preprocessor else {},
        "default_prompt_name": preprocessor.default_prompt if preprocessor else None,
        "similarity_fn_name": task.similarity_function,
        **({"max_active_dims": task.max_terms} if task.max_terms else {}),
    }
    length = (preprocessor or task.backbone).max_sequence_length
    of_encoder = {
        MODEL_SETTINGS: settings,
        TRANSFORMER_SETTINGS[0]: {"max_seq_length": length, "do_lower_case": False},
    }
    if task.pooling == TOKEN_WEIGHTS:
        files = {name: json_bytes(value) for name, value in of_encoder.items()}
        return {**files, SPARSE_LINEAR: linear_bytes(task.head, dtype)}
    pooling = {
        "pooling_strategy": task.pooling,
        "activation_function": task.activation,
        "word_embedding_dimension": task.backbone.vocabulary_size,
    }
    files = {
        MODULES: modules,
        **of_encoder,
        f"1_SpladePooling/{CONFIG}": pooling,
    }
    return {name: json_bytes(value) for name, value in files.items()}
