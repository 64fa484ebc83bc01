"""Classes that compute the answers of exported folders, which are opened without Keras."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.answers import Answers

C = TypeVar("C", bound="type[Answers]")

# All classes, by the name in the manifest: module and class.
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
_REGISTERED: dict[str, type[Answers]] = {}  # by `register_answers`


def get_answers_class(name: str) -> type[Answers]:
    """Return the class for a name in `ANSWERS`. The class is imported on first use.

    Example:
        >>> get_answers_class("QuestionAnswers").methods
        ('answer',)
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    module, cls = ANSWERS[name].rsplit(".", 1)
    return getattr(importlib.import_module(f"encoder_zoo.{module}"), cls)


def register_answers(cls: C) -> C:
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
    name, path = cls.__name__, f"{cls.__module__}.{cls.__qualname__}"
    if ANSWERS.get(name, path) != path:
        raise ValueError(f"The name {name!r} is taken by {ANSWERS[name]}. Choose another name.")
    ANSWERS[name] = path
    _REGISTERED[name] = cls
    return cls
