"""What callers give as labels of tokens, checked: tags of words, or spans of characters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import keras
import numpy as np

from encoder_zoo.lazy import tf
from encoder_zoo.tasks.tags import all_tags, parse_tags, sorted_tags


def learn_labels(y: Iterable) -> list[str] | int:
    """The tags that occur in labels; of numbers only how many classes there must be.

    Args:
        y: for every example its words' tags (names or numbers), or its spans
            `{"start", "end", "label"}`.

    Returns:
        Tags, O first; spans give IOB2. Or a number of classes.

    Example:
        >>> learn_labels([["O", "B-PER"], ["I-PER"]])
        ['O', 'B-PER', 'I-PER']
        >>> learn_labels([[{"start": 0, "end": 4, "label": "LOC"}], []])
        ['O', 'B-LOC', 'I-LOC']
    """
    values = [value for row in y for value in row]
    if not values:
        raise ValueError("There are no tags to learn the labels from. Pass labels=[...].")
    if isinstance(values[0], dict):
        return all_tags(span["label"] for span in values)
    if isinstance(values[0], str | bytes | np.str_):
        return sorted_tags(v.decode() if isinstance(v, bytes) else str(v) for v in values)
    return int(max(values)) + 1


def check_tags(
    y, word_counts: Sequence[int], labels: list[str] | None, num_classes: int
) -> tf.RaggedTensor:
    """Tags of words as numbers.

    Args:
        y: for every example a list of tag names or numbers.
        word_counts: words of every example.
        labels: the tags' names, if there are.
        num_classes: C.

    Returns:
        Ragged (N, None) int32.

    Raises:
        ValueError: "Example 3 has 7 words but 6 tags.", "Example 3, word 2: unknown tag 'B-ORG'
            ..."
    """
    if len(y) != len(word_counts):
        raise ValueError(f"Received {len(word_counts)} examples, but tags for {len(y)}.")
    numbers = {name: i for i, name in enumerate(labels or [])}
    rows = []
    for i, (tags, words) in enumerate(zip(y, word_counts, strict=True)):
        tags = [tag.decode() if isinstance(tag, bytes) else tag for tag in tags]
        if len(tags) != words:
            raise ValueError(f"Example {i} has {words} words but {len(tags)} tags.")
        for j, tag in enumerate(tags):
            if tag not in numbers and not _is_class(tag, num_classes):
                expected = f"one of {labels}" if labels else f"a number from 0 to {num_classes - 1}"
                raise ValueError(
                    f"Example {i}, word {j}: unknown tag {tag!r}. Expected {expected}."
                )
        rows.append([numbers.get(tag, tag) if isinstance(tag, str) else int(tag) for tag in tags])
    flat = tf.constant([tag for row in rows for tag in row], tf.int32)
    return tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])


def _is_class(tag, num_classes: int) -> bool:
    return isinstance(tag, int | np.integer) and 0 <= tag < num_classes


def check_spans(y, texts: Sequence[str], labels: list[str] | None) -> dict[str, tf.RaggedTensor]:
    """Spans of characters as numbers.

    Args:
        y: for every text a list of `{"start", "end", "label"}`.
        texts: that they are of.
        labels: all tags.

    Returns:
        {"start", "end", "label"}, ragged (N, None) int32.

    Raises:
        ValueError: "Example 3: the span {...} is outside of the text, which has 20 characters.",
            "Example 3: the spans {...} and {...} overlap.", "Example 3: unknown label ..."
    """
    if labels is None:
        raise ValueError("Spans need names of labels. Build the classifier with labels=[...].")
    if len(y) != len(texts):
        raise ValueError(f"Received {len(texts)} texts, but spans for {len(y)}.")
    types = {name: i for i, name in enumerate(parse_tags(labels).type_names)}
    for i, (spans, text) in enumerate(zip(y, texts, strict=True)):
        for span in spans:
            _check_span(i, span, len(text), types)
        ordered = sorted(spans, key=lambda span: span["start"])
        for first, second in itertools.pairwise(ordered):
            if second["start"] < first["end"]:
                raise ValueError(f"Example {i}: the spans {first} and {second} overlap.")
    counts = tf.constant([len(spans) for spans in y], tf.int64)
    columns = {"start": int, "end": int, "label": types.__getitem__}
    return {
        name: tf.RaggedTensor.from_row_lengths(
            tf.constant([read(span[name]) for spans in y for span in spans], tf.int32), counts
        )
        for name, read in columns.items()
    }


def _check_span(example: int, span: dict, length: int, types: dict) -> None:
    if not isinstance(span, dict) or not {"start", "end", "label"} <= set(span):
        raise ValueError(
            f"Example {example}: {span!r} is no span. Expected a dict with start, end and label."
        )
    if not 0 <= span["start"] < span["end"] <= length:
        raise ValueError(
            f"Example {example}: the span {span} is outside of the text, which has {length} "
            "characters, or empty. Expected 0 <= start < end <= length."
        )
    if span["label"] not in types:
        raise ValueError(
            f"Example {example}: unknown label {span['label']!r}. Expected one of {list(types)}."
        )


def tags_in_graph(
    y, word_counts: tf.Tensor, names: Sequence[str] | None, num_classes: int
) -> tf.RaggedTensor:
    """Tags of words as numbers, inside `tf.data`: from names or numbers, ragged or padded."""
    if not isinstance(y, tf.RaggedTensor):
        y = tf.RaggedTensor.from_tensor(y, lengths=word_counts)
    flat = y.flat_values
    if flat.dtype == tf.string:
        flat = numbers_of_names(flat, names or [])
    flat = tf.cast(flat, tf.int32)
    inside = tf.reduce_all((flat >= 0) & (flat < num_classes))
    expected = f"Unknown tags. Expected some of {names or num_classes}. Received:"
    with tf.control_dependencies([tf.debugging.Assert(inside, [expected, y.flat_values])]):
        return y.with_flat_values(tf.identity(flat))


def spans_in_graph(y: dict, labels: Sequence[str]) -> dict[str, tf.RaggedTensor]:
    """Spans as numbers, inside `tf.data`: from ragged tensors; label names or places in types."""
    types = parse_tags(labels).type_names
    kind = y["label"].flat_values
    if kind.dtype == tf.string:
        kind = numbers_of_names(kind, types)
    good = (kind >= 0) & (kind < len(types)) & (y["start"].flat_values < y["end"].flat_values)
    expected = f"Unknown labels, or empty spans. Expected labels of {types}. Received:"
    check = tf.debugging.Assert(tf.reduce_all(good), [expected, y["label"].flat_values])
    with tf.control_dependencies([check]):
        return {**y, "label": y["label"].with_flat_values(tf.cast(kind, tf.int32))}


def numbers_of_names(names: tf.Tensor, known: Sequence[str]) -> tf.Tensor:
    """Places of names (P,) in a list; -1 for unknown ones."""
    matches = tf.equal(names[:, None], tf.constant(list(known) or [""], tf.string))
    return tf.where(
        tf.reduce_any(matches, axis=1), tf.argmax(matches, axis=1, output_type=tf.int32), -1
    )


def labels_of_dataset(dataset: tf.data.Dataset) -> list:
    """The labels y of a dataset, example by example; the padding "" is none.

    Raises:
        ValueError: "The dataset is endless. Give the labels: labels=[...]."
    """
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError("The dataset is endless. Give the labels: labels=[...].")
    labels = []
    for element in dataset:
        y = keras.utils.unpack_x_y_sample_weight(element)[1]
        if isinstance(y, dict):
            names = tf.reshape(getattr(y["label"], "flat_values", y["label"]), [-1]).numpy()
            labels.append([{"label": name.decode()} for name in names])
        else:
            tags = tf.reshape(getattr(y, "flat_values", y), [-1]).numpy().tolist()
            labels.append([tag for tag in tags if tag != b""])
    return labels
