"""From a preset to a model: which class, which arguments, which weights."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.encoders.backbone import Backbone, Family
from encoder_zoo.encoders.configured import argument_names
from encoder_zoo.presets.checkpoint import Checkpoint, backbone_layers, copy, match, unexpected
from encoder_zoo.presets.registry import resolve

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizer import Tokenizer
    from encoder_zoo.tasks.task import Task

logger = logging.getLogger("encoder_zoo")


def load_backbone(cls: type[Backbone], source: str | os.PathLike, **overrides) -> Backbone:
    """See `Backbone.from_preset`."""
    checkpoint = Checkpoint(resolve(source))
    backbone, used = _read_backbone(checkpoint, _family(checkpoint), overrides)
    if not isinstance(backbone, cls):
        raise ValueError(
            f"{source} holds a {type(backbone).__name__}. Load it with that class or with "
            f"Backbone.from_preset. Received: {cls.__name__}.from_preset."
        )
    _report_unused(checkpoint, used, cls.__name__)
    return backbone


def load_tokenizer(cls: type[Tokenizer], source: str | os.PathLike) -> Tokenizer:
    """See `Tokenizer.from_preset`."""
    folder = resolve(source)
    tokenizer = _family(Checkpoint(folder)).load_tokenizer(folder)
    if not isinstance(tokenizer, cls):
        raise ValueError(
            f"{source} holds a {type(tokenizer).__name__}. Received: {cls.__name__}.from_preset."
        )
    return tokenizer


def load_task(cls: type[Task], source: str | os.PathLike, **arguments) -> Task:
    """See `Task.from_preset`."""
    folder = resolve(source)
    checkpoint = Checkpoint(folder)
    family = _family(checkpoint)
    for_backbone, for_preprocessor, for_task = _route(cls, family, arguments)

    for_backbone.setdefault("pooler", cls.uses_pooler(family))
    backbone, used = _read_backbone(checkpoint, family, for_backbone, new_pooler_allowed=True)
    task = cls(
        backbone,
        cls.preprocessor_class(family.load_tokenizer(folder), **for_preprocessor),
        **cls.checkpoint_arguments(checkpoint.config, for_task),
    )
    used |= _read_head(checkpoint, task, for_task)
    _report_unused(checkpoint, used, cls.__name__)
    return task


def _family(checkpoint: Checkpoint) -> Family:
    if checkpoint.family_name not in FAMILIES:
        raise ValueError(
            f"{checkpoint.folder / 'config.json'}: model_type={checkpoint.family_name!r}. "
            f"Expected one of {', '.join(FAMILIES)}."
        )
    return get_family(checkpoint.family_name)


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
    checkpoint: Checkpoint, family: Family, overrides: dict, new_pooler_allowed: bool = False
) -> tuple[Backbone, set[str]]:
    arguments = {**checkpoint.backbone_arguments(family), **overrides}
    backbone = family.backbone(**arguments)
    matched, misfits = match(checkpoint, backbone, backbone_layers(backbone))
    new = [line for line in misfits if new_pooler_allowed and line.startswith("- pooler.")]
    if len(misfits) > len(new):
        left = [f"+ {name} (unexpected)" for name in unexpected(checkpoint, matched)]
        raise ValueError(
            f"{checkpoint.folder}: the weights do not fit config.json.\n"
            + "\n".join([*misfits, *left])
        )
    if new:
        logger.warning("%s has no pooler: it starts from random weights.", checkpoint.folder.name)
    copy(checkpoint, matched)
    return backbone, set(matched)


def _read_head(checkpoint: Checkpoint, task: Task, arguments: dict) -> set[str]:
    """Takes the task's head over, whole or not at all."""
    layers = task.backbone.family.head_tensors[task.task_name]
    reason = task.head_misfit(checkpoint.config, arguments)
    if reason is None:
        matched, misfits = match(checkpoint, task, layers)
        if not misfits:
            copy(checkpoint, matched)
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


def _report_unused(checkpoint: Checkpoint, used: set[str], reader: str) -> None:
    left = unexpected(checkpoint, used)
    inside = [f"+ {n}" for n in left if n.startswith(("embeddings.", "encoder."))]
    if inside:
        raise ValueError(
            f"{checkpoint.folder}: weights that the architecture in config.json has no place "
            "for:\n" + "\n".join(inside)
        )
    if left:
        logger.warning(
            "%s: %s does not use %s.", checkpoint.folder.name, reader, ", ".join(sorted(left))
        )
