"""Reads and writes low-rank updates in the format of peft: `adapter_config.json` and
`adapter_model.safetensors`."""

from __future__ import annotations

import json
import os
import pathlib
import re

import keras
import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.validation import PositiveFloat, rule_of
from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.layers import Size
from encoder_zoo.encoders.training import train_updates
from encoder_zoo.presets.files.atomic import Kind, replacing
from encoder_zoo.presets.files.file_bytes import check_floats
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats.checkpoint import (
    backbone_layers,
    check_weights,
    float_values,
    layer_at,
    named_weights,
    stored_array,
)
from encoder_zoo.presets.formats.preset_task import PresetTask

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MANIFEST, ADAPTERS = "encoder_zoo_adapters.json", "adapters"  # peft ignores this file
PREFIX = "base_model.model."
# Options of peft with their values for plain LoRA. All others, also unknown ones, are null, false
# or empty there: `_check_config` refuses what may change the numbers.
PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
}
PEFT_ALPHA = 8  # where a file has no lora_alpha
# Values that change how A and B begin, before training, and no other weights.
INITIALIZERS = (True, False, None, "gaussian", "eva", "orthogonal")
# {option: why it does not change the numbers}
IRRELEVANT = {
    "r": "read",
    "lora_alpha": "read",
    "init_lora_weights": "read",
    "task_type": "the class that loads says the task, and the shapes of its head are checked",
    "auto_mapping": "names classes, which are not imported",
    "peft_version": "noted",
    "base_model_name_or_path": "noted; the shapes of all tensors are checked",
    "revision": "noted, of the base model",
    "inference_mode": "says whether updates are trained",
    "target_modules": "the names of the tensors say it",
    "exclude_modules": "the names of the tensors say it",
    "modules_to_save": "the names of the tensors say it; those that do not fit are refused",
    "layers_to_transform": "the names of the tensors say it",
    "layers_pattern": "the names of the tensors say it",
    "lora_dropout": "of training",
    "loftq_config": "of init_lora_weights, which is checked",
    "eva_config": "of init_lora_weights, which is checked",
    "corda_config": "of init_lora_weights, which is checked",
    "lora_ga_config": "of init_lora_weights, which is checked",
    "megatron_core": "names a module that is used with megatron_config, which is checked",
    "qalora_group_size": "of use_qalora, which is checked",
    "runtime_config": "where and when weights are computed",
    "ensure_weight_tying": "of modules_to_save, whose tensors are checked",
}


def projections(backbone: Backbone) -> dict[str, keras.layers.Dense]:
    """Return {name in the checkpoint: layer} of the dense layers of the blocks."""
    found = {name: layer_at(backbone, path) for path, name in backbone_layers(backbone).items()}
    return {
        name: layer
        for name, layer in found.items()
        if isinstance(layer, keras.layers.Dense) and re.search(r"\.\d+\.", name)
    }


def save_adapters(task: PresetTask, folder: str | os.PathLike) -> None:
    """See `Task.save_adapters`."""
    family = task.backbone.family
    layers = {n: layer for n, layer in projections(task.backbone).items() if layer.lora_enabled}
    if not layers:
        raise ValueError("There are no low-rank updates to save. Call enable_lora first.")
    # As in torch, A is (rank, in) and B is (out, rank).
    arrays = {
        f"{PREFIX}{family.prefix}.{name}.lora_{which}.weight": stored_array(kernel, transposed=True)
        for name, layer in layers.items()
        for which, kernel in (("A", layer.lora_kernel_a), ("B", layer.lora_kernel_b))
    }
    whole = _whole_tensors(task)
    for name, weight, transposed in whole:
        arrays[PREFIX + name] = stored_array(weight, transposed)
    first = next(iter(layers.values()))
    config = {
        **PLAIN,
        "task_type": task.peft_task_type,
        "base_model_name_or_path": None,
        "r": first.lora_rank,
        "lora_alpha": first.lora_alpha,
        "lora_dropout": 0.0,
        "inference_mode": True,
        "target_modules": sorted({re.sub(r"^.*?\.\d+\.", "", name) for name in layers}),
        "modules_to_save": sorted(
            {name.removeprefix(f"{family.prefix}.").split(".")[0] for name, *_ in whole}
        ),
    }
    kind = Kind("adapters", lambda manifest: manifest["task"] == ADAPTERS, MANIFEST)
    with replacing(folder, kind) as new:
        (new / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(arrays, new / WEIGHTS, metadata={"format": "pt"})
        write_manifest(new, {"task": ADAPTERS}, MANIFEST)


def _whole_tensors(task: PresetTask) -> list[tuple]:
    """Return (name, weight, whether the file has its transpose) of the head and its pooler."""
    if task.peft_task_type is None:
        raise ValueError(
            "Adapters alone are saved of a SequenceClassifier or a TokenClassifier. Received: a "
            f"{type(task).__name__}. Use save_to_preset."
        )
    backbone, head = task.backbone, task.head_record
    found = list(named_weights(task, head.tensors if task.head else {}))
    if head.pooled:
        layers = {"pooler_dense": f"{backbone.family.prefix}.{backbone.family.pooler}"}
        found += named_weights(backbone, layers)
    return found


def load_adapters(task: PresetTask, folder: str | os.PathLike) -> None:
    """See `Task.load_adapters`."""
    with OpenFolder(folder, [CONFIG, WEIGHTS]) as files:
        config = files.read_json(CONFIG)
        _check_config(config, files.path)
        _read_adapters(task, config, files)


def _read_adapters(task: PresetTask, config: dict, files: OpenFolder) -> None:
    file = SafetensorsFile(files.file(WEIGHTS))
    prefix = f"{PREFIX}{task.backbone.family.prefix}."
    chosen = {
        f"{prefix}{name}": layer
        for name, layer in projections(task.backbone).items()
        if f"{prefix}{name}.lora_A.weight" in file.shapes
    }
    output = f"{PREFIX}{task.head_record.output}.weight"
    if task.head is None and len(file.shapes.get(output, ())) == 2:
        task._set_classes(file.shapes[output][0], None)
    whole = {PREFIX + name: rest for name, *rest in _whole_tensors(task)}
    whole = {name: rest for name, rest in whole.items() if name in file.shapes}
    expected = {}
    for name, layer in chosen.items():
        inputs, outputs = layer.kernel.shape
        expected[f"{name}.lora_A.weight"] = (config["r"], inputs)
        expected[f"{name}.lora_B.weight"] = (outputs, config["r"])
    for name, (weight, transposed) in whole.items():
        expected[name] = tuple(weight.shape)[:: -1 if transposed else 1]
    _check_shapes(file, expected)
    values = {name: _values(file, name) for name in expected}
    files.check_unchanged()  # before anything of the task is changed
    alpha = config.get("lora_alpha", PEFT_ALPHA)
    train_updates(task.backbone, chosen.values(), config["r"], alpha)
    task.train_pooler()
    for name, layer in chosen.items():
        layer.lora_kernel_a.assign(values[f"{name}.lora_A.weight"].T)
        layer.lora_kernel_b.assign(values[f"{name}.lora_B.weight"].T)
    for name, (weight, transposed) in whole.items():
        weight.assign(values[name].T if transposed else values[name])


def _check_config(config: dict, folder: pathlib.Path) -> None:
    """Raise a ValueError for adapters other than plain LoRA."""
    for name, value in config.items():
        if name in IRRELEVANT or not value:
            continue
        if value != PLAIN.get(name):
            raise ValueError(
                f"{folder}: {name} is {shown(value)} in {CONFIG}. Only plain LoRA is supported, "
                f"with {PLAIN.get(name)!r}."
            )
    initializer = config.get("init_lora_weights")
    if initializer not in INITIALIZERS:
        raise ValueError(
            f"{folder}: init_lora_weights is {shown(initializer)} in {CONFIG}, by which peft "
            "changes the model's own weights. Expected true, false or 'gaussian'. Open the folder "
            "that model.merge_and_unload().save_pretrained(folder) of peft writes, by from_preset."
        )
    for name, rule in {"r": rule_of(Size), "lora_alpha": rule_of(PositiveFloat | None)}.items():
        if not rule.holds(config.get(name)):
            raise ValueError(
                f"{folder}: {name} is {shown(config.get(name))} in {CONFIG}. Expected {rule.words}."
            )


def _check_shapes(file: SafetensorsFile, expected: dict[str, tuple[int, ...]]) -> None:
    """Raise an error if tensors are missing, unexpected, or of another shape."""
    misfits = [f"+ {shown(name)} (unexpected)" for name in sorted({*file.shapes} - {*expected})]
    for name, shape in expected.items():
        if name not in file.shapes:
            misfits.append(f"- {name} (missing)")
        elif file.shapes[name] != shape:
            misfits.append(f"- {name} (is {file.shapes[name]}, expected {shape})")
    if misfits:
        described = "\n".join(misfits)
        raise ValueError(
            f"{pathlib.Path(file.path).parent}: the adapters are not of this model.\n{described}"
        )


def _values(file: SafetensorsFile, name: str) -> np.ndarray:
    check_floats(file.dtype(name), file.path, name)
    value = float_values(file.read(name))
    check_weights(value, f"{file.path}: {name}", "Download the file again.")
    return value
