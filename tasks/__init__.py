"""Tasks: one folder, and one line here, per task."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.answers import Answers
    from encoder_zoo.tasks.base.task import Task

A = TypeVar("A", bound="type[Answers]")
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
# Classes that compute the answers of exported folders: module and class.
ANSWERS = {
    "ClassAnswers": "tasks.classification.class_answers.ClassAnswers",
    "TagAnswers": "tasks.tagging.tag_answers.TagAnswers",
    "QuestionAnswers": "tasks.question_answering.question_answers.QuestionAnswers",
    "MaskAnswers": "tasks.pretraining.mask_answers.MaskAnswers",
    "DetectionAnswers": "tasks.pretraining.detection_answers.DetectionAnswers",
    "VectorAnswers": "tasks.embedding.vector_answers.VectorAnswers",
    "FewShotAnswers": "tasks.embedding.few_shot_answers.FewShotAnswers",
    "TermAnswers": "tasks.embedding.term_answers.TermAnswers",
    "TokenAnswers": "tasks.embedding.token_answers.TokenAnswers",
    "RankAnswers": "tasks.ranking.rank_answers.RankAnswers",
    "ChoiceAnswers": "tasks.ranking.choice_answers.ChoiceAnswers",
}
# Classes from `register_task` and `register_answers`, by name.
_REGISTERED: dict[str, type] = {}


def get_task(name: str) -> type[Task]:
    """Return the task class for a name in `TASKS`. The class is imported on first use.

    Example:
        >>> get_task("span_qa").record.pipeline_tag
        'question-answering'
    """
    return _load_class(name, TASKS)


def get_answers_class(name: str) -> type[Answers]:
    """Return the class for a name in `ANSWERS`. The class is imported on first use.

    Example:
        >>> get_answers_class("QuestionAnswers").methods
        ('answer',)
    """
    return _load_class(name, ANSWERS)


def _load_class(name: str, paths: dict[str, str]) -> type:
    if name in _REGISTERED:
        return _REGISTERED[name]
    module, cls = paths[name].rsplit(".", 1)
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

    name, path = cls.record.name, _get_path(cls)
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


def register_answers(cls: A) -> A:
    """Register a subclass of `Answers`. Use this function as a class decorator.

    `export` can then write folders with these answers. `open_export` can open them in every process
    that has imported the module of the class, also without Keras.

    Raises:
        ValueError: If another class has this name.

    Example:
        >>> import encoder_zoo as ez
        >>> from encoder_zoo.tasks.base.answers import Answers
        >>> @ez.register_answers
        ... class ClassAnswers(Answers): ...
        Traceback (most recent call last):
        ValueError: The name 'ClassAnswers' is taken by tasks.classification.class_answers.ClassA...
    """
    name, path = cls.__name__, _get_path(cls)
    if ANSWERS.get(name, path) != path:
        raise ValueError(f"The name {name!r} is taken by {ANSWERS[name]}. Choose another name.")
    ANSWERS[name] = path
    _REGISTERED[name] = cls
    return cls


def _get_path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
