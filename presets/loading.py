"""From a preset to a model: which class, which arguments, which weights."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from encoder_zoo.encoders.backbone import Backbone, Family
from encoder_zoo.encoders.configured import argument_names
from encoder_zoo.presets.config import backbone_arguments
from encoder_zoo.presets.formats.checkpoint import (
    TIED,
    Checkpoint,
    backbone_layers,
    copy,
    match,
    unexpected,
)
from encoder_zoo.presets.opening import Safeguards, open_preset

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.tasks.task import Task

logger = logging.getLogger("encoder_zoo")


def load_backbone(cls: type[Backbone], source: str | os.PathLike, **overrides) -> Backbone:
    """See `Backbone.from_preset`."""
    safeguards = Safeguards.taken_from(overrides)
    checkpoint, family = open_preset(source, safeguards)
    if not issubclass(family.backbone, cls):
        raise ValueError(
            f"{source} holds a {family.backbone.__name__}. Load it with that class or with "
            f"Backbone.from_preset. Received: {cls.__name__}.from_preset."
        )
    backbone, used = _read_backbone(checkpoint, family, overrides, safeguards)
    _report_unused(checkpoint, used, cls.__name__)
    return backbone


def load_tokenizer(cls: type[Tokenizer], source: str | os.PathLike, **options) -> Tokenizer:
    """See `Tokenizer.from_preset`."""
    safeguards = Safeguards.taken_from(options)
    if options:
        raise TypeError(f"{cls.__name__}.from_preset got unknown arguments: {sorted(options)}.")
    checkpoint, family = open_preset(source, safeguards)
    tokenizer = _read_tokenizer(checkpoint, family)
    if not isinstance(tokenizer, cls):
        raise ValueError(
            f"{source} holds a {type(tokenizer).__name__}. Received: {cls.__name__}.from_preset."
        )
    return tokenizer


def load_task(cls: type[Task], source: str | os.PathLike, **arguments) -> Task:
    """See `Task.from_preset`."""
    safeguards = Safeguards.taken_from(arguments)
    checkpoint, family = open_preset(source, safeguards)
    settings = checkpoint.settings
    for_backbone, for_preprocessor, for_task = _route(cls, family, arguments)

    for_backbone.setdefault("pooler", cls.uses_pooler(family))
    tokenizer = _read_tokenizer(checkpoint, family)
    backbone, used = _read_backbone(
        checkpoint, family, for_backbone, safeguards, new_pooler_allowed=True
    )
    task = cls(
        backbone,
        cls.preprocessor_class(
            tokenizer, **{**_stored_settings(cls, settings), **for_preprocessor}
        ),
        **cls.checkpoint_arguments(checkpoint.config, for_task),
    )
    task.learning_rate = settings.get("learning_rate", task.learning_rate)
    used |= _read_head(checkpoint, task, for_task, safeguards)
    _report_unused(checkpoint, used, cls.__name__)
    return task


def _read_tokenizer(checkpoint: Checkpoint, family: Family) -> Tokenizer:
    """The tokenizer, checked against the model it feeds."""
    tokenizer = checkpoint.load_tokenizer(family)
    rows, count = checkpoint.config["vocab_size"], tokenizer.vocabulary_size
    if count > rows:
        raise ValueError(
            f"{checkpoint.folder}: the tokenizer's vocabulary has {count} tokens, but vocab_size "
            f"in {checkpoint.config_file.name} is {rows}: they are not from the same model."
        )
    tokens = tokenizer.get_vocabulary()
    if len(set(tokens)) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if token in tokens[:i])
        logger.warning(
            "%s: the vocabulary holds %r more than once; the last one counts.",
            checkpoint.folder.name,
            twice,
        )
    return tokenizer


def _stored_settings(cls: type[Task], settings: dict) -> dict:
    """The preprocessor's settings that the same task was saved with."""
    if settings.get("task") != cls.task_name:
        return {}
    known = argument_names(cls.preprocessor_class)
    stored = settings.get("preprocessor", {})
    return {name: value for name, value in stored.items() if name in known}


def _route(cls: type[Task], family: Family, arguments: dict) -> tuple[dict, dict, dict]:
    """Each argument of `from_preset` goes to the object whose constructor takes it."""
    takers = (family.backbone, cls.preprocessor_class, cls)
    routed: tuple[dict, dict, dict] = ({}, {}, {})
    for name, value in arguments.items():
        homes = [i for i, taker in enumerate(takers) if name in argument_names(taker)]
        if name == "dtype":
            homes = [0, 2]
        if not homes:
            known = sorted({n for taker in takers for n in argument_names(taker)})
            raise TypeError(
                f"{cls.__name__}.from_preset got an unknown argument '{name}'. "
                f"Expected some of {', '.join(known)}."
            )
        for i in homes:
            routed[i][name] = value
    return routed


def _read_backbone(
    checkpoint: Checkpoint,
    family: Family,
    overrides: dict,
    safeguards: Safeguards,
    new_pooler_allowed: bool = False,
) -> tuple[Backbone, set[str]]:
    """The backbone, and the names of the tensors that are in it."""
    arguments = backbone_arguments(checkpoint.config, family)
    has_pooler = "pooler.dense.weight" in checkpoint.shapes
    backbone = family.backbone(**{**arguments, "pooler": has_pooler, **overrides})
    matched, misfits = match(checkpoint, backbone, backbone_layers(backbone))
    new = [line for line in misfits if new_pooler_allowed and line.startswith("- pooler.")]
    if len(misfits) > len(new):
        left = [f"+ {name} (unexpected)" for name in unexpected(checkpoint, matched)]
        raise ValueError(
            f"{checkpoint.folder}: the weights do not fit {checkpoint.config_file.name}.\n"
            + "\n".join([*misfits, *left])
        )
    if new:
        logger.warning("%s has no pooler: it starts from random weights.", checkpoint.folder.name)
    copy(checkpoint, matched, safeguards.allow_nonfinite)
    return backbone, set(matched)


def _read_head(
    checkpoint: Checkpoint, task: Task, arguments: dict, safeguards: Safeguards
) -> set[str]:
    """Takes the task's head over, whole or not at all."""
    layers = task.backbone.family.head_tensors[task.task_name]
    reason = task.head_misfit(checkpoint.config, arguments)
    if reason is None:
        matched, misfits = match(checkpoint, task, layers)
        if not misfits:
            _refuse_untied(checkpoint, layers)
            copy(checkpoint, matched, safeguards.allow_nonfinite)
            return set(matched)
        absent = all(line.endswith("(missing)") for line in misfits)
        reason = "the checkpoint has none" if absent else "; ".join(misfits).replace("- ", "")
    logger.warning(
        "%s: the head of %s starts from random weights: %s. Fine-tune before use.",
        checkpoint.folder.name,
        type(task).__name__,
        reason,
    )
    return set()


def _refuse_untied(checkpoint: Checkpoint, layers: Mapping[str, str]) -> None:
    """Refuses a head whose output projection is not the token embedding, as it is here."""
    parts = {name.split(".")[0] for name in layers.values()}
    untied = [n for n in unexpected(checkpoint, ()) if n in TIED and n.split(".")[0] in parts]
    if untied:
        raise ValueError(
            f"{checkpoint.folder}: {untied[0]} differs from {TIED[untied[0]]}. Only output "
            "projections that are tied to the token embedding are supported."
        )


def _report_unused(checkpoint: Checkpoint, used: set[str], reader: str) -> None:
    left = unexpected(checkpoint, used)
    inside = [f"+ {name}" for name in left if name.startswith(("embeddings.", "encoder."))]
    if inside:
        raise ValueError(
            f"{checkpoint.folder}: weights that the architecture in {checkpoint.config_file.name} "
            "has no place for:\n" + "\n".join(inside)
        )
    if left:
        logger.warning(
            "%s: %s does not use %s.", checkpoint.folder.name, reader, ", ".join(sorted(left))
        )
