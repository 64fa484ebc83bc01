"""Spans of characters as labels of texts, checked.

In memory an error names the example; in `tf.data` the example of the batch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.checks import assert_right
from encoder_zoo.tasks.preprocessing.tokenized_texts import keys
from encoder_zoo.tasks.token_classification.tags import parse_tags

logger = logging.getLogger("encoder_zoo")

SPAN = ("start", "end", "label")


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
    types = {name: i for i, name in enumerate(_types(labels))}
    if len(y) != len(texts):
        raise ValueError(f"Received {len(texts)} texts, but spans for {len(y)}.")
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


def warn_misaligned_spans(y, texts: Sequence[str]) -> None:
    """Says, in one log line, how many spans begin or end inside of a word, and shows the first.

    Most often they were counted otherwise, such as in bytes, or in another version of the text. Of
    scripts that have no capitals nothing is said: many of them write no spaces between words, or
    write particles and names in one.

    Args:
        y: checked spans of every text.
        texts: that they are of.
    """
    cut = [
        (i, span)
        for i, (spans, text) in enumerate(zip(y, texts, strict=True))
        for span in spans
        if any(_inside_word(text, span[name]) for name in ("start", "end"))
    ]
    if not cut:
        return
    example, span = cut[0]
    text, start, end = texts[example], span["start"], span["end"]
    around = slice(
        next(i for i in range(start, -1, -1) if not _inside_word(text, i)),
        next(i for i in range(end, len(text) + 1) if not _inside_word(text, i)),
    )
    logger.warning(
        "%d of the spans begin or end inside of a word. The first: example %d, %r of %r, from %d "
        "to %d. Spans count characters, from 0, and end behind the last.",
        len(cut),
        example,
        text[start:end],
        text[around],
        start,
        end,
    )


def _inside_word(text: str, place: int) -> bool:
    """Whether two letters with capitals, or two digits, stand around a place."""
    before, after = text[max(place - 1, 0) : place], text[place : place + 1]
    both_letters = before.lower() != before.upper() and after.lower() != after.upper()
    return both_letters or (before.isdigit() and after.isdigit())


def _types(labels: Sequence[str] | None) -> list[str]:
    """The types of spans that the tags can mark."""
    if labels is None:
        raise ValueError("Spans need names of labels. Build the classifier with labels=[...].")
    return parse_tags(labels).type_names


def _check_span(example: int, span: dict, length: int, types: dict) -> None:
    if not isinstance(span, dict) or not set(SPAN) <= set(span):
        raise ValueError(
            f"Example {example}: {span!r} is no span. Expected a dict with start, end and label, "
            "or these three in a tuple."
        )
    if not all(isinstance(span[name], int | np.integer) for name in ("start", "end")):
        raise ValueError(
            f"Example {example}: the span {span} does not start and end at whole numbers."
        )
    if not 0 <= span["start"] < span["end"] <= length:
        raise ValueError(
            f"Example {example}: the span {span} is outside of the text, which has {length} "
            "characters, or empty. Expected 0 <= start < end <= length."
        )
    if not isinstance(span["label"], str) or span["label"] not in types:
        raise ValueError(
            f"Example {example}: unknown label {span['label']!r}. Expected one of {list(types)}."
        )


def spans_in_graph(
    y: dict, texts: tf.Tensor, labels: Sequence[str] | None
) -> dict[str, tf.RaggedTensor]:
    """Spans as numbers, inside `tf.data`.

    Args:
        y: {"start", "end", "label"}, ragged (N, None), or (N, S) with "" as padding of the labels;
            labels are names or places in the types.
        texts: (N,) strings.
        labels: all tags.
    """
    spans, types = _ragged_spans(y), _types(labels)
    given = spans["label"].flat_values
    kind = numbers_of_names(given, types) if given.dtype == tf.string else given
    example = ("Example ", spans["label"].value_rowids(), " of the batch: ")
    expected = f". Expected one of {', '.join(types)}."
    known = (kind >= 0) & (kind < len(types))
    known = assert_right(known, *example, "unknown label ", given, expected)
    with tf.control_dependencies([known, *_right_bounds(spans, texts)]):
        return {**spans, "label": spans["label"].with_flat_values(tf.cast(kind, tf.int32))}


def _right_bounds(spans: dict[str, tf.RaggedTensor], texts: tf.Tensor) -> list[tf.Operation]:
    """That spans are inside of their texts and do not overlap."""
    start, end = (tf.cast(spans[name].flat_values, tf.int32) for name in ("start", "end"))
    row = spans["start"].value_rowids()
    example = ("Example ", row, " of the batch: the span from ", start, " to ", end)
    length = tf.gather(tf.strings.length(texts, unit="UTF8_CHAR"), row)
    inside = (start >= 0) & (start < end) & (end <= length)
    outside = (" is outside of the text, which has ", length, " characters, or empty.")

    order = tf.argsort(keys(spans["start"]))
    start, end, row = (tf.gather(values, order) for values in (start, end, row))
    apart = (row[1:] != row[:-1]) | (start[1:] >= end[:-1])
    first = ("Example ", row[1:], " of the batch: the spans from ", start[:-1], " to ", end[:-1])
    second = (" and from ", start[1:], " to ", end[1:], " overlap.")
    return [assert_right(inside, *example, *outside), assert_right(apart, *first, *second)]


def _ragged_spans(y: dict) -> dict[str, tf.RaggedTensor]:
    """Spans without the padding, as many starts as ends and labels."""
    label = y["label"]
    if not isinstance(label, tf.RaggedTensor):
        padding = "" if label.dtype == tf.string else None
        label = tf.RaggedTensor.from_tensor(label, padding=padding)
    spans = {"label": label}
    for name in ("start", "end"):
        values = y[name]
        if not isinstance(values, tf.RaggedTensor):
            values = tf.RaggedTensor.from_tensor(values, lengths=label.row_lengths())
        same = values.row_lengths() == label.row_lengths()
        row = tf.range(tf.size(same))
        right = assert_right(same, "Example ", row, f" of the batch has not one {name} per label.")
        with tf.control_dependencies([right]):
            spans[name] = values.with_flat_values(tf.identity(values.flat_values))
    return spans


def numbers_of_names(names: tf.Tensor, known: Sequence[str]) -> tf.Tensor:
    """Places of names (P,) in a list; -1 for unknown ones."""
    matches = tf.equal(names[:, None], tf.constant(list(known) or [""], tf.string))
    return tf.where(
        tf.reduce_any(matches, axis=1), tf.argmax(matches, axis=1, output_type=tf.int32), -1
    )
