"""From a model to a folder in the Hugging Face format."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import re
from collections.abc import Mapping

import keras
import ml_dtypes
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.configured import argument_names
from encoder_zoo.presets.config import CONFIG_KEYS
from encoder_zoo.presets.files.atomic import replacing
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.presets.files.plain_files import FILES
from encoder_zoo.presets.formats.checkpoint import backbone_layers, layer_at, named_weights
from encoder_zoo.presets.model_card import model_card
from encoder_zoo.tasks.training.recipe import LEARNING_RATE

SHARD_BYTES = 5_000_000_000
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def save_backbone(
    backbone: Backbone,
    folder: str | os.PathLike,
    tokenizer=None,
    dtype=None,
    shard_bytes=SHARD_BYTES,
) -> None:
    """See `Backbone.save_to_preset`."""
    weights = _weights(backbone, backbone_layers(backbone))
    config = {"architectures": [f"{backbone.family.checkpoint_class_prefix}Model"]}
    settings = {"task": "backbone"}
    _save(folder, backbone, config, weights, settings, tokenizer, dtype, shard_bytes)


def save_task(task, folder: str | os.PathLike, dtype=None, shard_bytes=SHARD_BYTES) -> None:
    """See `Task.save_to_preset`."""
    backbone = task.backbone
    family = backbone.family
    weights = {
        **_weights(backbone, backbone_layers(backbone), prefix=f"{family.name}."),
        **_weights(task, family.head_tensors[task.task_name]),
    }
    config = {
        "architectures": [family.checkpoint_class_prefix + task.checkpoint_class_suffix],
        **_label_config(task),
    }
    settings = {"task": task.task_name}
    if task.learning_rate != LEARNING_RATE:
        settings["learning_rate"] = task.learning_rate
    tokenizer = None
    if task.preprocessor is not None:
        tokenizer = task.preprocessor.tokenizer
        settings["preprocessor"] = _preprocessor_settings(task.preprocessor)
    _save(folder, backbone, config, weights, settings, tokenizer, dtype, shard_bytes)


def _save(folder, backbone, config, weights, settings, tokenizer, dtype, shard_bytes) -> None:
    dtypes = {name: _dtype(dtype, weight) for name, (weight, _) in weights.items()}
    config = {**config, **_backbone_config(backbone, tokenizer), "dtype": _main(dtypes)}
    with replacing(folder, [*FILES, "README.md"]) as new:
        _write_json(new / "config.json", config)
        _write_weights(new, weights, dtypes, shard_bytes)
        if tokenizer is not None:
            from encoder_zoo.presets.tokenizer_files import write_tokenizer

            write_tokenizer(tokenizer, new)
        name = pathlib.Path(folder).resolve().name
        model_card(new / "README.md", pathlib.Path(folder) / "README.md", name, config, settings)
        write_manifest(new, settings)


# -- config.json -------------------------------------------------------------------------------


def _backbone_config(backbone: Backbone, tokenizer) -> dict:
    """A backbone's configuration in config.json's words."""
    config = {"model_type": backbone.family.name}
    for ours, theirs in CONFIG_KEYS.items():
        if hasattr(backbone, ours):
            config[theirs] = getattr(backbone, ours)
    if backbone.family.positions_skip_padding:
        config["max_position_embeddings"] += backbone.pad_token_id + 1
    if tokenizer is not None:
        config["pad_token_id"] = tokenizer.pad_token_id
        if backbone.family.name == "roberta":
            config["bos_token_id"] = tokenizer.start_token_id
            config["eos_token_id"] = tokenizer.end_token_id
    return {**config, "position_embedding_type": "absolute", "initializer_range": 0.02}


def _label_config(task) -> dict:
    """What a task knows of its classes, in config.json's words."""
    config = {}
    if getattr(task, "num_classes", None):
        labels = task.labels or [f"LABEL_{i}" for i in range(task.num_classes)]
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
    if hasattr(task, "problem_type"):
        config["problem_type"] = task.problem_type
    if hasattr(task, "dropout"):
        config["classifier_dropout"] = task.dropout
    return config


def _preprocessor_settings(preprocessor) -> dict:
    names = [name for name in argument_names(type(preprocessor)) if name != "tokenizer"]
    return {name: getattr(preprocessor, name) for name in names}


def _write_json(path: pathlib.Path, value: Mapping) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


# -- model.safetensors -------------------------------------------------------------------------

Weights = dict[str, tuple[keras.Variable, bool]]


def _weights(model: keras.Model, layers: Mapping[str, str], prefix: str = "") -> Weights:
    """{name in the file: (weight, whether the file holds its transpose)}."""
    for path in layers:
        _refuse_quantized(model, path)
    return {prefix + name: rest for name, *rest in named_weights(model, layers)}


def _refuse_quantized(model: keras.Model, path: str) -> None:
    mode = getattr(layer_at(model, path), "quantization_mode", None)
    if mode is not None:
        raise ValueError(
            f"{path} is quantized ({mode}), which the Hugging Face format of these models does not "
            "hold. Save the preset before quantizing, or save the model with .save('...keras')."
        )


def _dtype(wanted: str | None, weight) -> str:
    """Name of the type to store a weight in."""
    if wanted is not None and wanted not in DTYPES:
        raise ValueError(f"Unknown dtype {wanted!r}. Expected one of {', '.join(DTYPES)} or None.")
    return wanted or keras.backend.standardize_dtype(weight.dtype)


def _main(dtypes: Mapping[str, str]) -> str:
    """The type that most tensors have."""
    names = list(dtypes.values())
    return max(set(names), key=names.count)


def _array(weight, transposed: bool, dtype: str) -> np.ndarray:
    value = keras.ops.convert_to_numpy(weight)
    return np.ascontiguousarray(value.T if transposed else value, DTYPES[dtype])


def _write_weights(folder: pathlib.Path, weights: Weights, dtypes: dict, shard_bytes: int) -> None:
    """One file, or several with an index where one would be larger than `shard_bytes`."""
    sizes = {
        name: int(np.prod(weight.shape)) * np.dtype(DTYPES[dtypes[name]]).itemsize
        for name, (weight, _) in weights.items()
    }
    shards = _shards(sizes, shard_bytes)
    names = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        file = "model.safetensors" if len(shards) == 1 else file
        arrays = {name: _array(*weights[name], dtypes[name]) for name in shard}
        try:
            # Readers for torch look for this word before they open a file.
            save_file(arrays, folder / file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise _as_os_error(error) from error
        names |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": names}
        _write_json(folder / "model.safetensors.index.json", index)


def _as_os_error(error: SafetensorError) -> OSError:
    """What the system said, which safetensors tells only in words."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]) if number else errno.EIO, str(error))


def _shards(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names in order, cut where a shard would grow over the limit.

    Example:
        >>> _shards({"a": 3, "b": 3, "c": 9, "d": 1}, limit=6)
        [['a', 'b'], ['c'], ['d']]
    """
    shards, total = [[]], 0
    for name, size in sizes.items():
        if shards[-1] and total + size > limit:
            shards.append([])
            total = 0
        shards[-1].append(name)
        total += size
    return shards
