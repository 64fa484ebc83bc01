"""Check that a teacher and a student fit together, and prepare examples for both."""

from __future__ import annotations

from collections.abc import Sequence

from encoder_zoo.common.keras_private import strategy_of
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.tasks import all_tasks
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.distillation.preprocessor import DistillationPreprocessor
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

OBJECTIVES = ("soft_labels", "hidden_states", "relations")


def backbone_of(model: Task | Backbone) -> Backbone:
    """Return the backbone of a task; a backbone is its own.

    Raises:
        TypeError: "Expected a task or a backbone as teacher and student. ..."
    """
    if not isinstance(model, Task | Backbone):
        raise TypeError(
            "Expected a task or a backbone as teacher and student. "
            f"Received: {type(model).__name__}."
        )
    return model if isinstance(model, Backbone) else model.backbone


def checked_objectives(given: Sequence[str] | None, teacher, student) -> list[str]:
    """Return the objectives; by default answers of tasks, and relations of backbones.

    Raises:
        ValueError: "objectives is ['logits']. Expected ...", "soft_labels need a teacher and ..."
    """
    answer = isinstance(teacher, Task) and isinstance(student, Task)
    usual = ["soft_labels"] if answer else ["relations"]
    objectives = usual if given is None else list(given)
    unknown = [name for name in objectives if name not in OBJECTIVES]
    repeated = len(set(objectives)) != len(objectives)
    if unknown or repeated or not objectives or isinstance(given, str):
        raise ValueError(
            f"objectives is {given!r}. Expected a list of one or more of {', '.join(OBJECTIVES)}."
        )
    if "soft_labels" in objectives:
        _check_same_answers(teacher, student)
    return objectives


def _check_same_answers(teacher, student) -> None:
    """Raise a ValueError if the answers differ in kind; a student may learn its classes here."""
    if type(teacher) is not type(student) or not student.learns_soft_labels:
        kinds = ", ".join(task.__name__ for task in all_tasks() if task.learns_soft_labels)
        raise ValueError(
            f"soft_labels need a teacher and a student of the same task, one of {kinds}. Received: "
            f"{type(teacher).__name__} and {type(student).__name__}."
        )
    if not student.has_classes:
        return
    _take_over_classes(teacher, student)
    for name in ("num_classes", "labels", "problem_type"):
        wanted, found = getattr(teacher, name), getattr(student, name)
        if wanted != found and None not in (wanted, found):
            raise ValueError(
                f"{name} of the teacher is {wanted!r}, of the student {found!r}: its answers mean "
                "something else. Build the student with the teacher's, or leave them out."
            )


def _take_over_classes(teacher: Task, student: Task) -> None:
    """Give a student without classes the teacher's, and its way of splitting words."""
    teacher._check_labels_known()
    if student.num_classes is None:
        student._set_classes(teacher.num_classes, teacher.labels)
    student._answer_like(teacher)


def checked_heads(given: int | None, teacher: Backbone, student: Backbone) -> int:
    """Return the number of parts for relations: the given one, or that of the attention heads.

    Raises:
        ValueError: "The teacher has 12 attention heads, the student 2. Pass relation_heads=..."
    """
    if given is None and teacher.num_heads != student.num_heads:
        raise ValueError(
            f"The teacher has {teacher.num_heads} attention heads, the student "
            f"{student.num_heads}. Pass relation_heads=..., which divides both widths, "
            f"{teacher.hidden_dim} and {student.hidden_dim}."
        )
    heads = given or student.num_heads
    if teacher.hidden_dim % heads or student.hidden_dim % heads:
        raise ValueError(
            f"relation_heads is {heads}. Expected a divisor of both widths, "
            f"{teacher.hidden_dim} of the teacher and {student.hidden_dim} of the student."
        )
    return heads


def check_two_models(teacher: Task | Backbone, student: Task | Backbone) -> None:
    """Raise a ValueError if the teacher and the student share weights: training moves both."""
    taught = {id(weight) for weight in student.weights}
    shared = [weight.path for weight in teacher.weights if id(weight) in taught]
    if shared:
        raise ValueError(
            f"The teacher and the student share {len(shared)} weights, {shared[0]} first, so that "
            "the teacher would change with the student. Load one of them once more, by "
            "from_preset."
        )


def check_same_strategy(*models) -> None:
    """Raise a ValueError if not all were built under one strategy of `tf.distribute`."""
    if len({id(strategy_of(model)) for model in models}) > 1:
        raise ValueError(
            "The student and its Distillation must be built in the scope of the same strategy."
        )


def paired_preprocessor(
    teacher: Task | Backbone, student: Task | Backbone, own: Preprocessor | None, by_token: list
) -> DistillationPreprocessor | None:
    """Return a preprocessor for both; None if there is no tokenizer, for prepared inputs alone.

    Args:
        teacher: with a preprocessor, unless it is a backbone, which reads the student's examples.
        student: of the same task, or a backbone.
        own: the student's preprocessor, if there is one.
        by_token: objectives that are learned token by token, in words.

    Raises:
        ValueError: "The teacher and the student have different tokenizers, so that ...",
            "Distillation reads each text in one example. ..."
    """
    if own is None:
        return None
    teachers = getattr(teacher, "preprocessor", None)
    if own.pools_windows or (teachers is not None and teachers.pools_windows):
        raise ValueError(
            "Distillation reads each text in one example. Expected preprocessors without "
            "window_length."
        )
    longest = backbone_of(teacher).max_sequence_length
    why = None
    if teachers is not None and _identity(teachers) != _identity(own):
        why = "have different tokenizers"
    elif own.max_sequence_length > longest:
        why = f"take examples of different lengths, {longest} tokens and {own.max_sequence_length}"
    if why and teachers is not None and (not by_token or _can_be_aligned(own, teachers, by_token)):
        return DistillationPreprocessor(own, teachers, aligned=bool(by_token))
    if why:
        raise ValueError(
            f"The teacher and the student {why}, so that their tokens do not correspond. "
            f"Expected the same for {', '.join(by_token) or 'a teacher without a preprocessor'}; "
            "of any teacher with a preprocessor are learned soft_labels of a SequenceClassifier, "
            "and hidden_states and relations of one text or pair in a row."
        )
    needed = teachers is not None and teachers.tokenizer.uses_segments
    segments = teachers if needed and not own.tokenizer.uses_segments else None
    return DistillationPreprocessor(own, None, segments)


def _identity(preprocessor: Preprocessor) -> dict:
    """Return the settings that decide on the ids of a text."""
    tokenizer = preprocessor.tokenizer
    config = {n: v for n, v in tokenizer.get_config().items() if n != "uses_segments"}
    return {"kind": type(tokenizer), **config}


def _can_be_aligned(own: Preprocessor, teachers: Preprocessor, by_token: list[str]) -> bool:
    """Return whether the tokens of both can be aligned by characters: in examples of one text or
    pair, and for other objectives than the answers of single tokens."""
    return (
        own.one_example_per_text
        and teachers.one_example_per_text
        and own.packed_length is None
        and set(by_token) <= {"hidden_states", "relations"}
    )


def learned_by_token(objectives: list[str], student: Task | Backbone) -> list[str]:
    """Return the objectives that need a token of the student for each of the teacher's, in
    words."""
    found = [name for name in objectives if name != "soft_labels"]
    if "soft_labels" in objectives and student.labels_tokens:
        found.append(f"soft_labels of a {type(student).__name__}")
    return found


def untrained_weights(student: Task | Backbone, objectives: list[str], answers: bool) -> list:
    """Return the student's weights without gradients, such as those of a head if only hidden
    states are learned.

    Args:
        student: a task or a backbone.
        objectives: to be learned from the teacher.
        answers: whether an objective trains the student's answers.
    """
    if answers:
        return []
    backbone = backbone_of(student)
    kept = {id(weight) for weight in backbone.weights}
    found = [weight for weight in student.weights if id(weight) not in kept]  # the head's
    layers = [backbone.pooler_dense] if backbone.pooler else []
    last = backbone.blocks[-1]
    if "hidden_states" not in objectives and last not in backbone.blocks[:-1]:
        read = {id(weight) for layer in last.projection_layers for weight in layer.weights}
        found += [weight for weight in last.weights if id(weight) not in read]
    if "hidden_states" not in objectives and backbone.final_layer is not None:
        layers.append(backbone.final_layer)
    return found + [weight for layer in layers for weight in layer.weights]
