"""Load a backbone from an open checkpoint, and check that all tensors are used."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterable, Mapping

import keras

from encoder_zoo.common.context import use_context
from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    StoredWeight,
    copy_tensors,
    list_unused_tensors,
    map_backbone_layers,
    match_weights,
)
from encoder_zoo.presets.formats.config import convert_config

logger = logging.getLogger("encoder_zoo")

# 128 MB in float32. Reading this number of weights takes as long as garbage collection.
MAX_WEIGHTS = 2**25

# Arguments whose values can differ from the checkpoint.
EXTENDABLE_ARGUMENTS = {"max_sequence_length", "trained_length"}
NEW_POOLERS = {"pooler_activation", "summary_activation"}
GELUS = {"gelu", "gelu_new", "gelu_pytorch_tanh"}  # differ by less than 0.001
# Arguments that have a different meaning in other libraries, with an explanation.
ARGUMENT_MEANINGS = {
    "activation": (
        ". This is the activation function of the encoder blocks. In KerasHub, `activation` is "
        "the activation of the classifier output, which classify and predict_proba apply here. To "
        "change the head, pass your own layer as head="
    )
}

_loaded: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def restore_backbone(
    checkpoint: Checkpoint,
    overrides: dict,
    new_pooler_allowed: bool = False,
    kind: type[Backbone] | None = None,
) -> tuple[Backbone, set[str]]:
    """Load a backbone from a checkpoint.

    Weights that only a subclass has keep their initial values, with a warning. The attribute
    `pooler_is_new` of the backbone is True if the checkpoint has no pooler.

    Args:
        checkpoint: An open `Checkpoint`.
        overrides: Dict of backbone arguments from the caller.
        new_pooler_allowed: Boolean. Whether to initialize a missing pooler instead of raising an
            error. Defaults to False.
        kind: Optional backbone class. If None, the class of the family will be used.

    Returns:
        A tuple of the backbone and the loaded tensor names.
    """
    collect_garbage()
    kind = kind or checkpoint.family.backbone
    backbone, matched = match_backbone(checkpoint, overrides, new_pooler_allowed, kind)
    copy_tensors(checkpoint, matched)
    saved_as = checkpoint.settings.get("backbone_class")
    if saved_as not in (None, kind.__name__):
        logger.warning(
            "%s was saved as a %s but is loaded as a %s, which may compute different outputs. "
            "Load the backbone with %s.from_preset, or save the whole model to a .keras file.",
            checkpoint.folder.name,
            saved_as,
            kind.__name__,
            saved_as,
        )
    if kind is not checkpoint.family.backbone:
        read = [weight for weight, _ in matched.values()]
        new = backbone.pooler_dense.weights if backbone.pooler_is_new else []
        _log_subclass_weights(backbone, read + new, checkpoint)
    _loaded.add(backbone)
    return backbone, set(matched)


def match_backbone(
    checkpoint: Checkpoint, overrides: dict, new_pooler_allowed: bool, kind: type[Backbone]
) -> tuple[Backbone, dict[str, StoredWeight]]:
    """Build a backbone, and match the weights to tensors in a checkpoint.

    Args:
        checkpoint, overrides, new_pooler_allowed: See `restore_backbone`.
        kind: Backbone class.

    Returns:
        A tuple of the backbone and the matching weights. See `match_weights`.
    """
    family = checkpoint.family
    arguments = convert_config(checkpoint.config, family)
    has_pooler = f"{family.pooler}.weight" in checkpoint.shapes
    check_overrides(arguments, overrides, checkpoint, has_pooler)
    arguments = {**arguments, "pooler": has_pooler, **overrides}
    new_weights = (arguments["pooler"] and not has_pooler) or kind is not family.backbone
    with use_context(draws_weights=new_weights):
        backbone = kind(**arguments)
    matched, misfits = match_weights(checkpoint, backbone, map_backbone_layers(backbone))
    new = [name for name in misfits if new_pooler_allowed and name.startswith(f"{family.pooler}.")]
    if len(misfits) > len(new):
        lines = [f"- {name} ({what})" for name, what in misfits.items()]
        lines += [f"+ {name} (unexpected)" for name in list_unused_tensors(checkpoint, matched)]
        raise ValueError(
            f"{checkpoint.folder}: the weights do not match {checkpoint.config_file.name}.\n"
            + "\n".join(lines)
        )
    backbone.pooler_is_new = bool(new)
    return backbone, matched


def _log_subclass_weights(backbone: Backbone, others: Iterable, checkpoint: Checkpoint) -> None:
    """Log which weights of a user's subclass are not in the checkpoint."""
    others = {id(weight) for weight in others}
    own = [weight.path for weight in backbone.weights if id(weight) not in others]
    if own:
        logger.warning(
            "%s: these weights of %s keep their initial values, because %s does not have them: %s.",
            checkpoint.folder.name,
            type(backbone).__name__,
            checkpoint.family.backbone.__name__,
            ", ".join(own),
        )


def check_overrides(
    trained: Mapping, overrides: Mapping, checkpoint: Checkpoint, has_pooler: bool
) -> None:
    """Check that arguments from the caller are compatible with the pretrained weights.

    Args:
        trained: Dict of backbone arguments from the checkpoint configuration.
        overrides: Dict of backbone arguments from the caller.
        checkpoint: An open `Checkpoint` for error messages.
        has_pooler: Boolean. Whether the checkpoint has a pooler. If False, the caller can choose
            the new pooler activation.

    Raises:
        ValueError: If a value in `overrides` differs from `trained`. Dropout rates, positions
            (`max_sequence_length`, `rope_*`, `trained_length`) and variants of GELU can be changed.
    """
    for name, value in overrides.items():
        same = name not in trained or value == trained[name]
        if (
            same
            or name.endswith("dropout")
            or name in EXTENDABLE_ARGUMENTS
            or name.startswith("rope_")
        ):
            continue
        if {str(value), str(trained[name])} <= GELUS or (name in NEW_POOLERS and not has_pooler):
            continue
        meaning = ARGUMENT_MEANINGS.get(name, "")
        raise ValueError(
            f"`{name}` is {quote(value)}, but {checkpoint.folder.name} was trained with "
            f"{quote(trained[name])}. Remove this argument{meaning}."
        )


def report_unused(checkpoint: Checkpoint, used: set[str], reader: str) -> None:
    """Log all unused tensors. Raise a ValueError if an unused tensor belongs to the encoder."""
    check_all_used(checkpoint, used)
    if left := list_unused_tensors(checkpoint, used):
        logger.info("%s: %s does not use %s.", checkpoint.folder.name, reader, ", ".join(left))


def check_all_used(checkpoint: Checkpoint, used: Iterable[str]) -> None:
    """Raise a ValueError if a tensor of the encoder was not used."""
    stems = {f"{name.split('.')[0]}." for name in checkpoint.family.tensors.values()}
    others = {name for name in checkpoint.shapes if not name.startswith(tuple(stems))}
    others.update(checkpoint.family.pretraining_only)
    tied = checkpoint.family.tied
    untied = {
        n: f" (differs from {tied[n]}, but must be tied to the token embedding)" for n in tied
    }
    found = list_unused_tensors(checkpoint, others.union(used))
    inside = [f"+ {name}{untied.get(name, '')}" for name in found]
    if inside:
        raise ValueError(
            f"{checkpoint.folder} contains weights that do not belong to the architecture in "
            f"{checkpoint.config_file.name}:\n" + "\n".join(inside)
        )


def collect_garbage() -> None:
    """Collect garbage after loading models with more than `MAX_WEIGHTS` weights in total.

    Keras layers contain reference cycles, so an unused model stays in memory until Python collects
    garbage. Python's garbage collector counts objects, but ignores their sizes. Without
    this function, a process that loads many models would keep about a dozen models in memory.
    """
    if sum(model.count_params() for model in list(_loaded)) > MAX_WEIGHTS:
        gc.collect()
        _loaded.clear()
