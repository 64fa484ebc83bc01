"""Find the head for a task in a checkpoint, and load its weights.

The weights determine whether a checkpoint contains a head, and the number of outputs. The labels
come from config.json. The field `architectures` often names the model from which training started.
For this reason, this field is only used to choose between tasks with the same tensor names.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from encoder_zoo.encoders.arrays import gather_array
from encoder_zoo.encoders.family import CUSTOM_HEAD, Family, Head
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    convert_to_float32,
    copy_tensors,
    list_unused_tensors,
    make_default_labels,
    match_weights,
    select_rows,
    warn_new_weights,
)
from encoder_zoo.presets.formats.preset_files import PYTORCH, SAFETENSORS
from encoder_zoo.presets.formats.preset_task import PresetTask

logger = logging.getLogger("encoder_zoo")

# Heads for texts or text pairs. With a single output, both heads compute the same function.
_OF_TEXTS = {"ForSequenceClassification", "ForMultipleChoice"}
_OUTPUTS = {"ForMultipleChoice": 1, "ForQuestionAnswering": 2}
# Pretraining heads, which are not listed as unused in the warning about a new head.
_PRETRAINED = ("ForMaskedLM", "ForPreTraining")
_MAX_SHOWN = 8  # tensor names in a log line
# Suffixes of files that can contain a separate head.
_HEAD_FILES = (".bin", ".ckpt", ".h5", ".joblib", ".pickle", ".pkl", ".pt", ".pth", ".safetensors")
# Weights for other frameworks and training states, which do not contain a separate head.
_OTHER_FILES = (
    SAFETENSORS.file,
    PYTORCH.file,
    "tf_model.h5",
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
)


def resolve_head(checkpoint: Checkpoint, cls: type[PresetTask], given: Mapping) -> Checkpoint:
    """Set `architectures` and `id2label` to values that match the weights and the task.

    Args:
        checkpoint: `Checkpoint`.
        cls: Task class to load.
        given: Dict of task arguments from the caller.

    Returns:
        A copy of the `Checkpoint` with the updated `config` and `other_class`.

    Raises:
        ValueError: If the checkpoint does not have one label per output, or if two labels are
            equal, and `given` does not contain `labels` or `num_classes`.
    """
    family, suffix = checkpoint.family, cls.record.head
    head, config = cls.get_family_head(family), dict(checkpoint.config)
    names = _read_class_names(config)
    if names and cls.record.has_classes and len(set(names)) < len(names):
        _check_named_by_caller(checkpoint, names, given)
        names = make_default_labels(len(names))
    if names:
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
    checkpoint = copy.copy(checkpoint)
    checkpoint.config = config
    if not _has_head_tensors(checkpoint, head):
        return checkpoint
    owner = _choose_owner(checkpoint, cls, head)
    config["architectures"] = [family.get_class_name(owner)]
    if owner != suffix:
        checkpoint.other_class = family.get_class_name(owner)
    elif suffix.endswith("Classification"):
        labels = _read_output_labels(checkpoint, head, names, given)
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    return checkpoint


def _choose_owner(checkpoint: Checkpoint, cls: type[PresetTask], head: Head) -> str:
    """Choose the head to which the output layer of a checkpoint belongs.

    By default, the head of the task is chosen. If the layer could also belong to another head, a
    warning is logged.
    """
    suffix = cls.record.head
    # Heads that compute the same function as the task head.
    same = _OF_TEXTS if suffix in _OF_TEXTS and not cls.record.has_classes else {suffix}
    rivals = _find_other_matching_heads(checkpoint, head, same)
    written = checkpoint.config.get("architectures") or []
    named = [found for name in written if (found := _find_head(name, checkpoint.family))]
    if same.intersection(named):
        return suffix
    owner = next((name for name in named if name in rivals), None)
    owner = owner or _infer_task(checkpoint, suffix, head, rivals)
    if owner is None and rivals:
        logger.warning(
            "%s: cannot infer the task of %s from `architectures` in %s (%s). Loading it as "
            "the head of %s.",
            checkpoint.folder.name,
            f"{head.output}.weight",
            checkpoint.config_file.name,
            ", ".join(written) or "missing",
            cls.__name__,
        )
    return owner or suffix


def _read_class_names(config: Mapping) -> list[str] | None:
    """Return the class names in config.json, or default names if it only has a class count."""
    if names := config.get("id2label"):
        return [names[key] for key in sorted(names, key=int)]
    if numbers := config.get("label2id"):
        return sorted(numbers, key=lambda name: int(numbers[name]))
    count = config.get("num_labels") or config.get("_num_labels")
    return make_default_labels(count) if count else None


def _check_named_by_caller(checkpoint: Checkpoint, names: Sequence[str], given: Mapping) -> None:
    """Raise a ValueError for duplicate class names, unless `labels` or `num_classes` is passed."""
    if given.get("labels") is None and given.get("num_classes") is None:
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(
            f"{checkpoint.config_file}: id2label contains {twice!r} more than once. Pass "
            f"labels=[...] with the names of all {len(names)} classes in order, or "
            f"num_classes={len(names)}."
        )


def _has_head_tensors(checkpoint: Checkpoint, head: Head) -> bool:
    """Return whether a checkpoint contains tensors for all head layers."""
    layers = set(head.tensors.values())
    if head.tied_bias_may_be_absent:
        layers.discard(head.tied_bias)
    shapes = checkpoint.shapes
    return bool(layers) and all(f"{name}.weight" in shapes or name in shapes for name in layers)


def _find_other_matching_heads(
    checkpoint: Checkpoint, head: Head, same: set[str]
) -> dict[str, Head]:
    """Find all other heads of the family that match the output layer in the checkpoint."""
    if head.tied_bias:  # other pretraining heads have separate tensors
        return {}
    outputs = checkpoint.shapes.get(f"{head.output}.weight", (0,))[0]
    return {
        name: other
        for name, other in checkpoint.family.heads.items()
        if name not in same
        and other.output == head.output
        and _has_head_tensors(checkpoint, other)
        and outputs == _OUTPUTS.get(name, outputs)
    }


def _infer_task(
    checkpoint: Checkpoint, suffix: str, head: Head, rivals: Mapping[str, Head]
) -> str | None:
    """Return the name of the rival head that matches the tensors better, or None."""
    family = checkpoint.family
    # Checkpoints may contain unused encoder layers, such as a pooler.
    own = {
        name: {layer for layer in other.tensors.values() if not layer.startswith(family.prefix)}
        for name, other in {suffix: head, **rivals}.items()
    }
    has_pooler = f"{family.pooler}.weight" in checkpoint.shapes
    for name, other in rivals.items():
        if own[name] > own[suffix] or (head.pooled and not has_pooler and not other.pooled):
            return name
    return None


def _find_head(name: str, family: Family) -> str | None:
    """Find the head of a family by a class name in `architectures`."""
    exact = [head for head in family.heads if family.get_class_name(head) == name]
    return next(iter([*exact, *(head for head in family.heads if name.endswith(head))]), None)


def _read_output_labels(
    checkpoint: Checkpoint, head: Head, names: list[str] | None, given: Mapping
) -> list[str]:
    """Return one label per output of the head."""
    output = f"{head.output}.weight"
    outputs = checkpoint.shapes[output][0]
    if names is None or len(names) == outputs:
        return names or make_default_labels(outputs)
    labels = given.get("labels")
    count = len(labels) if isinstance(labels, Sequence) else given.get("num_classes")
    has_names = names != make_default_labels(len(names))
    if has_names and count != outputs:
        raise ValueError(
            f"{checkpoint.config_file}: id2label names {len(names)} classes, but {output} has "
            f"{outputs} outputs. Pass labels=[...] with the names of all {outputs} outputs in "
            f"order, or num_classes={outputs}."
        )
    logger.warning(
        "%s: %s has %d classes, but %s has %d outputs. Using the number of outputs.",
        checkpoint.folder.name,
        checkpoint.config_file.name,
        len(names),
        output,
        outputs,
    )
    return make_default_labels(outputs)


def restore_head(checkpoint: Checkpoint, task: PresetTask, arguments: dict) -> set[str]:
    """Load the task head, or log a warning with the reason for a new head.

    Args:
        checkpoint: The `Checkpoint` after `resolve_head`.
        task: Task whose head is loaded.
        arguments: Dict of task arguments from the caller.

    Returns:
        A set of strings. Names of all loaded tensors.

    Raises:
        ValueError: If a checkpoint that was saved by this task has missing tensors or different
            shapes.
    """
    head = task.get_family_head(checkpoint.family)
    checkpoint = _select_labelled_rows(task, checkpoint, head)
    matched, misfits = match_weights(
        checkpoint, task, task.head_record.tensors if task.head else {}
    )
    if head.tied_bias_may_be_absent and misfits.get(head.tied_bias) == "missing":
        del misfits[head.tied_bias]
    absent = _find_absent_biases(matched, misfits)
    misfits = {name: what for name, what in misfits.items() if name not in absent}
    described = "; ".join(f"{name} ({what})" for name, what in misfits.items())
    if misfits and matched and checkpoint.is_of_one_task:
        raise ValueError(
            f"{checkpoint.folder}: weights of {type(task).__name__} are missing or have different "
            f"shapes: {described}. Download the folder again, or remove the arguments that change "
            "the layers of the task."
        )
    has_parts = matched if head.tied_bias else f"{head.output}.weight" in checkpoint.shapes
    if checkpoint.other_class:
        reason = f"the checkpoint has the head of {checkpoint.other_class}"
    elif misfits and not has_parts and all(what == "missing" for what in misfits.values()):
        is_custom = any(name.startswith(f"{CUSTOM_HEAD}.") for name in checkpoint.shapes)
        own = "the checkpoint has a custom head, which must be passed as head=..."
        reason = own if is_custom else "the checkpoint has no head"
    else:
        reason = task.explain_head_mismatch(checkpoint.config, arguments) or described
    if not reason:
        _check_tied_weights(checkpoint, head)
        copy_tensors(checkpoint, matched)
        if head.output:
            _report_differences(checkpoint, task, absent)
        if task.backbone.pooler_is_new:
            message = "%s has no pooler. The new pooler starts from random weights."
            warn_new_weights(message, checkpoint.folder.name)
        return set(matched)
    kept = set()
    if not checkpoint.other_class:
        kept = _load_hidden_layers(checkpoint, task, matched)
    if task.head:
        task.new_head = tuple(np.array(gather_array(weight)) for weight in task.head.weights)
    _report_new_head(checkpoint, task, reason, kept)
    return kept


def _report_new_head(
    checkpoint: Checkpoint, task: PresetTask, reason: str, kept: Collection[str]
) -> None:
    """Log a warning that explains why the head is new and which tensors are not used."""
    family = checkpoint.family
    pretrained = _list_layer_names(
        family.heads[name] for name in _PRETRAINED if name in family.heads
    )
    pretrained |= {alias.output for alias in family.aliases.values()}
    own = _list_layer_names([task.get_family_head(family)])
    unused = _find_unused_tensors(checkpoint, pretrained - own, kept)
    unread = _describe_unread_head_files(checkpoint)
    warn_new_weights(
        "%s: the head of %s starts from random weights: %s%s.%s%s%s",
        checkpoint.folder.name,
        type(task).__name__,
        reason,
        f", except {_join_names(kept)}" if kept else "",
        " The pooler also starts from random weights." if task.backbone.pooler_is_new else "",
        f" Not used: {unused}." if unused else "",
        f" Not read: {unread}." if unread else "",
    )


def _find_absent_biases(matched: Mapping, misfits: Mapping[str, str]) -> list[str]:
    """Find missing biases of layers with a weight. The model uses 0 for missing biases."""
    return [
        name
        for name, what in misfits.items()
        if what == "missing"
        and name.endswith(".bias")
        and f"{name.removesuffix('.bias')}.weight" in matched
    ]


def _report_differences(checkpoint: Checkpoint, task: PresetTask, absent: Sequence[str]) -> None:
    """Log warnings for missing biases, and for layers in the checkpoint that no head uses."""
    folder, name = checkpoint.folder.name, type(task).__name__
    if absent:
        message = "%s has no %s. The head of %s uses 0 instead."
        logger.warning(message, folder, _join_names(absent), name)
    heads = task.head_record, *checkpoint.family.heads.values()
    if unused := _find_unused_tensors(checkpoint, _list_layer_names(heads), ()):
        message = (
            "%s: %s does not use %s, because no head of %s has these layers. The outputs may "
            "differ from the saved model."
        )
        logger.warning(message, folder, name, unused, type(task.backbone).__name__)


def _load_hidden_layers(checkpoint: Checkpoint, task: PresetTask, matched: Mapping) -> set[str]:
    """Load the hidden layers of the head if their shapes match, as transformers does.

    If the head does not exist yet, the weights are stored in `kept_weights`, and `fit` uses them to
    build the head.
    """
    record = task.head_record
    if task.head:
        hidden = {n: w for n, w in matched.items() if not n.startswith(f"{record.output}.")}
        copy_tensors(checkpoint, hidden)
        return set(hidden)
    layers = set(record.tensors.values()) - {record.output}
    names = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    task.kept_weights = {
        name: convert_to_float32(checkpoint.read_tensor(name))
        for name in names & set(checkpoint.shapes)
    }
    return set(task.kept_weights)


def _list_layer_names(heads: Iterable[Head]) -> set[str]:
    """Return the checkpoint names of all layers in the given heads."""
    return {name for head in heads for name in (*head.tensors.values(), head.output) if name}


def _find_unused_tensors(checkpoint: Checkpoint, layers: set[str], kept: Iterable[str]) -> str:
    """List all tensors outside of the encoder and the given layers."""
    family = checkpoint.family
    known = {name.split(".")[0] for name in (*family.tensors.values(), family.pooler or "")}
    known |= layers
    stems = tuple(f"{name}." for name in known)
    found = list_unused_tensors(checkpoint, (*known, *kept, *family.pretraining_only))
    return _join_names(name for name in found if not name.startswith(stems))


def _describe_unread_head_files(checkpoint: Checkpoint) -> str:
    """Return the names of files that were not read and could contain a head, as a string.

    Training states and weights for other frameworks are excluded.
    """
    return _join_names(
        name
        for name in {*checkpoint.files.listed, *checkpoint.files.not_downloaded}
        if name.endswith(_HEAD_FILES)
        and name not in (*checkpoint.weight_files, *_OTHER_FILES)
        and not name.startswith(("rng_state", "pytorch_model-"))
    )


def _join_names(names: Iterable[str]) -> str:
    """Join names for a message. A long list of names is shortened."""
    names = sorted(names)
    others = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {others} others" if others > 0 else "")


def _select_labelled_rows(task: PresetTask, checkpoint: Checkpoint, head: Head) -> Checkpoint:
    """Select the rows of the output layer for the labels of the task, if the task has labels."""
    rows = task.find_kept_classes(checkpoint.config) if task.head else None
    if rows is None:
        return checkpoint
    new = [label for label, row in zip(task.labels, rows, strict=True) if row is None]
    if new:
        warn_new_weights(
            "%s: the head of %s keeps the labels in the checkpoint, but %s %s new.",
            checkpoint.folder.name,
            type(task).__name__,
            ", ".join(map(repr, new)),
            "is" if len(new) == 1 else "are",
        )
    names = checkpoint.config["id2label"]
    if left := [names[str(i)] for i in range(len(names)) if i not in rows]:
        logger.info(
            "%s: the head of %s does not use the outputs for the labels %s.",
            checkpoint.folder.name,
            type(task).__name__,
            ", ".join(map(repr, left)),
        )
    return select_rows(checkpoint, head.output, rows)


def _check_tied_weights(checkpoint: Checkpoint, head: Head) -> None:
    """Raise a ValueError when a tied output projection differs from the token embedding."""
    twins = checkpoint.family.tied if head.tied_bias else {}
    for name in list_unused_tensors(checkpoint, ()):
        if name in twins and name.startswith(f"{head.output}."):
            raise ValueError(
                f"{checkpoint.folder}: {name} and {twins[name]} are different, but must be equal. "
                "Output projections that are not tied to the token embedding are not supported."
            )
