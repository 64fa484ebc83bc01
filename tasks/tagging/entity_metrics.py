"""Metrics for tagging: token accuracy, and F1 of entities with correct type and boundaries.

Comments use these letters for shapes: B batch, L sequence, C tags, T types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.base.confidence import ScoredLabels
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.tagging.alignment import INEXACT, LOST, SPAN_MARKS
from encoder_zoo.tasks.tagging.crf import find_best_sequences, move_to_front
from encoder_zoo.tasks.tagging.entities import convert_to_scores
from encoder_zoo.tasks.tagging.tags import OUTSIDE, find_spans, mark_span_starts, parse_tags
from encoder_zoo.tasks.training.metrics import compute_f1_scores, divide_or_zero, flatten_tokens

ENTITY_AVERAGES = ("micro", "macro", "weighted")


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TokenAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """Compute the weighted fraction of positions with the correct class.

    In contrast, `keras.metrics.SparseCategoricalAccuracy` first computes the mean of each example,
    including padding, so positions have less weight in a batch of longer sequences.

    Call arguments:
        y_true: Integer tensor of shape (B, L). Classes.
        y_pred: Float tensor of shape (B, L, C). Scores.
        sample_weight: Optional float tensor of shape (B, L).

    Example:
        >>> metric = TokenAccuracy()
        >>> metric.update_state([[1, 0]], [[[0.1, 0.9], [0.2, 0.8]]], [[1.0, 0.0]])
        >>> float(metric.result())
        1.0
    """

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(*flatten_tokens(y_true, y_pred, sample_weight))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EntityF1(HigherIsBetter, ConfigFromSignature, keras.metrics.Metric):
    """Compute the precision, recall and F1 of entities, like seqeval and the CoNLL script.

    Positions with the weight 0 or a negative tag are removed, so that the tokens before and after
    them are adjacent. The metric can therefore be used with token labels from `TokenClassifier`.
    From logits, the best tag per token is used. In `evaluate` and in the validation of `fit`, the
    best tag sequence is used, as in the answers of the task (see `valid_tags` and `crf`).

    Args:
        labels: List of strings. All tags, in the order of the model's outputs.
        average: String. How to average scores. "micro" counts all entities together. "macro" is the
            mean over all types in the data. "weighted" is the mean over all types, weighted by the
            number of true entities. Defaults to "micro".

    Call arguments:
        y_true: Integer tensor of shape (B, L). Tags.
        y_pred: Float tensor of shape (B, L, C) with scores of the tags, or integer tensor of shape
            (B, L) with tags.
        sample_weight: Optional float tensor of shape (B, L) or (B,). An entity has the weight of
            its first position.

    Returns:
        `result()` is `{"precision", "recall", "f1"}`. These names are also used in `fit` and
        `evaluate`. For `EarlyStopping(monitor="val_f1")`, higher values are better by default. For
        precision and recall, pass `mode="max"`.

    Raises:
        ValueError: If `average` is unknown.

    Source: Tjong Kim Sang and De Meulder 2003, Introduction to the CoNLL-2003 Shared Task, and its
    script conlleval.

    Example:
        >>> metric = EntityF1(["O", "B-PER", "I-PER"])
        >>> metric.update_state([[1, 2, 0, 1]], [[1, 2, 0, 0]])
        >>> {name: round(float(value), 2) for name, value in metric.result().items()}
        {'precision': 1.0, 'recall': 0.5, 'f1': 0.67}
    """

    def __init__(self, labels: Sequence[str], average: str = "micro", **kwargs):
        # Keras callbacks find a metric by the name that they monitor.
        super().__init__(**{"name": "f1", **kwargs})
        if average not in ENTITY_AVERAGES:
            raise invalid("average", average, f"one of {', '.join(ENTITY_AVERAGES)}")
        self.labels = list(labels)
        self.average = average
        self._marks = None
        tags, count = parse_tags(self.labels), len(self.labels)
        self.type_names = tags.type_names
        # one more tag outside of all spans, for masked tokens
        self._prefixes = np.append(tags.prefixes, OUTSIDE).astype("int32")
        self._types = np.append(tags.types, len(tags.type_names)).astype("int32")
        self.counts = self.add_variable(
            shape=(3, len(self.type_names)), initializer="zeros", name="counts"
        )
        shapes = {"first": (count,), "between": (count, count), "last": (count,)}
        # all replicas have the same values
        self.transitions = [
            self.add_variable(shape=shape, initializer="zeros", aggregation="mean", name=name)
            for name, shape in shapes.items()
        ]

    def store_marks(self, inputs: object) -> None:
        """Store the marks of spans that cannot be predicted, for the next call to `update_state`.

        Args:
            inputs: Dict. Inputs of the model. Only `SPAN_MARKS` is read, if it exists.
        """
        self._marks = inputs.get(SPAN_MARKS) if isinstance(inputs, Mapping) else None

    def store_transitions(self, task: keras.Model) -> None:
        """Store the current transition scores of a task with the same tags."""
        if getattr(task, "labels", None) != self.labels:
            return
        allowed = task._answers.get_transitions()
        scores = [np.zeros(1)] * 3 if allowed is None else convert_to_scores(allowed)
        for variable, values in zip(self.transitions, scores, strict=True):
            variable.assign(np.broadcast_to(values, variable.shape))

    def reset_state(self) -> None:
        self.counts.assign(np.zeros(self.counts.shape))

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true = ops.cast(ops.convert_to_tensor(y_true), "int32")  # (B, L)
        y_pred = ops.convert_to_tensor(y_pred)
        weight = ops.cast(y_true >= 0, self.dtype)
        if sample_weight is not None:
            sample_weight = ops.cast(ops.convert_to_tensor(sample_weight), self.dtype)
            if len(sample_weight.shape) == 1:
                sample_weight = sample_weight[:, None]
            weight = weight * sample_weight

        marks, self._marks = self._marks, None
        marks = ops.zeros_like(y_true) if marks is None else ops.cast(marks, "int32")  # (B, L)
        weight, y_true, marks, y_pred = move_to_front(weight, weight, y_true, marks, y_pred)
        if len(y_pred.shape) == 3:
            y_pred = find_best_sequences(y_pred, weight > 0, self.transitions)
        y_pred = ops.cast(y_pred, "int32")
        true, predicted = (self._find_spans(tags, weight > 0) for tags in (y_true, y_pred))
        same = (true[1] == predicted[1]) & (true[2] == predicted[2]) & (marks % LOST < INEXACT)
        found = [true[0] & predicted[0] & same, predicted[0], true[0]]
        kinds = [true[1], predicted[1], true[1]]
        counts = [self._count(f, k, weight) for f, k in zip(found, kinds, strict=True)]
        counts[2] += self._count(
            marks // LOST, ops.minimum(true[1], len(self.type_names) - 1), weight
        )
        self.counts.assign_add(ops.stack(counts, axis=0))

    def _find_spans(self, tags, valid):
        """Return a mask (B, L) of the positions where spans start, and their types and ends.

        Example:
            The spans are at positions 0 to 2 and 3 to 4. Spans can only end at a break, which is
            the beginning of a span, O or the end of the row.

            >>> metric = EntityF1(["O", "B-PER", "I-PER"])
            >>> tags, valid = np.array([[1, 2, 0, 1, 0]]), np.array([[1, 1, 1, 1, 0]]) > 0
            >>> begins, _, ends = map(ops.convert_to_numpy, metric._find_spans(tags, valid))
            >>> begins.tolist(), ends[begins].tolist()
            ([[True, False, False, True, False]], [2, 4])
        """
        tags = ops.where(valid, tags, len(self.labels))
        prefix, kind = ops.take(self._prefixes, tags), ops.take(self._types, tags)
        before = ops.pad(prefix[:, :-1], [[0, 0], [1, 0]], constant_values=OUTSIDE)
        kind_before = ops.pad(kind[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
        begins = mark_span_starts(prefix, kind, before, kind_before)

        length = ops.shape(tags)[1]
        breaks = begins | (prefix == OUTSIDE)
        positions = ops.sort(ops.where(breaks, ops.arange(length), length), axis=1)  # of the breaks
        positions = ops.pad(positions, [[0, 0], [0, 1]], constant_values=length)
        number = ops.cumsum(ops.cast(breaks, "int32"), axis=1)  # of breaks up to each position
        return begins, kind, ops.take_along_axis(positions, number, axis=1)  # the next break

    def _count(self, found, kind, weight):
        """Sum the weights of the spans of each type, shape (T,)."""
        one_hot = ops.one_hot(kind, len(self.type_names) + 1, dtype=self.dtype)[..., :-1]
        return ops.sum(one_hot * (ops.cast(found, self.dtype) * weight)[..., None], axis=(0, 1))

    def result(self) -> dict:
        correct, predicted, true = self.counts[0], self.counts[1], self.counts[2]
        if self.average == "micro":
            return compute_f1_scores(ops.sum(correct), ops.sum(predicted), ops.sum(true))
        weight = true
        if self.average == "macro":
            weight = ops.cast(true + predicted > 0, self.dtype)
        share = divide_or_zero(weight, ops.sum(weight))
        scores = compute_f1_scores(correct, predicted, true)
        return {name: ops.sum(values * share) for name, values in scores.items()}

    def report(self) -> dict[str, dict[str, float]]:
        """Return the scores and the number of true entities of every type.

        Returns:
            `{type: {"precision", "recall", "f1", "support"}}`.
        """
        return _make_report(ops.convert_to_numpy(self.counts), self.type_names)


def _make_report(counts: np.ndarray, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """Compute the scores of each type from counts (3, T). See `EntityF1.report`."""
    scores = {**compute_f1_scores(*map(ops.convert_to_tensor, counts)), "support": counts[2]}
    scores = {name: ops.convert_to_numpy(values).tolist() for name, values in scores.items()}
    return {
        kind: dict(zip(scores, row, strict=True))
        for kind, *row in zip(kinds, *scores.values(), strict=True)
    }


def score_tags(
    true: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: str | None = None,
    tag_set: Sequence[str] | None = None,
) -> dict:
    """Compute entity scores from tag names, for sentences of any length.

    Args:
        true: List of lists of strings. True tags of each sentence.
        predicted: List of lists of strings. Predicted tags of each sentence.
        scheme: Optional string. Use "IOB1", "IOB2" or "IOBES" to only count well-formed entities,
            as in seqeval's strict mode. If None, malformed tags will be read as in the CoNLL
            script.
        tag_set: Optional list of strings. All tags. Needed, for example, to read LOC as the type of
            an isolated E-LOC. If None, all tags in the data are used.

    Returns:
        See `score_entities`.

    Raises:
        ValueError: If `true` and `predicted` have different numbers of sentences, or of tags for a
            sentence.

    Example:
        >>> scores = score_tags([["B-PER", "O"]], [["B-PER", "B-PER"]])
        >>> scores["precision"], scores["recall"]
        (0.5, 1.0)
    """
    if len(true) != len(predicted):
        raise ValueError(
            f"Received {len(true)} true and {len(predicted)} predicted sentences. Expected one "
            "prediction per sentence."
        )
    for row, (right, guess) in enumerate(zip(true, predicted, strict=True)):
        if len(right) != len(guess):
            raise ValueError(
                f"Sentence {row} has {len(right)} true tags, but {len(guess)} predicted tags. "
                "Expected the same number."
            )
    occurring = {tag for rows in (true, predicted) for tags in rows for tag in tags}
    vocabulary = sorted(occurring | set(tag_set or []))
    spans = [
        [set(find_spans(tags, scheme, vocabulary)) for tags in rows] for rows in (true, predicted)
    ]
    return score_entities(*spans)


def convert_to_triples(rows: Iterable[Iterable[Mapping]]) -> list[set[tuple[str, int, int]]]:
    """Convert the entities of each text to a set of tuples (label, start, end)."""
    return [{(e["label"], e["start"], e["end"]) for e in row} for row in rows]


def score_entities(true: Sequence[set[tuple]], predicted: Sequence[set[tuple]]) -> dict:
    """Compute entity scores from sets of entities.

    Args:
        true: List with a set of true entities per text. Entities are tuples with the type as the
            first item.
        predicted: List with a set of predicted entities per text.

    Returns:
        `{"precision", "recall", "f1", "per_type": {type: {"precision", ..., "support"}}}`.

    Example:
        >>> score_entities([{("PER", 0, 4)}], [{("PER", 0, 4), ("LOC", 5, 9)}])["precision"]
        0.5
    """
    kinds = sorted({entity[0] for rows in (true, predicted) for found in rows for entity in found})
    numbers = {kind: i for i, kind in enumerate(kinds)}
    counts = np.zeros((3, len(kinds)), "float32")
    for right, guess in zip(true, predicted, strict=True):
        for i, found in enumerate((right & guess, guess, right)):
            for entity in found:
                counts[i, numbers[entity[0]]] += 1
    scores = compute_f1_scores(*map(ops.convert_to_tensor, counts.sum(axis=1)))
    scores = {name: float(value) for name, value in scores.items()}
    return {**scores, "per_type": _make_report(counts, kinds)}


def score_by_type(
    true: Sequence[set[tuple]],
    found: Sequence[Sequence[Mapping]],
    names: Sequence[str],
    thresholds: Sequence[float],
) -> ScoredLabels:
    """Group predicted entities by type, with the score of each entity and whether it is correct.

    Args:
        true: List with a set of true entities (type, start, end) for each text.
        found: List with the predicted entities of each text and their scores.
        names: List of strings. Names of the types.
        thresholds: List of floats, one per type.

    Example:
        >>> entity = {"label": "PER", "start": 0, "end": 4, "score": 0.75}
        >>> scored = score_by_type([{("PER", 0, 4), ("PER", 5, 8)}], [[entity]], ["PER"], [0.5])
        >>> scored.scores[0].tolist(), scored.right[0].tolist(), scored.counts
        ([0.75], [True], [2])
    """
    scores, right = ({name: [] for name in names} for _ in range(2))
    for entities, of_text in zip(found, true, strict=True):
        for entity in entities:
            label = entity["label"]
            scores[label].append(entity["score"])
            right[label].append((label, entity["start"], entity["end"]) in of_text)
    return ScoredLabels(
        names,
        [np.array(scores[name]) for name in names],
        [np.array(right[name], bool) for name in names],
        [sum(label == name for of_text in true for label, *_ in of_text) for name in names],
        thresholds,
    )
