"""Low-rank updates of a task, alone, in the files of peft: `adapter_config.json` and
`adapter_model.safetensors`."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Sequence

import keras
import numpy as np
from safetensors.numpy import load_file, save_file

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.files.atomic import replacing
from encoder_zoo.presets.files.plain_files import preset_file, read_json
from encoder_zoo.presets.formats.checkpoint import backbone_layers, layer_at, named_weights
from encoder_zoo.presets.preset_task import PresetTask

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
TASK_TYPES = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
}
# What peft may add to the updates, and the value with which it adds nothing.
PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
}


def projections(backbone: Backbone) -> dict[str, keras.layers.Dense]:
    """{name in the checkpoint: layer} of what low-rank updates may go to."""
    found = {name: layer_at(backbone, path) for path, name in backbone_layers(backbone).items()}
    return {
        name: layer
        for name, layer in found.items()
        if isinstance(layer, keras.layers.Dense) and re.search(r"\.\d+\.", name)
    }


def enable_lora(task: PresetTask, rank: int, layers: Sequence[str], alpha: float | None) -> None:
    """See `Task.enable_lora`."""
    chosen = {
        name: layer
        for name, layer in projections(task.backbone).items()
        if layer.name.removesuffix("_dense") in layers
    }
    known = {layer.name.removesuffix("_dense") for layer in projections(task.backbone).values()}
    unknown = sorted(set(layers) - known)
    if unknown or not chosen:
        raise ValueError(
            f"There is no layer {', '.join(unknown) or layers}. Expected some of "
            f"{', '.join(sorted(known))}."
        )
    _enable(task, chosen.values(), rank, alpha)


def _enable(task: PresetTask, layers, rank: int, alpha: float | None) -> None:
    backbone = task.backbone
    for layer in backbone._flatten_layers(include_self=False):
        if not list(layer._flatten_layers(include_self=False)):
            layer.trainable = False
    if backbone.family.head(task.checkpoint_class_suffix).pooled:
        backbone.pooler_dense.trainable = True
    for layer in layers:
        layer.trainable = True
        if not layer.lora_enabled:
            layer.enable_lora(rank, lora_alpha=alpha)
        for weight in (layer._kernel, layer.bias):  # biases stay, too: peft's bias="none"
            if weight is not None:
                weight.trainable = False


def save_adapters(task: PresetTask, folder: str | os.PathLike) -> None:
    """See `Task.save_adapters`."""
    family = task.backbone.family
    layers = {n: layer for n, layer in projections(task.backbone).items() if layer.lora_enabled}
    if not layers:
        raise ValueError("There are no low-rank updates to save. Call enable_lora first.")
    if any(layer.bias is not None and layer.bias.trainable for layer in layers.values()):
        raise ValueError(
            "Beside the low-rank updates their layers' biases are trained, which adapters alone do "
            "not hold. Call enable_lora of the task, and not of its backbone."
        )
    tensors = {f"{family.prefix}.{name}": pair for name, pair in _updates(layers).items()}
    arrays = {
        f"{PREFIX}{name}.lora_{which}.weight": array
        for name, pair in tensors.items()
        for which, array in zip("AB", pair, strict=True)
    }
    whole = _whole_tensors(task)
    for name, weight, transposed in whole:
        value = keras.ops.convert_to_numpy(weight)
        arrays[PREFIX + name] = np.ascontiguousarray(value.T if transposed else value)
    first = next(iter(layers.values()))
    config = {
        **PLAIN,
        "task_type": TASK_TYPES[task.checkpoint_class_suffix],
        "base_model_name_or_path": None,
        "r": first.lora_rank,
        "lora_alpha": first.lora_alpha,
        "lora_dropout": 0.0,
        "inference_mode": True,
        "target_modules": sorted({re.sub(r"^.*?\.\d+\.", "", name) for name in layers}),
        "modules_to_save": sorted({_module(name, family.prefix) for name, *_ in whole}),
    }
    with replacing(folder, [CONFIG, WEIGHTS]) as new:
        (new / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(arrays, new / WEIGHTS, metadata={"format": "pt"})


def _updates(layers: dict[str, keras.layers.Dense]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{name: (A, B)} as torch keeps them, (rank, in) and (out, rank)."""
    return {
        name: tuple(
            np.ascontiguousarray(keras.ops.convert_to_numpy(kernel).T)
            for kernel in (layer.lora_kernel_a, layer.lora_kernel_b)
        )
        for name, layer in layers.items()
    }


def _whole_tensors(task: PresetTask) -> list[tuple]:
    """(name, weight, whether it is transposed in the file): of the head, and of its pooler."""
    if task.checkpoint_class_suffix not in TASK_TYPES:
        raise ValueError(
            "Adapters alone are saved of a SequenceClassifier or a TokenClassifier. Received: a "
            f"{type(task).__name__}. Use save_to_preset."
        )
    backbone, head = task.backbone, task.backbone.family.head(task.checkpoint_class_suffix)
    found = list(named_weights(task, head.tensors))
    if head.pooled:
        layers = {"pooler_dense": f"{backbone.family.prefix}.{backbone.family.pooler}"}
        found += named_weights(backbone, layers)
    return found


def _module(name: str, prefix: str) -> str:
    """The module of transformers' model that holds a tensor."""
    return name.removeprefix(f"{prefix}.").split(".")[0]


def load_adapters(task: PresetTask, folder: str | os.PathLike) -> None:
    """See `Task.load_adapters`."""
    folder = pathlib.Path(folder)
    config = read_json(preset_file(folder, CONFIG))
    arrays = load_file(preset_file(folder, WEIGHTS))
    for name, plain in PLAIN.items():
        if config.get(name, plain) not in (plain, None):
            raise ValueError(
                f"{folder}: {name} is {config[name]!r} in {CONFIG}. Only plain LoRA is supported, "
                f"with {plain!r}."
            )
    prefix = f"{PREFIX}{task.backbone.family.prefix}."
    chosen = {
        name: layer
        for name, layer in projections(task.backbone).items()
        if f"{prefix}{name}.lora_A.weight" in arrays
    }
    whole = {PREFIX + name: rest for name, *rest in _whole_tensors(task)}
    whole = {name: rest for name, rest in whole.items() if name in arrays}
    pairs = [f"{prefix}{name}.lora_{which}.weight" for name in chosen for which in "AB"]
    _refuse(folder, [f"+ {name} (unexpected)" for name in sorted({*arrays} - {*pairs, *whole})])
    _refuse(folder, [f"- {name} (missing)" for name in pairs if name not in arrays])
    _enable(task, chosen.values(), config["r"], config.get("lora_alpha"))
    kernels = [k for layer in chosen.values() for k in (layer.lora_kernel_a, layer.lora_kernel_b)]
    targets = whole | {name: (k, True) for name, k in zip(pairs, kernels, strict=True)}
    values = {n: arrays[n].T if transposed else arrays[n] for n, (_, transposed) in targets.items()}
    wrong = [n for n, (weight, _) in targets.items() if tuple(weight.shape) != values[n].shape]
    _refuse(folder, [f"- {name} (shape)" for name in wrong])
    for name, (weight, _) in targets.items():
        weight.assign(values[name])


def _refuse(folder: pathlib.Path, misfits: list[str]) -> None:
    if misfits:
        raise ValueError(f"{folder}: the adapters are not of this model.\n" + "\n".join(misfits))
