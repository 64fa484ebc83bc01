"""Restores the weights of a backbone and of a task's head from an open checkpoint."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

import keras

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import CUSTOM_HEAD, Head
from encoder_zoo.encoders.layers import skip_initialization
from encoder_zoo.presets.config import backbone_arguments
from encoder_zoo.presets.dropped_models import collect_dropped_models, note_loaded
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    backbone_layers,
    copy,
    match,
    unexpected,
)
from encoder_zoo.presets.formats.preset_task import PresetTask
from encoder_zoo.presets.formats.relabelled import RelabelledCheckpoint
from encoder_zoo.presets.opening import Safeguards

logger = logging.getLogger("encoder_zoo")


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
    note_loaded(backbone)
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


def restore_head(
    checkpoint: Checkpoint,
    task: PresetTask,
    head: Head,
    arguments: dict,
    safeguards: Safeguards,
    new_pooler: bool,
) -> set[str]:
    """Load the task's head, or log one warning that says why it is new."""
    checkpoint = _with_labels_of(task, checkpoint, head)
    matched, misfits = match(checkpoint, task, task.head_record.tensors if task.head else {})
    if head.tied_bias_may_be_absent and misfits.get(head.tied_bias) == "missing":
        del misfits[head.tied_bias]
    if misfits and all(what == "missing" for what in misfits.values()):
        is_custom = any(name.startswith(f"{CUSTOM_HEAD}.") for name in checkpoint.shapes)
        own = "the checkpoint's is of a layer that head=... takes"
        reason = own if is_custom else "the checkpoint has none"
    else:
        described = "; ".join(f"{name} ({what})" for name, what in misfits.items())
        reason = task.head_misfit(checkpoint.config, arguments) or described
    if not reason:
        _check_tied(checkpoint, head)
        copy(checkpoint, matched, safeguards.allow_nonfinite)
        if new_pooler:
            message = "%s has no pooler: it starts from random weights. Fine-tune before use."
            logger.warning(message, checkpoint.folder.name)
        return set(matched)
    logger.warning(
        "%s: the head of %s starts from random weights: %s%s. Fine-tune before use.",
        checkpoint.folder.name,
        type(task).__name__,
        reason,
        "; the pooler too" if new_pooler else "",
    )
    return set()


def _with_labels_of(task: PresetTask, checkpoint: Checkpoint, head: Head) -> Checkpoint:
    """Return the checkpoint with the rows of the task's labels, if it has some of these."""
    rows = task.kept_classes(checkpoint.config) if task.head else None
    if rows is None:
        return checkpoint
    new = [label for label, row in zip(task.labels, rows, strict=True) if row is None]
    if new:
        logger.warning(
            "%s: the head of %s keeps the labels that the checkpoint has; %s %s new. Fine-tune "
            "before use.",
            checkpoint.folder.name,
            type(task).__name__,
            ", ".join(map(repr, new)),
            "is" if len(new) == 1 else "are",
        )
    return RelabelledCheckpoint(checkpoint, head.output, rows)


def _check_tied(checkpoint: Checkpoint, head: Head) -> None:
    """Raise an error if a tied output projection differs from the token embedding."""
    twins = checkpoint.family.tied if head.tied_bias else {}
    for name in unexpected(checkpoint, ()):
        if name in twins and name.startswith(f"{head.output}."):
            raise ValueError(
                f"{checkpoint.folder}: {name} differs from {twins[name]}. Only output "
                "projections that are tied to the token embedding are supported."
            )


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
    inside = [f"+ {name}" for name in unexpected(checkpoint, others.union(used))]
    if inside:
        raise ValueError(
            f"{checkpoint.folder}: weights that are not in the architecture of "
            f"{checkpoint.config_file.name}:\n" + "\n".join(inside)
        )
