"""Load and save low-rank updates (LoRA) in the adapter format of peft.

The files are `adapter_config.json` and `adapter_model.safetensors`.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace

import keras
import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.reading import convert_load_errors
from encoder_zoo.common.validation import PositiveFloat, Rule, check_argument, get_rule
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.layers import Size
from encoder_zoo.encoders.training import (
    add_low_rank_updates,
    check_supports_lora,
    find_low_rank_updates,
)
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats import checkpoint
from encoder_zoo.presets.formats.checkpoint import StoredWeight
from encoder_zoo.presets.formats.huggingface import StoredTensor
from encoder_zoo.presets.formats.preset_task import PresetTask

logger = logging.getLogger("encoder_zoo")

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_MANIFEST, ADAPTERS = "encoder_zoo_adapters.json", "adapters"  # peft ignores this file
PREFIX = "base_model.model."
# Options of peft and their values for plain LoRA. All other options must be null, false or empty.
# `_check_config` raises an error for options that may affect outputs.
PLAIN_LORA = {"peft_type": "LORA", "bias": "none", "use_dora": False, "fan_in_fan_out": False}
PEFT_ALPHA = 8  # used if a file has no lora_alpha
# Values that only affect the initialization of the low-rank matrices A and B.
INITIALIZERS = (True, False, None, "gaussian", "eva", "orthogonal")
# {option: why `_check_config` accepts any value}
ACCEPTED_PEFT_FIELDS = {
    **dict.fromkeys(("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"), "read"),
    **dict.fromkeys(("target_modules", "exclude_modules", "modules_to_save"), "read"),
    **dict.fromkeys(("layers_to_transform", "layers_pattern"), "read"),
    "init_lora_weights": "only affects initial values, and other values raise an error",
    "task_type": "the class defines the task, and the shapes of its head are checked",
    "auto_mapping": "names classes, which are not imported",
    "peft_version": "for information",
    "base_model_name_or_path": "for information, the shapes of all tensors are checked",
    "revision": "revision of the base model, for information",
    "inference_mode": "defines whether updates are trained",
    "lora_dropout": "used in training only",
    "loftq_config": "option of init_lora_weights, which is checked",
    "eva_config": "option of init_lora_weights, which is checked",
    "corda_config": "option of init_lora_weights, which is checked",
    "lora_ga_config": "option of init_lora_weights, which is checked",
    "megatron_core": "names a module that is used with megatron_config, which is checked",
    "qalora_group_size": "option of use_qalora, which is checked",
    "runtime_config": "defines where and when weights are computed",
    "ensure_weight_tying": "option of modules_to_save, whose tensors are checked",
}


# Modules that peft saves completely for classification, in addition to `modules_to_save`.
CLASSIFIERS = ("classifier", "score")


def map_projections(backbone: Backbone) -> dict[str, keras.layers.Dense]:
    """Map the module names in transformers to the dense layers of a backbone.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, 1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> list(map_projections(backbone))[-2:]
        ['bert.encoder.layer.0.output.dense', 'bert.pooler.dense']
    """
    prefix = backbone.family.prefix
    found = {
        name: checkpoint.find_layer(backbone, path)
        for path, name in checkpoint.map_backbone_layers(backbone).items()
    }
    return {
        f"{prefix}.{name}": layer
        for name, layer in found.items()
        if isinstance(layer, keras.layers.Dense)
    }


# -- saving ------------------------------------------------------------------------------------


def save_adapters(task: PresetTask, folder: str | os.PathLike) -> None:
    """Save adapters to a folder. See `Task.save_adapters`."""
    updates, known = find_low_rank_updates(task), map_projections(task.backbone)
    if not updates:
        raise ValueError(
            "The model has no low-rank updates. Call `enable_lora` and `fit` before saving."
        )
    layers = {name: layer for name, layer in known.items() if layer in updates}
    if others := [layer.path for layer in updates if layer not in layers.values()]:
        raise ValueError(
            f"The peft format cannot store low-rank updates for {', '.join(others[:3])}, because "
            "transformers has no corresponding linear layer. Save the model with "
            ".save('model.keras')."
        )
    whole = _map_modules_to_save(task, updates)
    stored = {**_map_factors(layers), **whole}
    arrays = {name: weight.make_array() for name, weight in stored.items()}
    _check_stores_trained_weights(task, [weight for weight, _ in stored.values()])
    [((rank, alpha), _)] = collections.Counter(updates.values()).most_common(1)
    prefixes = (PREFIX, f"{task.backbone.family.prefix}.")
    config = {
        **PLAIN_LORA,
        "task_type": task.record.peft_type,
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {n: updates[v][0] for n, v in layers.items() if updates[v][0] != rank},
        "alpha_pattern": {n: updates[v][1] for n, v in layers.items() if updates[v][1] != alpha},
        "use_rslora": False,
        "lora_dropout": 0.0,
        "inference_mode": True,
        "target_modules": _shorten_target_modules(layers, known),
        "modules_to_save": sorted({_strip_prefix(prefixes, name).split(".")[0] for name in whole}),
    }
    kind = FolderKind("adapters", lambda manifest: manifest["task"] == ADAPTERS, ADAPTER_MANIFEST)
    with replace_folder(folder, kind) as new:
        (new / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(arrays, new / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        write_manifest(new, {"task": ADAPTERS}, ADAPTER_MANIFEST)


def _check_stores_trained_weights(task: PresetTask, stored: list[keras.Variable]) -> None:
    """Raise a ValueError if an adapter file cannot store all trained weights."""
    known = set(map(id, stored))
    if not task.head_record.pooled and task.backbone.pooler:
        known |= {id(weight) for weight in task.backbone.pooler_dense.weights}  # not used
    others = [weight.path for weight in task.trainable_weights if id(weight) not in known]
    if others:
        raise ValueError(
            "The peft format can store low-rank updates and the head, but not the trainable "
            f"weights {', '.join(others[:3])}. Use `save_to_preset` instead, or set "
            "`trainable = False` for these weights before training."
        )


def _map_factors(layers: Mapping[str, keras.layers.Layer]) -> dict[str, StoredWeight]:
    """Map tensor names to the low-rank factors A (rank, in) and B (out, rank) of all layers."""
    return {
        f"{PREFIX}{name}.lora_{which}.weight": StoredWeight(kernel, transposed=True)
        for name, layer in layers.items()
        for which, kernel in (("A", layer.lora_kernel_a), ("B", layer.lora_kernel_b))
    }


def _strip_prefix(prefixes: Iterable[str], name: str) -> str:
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name


def _shorten_target_modules(chosen: Collection[str], known: Iterable[str]) -> list[str]:
    """Create the peft field `target_modules`, with short names if they are unambiguous."""
    ends = sorted({re.sub(r"^.*?\.\d+\.", "", name) for name in chosen})
    exact = {name for name in known if _matches_name(name, ends)} == {*chosen}
    return ends if exact else sorted(chosen)


def _matches_name(name: str, ends: Iterable[str]) -> bool:
    """Return whether a module has one of the names, with or without a prefix, as in peft."""
    return any(f".{name}".endswith(f".{end}") for end in ends)


def _map_modules_to_save(
    task: PresetTask, updates: Collection[keras.layers.Layer], head: object = None
) -> dict[str, StoredWeight]:
    """Map tensor names to head and pooler weights, which adapter files store in full.

    Args:
        task: The task.
        updates: Collection of layers with low-rank updates.
        head: Optional layer to use as the head for tasks without a head.

    Returns:
        A dict {tensor name in the file: `StoredWeight`}.

    Raises:
        ValueError: If peft does not support this type of task.
    """
    if task.record.peft_type is None:
        raise ValueError(
            f"{type(task).__name__} does not support adapter files. Only SequenceClassifier and "
            "TokenClassifier support them. Use `save_to_preset` instead."
        )
    backbone, record = task.backbone, task.head_record
    found = {}
    if task.head is not None:
        found |= checkpoint.map_weights(task, record.tensors, PREFIX)
    elif head is not None:
        found |= checkpoint.map_weights(SimpleNamespace(head=head), record.tensors, PREFIX)
    if record.pooled and backbone.pooler_dense not in updates:
        layers = {"pooler_dense": f"{backbone.family.prefix}.{backbone.family.pooler}"}
        found |= checkpoint.map_weights(backbone, layers, PREFIX)
    return found


# -- loading -----------------------------------------------------------------------------------


def get_weights_before_adapters(task: PresetTask) -> Mapping[str, np.ndarray]:
    """Return the original values of the weights that adapter files store in full.

    peft keeps the original values in addition to the values of each adapter.

    Returns:
        A dict {name in an adapter file: array}. For a task without low-rank updates, the arrays
        contain the current values. If peft does not support the task, the result is {}.
    """
    if task.record.peft_type is None:
        return {}
    if find_low_rank_updates(task.backbone):
        return task.weights_before_adapters
    weights = _map_modules_to_save(task, ())
    return MappingProxyType({name: weight.make_array() for name, weight in weights.items()})


def load_adapters(task: PresetTask, folder: str | os.PathLike) -> None:
    """Load adapters from a folder or the hub. See `Task.load_adapters`."""
    with (
        convert_load_errors(folder),
        OpenFolder(folder, [ADAPTER_CONFIG, ADAPTER_WEIGHTS]) as files,
    ):
        config = files.read_json(ADAPTER_CONFIG)
        _check_config(config, files.path)
        _read_adapters(task, config, files)


def _read_adapters(task: PresetTask, config: dict, files: OpenFolder) -> None:
    file = SafetensorsFile(files.open_file(ADAPTER_WEIGHTS))
    chosen, missing = _select_layers(task, config, file)
    updates = {layer: _get_rank_and_alpha(name, config) for name, layer in chosen.items()}
    head = _build_missing_head(task, file)
    before, replaces = get_weights_before_adapters(task), bool(find_low_rank_updates(task.backbone))
    layers = {_get_layer_name(name) for name in file.shapes}  # layers that are stored in full
    expected = {
        name: weight.shape
        for name, weight in _map_modules_to_save(task, updates, head).items()
        if _get_layer_name(name) in layers or _is_saved(name, config)
    }
    for name, layer in chosen.items():
        rank, _ = updates[layer]
        expected[f"{PREFIX}{name}.lora_A.weight"] = (rank, layer.input_spec.axes[-1])
        expected[f"{PREFIX}{name}.lora_B.weight"] = (layer.units, rank)
    _check_shapes(file, expected, missing)
    restored = {*_map_modules_to_save(task, ())} - {*expected} if replaces else set()
    if unknown := sorted(restored - {*before}):
        raise ValueError(
            f"{files.path} does not contain {', '.join(unknown)}, which were changed by other "
            "adapters or by training. Load a new model with `from_preset`, and then load the "
            "adapters."
        )
    check_supports_lora(updates)
    values = {name: _read_values(file, name) for name in expected}
    files.check_unchanged()  # before the task is changed
    add_low_rank_updates(task.backbone, {})
    if head is not None:
        task._set_classes(head.units, None)
    values |= {name: before[name] for name in restored}
    for name, weight in _map_modules_to_save(task, ()).items():
        if name in values:
            weight.assign(values[name])
    add_low_rank_updates(task.backbone, updates)
    task.train_pooler()
    for name, weight in _map_factors(chosen).items():
        weight.assign(values[name])
    task.weights_before_adapters = before
    if replaces:
        logger.warning(
            "Low-rank updates from %s replace the previous updates of this %s.",
            files.path,
            type(task).__name__,
        )


def _select_layers(
    task: PresetTask, config: dict, file: SafetensorsFile
) -> tuple[dict[str, keras.layers.Dense], list[str]]:
    """Select the layers with low-rank updates in an adapter file.

    If `target_modules` is a list, it selects layers as in peft, even if their tensors are missing.
    A regular expression is not evaluated. Instead, all layers with tensors in the file are
    selected.

    Returns:
        A tuple (dict mapping names to layers, list of descriptions of missing tensors). The list is
        empty if at least one layer was found.
    """
    known, targets = map_projections(task.backbone), config.get("target_modules")
    stored = {
        name
        for name in known
        if not {f"{PREFIX}{name}.lora_{which}.weight" for which in "AB"}.isdisjoint(file.shapes)
    }
    if isinstance(targets, list):
        named = {
            name for name in known if _matches_name(name, targets) and _is_selected(name, config)
        }
        chosen = named & stored if isinstance(config.get("exclude_modules"), str) else named
    else:
        chosen = stored
    layers = {name: layer for name, layer in known.items() if name in chosen}
    absent = f"lora_A.weight, lora_B.weight of target_modules {quote(targets)}"
    return layers, [] if layers else [absent]


def _is_selected(name: str, config: dict) -> bool:
    """Return whether a module in `target_modules` is not excluded by the other peft options.

    These options are `exclude_modules` (only a list), `modules_to_save` and `layers_to_transform`.
    """
    excluded, numbers = config.get("exclude_modules"), config.get("layers_to_transform")
    if isinstance(excluded, list) and _matches_name(name, excluded):
        return False
    if _is_inside(name, config.get("modules_to_save") or []):
        return False
    if numbers is None or numbers == []:
        return True
    patterns = config.get("layers_pattern") or [r"\w+"]
    patterns = [patterns] if isinstance(patterns, str) else patterns
    found = re.search(rf"\.({'|'.join(patterns)})\.(\d+)\.", f".{name}")
    return found is not None and int(found[2]) in ([numbers] if type(numbers) is int else numbers)


def _is_inside(name: str, modules: Iterable[str]) -> bool:
    """Return whether a tensor or layer belongs to any of the given modules."""
    return any(f".{module}." in f".{name}." for module in modules)


def _get_layer_name(name: str) -> str:
    return name.rpartition(".")[0]


def _is_saved(name: str, config: dict) -> bool:
    """Return whether the peft options require a head or pooler tensor in the adapter file."""
    classifiers = CLASSIFIERS if config.get("task_type") in ("SEQ_CLS", "TOKEN_CLS") else ()
    return _is_inside(name, (*(config.get("modules_to_save") or ()), *classifiers))


def _get_rank_and_alpha(name: str, config: dict) -> tuple[int, float]:
    """Return a layer's rank and alpha according to the peft options."""

    def get_value(option: str, default: float) -> float:
        patterns = config.get(option) or {}
        found = (v for key, v in patterns.items() if _matches_pattern(name, key))
        return next(found, default)

    rank, alpha = config["r"], config.get("lora_alpha", PEFT_ALPHA)
    rank = get_value("rank_pattern", rank)
    alpha = get_value("alpha_pattern", rank if alpha is None else alpha)
    return rank, alpha * rank**0.5 if config.get("use_rslora") else alpha


def _matches_pattern(name: str, pattern: str) -> bool:
    """Return whether a module name matches a peft pattern. "^" requires the complete name."""
    literal = pattern.replace("\\.", ".")
    return f"^{name}" == literal or _matches_name(name, [literal])


def _build_missing_head(task: PresetTask, file: SafetensorsFile) -> keras.layers.Layer | None:
    """Build a head for a task without classes, with the number of classes from the file."""
    shape = file.shapes.get(f"{PREFIX}{task.head_record.output}.weight", ())
    if task.head is not None or task.given_head is not None or len(shape) != 2:
        return None
    task.num_classes = shape[0]
    try:
        return task.build_head()
    finally:
        task.num_classes = None


LAYER_NAMES = Rule(
    lambda v: not v or (isinstance(v, list) and all(isinstance(name, str) for name in v)),
    "a list of names",
)
NAMES_OR_PATTERN = Rule(lambda v: isinstance(v, str) or LAYER_NAMES.holds(v), "a list of names")
NUMBERS = Rule(
    lambda v: v is None or all(type(i) is int for i in (v if isinstance(v, list) else [v])),
    "an integer or a list of integers",
)
LAYER_WORDS = Rule(
    lambda v: (
        not v
        or all(
            isinstance(word, str) and re.fullmatch(r"\w+", word)
            for word in (v if isinstance(v, list) else [v])
        )
    ),
    "names of layer lists without regular expressions",
)


def _make_pattern_rule(rule: Rule) -> Rule:
    """Create the validation rule for a peft option that maps module names to values.

    Regular expressions are not allowed, because the evaluation can take very long.
    """
    return Rule(
        lambda v: (
            not v
            or (
                isinstance(v, dict)
                and all(re.fullmatch(r"\^?\w+(\\?\.\w+)*", name) for name in v)
                and all(map(rule.holds, v.values()))
            )
        ),
        f"a dict mapping module names without regular expressions to {rule.words}",
    )


PEFT_RULES = {
    "r": get_rule(Size),
    "lora_alpha": get_rule(PositiveFloat | None),
    "rank_pattern": _make_pattern_rule(get_rule(Size)),
    "alpha_pattern": _make_pattern_rule(get_rule(PositiveFloat)),
    "use_rslora": Rule(lambda v: v in (True, False, None), "true or false"),
    "target_modules": NAMES_OR_PATTERN,
    "exclude_modules": NAMES_OR_PATTERN,
    "modules_to_save": LAYER_NAMES,
    "layers_to_transform": NUMBERS,
    "layers_pattern": LAYER_WORDS,
}


def _check_config(config: dict, folder: pathlib.Path) -> None:
    """Raise a ValueError if the adapters are not plain LoRA, for example DoRA."""
    for name, value in config.items():
        if name in ACCEPTED_PEFT_FIELDS or not value:
            continue
        if value != PLAIN_LORA.get(name):
            raise invalid(
                f"{folder / ADAPTER_CONFIG}: {name}",
                value,
                f"{PLAIN_LORA.get(name)!r}, the value for plain LoRA",
            )
    initializer = config.get("init_lora_weights")
    if initializer not in INITIALIZERS:
        raise ValueError(
            f"{folder / ADAPTER_CONFIG}: init_lora_weights={quote(initializer)} changes the "
            "weights of the model, which is not supported. Expected true, false, 'gaussian', 'eva' "
            "or 'orthogonal'. Otherwise, merge the adapters in peft with "
            "model.merge_and_unload().save_pretrained(folder), and load the folder with "
            "from_preset."
        )
    for name, rule in PEFT_RULES.items():
        check_argument(f"{folder / ADAPTER_CONFIG}: {name}", config.get(name), rule)


def _check_shapes(
    file: SafetensorsFile, expected: dict[str, tuple[int, ...]], missing: list[str]
) -> None:
    """Raise a ValueError for missing tensors, unexpected tensors and wrong shapes."""
    misfits = [f"+ {quote(name)} (unexpected)" for name in sorted({*file.shapes} - {*expected})]
    misfits += [f"- {name} (missing)" for name in missing]
    for name, shape in expected.items():
        if name not in file.shapes:
            misfits.append(f"- {name} (missing)")
        elif file.shapes[name] != shape:
            misfits.append(f"- {name} (is {file.shapes[name]}, expected {shape})")
    if misfits:
        described = "\n".join(misfits)
        raise ValueError(
            f"{pathlib.Path(file.path).parent}: the adapters do not match this model.\n{described}"
        )


def _read_values(file: SafetensorsFile, name: str) -> np.ndarray:
    value = checkpoint.convert_to_float32(StoredTensor(file, name).read())
    checkpoint.check_weights(value, f"{file.path}: {name}", "Download the file again.")
    return value
