"""Convert models of this package to KerasHub models with the same outputs, and back."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from encoder_zoo.common.layers import list_direct_weights
from encoder_zoo.common.lazy import keras
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import CustomHeadRecord
from encoder_zoo.encoders.layers import ACTIVATIONS
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.extras.formats.kerashub_names import KERAS_HUB, KerasHubNames
from encoder_zoo.presets.formats import checkpoint
from encoder_zoo.presets.formats.preset_task import PresetTask
from encoder_zoo.presets.model_card import Description, Library
from encoder_zoo.presets.saving import replace_preset

logger = logging.getLogger("encoder_zoo")

KERAS_HUB_LIBRARY = Library(
    "KerasHub", "keras_hub.models.{cls}.from_preset({name})", "import keras_hub", "Keras 3"
)

_POSITIONS, _SEGMENTS = "embeddings.position_embedding", "embeddings.segment_embedding"
# Tokenizer settings that KerasHub cannot store. Only these values are supported.
_TOKENIZER_BUILT_IN = {"added_tokens": [], "special_tokens_in_text": False}
_TOKENIZER_BUILT_IN |= {"truncation_side": "right", "padding_side": "right"}
_SPECIAL_IDS = ("start_token_id", "end_token_id", "pad_token_id", "mask_token_id")


def load_from_keras_hub(cls: type, model: keras.Model, **arguments: Any) -> Any:
    """Convert a KerasHub model. See `Backbone.from_keras_hub` and `Task.from_keras_hub`."""
    described = f"{type(model).__module__}.{type(model).__name__}"
    if not described.startswith("keras_hub.") or not hasattr(model, "save_to_preset"):
        raise TypeError(f"`model` is a {described}. Expected a model from keras_hub.models.")
    arguments = {"dtype": model.dtype_policy, "max_bytes": sys.maxsize, **arguments}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / model.name
        model.save_to_preset(str(folder))
        return cls.from_preset(folder, **arguments)


def save_for_keras_hub(
    model: Backbone | PresetTask,
    tokenizer: Tokenizer | None,
    dtype: str | None,
    folder: str | os.PathLike,
    settings: dict,
    about: Description,
) -> None:
    """Save a model as a KerasHub preset, with a manifest and a model card.

    Args:
        model: Backbone or task to save.
        tokenizer: Optional tokenizer to save with a backbone.
        dtype: Optional string. The weight dtype. If None, the model dtype is used.
        folder: Path. Folder to write or replace.
        settings: Dict. The fields to write to the manifest.
        about: The `Description` for the model card.
    """
    labels = ()
    if isinstance(model, Backbone):
        parts = [make_keras_hub_backbone(model, dtype)]
        parts += [] if tokenizer is None else [convert_tokenizer(tokenizer, model)]
    else:
        parts = [make_keras_hub_task(model, dtype)]
        if model.problem_type:
            labels = tuple(model.labels or ())
            head = {"labels": model.labels, "problem_type": model.problem_type}
            settings = {**settings, "head": head}
    usage = about.usage._replace(
        library=KERAS_HUB_LIBRARY, library_class_name=type(parts[0]).__name__
    )
    dtype = parts[0].dtype_policy.variable_dtype
    about = about._replace(usage=usage, labels=labels, dtype=dtype)
    with replace_preset(folder, settings, about) as new:
        for part in parts:
            part.save_to_preset(str(new))


def make_keras_hub_backbone(backbone: Backbone, dtype: str | None = None) -> keras.Model:
    """Convert a backbone to a KerasHub backbone with the same weights.

    Args:
        backbone: The `Backbone` to convert.
        dtype: Optional string. Dtype of the new model. If None, the dtype policy of the backbone is
            used.

    Raises:
        ValueError: If KerasHub does not support the family or a backbone setting.
    """
    names = _get_names(backbone)
    _check_built_in(names.backbone, names.built_in, backbone)
    if backbone.attention_dropout != backbone.dropout:
        logger.warning(
            "In KerasHub, %s only has a single dropout rate, which is set to %s. The value "
            "attention_dropout=%s is not saved.",
            names.backbone,
            backbone.dropout,
            backbone.attention_dropout,
        )
    cls = _get_class(names.backbone)
    parameters = inspect.signature(cls).parameters
    arguments: dict[str, object] = {}
    for ours in backbone.family.config_keys:
        theirs, value = names.arguments.get(ours, ours), getattr(backbone, ours)
        if theirs in parameters:
            _check_built_in(names.backbone, {ours: arguments.get(theirs, value)}, backbone)
            arguments[theirs] = value
    there = cls(**arguments, dtype=dtype or backbone.dtype_policy)
    groups = checkpoint.number_block_names(names.groups, checkpoint.map_block_indices(backbone))
    if not backbone.pooler and hasattr(there, "pooled_dense"):
        groups.pop("pooler_dense", None)
        logger.warning(
            "In KerasHub, %s always has a pooler. The backbone has no pooler, so a pooler with "
            "random weights is saved.",
            names.backbone,
        )
    tables = {path: groups.pop(path) for path in list(groups) if path.endswith(_POSITIONS)}
    _copy_weights(backbone, there, groups)
    for path, group in tables.items():
        table = _make_positions(backbone, path, with_segment=_SEGMENTS not in groups)
        _find_layer(there, group).weights[0].assign(table)
    return there


def convert_tokenizer(tokenizer, backbone: Backbone) -> keras.layers.Layer:
    """Convert a tokenizer to a KerasHub tokenizer with the same vocabulary and settings.

    Token ids can differ, because KerasHub case-folds texts. For example, "ß" becomes "ss".

    Args:
        tokenizer: The `Tokenizer` to convert.
        backbone: The `Backbone` to use with the tokenizer, which determines the KerasHub class.

    Raises:
        ValueError: If KerasHub uses a different tokenizer class for this backbone, or does not
            support all tokenizer settings.
    """
    names, kind = _get_names(backbone), backbone.family.tokenizer
    if type(tokenizer) is not kind.load():
        raise ValueError(
            f"In KerasHub, a {names.backbone} cannot use a {type(tokenizer).__name__}. Expected a "
            f'{kind.name} ({names.tokenizer}). To save this tokenizer, use format="huggingface".'
        )
    built_in = {**_TOKENIZER_BUILT_IN, **names.tokenizer_built_in}
    if (tokenizer.model_max_length or backbone.max_sequence_length) < backbone.max_sequence_length:
        built_in["model_max_length"] = None
    _check_built_in(names.tokenizer, built_in, tokenizer)
    arguments = {word: getattr(tokenizer, ours) for word, ours in names.tokenizer_arguments.items()}
    there = _get_class(names.tokenizer)(**arguments)
    ids = {name: getattr(there, name) for name in _SPECIAL_IDS if hasattr(there, name)}
    _check_built_in(names.tokenizer, ids, tokenizer)
    return there


def make_keras_hub_task(task: PresetTask, dtype: str | None = None) -> keras.Model:
    """Convert a task to a KerasHub task with the same weights and preprocessor.

    Args:
        task: `SequenceClassifier` or `MaskedLM` to convert.
        dtype: Optional string. Dtype of the new model. If None, the dtype policy of the backbone is
            used.

    Raises:
        ValueError: If KerasHub does not support the task, the family or a setting.
    """
    backbone, names = task.backbone, _get_names(task.backbone)
    record = names.heads.get(task.record.head)
    if record is None or task.record.folder.opened_by:
        raise ValueError(
            f"KerasHub has no {type(task).__name__} for {names.backbone}. Save only the backbone: "
            "task.backbone.save_to_preset(folder, tokenizer=task.preprocessor.tokenizer, "
            'format="keras_hub").'
        )
    if isinstance(task.head_record, CustomHeadRecord):
        raise ValueError(
            "KerasHub does not support custom heads. Save the task as a .keras file, or use "
            'format="huggingface".'
        )
    _check_built_in(record.task, record.built_in, task)
    arguments = {}
    if task.num_classes:
        arguments = {"num_classes": task.num_classes, "dropout": task.dropout}
    cls = _get_class(record.task)
    preprocessor = None
    if task.preprocessor is not None:
        tokenizer = convert_tokenizer(task.preprocessor.tokenizer, backbone)
        length = task.preprocessor.sequence_length or backbone.max_sequence_length
        preprocessor = cls.preprocessor_cls(tokenizer, sequence_length=length)
    there = cls(make_keras_hub_backbone(backbone, dtype), preprocessor=preprocessor, **arguments)
    _copy_weights(task, there, record.groups)
    return there


def _get_names(backbone: Backbone) -> KerasHubNames:
    if backbone.family.name not in KERAS_HUB:
        raise ValueError(
            f"{type(backbone).__name__} cannot be converted to KerasHub. Save it with "
            'format="huggingface".'
        )
    return KERAS_HUB[backbone.family.name]


def _get_class(name: str) -> type:
    return getattr(importlib.import_module("keras_hub").models, name)


def _check_built_in(theirs: str, built_in: Mapping[str, object], model: object) -> None:
    """Raise a ValueError if a setting differs from the value that KerasHub hard-codes."""
    for name, value in built_in.items():
        found = getattr(model, name)
        same_function = name.endswith("activation") and ACTIVATIONS[found] is ACTIVATIONS[value]
        if found != value and not same_function:
            advice = ' Save with format="huggingface".'
            if isinstance(model, keras.Model):
                advice = (
                    f" To use the KerasHub value, load the model with from_preset(..., "
                    f"{name}={value!r}), check the outputs, and save the model."
                )
            raise ValueError(
                f"The {type(model).__name__} has {name}={found!r}, but in KerasHub, {theirs} "
                f"always uses {name}={value!r}. The outputs would be different.{advice}"
            )


def _copy_weights(model: keras.Model, there: keras.Model, groups: Mapping[str, str]) -> None:
    """Copy weights from a model to the corresponding KerasHub model.

    Args:
        model: Model to copy from.
        there: KerasHub model to copy to.
        groups: Dict that maps attribute paths in `model` to group names in KerasHub weight files.
    """
    for path, group in groups.items():
        checkpoint.check_not_quantized(model, path)
        values = _list_weights(model, path)
        if not values:  # an optional layer
            continue
        targets = list_direct_weights(_find_layer(there, group))
        for target, value in zip(targets, values, strict=True):
            # KerasHub's attention kernels have an additional axis for the heads.
            target.assign(np.reshape(keras.ops.convert_to_numpy(value), target.shape))


def _list_weights(model: keras.Model, path: str) -> list[keras.Variable]:
    """List the weights of the layer at an attribute path, with merged LoRA updates."""
    return [weight for weight, _ in checkpoint.map_weights(model, {path: path}).values()]


def _make_positions(backbone: Backbone, path: str, with_segment: bool) -> np.ndarray:
    """Compute position embeddings of shape (max_sequence_length, D) for KerasHub.

    Unused first positions are removed. If KerasHub has no segment embedding for this family, the
    embedding of segment 0 is added to all positions.
    """
    [table] = map(keras.ops.convert_to_numpy, _list_weights(backbone, path))
    table = table[len(table) - backbone.max_sequence_length :]
    if with_segment and backbone.embeddings.segment_embedding is not None:
        [segments] = map(keras.ops.convert_to_numpy, _list_weights(backbone, _SEGMENTS))
        table = table + segments[0]
    return table


def _find_layer(model: keras.Model, group: str) -> keras.layers.Layer:
    """Find a layer by its group name in weight files. "dense_1" is the second `Dense` layer."""
    first, *inner = group.split("/")
    kind, number = re.fullmatch(r"(\w+?)(?:_(\d+))?", first).groups()
    alike = [
        layer for layer in model.layers if _convert_to_snake_case(type(layer).__name__) == kind
    ]
    layer = alike[int(number or 0)]
    for name in inner:
        layer = getattr(layer, name)
    return layer


def _convert_to_snake_case(name: str) -> str:
    """Convert a class name to snake case, as Keras does for default layer names.

    Example:
        >>> _convert_to_snake_case("MaskedLMHead")
        'masked_lm_head'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<!^)(?=[A-Z][a-z])", "_", name).lower()
