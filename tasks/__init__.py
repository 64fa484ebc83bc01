"""Tasks: one folder, and one line here, per task."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

C = TypeVar("C", bound="type[Task]")

# Tasks that are built from other tasks. Their names do not occur in presets: module and class.
BUILT_FROM_TASKS = {
    "distillation": "tasks.distillation.distillation.Distillation",
    "few_shot_classifier": "tasks.embedding.few_shot.FewShotClassifier",
    "zero_shot_classifier": "tasks.classification.zero_shot.ZeroShotClassifier",
    "hybrid_embedder": "extras.hybrid_embedder.HybridEmbedder",
}
# All tasks, by the name in presets: module and class.
TASKS = {
    "sequence_classifier": "tasks.classification.sequence_classifier.SequenceClassifier",
    "token_classifier": "tasks.tagging.token_classifier.TokenClassifier",
    "entity_extractor": "tasks.tagging.entity_extractor.EntityExtractor",
    "span_qa": "tasks.question_answering.span_qa.SpanQA",
    "masked_lm": "tasks.pretraining.masked_lm.MaskedLM",
    "pretraining": "tasks.pretraining.pretraining.Pretraining",
    "replaced_token_detection": "tasks.pretraining.replaced_tokens.ReplacedTokenDetection",
    "text_embedder": "tasks.embedding.text_embedder.TextEmbedder",
    "sparse_encoder": "tasks.embedding.sparse_encoder.SparseEncoder",
    "reranker": "tasks.ranking.reranker.Reranker",
    "multiple_choice": "tasks.ranking.multiple_choice.MultipleChoice",
    "late_interaction": "tasks.embedding.late_interaction.LateInteraction",
    **BUILT_FROM_TASKS,
}
_REGISTERED: dict[str, type[Task]] = {}  # by `register_task`


def get_task(name: str) -> type[Task]:
    """Return the task class for a name in `TASKS`. The class is imported on first use.

    Example:
        >>> get_task("span_qa").record.pipeline_tag
        'question-answering'
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    module, cls = TASKS[name].rsplit(".", 1)
    return getattr(importlib.import_module(f"encoder_zoo.{module}"), cls)


def list_tasks() -> list[type[Task]]:
    """Return the classes of all tasks, except tasks that are built from other tasks."""
    return [get_task(name) for name in TASKS if name not in BUILT_FROM_TASKS]


def register_task(cls: C) -> C:
    """Register a subclass of `Task`. Use this function as a class decorator.

    The task and its preprocessor are also registered with Keras, so that they can be saved in
    `.keras` files. `encoder_zoo.testing.check_task` checks the class.

    Raises:
        ValueError: If another class has this task name.

    Example:
        >>> import dataclasses
        >>> import encoder_zoo as ez
        >>> class Titles(ez.SequenceClassifier):
        ...     record = dataclasses.replace(ez.SequenceClassifier.record, name="span_qa")
        >>> register_task(Titles)
        Traceback (most recent call last):
        ValueError: The task name 'span_qa' is taken by tasks.question_answering.span_qa.Sp...
    """
    from encoder_zoo.common.serializable import make_serializable

    name, path = cls.record.name, f"{cls.__module__}.{cls.__qualname__}"
    if TASKS.get(name, path) != path:
        raise ValueError(
            f"The task name {name!r} is taken by {TASKS[name]}. "
            f"Give the record of {cls.__name__} another name."
        )
    make_serializable(cls)
    make_serializable(cls.record.preprocessor_class)
    TASKS[name] = path
    _REGISTERED[name] = cls
    return cls
