"""Preprocess texts for teacher and student, and check that both models are compatible."""

from __future__ import annotations

from collections.abc import Sequence

from encoder_zoo.common.configuration import get_argument_names
from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.tokenizers.text.ragged import map_chunks
from encoder_zoo.tasks import list_tasks
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed, pack_batch
from encoder_zoo.tasks.preprocessing.inputs import Inputs
from encoder_zoo.tasks.preprocessing.packing import compute_kept_tokens, pack
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.preprocessing.tokenized_texts import compute_sort_keys
from encoder_zoo.tasks.training.distribution import get_strategy

TEACHER = "teacher_"
# Input that maps each student token to its position in the teacher's example.
TEACHER_POSITIONS = "positions_in_teacher"
NO_TOKEN = -1


def find_example_positions(
    texts: list[xp.Tensor], student: Preprocessor, teacher: Preprocessor
) -> xp.RaggedTensor:
    """For each student token, find the position of the corresponding teacher token.

    Args:
        texts: One or two string tensors of shape (B,).
        student: The student's preprocessor, which adds special tokens.
        teacher: The teacher's preprocessor, which adds special tokens.

    Returns:
        Ragged int32 tensor of shape (B, None). The start token is mapped to the teacher's start
        token. The position is -1 for end tokens, and for tokens that are truncated in the teacher's
        example.
    """

    def compute_chunk(examples: xp.RaggedTensor) -> tuple[xp.RaggedTensor]:
        parts = xp.unstack(examples.to_tensor(shape=(None, len(texts))), axis=1)
        return (_compute_positions(parts, student, teacher),)

    examples = xp.RaggedTensor.from_tensor(xp.stack(texts, axis=1))  # (B, 1 or 2)
    [positions] = map_chunks(compute_chunk, examples)
    return positions


def _compute_positions(
    texts: list[xp.Tensor], student: Preprocessor, teacher: Preprocessor
) -> xp.RaggedTensor:
    """Return the result of `find_example_positions` for a chunk of texts that fits in memory."""
    tokens = [teacher.tokenizer.tokenize_with_offsets(text) for text in texts]
    specials, separators = (
        teacher.count_specials(len(texts) == 2),
        teacher.tokenizer.pair_separators,
    )
    side = teacher.tokenizer.truncation_side
    ids = [ids for ids, _, _ in tokens]
    kept = compute_kept_tokens(ids, specials, teacher.max_sequence_length, side)
    column, first_count = teacher.tokenizer.first_column, kept[0][1]
    begins = [column * xp.ones_like(first_count), column + first_count + separators]
    positions = []
    for text, (_, starts, ends), (skipped, count), begin in zip(
        texts, tokens, kept, begins, strict=False
    ):
        found = align_tokens(student.tokenizer.tokenize_with_offsets(text), starts, ends)
        row = found.value_rowids()
        number = found.values - xp.gather(skipped, row)  # index after truncation
        inside = (found.values >= 0) & (number >= 0) & (number < xp.gather(count, row))
        position = xp.where(inside, number + xp.gather(begin, row), NO_TOKEN)
        positions.append(found.with_values(position))
    own = student.tokenizer
    template = own.template.map(
        lambda token: 0 if column and token == own.start_token else NO_TOKEN
    )
    return pack(positions, template, student.max_sequence_length, own.truncation_side)[0]


def align_tokens(tokens: tuple, starts: xp.RaggedTensor, ends: xp.RaggedTensor):
    """For each token, find the token that ends at the same character in another tokenization.

    The start is not compared, because some tokenizers include leading spaces in tokens.

    Args:
        tokens: Tuple of ids, starts and ends, from `tokenize_with_offsets`. Ragged tensors of shape
            (B, None).
        starts: Ragged int32 tensor of shape (B, None). Start offsets in the other tokenization.
        ends: Ragged int32 tensor of shape (B, None). End offsets in the other tokenization.

    Returns:
        Ragged int32 tensor of shape (B, None). Indices in the other tokenization, or -1 if no token
        ends at this character.

    Example:
        >>> import tensorflow as tf
        >>> spans = [tf.ragged.constant([x]) for x in ([5, 6, 7], [0, 3, 8], [3, 7, 9])]
        >>> starts, ends = tf.ragged.constant([[0, 4]]), tf.ragged.constant([[2, 7]])
        >>> align_tokens(spans, starts, ends).to_list()  # "mel|odra" and "me", "odra"
        [[-1, 1, -1]]
    """
    ids, _, own_ends = tokens
    last = compute_sort_keys(own_ends) - 1  # (T,)
    found = xp.searchsorted(compute_sort_keys(starts), last, side="right", out_type=xp.int64) - 1
    row_starts = xp.gather(starts.row_starts(), ids.value_rowids())
    none_before = found < row_starts
    # One extra value, because there may be no tokens.
    all_ends = xp.concat([compute_sort_keys(ends), [0]], 0)
    holds = xp.gather(all_ends, xp.maximum(found, 0)) > last
    number = xp.where(none_before | ~holds, xp.cast(NO_TOKEN, xp.int64), found - row_starts)
    return ids.with_values(xp.cast(number, xp.int32))


DISTILLATION_OBJECTIVES = ("soft_labels", "hidden_states", "relations")


def get_backbone(model: Task | Backbone) -> Backbone:
    """Return a task's backbone. A backbone is returned unchanged."""
    return model if isinstance(model, Backbone) else model.backbone


def check_objectives(given: Sequence[str] | None, teacher, student) -> list[str]:
    """Check the objectives. The default is "soft_labels" for two tasks, otherwise "relations".

    Raises:
        ValueError: If `given` is not a list of known, distinct objectives, or if "soft_labels" is
            selected and the tasks do not predict the same classes or tokens.
    """
    answer = isinstance(teacher, Task) and isinstance(student, Task)
    usual = ["soft_labels"] if answer else ["relations"]
    objectives = usual if given is None else list(given) if isinstance(given, list | tuple) else []
    unknown = [name for name in objectives if name not in DISTILLATION_OBJECTIVES]
    if unknown or not objectives or len(set(objectives)) != len(objectives):
        raise invalid(
            "objectives",
            given,
            f"a list with one or more of {', '.join(DISTILLATION_OBJECTIVES)}, without duplicates",
        )
    if "soft_labels" in objectives:
        _check_same_answers(teacher, student)
    return objectives


def _check_same_answers(teacher, student) -> None:
    """Check that both tasks have the same type, and the same classes or vocabulary size.

    A student without classes gets the teacher's classes.

    Raises:
        ValueError: If the tasks differ, or if this type of task does not learn from soft labels.
    """
    if type(teacher) is not type(student) or not student.record.learns_soft_labels:
        kinds = ", ".join(task.__name__ for task in list_tasks() if task.record.learns_soft_labels)
        raise ValueError(
            f"The teacher is a {type(teacher).__name__} and the student is a "
            f"{type(student).__name__}. The objective 'soft_labels' requires that both have the "
            f"same class, which must be one of {kinds}."
        )
    if not student.record.has_classes:
        sizes = [get_backbone(model).vocabulary_size for model in (teacher, student)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"vocabulary_size is {sizes[1]} for the student, but {sizes[0]} for the teacher. "
                "The objective 'soft_labels' requires the same vocabulary."
            )
        return
    _copy_classes(teacher, student)
    for name in ("num_classes", "labels", "problem_type"):
        wanted, found = getattr(teacher, name), getattr(student, name)
        if wanted != found and None not in (wanted, found):
            raise ValueError(
                f"{name} is {quote(found)} for the student, but {quote(wanted)} for the teacher. "
                "Pass the same value, or remove this argument."
            )


def _copy_classes(teacher: Task, student: Task) -> None:
    """Copy the teacher's classes to a student without classes, and copy `distilled_settings`."""
    teacher._check_can_predict()
    if student.num_classes is None:
        student._set_classes(teacher.num_classes, teacher.labels)
    for here, there in ((student, teacher), (student.preprocessor, teacher.preprocessor)):
        if None not in (here, there):
            for name in {*student.record.distilled_settings} & {*get_argument_names(type(here))}:
                setattr(here, name, getattr(there, name))


def check_relation_heads(given: int | None, teacher: Backbone, student: Backbone) -> int:
    """Check the number of relation heads. The default is the number of attention heads.

    Raises:
        ValueError: If `given` does not divide the widths of both models, or if `given` is None and
            the models have different numbers of attention heads.
    """
    if given is None and teacher.num_heads != student.num_heads:
        raise ValueError(
            f"The teacher has {teacher.num_heads} attention heads, but the student has "
            f"{student.num_heads}. Pass relation_heads, a divisor of both widths "
            f"({teacher.hidden_dim} and {student.hidden_dim})."
        )
    heads = given or student.num_heads
    if teacher.hidden_dim % heads or student.hidden_dim % heads:
        raise invalid(
            "relation_heads",
            heads,
            f"a divisor of both widths: {teacher.hidden_dim} (teacher) and "
            f"{student.hidden_dim} (student)",
        )
    return heads


def check_models(teacher: Task | Backbone, student: Task | Backbone) -> None:
    """Check that the models are tasks or backbones, and that they do not share weights."""
    for name, model in (("teacher", teacher), ("student", student)):
        if not isinstance(model, Task | Backbone):
            raise invalid(name, model, "a task or a backbone", TypeError)
    taught = {id(weight) for weight in student.weights}
    shared = [weight.path for weight in teacher.weights if id(weight) in taught]
    if shared:
        raise ValueError(
            f"The teacher and the student share {len(shared)} weights, such as {shared[0]}, so "
            "training would change both models. Load one model again with `from_preset`."
        )


def check_same_strategy(student: Task | Backbone) -> None:
    """Raise a ValueError if the student was created under another `tf.distribute` strategy."""
    here = get_strategy()
    if hasattr(student, "distribution"):
        built = student.distribution.strategy
    else:
        built = getattr(student.weights[0].value, "distribute_strategy", None)
        if here is not None and isinstance(here, tf.distribute.OneDeviceStrategy):
            here = None  # the default strategy creates normal variables
    if built is not here:
        raise ValueError(
            "The student and the Distillation were created under different tf.distribute "
            "strategies. Create both in the scope of the same strategy."
        )


def pair_preprocessors(
    teacher: Task | Backbone, own: Preprocessor | None, by_token: list
) -> DistillationPreprocessor | None:
    """Create a preprocessor for both models, or return None if there is no tokenizer.

    Args:
        teacher: Task with a preprocessor, or a backbone. A backbone reads the student's examples.
        own: Optional preprocessor of the student.
        by_token: List of strings. Descriptions of the objectives that compare single tokens.

    Raises:
        ValueError: If an objective compares tokens and the tokens of the two models differ, or if a
            preprocessor has a `window_length`.
    """
    if own is None:
        return None
    teachers = getattr(teacher, "preprocessor", None)
    if own.pools_windows or (teachers is not None and teachers.pools_windows):
        raise ValueError(
            "Distillation does not support windows. Use preprocessors without `window_length`."
        )
    longest = get_backbone(teacher).max_sequence_length
    why = None
    if teachers is not None and _collect_settings(teachers) != _collect_settings(own):
        why = "have different tokenizers"
    elif own.max_sequence_length > longest:
        why = f"use different lengths, {longest} and {own.max_sequence_length} tokens"
    if why and teachers is not None and (not by_token or _can_be_aligned(own, teachers, by_token)):
        return DistillationPreprocessor(own, teachers, aligned=bool(by_token))
    if why:
        raise ValueError(
            f"The teacher and the student {why}, which does not work for "
            f"{', '.join(by_token) or 'a teacher without a preprocessor'}. With different "
            "tokenizers, use soft_labels of a SequenceClassifier, or hidden_states and relations "
            "for rows with a single text or pair."
        )
    needed = teachers is not None and teachers.tokenizer.uses_segments
    segments = teachers if needed and not own.tokenizer.uses_segments else None
    return DistillationPreprocessor(own, None, segments)


def _collect_settings(preprocessor: Preprocessor) -> dict:
    """Return the settings of a preprocessor that change token ids, to compare two preprocessors."""
    tokenizer = preprocessor.tokenizer
    config = {n: v for n, v in tokenizer.get_config().items() if n != "uses_segments"}
    return {"kind": type(tokenizer), **config}


def _can_be_aligned(own: Preprocessor, teachers: Preprocessor, by_token: list[str]) -> bool:
    """Return whether the tokens of two tokenizers can be aligned by character offsets.

    Each example must be a single text or pair, and no objective may compare answers per token.
    """
    return (
        own.one_example_per_text
        and teachers.one_example_per_text
        and own.packed_length is None
        and set(by_token) <= {"hidden_states", "relations"}
    )


def find_token_objectives(objectives: list[str], student: Task | Backbone) -> list[str]:
    """Describe the objectives that compare each student token with one teacher token."""
    found = [name for name in objectives if name != "soft_labels"]
    if "soft_labels" in objectives and student.objective.of_tokens:
        found.append(f"soft_labels of a {type(student).__name__}")
    return found


def find_untrained_weights(student: Task | Backbone, objectives: list[str], answers: bool) -> list:
    """Return the student weights that no objective trains.

    For example, "hidden_states" does not train the weights of the head.

    Args:
        student: A task or a backbone.
        objectives: List of the objectives.
        answers: Boolean. Whether an objective trains the student's head.
    """
    if answers:
        return []
    backbone = get_backbone(student)
    kept = {id(weight) for weight in backbone.weights}
    found = [weight for weight in student.weights if id(weight) not in kept]  # weights of the head
    layers = [backbone.pooler_dense] if backbone.pooler else []
    last = backbone.blocks[-1]
    if "hidden_states" not in objectives and last not in backbone.blocks[:-1]:
        read = {id(weight) for layer in last.projection_layers for weight in layer.weights}
        found += [weight for weight in last.weights if id(weight) not in read]
    if "hidden_states" not in objectives and backbone.final_layer is not None:
        layers.append(backbone.final_layer)
    return found + [weight for layer in layers for weight in layer.weights]


class DistillationPreprocessor(Preprocessor):
    """Preprocessor for the inputs of the student, and of the teacher if its inputs are different.

    Args:
        student: The student's preprocessor.
        teacher: The teacher's preprocessor. Defaults to None, which means that the teacher reads
            the student's examples.
        segments: Optional preprocessor that adds "segment_ids" for the teacher, if the student does
            not use segments.
        aligned: Boolean. Whether to add, for each student token, the position of the corresponding
            teacher token. Defaults to False.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)` when called, as from the student's preprocessor.
        The dict `x` also contains the teacher's inputs, such as "teacher_token_ids". Without
        labels, `x` contains "soft_weights", the weights of texts or tokens, unless all weights are
        equal. If `aligned` is True, `x` contains "positions_in_teacher", int32 of shape (B, L),
        which is -1 for tokens without a corresponding token.
    """

    def __init__(
        self,
        student: Preprocessor,
        teacher: Preprocessor | None = None,
        segments: Preprocessor | None = None,
        aligned: bool = False,
    ):
        super().__init__(student.tokenizer, student.sequence_length)
        self.student = student
        self.teacher = teacher
        self.segments = segments
        self.aligned = aligned
        self.max_sequence_length = student.max_sequence_length

    @property
    def packed_length(self) -> int | None:
        return self.student.packed_length

    @property
    def inputs(self) -> Inputs:
        return self.student.inputs

    @property
    def text_columns(self) -> Sequence[str] | None:
        return self.student.text_columns

    def separate(self, x, y) -> tuple:
        return self.student.separate(x, y)

    def batch_examples(self, dataset: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        return self.student.batch_examples(dataset, batch_size)

    def encode(self, x, y=None, sample_weight=None) -> dict:
        if y is None:
            examples = self.student.encode_unlabelled(x, sample_weight)
        else:
            examples = self.student.encode(x, y, sample_weight)
        if self.teacher is not None:
            teachers = self.teacher.encode(x)
            examples |= {TEACHER + name: values for name, values in teachers.items()}
        if self.aligned:
            examples[TEACHER_POSITIONS] = find_example_positions(
                self.student.read_texts(x), self.student, self.teacher
            )
        return examples

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        own = {name: values for name, values in examples.items() if not name.startswith(TEACHER)}
        batch = self.student.collate(own, seed, bucketed)
        inputs, *rest = batch if isinstance(batch, tuple) else (batch,)
        inputs = {**inputs, **self._select_teacher_inputs(examples, own, bucketed)}
        if self.aligned:
            shape = xp.shape(inputs["token_ids"], xp.int64)
            positions = examples[TEACHER_POSITIONS].to_tensor(NO_TOKEN, shape=shape)
            inputs[TEACHER_POSITIONS] = xp.ensure_shape(positions, inputs["token_ids"].shape)
        if not rest:
            inputs |= _get_soft_weights(examples, xp.shape(inputs["token_ids"], xp.int64))
        return pack_batch(inputs, *rest)

    def _select_teacher_inputs(
        self, examples: dict, own: dict, bucketed: Bucketed
    ) -> dict[str, xp.Tensor]:
        """Create the inputs that only the teacher reads."""
        if self.teacher is not None:
            named = {n.removeprefix(TEACHER): v for n, v in examples.items() if n not in own}
            padded = self.teacher.pad(named, bucketed)
        elif self.segments is not None:
            padded = {"segment_ids": self.segments.pad(own, bucketed)["segment_ids"]}
        else:
            padded = {}
        return {TEACHER + name: values for name, values in padded.items()}


def _get_soft_weights(examples: dict, shape: xp.Tensor) -> dict[str, xp.Tensor]:
    """Return the weights of texts (B,) or tokens (B, L) for data without labels.

    The dict is empty if all weights are equal.
    """
    if "label_weights" in examples:
        weights = examples["label_weights"].to_tensor(shape=shape)
        return {"soft_weights": xp.ensure_shape(weights, (None, None))}
    return {"soft_weights": examples["sample_weight"]} if "sample_weight" in examples else {}


def select_teacher_inputs(inputs: dict, uses_segments: bool) -> dict:
    """Return the inputs of the teacher, or the inputs of the student if both models share them.

    Args:
        inputs: Dict. Inputs of a `Distillation`.
        uses_segments: Boolean. Whether the teacher uses segment ids.
    """
    own = {n.removeprefix(TEACHER): v for n, v in inputs.items() if n.startswith(TEACHER)}
    if "token_ids" in own:
        return own
    shared = {n: v for n, v in inputs.items() if uses_segments or n != "segment_ids"}
    return {**shared, **own}
