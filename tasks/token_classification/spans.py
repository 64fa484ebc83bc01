"""Check spans of characters as labels of texts and convert them to numbers.

In memory an error names the example; in `tf.data` the example of the batch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.base.class_names import label_indices
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.tokenized_texts import keys
from encoder_zoo.tasks.token_classification.tags import parse_tags

logger = logging.getLogger("encoder_zoo")

SPAN = ("start", "end", "label")


def check_spans(y, texts: tf.Tensor, labels: list[str] | None) -> dict[str, tf.RaggedTensor]:
    """Return spans of characters as numbers, in memory or inside `tf.data`.

    Args:
        y: for every text a list of `{"start", "end", "label"}`; inside `tf.data` {"start", "end",
            "label"}, ragged (N, None), or (N, S) with "" as padding of the labels.
        texts: (N,) strings.
        labels: all tags.

    Returns:
        {"start", "end", "label"}, ragged (N, None) int32.

    Raises:
        ValueError: "Example 3: the span from 7 to 40 is outside of the text, which has 20
            characters, or empty. ...", "Example 3: the spans from 0 to 4 and from 0 to 9
            overlap.", "Example 3: unknown label 'DOG'. ..."; `tf.errors.InvalidArgumentError`
            inside `tf.data`.
    """
    types = _types(labels)
    start, end, given = _ragged_spans(y) if isinstance(y, dict) else _columns(y, texts)
    row, starts, ends = start.value_rowids(), start.flat_values, end.flat_values
    kind = label_indices(given, types)
    check = functools.partial(check_each, unit="Example")

    length = tf.gather(tf.strings.length(texts, unit="UTF8_CHAR"), row)
    right = (starts >= 0) & (starts < ends) & (ends <= length)
    message = ": the span from ", starts, " to ", ends, " is outside of the text, which has "
    expected = " characters, or empty. Expected 0 <= start < end <= length."
    start, end = check((start, end), right, *message, length, expected, index=row)

    right = (kind >= 0) & (kind < len(types))
    expected = f". Expected one of {types}."
    kind = check(kind, right, ": unknown label ", given, expected, index=row)

    order = tf.argsort(keys(start))
    starts, ends, sorted_row = (tf.gather(values, order) for values in (starts, ends, row))
    right = (sorted_row[1:] != sorted_row[:-1]) | (starts[1:] >= ends[:-1])
    message = ": the spans from ", starts[:-1], " to ", ends[:-1], " and from ", starts[1:], " to "
    start = check(start, right, *message, ends[1:], " overlap.", index=sorted_row[1:])
    return {"start": start, "end": end, "label": start.with_flat_values(kind)}


def warn_misaligned_spans(y, texts: Sequence[str]) -> None:
    """Log how many spans begin or end inside of a word, and show the first.

    Most often such offsets count bytes, or are of another version of the text. Scripts without
    capitals are left out: many of them write no spaces between words, or write particles and names
    in one.

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
        "to %d. Spans count characters, from 0, and end after the last.",
        len(cut),
        example,
        text[start:end],
        text[around],
        start,
        end,
    )


def _inside_word(text: str, offset: int) -> bool:
    """Return whether an offset has letters with capitals, or digits, on both sides."""
    before, after = text[max(offset - 1, 0) : offset], text[offset : offset + 1]
    both_letters = before.lower() != before.upper() and after.lower() != after.upper()
    return both_letters or (before.isdigit() and after.isdigit())


def _types(labels: Sequence[str] | None) -> list[str]:
    """Return the types of spans that the tags can mark."""
    if labels is None:
        raise ValueError("Spans need names of labels. Build the classifier with labels=[...].")
    return parse_tags(labels).type_names


def _columns(y: Sequence[Sequence[dict]], texts: tf.Tensor) -> tuple:
    """Return starts and ends, ragged (N, None) int32, and the list of all labels."""
    if len(y) != len(texts):
        raise ValueError(f"Received {len(texts)} texts, but spans for {len(y)}.")
    for example, spans in enumerate(y):
        for span in spans:
            _check_type(example, span)
    counts = tf.constant([len(spans) for spans in y], tf.int64)
    start, end, label = ([span[name] for spans in y for span in spans] for name in SPAN)
    bounds = (np.clip(values, -1, 2**31 - 1).astype("int32") for values in (start, end))
    return *(tf.RaggedTensor.from_row_lengths(values, counts) for values in bounds), label


def _check_type(example: int, span: object) -> None:
    if not isinstance(span, dict) or not set(SPAN) <= set(span):
        raise ValueError(
            f"Example {example}: {span!r} is no span. Expected a dict with start, end and label, "
            "or these three in a tuple."
        )
    if not all(isinstance(span[name], int | np.integer) for name in ("start", "end")):
        raise ValueError(f"Example {example}: the span {span} does not start and end at integers.")


def _ragged_spans(y: dict) -> tuple:
    """Return starts and ends, ragged (N, None) int32, and all labels, without the padding."""
    label = y["label"]
    if not isinstance(label, tf.RaggedTensor):
        padding = "" if label.dtype == tf.string else None
        label = tf.RaggedTensor.from_tensor(label, padding=padding)
    bounds = []
    for name in ("start", "end"):
        values = y[name]
        if not isinstance(values, tf.RaggedTensor):
            values = tf.RaggedTensor.from_tensor(values, lengths=label.row_lengths())
        same = values.row_lengths() == label.row_lengths()
        values = check_each(values, same, f" has not one {name} per label.", unit="Example")
        bounds.append(tf.cast(values, tf.int32))
    return *bounds, label.flat_values
