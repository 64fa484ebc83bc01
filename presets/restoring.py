"""Restores the weights of a backbone from an open checkpoint, and checks that all are used."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Iterable

import keras

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.layers import skip_initialization
from encoder_zoo.presets.config import backbone_arguments
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    backbone_layers,
    copy,
    match,
    unexpected,
)
from encoder_zoo.presets.opening import Safeguards

logger = logging.getLogger("encoder_zoo")

# 128 MB in float32, which take about as long to read as collecting garbage.
MAX_WEIGHTS = 2**25

_loaded: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def restore_backbone(
    checkpoint: Checkpoint,
    overrides: dict,
    safeguards: Safeguards,
    new_pooler_allowed: bool = False,
) -> tuple[Backbone, set[str], bool]:
    """Return the backbone, the names of its tensors, and whether its pooler is new."""
    collect_dropped_models()
    backbone, matched, new = match_backbone(checkpoint, overrides, new_pooler_allowed)
    copy(checkpoint, matched, safeguards.allow_nonfinite)
    backbone.pooler_is_new = new
    _loaded.add(backbone)
    return backbone, set(matched), new


def match_backbone(
    checkpoint: Checkpoint, overrides: dict, new_pooler_allowed: bool
) -> tuple[Backbone, dict[str, tuple[keras.Variable, bool]], bool]:
    """Return the backbone, its matched tensors, and whether its pooler is new."""
    family = checkpoint.family
    arguments = backbone_arguments(checkpoint.config, family)
    has_pooler = f"{family.pooler}.weight" in checkpoint.shapes
    arguments = {**arguments, "pooler": has_pooler, **overrides}
    new_weights = arguments["pooler"] and not has_pooler
    with contextlib.nullcontext() if new_weights else skip_initialization():
        backbone = family.backbone(**arguments)
    matched, misfits = match(checkpoint, backbone, backbone_layers(backbone))
    new = [name for name in misfits if new_pooler_allowed and name.startswith(f"{family.pooler}.")]
    if len(misfits) > len(new):
        lines = [f"- {name} ({what})" for name, what in misfits.items()]
        lines += [f"+ {name} (unexpected)" for name in unexpected(checkpoint, matched)]
        raise ValueError(
            f"{checkpoint.folder}: the weights do not fit {checkpoint.config_file.name}.\n"
            + "\n".join(lines)
        )
    return backbone, matched, bool(new)


def report_unused(checkpoint: Checkpoint, used: set[str], reader: str) -> None:
    """Log the unused tensors; raise an error if they are the encoder's."""
    check_all_used(checkpoint, used)
    if left := unexpected(checkpoint, used):
        logger.info("%s: %s does not use %s.", checkpoint.folder.name, reader, ", ".join(left))


def check_all_used(checkpoint: Checkpoint, used: Iterable[str]) -> None:
    """Raise an error for unused weights of the encoder."""
    stems = {f"{name.split('.')[0]}." for name in checkpoint.family.tensors.values()}
    others = {name for name in checkpoint.shapes if not name.startswith(tuple(stems))}
    others.update(checkpoint.family.pretraining_only)
    tied = checkpoint.family.tied
    untied = {n: f" (differs from {tied[n]}: it must be tied to the token embedding)" for n in tied}
    found = unexpected(checkpoint, others.union(used))
    inside = [f"+ {name}{untied.get(name, '')}" for name in found]
    if inside:
        raise ValueError(
            f"{checkpoint.folder}: weights that are not in the architecture of "
            f"{checkpoint.config_file.name}:\n" + "\n".join(inside)
        )


def collect_dropped_models() -> None:
    """Collect garbage if the models loaded since the last call have more than `MAX_WEIGHTS`.

    Keras layers are in reference cycles, so that an unused model stays in memory until Python
    collects garbage. Python does so by the number of objects, not by their size: a process that
    loads one model after the other would keep a dozen.
    """
    if sum(model.count_params() for model in list(_loaded)) > MAX_WEIGHTS:
        gc.collect()
        _loaded.clear()
