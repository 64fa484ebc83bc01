"""What callers give as labels of tokens, checked: tags of words, or spans of characters.

In memory an error names the example; in `tf.data` the example of the batch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence

import keras
import numpy as np

from encoder_zoo.lazy import tf
from encoder_zoo.tasks.labels import numbers_are_names
from encoder_zoo.tasks.rows.checks import assert_right
from encoder_zoo.tasks.rows.pieces import as_word_tensor, is_list, is_words, keys
from encoder_zoo.tasks.rows.preprocessor import as_column
from encoder_zoo.tasks.token_classification.tags import all_tags, parse_tags, sorted_tags

logger = logging.getLogger("encoder_zoo")

SPAN = ("start", "end", "label")


def label_lists(y) -> list[list]:
    """For every example its labels, as plain Python values.

    Args:
        y: tags or spans in lists, arrays or tensors; or spans as `{"start", "end", "label"}`, each
            ragged.

    Raises:
        ValueError: "Example 3: its labels are None (NoneType). Expected a list ..."

    Example:
        >>> label_lists({"start": [[0], []], "end": [[4], []], "label": [[b"LOC"], []]})
        [[{'start': 0, 'end': 4, 'label': 'LOC'}], []]
    """
    from encoder_zoo.encoders.tokenizers.text_input import shown

    if isinstance(y, dict):
        return _lists_of_columns(y)
    y = _plain(y)
    if not is_list(y):
        raise ValueError(f"The labels are {shown(y)}. Expected a list for every example.")
    rows = [_plain(row) for row in y]
    for i, row in enumerate(rows):
        if not is_list(row):
            raise ValueError(
                f"Example {i}: its labels are {shown(row)}. Expected a list of tags, or of spans."
            )
    return [[_plain(value) for value in row] for row in rows]


def _lists_of_columns(y: dict) -> list[list[dict]]:
    if not set(SPAN) <= set(y):
        raise ValueError(f"Expected spans as {{start, end, label}}. Received: {sorted(y)}.")
    columns = [label_lists(y[name]) for name in SPAN]
    counts = [[len(row) for row in rows] for rows in columns]
    if counts[0] != counts[1] or counts[0] != counts[2]:
        raise ValueError("Expected as many starts as ends and labels for every text.")
    return [
        [dict(zip(SPAN, span, strict=True)) for span in zip(*rows, strict=True)]
        for rows in zip(*columns, strict=True)
    ]


def _plain(value):
    """Tensors as lists, numbers or bytes; bytes as str."""
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if tf.is_tensor(value):
        value = value.numpy()
        value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, dict):
        return {name: _plain(field) for name, field in value.items()}
    return value.decode() if isinstance(value, bytes) else value


def learn_labels(y: Iterable) -> list[str] | int:
    """The tags that occur in labels; of numbers only how many classes there must be.

    Args:
        y: for every example its words' tags (names or numbers), or its spans
            `{"start", "end", "label"}`.

    Returns:
        Tags, O first; spans give IOB2. Or a number of classes.

    Raises:
        ValueError: "Example 0, label 1 is 0. Expected to learn from names of tags only, ..."

    Example:
        >>> learn_labels([["O", "B-PER"], ["I-PER"]])
        ['O', 'B-PER', 'I-PER']
        >>> learn_labels([[{"start": 0, "end": 4, "label": "LOC"}], []])
        ['O', 'B-LOC', 'I-LOC']
    """
    rows = label_lists(y)
    values = [value for row in rows for value in row]
    if not values:
        raise ValueError("There are no tags to learn the labels from. Pass labels=[...].")
    kind = _kind(values[0])
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if kind is None or _kind(value) != kind:
                raise ValueError(
                    f"Example {i}, label {j} is {value!r}. Expected to learn from names of tags "
                    "only, or numbers only, or spans with start, end and label, a name."
                )
    if kind == "span":
        return all_tags(span["label"] for span in values)
    learned = sorted_tags(map(str, values)) if kind == "name" else int(max(values)) + 1
    if learned in (["O"], 1):
        raise ValueError(f"Every tag is {values[0]!r}. Pass labels=[...] with the others.")
    return learned


def _kind(value) -> str | None:
    """Whether a label is the name of a tag, a number, or a span."""
    if isinstance(value, dict):
        return "span" if isinstance(value.get("label"), str) else None
    if isinstance(value, str):
        return "name"
    return "number" if isinstance(value, int | np.integer) else None


def check_labels(x, y, labels: list[str] | None, num_classes: int):
    """Labels in memory as numbers: of words see `check_tags`, of texts `check_spans`."""
    if is_words(x):
        counts = as_word_tensor(x).row_lengths().numpy().tolist()
        return check_tags(y, counts, labels, num_classes)
    return check_spans(y, [text.decode() for text in as_column(x).numpy()], labels)


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
    y = label_lists(y)
    if len(y) != len(word_counts):
        raise ValueError(f"Received {len(word_counts)} examples, but tags for {len(y)}.")
    numbers = {name: i for i, name in enumerate(labels or [])}
    expected = f"one of {labels}" if labels else f"a number from 0 to {num_classes - 1}"
    rows = []
    for i, (tags, words) in enumerate(zip(y, word_counts, strict=True)):
        if len(tags) != words:
            raise ValueError(f"Example {i} has {words} words but {len(tags)} tags.")
        if numbers_are_names(labels):
            tags = [tag if isinstance(tag, str) else str(tag) for tag in tags]
        rows.append([numbers.get(tag) if isinstance(tag, str) else tag for tag in tags])
        for j, number in enumerate(rows[-1]):
            if not isinstance(number, int | np.integer) or not 0 <= number < num_classes:
                raise ValueError(
                    f"Example {i}, word {j}: unknown tag {tags[j]!r}. Expected {expected}."
                )
    flat = tf.constant([tag for row in rows for tag in row], tf.int32)
    return tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])


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
    y = label_lists(y)
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


def tell_of_cut_words(y, texts: Sequence[str]) -> None:
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
        for i, (spans, text) in enumerate(zip(label_lists(y), texts, strict=True))
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
            f"Example {example}: {span!r} is no span. Expected a dict with start, end and label."
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


def tags_in_graph(
    y, word_counts: tf.Tensor, names: Sequence[str] | None, num_classes: int
) -> tf.RaggedTensor:
    """Tags of words as numbers, inside `tf.data`: from names or numbers, ragged or padded."""
    y = _ragged_tags(y, word_counts)
    counts = y.row_lengths()
    row = tf.range(tf.size(counts))
    message = ("Example ", row, " of the batch has ", word_counts, " words but ", counts, " tags.")
    with tf.control_dependencies([assert_right(counts == word_counts, *message)]):
        given = tf.identity(y.flat_values)
    if given.dtype.is_integer and numbers_are_names(names):
        given = tf.strings.as_string(given)
    numbers = numbers_of_names(given, names or []) if given.dtype == tf.string else given
    numbers = tf.cast(numbers, tf.int32)
    known = (numbers >= 0) & (numbers < num_classes)
    expected = f"one of {', '.join(names)}" if names else f"a number from 0 to {num_classes - 1}"
    row, word = y.value_rowids(), tf.ragged.range(counts).flat_values
    message = ("Example ", row, " of the batch, word ", word, ": unknown tag ", given)
    with tf.control_dependencies([assert_right(known, *message, f". Expected {expected}.")]):
        return y.with_flat_values(tf.identity(numbers))


def _ragged_tags(y: tf.Tensor, word_counts: tf.Tensor) -> tf.RaggedTensor:
    """Tags without the padding: "" behind names, 0 or less behind numbers."""
    if isinstance(y, tf.RaggedTensor):
        return y
    if y.dtype == tf.string:
        return tf.RaggedTensor.from_tensor(y, padding="")
    # 0 is also a tag, so there are at least as many as there are words.
    counts = tf.RaggedTensor.from_tensor(tf.maximum(y, 0), padding=0).row_lengths()
    return tf.RaggedTensor.from_tensor(y, lengths=tf.maximum(counts, word_counts))


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
            names = tf.reshape(getattr(y["label"], "flat_values", y["label"]), [-1])
            labels.append([{"label": _plain(n)} for n in names.numpy().tolist() if n != b""])
        else:
            tags = tf.reshape(getattr(y, "flat_values", y), [-1]).numpy().tolist()
            labels.append([tag for tag in tags if tag != b""])
    return labels
