"""Check token labels (word tags or character spans), and convert them to indices.

Error messages name the example. Inside `tf.data`, they name its position in the batch.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Sequence

import numpy as np

from encoder_zoo.common.extras import load_extra
from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers.text.text_input import make_word_tensor
from encoder_zoo.tasks.base.classes import find_label_indices, has_integer_names
from encoder_zoo.tasks.preprocessing.character_bounds import trim_to_visible
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.columns import (
    convert_spans,
    convert_to_plain,
    get_text,
    has_documents,
    is_span,
    list_doc_words,
    name_classes,
)
from encoder_zoo.tasks.preprocessing.given_labels import check_not_missing, get_class_name
from encoder_zoo.tasks.preprocessing.inputs import convert_column
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    compute_sort_keys,
    has_word_lists,
    is_list,
    mark_word_starts,
)
from encoder_zoo.tasks.tagging.tags import list_tags, parse_tags, sort_tags

logger = logging.getLogger("encoder_zoo")

SPAN = ("start", "end", "label")


def check_spans(y, texts: xp.Tensor, labels: list[str] | None) -> dict[str, xp.RaggedTensor]:
    """Check character spans, and convert them to integers, in memory or inside `tf.data`.

    Args:
        y: List of `{"start", "end", "label"}` per text. Inside `tf.data`, this should be a dict
            {"start", "end", "label"} with ragged tensors (N, None), or with padded tensors (N, S).
            The label of padding is "".
        texts: String tensor of shape (N,).
        labels: List of strings. All tags.

    Returns:
        Dict {"start", "end", "label"} of ragged int32 tensors (N, None).

    Raises:
        ValueError: If a span is empty, outside its text, overlaps another span, or has an unknown
            label.
        tf.errors.InvalidArgumentError: If a span is invalid inside `tf.data`.
    """
    start, end, kind = locate_spans(y, texts, _list_types(labels))
    row, starts, ends = start.value_rowids(), start.flat_values, end.flat_values
    order = xp.argsort(compute_sort_keys(start))
    starts, ends, sorted_row = (xp.gather(values, order) for values in (starts, ends, row))
    right = (sorted_row[1:] != sorted_row[:-1]) | (starts[1:] >= ends[:-1])
    message = ": the spans from ", starts[:-1], " to ", ends[:-1], " and from ", starts[1:], " to "
    message = *message, ends[1:], " overlap."
    start = check_each(start, right, *message, unit="Example", index=sorted_row[1:])
    return {"start": start, "end": end, "label": kind}


def locate_spans(
    y, texts: xp.Tensor, names: Sequence[str]
) -> tuple[xp.RaggedTensor, xp.RaggedTensor, xp.RaggedTensor]:
    """Return the start, end and label index of each span, as ragged int32 tensors (N, None).

    Whitespace and invisible characters at the edges of spans are removed, because annotators
    sometimes select them.

    Args:
        y, texts: See `check_spans`. Overlapping spans are allowed.
        names: List of strings. The label names.
    """
    start, end, given = _make_ragged_spans(y) if isinstance(y, dict) else _make_columns(y, texts)
    row, starts, ends = start.value_rowids(), start.flat_values, end.flat_values
    label = find_label_indices(given, names)
    check = functools.partial(check_each, unit="Example", index=row)

    length = xp.gather(xp.strings.length(texts, unit="UTF8_CHAR"), row)
    right = (starts >= 0) & (starts < ends) & (ends <= length)
    span = ": the span from ", starts, " to ", ends, " is empty or outside of its text, which has "
    expected = " characters. Expected 0 <= start < end <= length."
    start, end = check((start, end), right, *span, length, expected)
    bounds = trim_to_visible(texts, row, start.flat_values, end.flat_values)
    start, end = (rows.with_flat_values(v) for rows, v in zip((start, end), bounds, strict=True))

    right = (label >= 0) & (label < len(names))
    expected = f". Expected one of {list(names)}."
    label = check(label, right, ": unknown label ", given, expected)
    return start, end, start.with_flat_values(label)


def log_moved_spans(y, spans: dict[str, xp.RaggedTensor], texts: xp.Tensor) -> None:
    """Log the number of spans with corrected edges, and the first of these spans.

    Args:
        y: The original spans per text.
        spans: The corrected spans from `check_spans`.
        texts: String tensor of shape (N,).
    """
    row, *bounds = (spans["start"].value_rowids(), spans["start"], spans["end"])
    read = [*zip(*(bound.flat_values.numpy().tolist() for bound in bounds), strict=True)]
    given = [(span["start"], span["end"]) for row in convert_labels(y) for span in row]
    moved = [i for i, (old, new) in enumerate(zip(given, read, strict=True)) if old != new]
    if moved:
        example, (start, end) = int(row[moved[0]]), given[moved[0]]
        logger.warning(
            "%d of the spans begin or end with whitespace or invisible characters, or do not "
            "include the accent of their last letter. These characters are removed, and the "
            "accents are included. First span: example %d, %r, from %d to %d.",
            len(moved),
            example,
            texts.numpy()[example].decode()[start:end],
            start,
            end,
        )


def log_misaligned_spans(
    spans: dict[str, xp.RaggedTensor], texts: xp.Tensor, tokens: TokenizedTexts
) -> None:
    """Log the number of spans that begin or end inside a word, and the first of these spans.

    The usual reason is that offsets count bytes, or belong to another version of the text. Scripts
    without capital letters are not checked, because many do not separate words by spaces, or attach
    particles to names. An offset is not reported if a word of the tokenizer begins at this offset,
    as between the residues of a protein.

    Args:
        spans: Spans from `check_spans`.
        texts: String tensor of shape (N,).
        tokens: `TokenizedTexts`.
    """
    texts = [text.decode() for text in texts.numpy()]
    columns = spans["start"].value_rowids(), spans["start"].flat_values, spans["end"].flat_values
    read = [*zip(*(column.numpy().tolist() for column in columns), strict=True)]
    inside = {(i, k) for i, *bounds in read for k in bounds if _is_inside_word(texts[i], k)}
    if inside:
        begins = mark_word_starts(tokens).numpy()
        words = tokens.ids.value_rowids().numpy(), tokens.starts.flat_values.numpy()
        inside -= {*zip(*(column[begins].tolist() for column in words), strict=True)}
    cut = [(i, start, end) for i, start, end in read if {(i, start), (i, end)} & inside]
    if not cut:
        return
    example, start, end = cut[0]
    text = texts[example]
    around = slice(
        next(i for i in range(start, -1, -1) if not _is_inside_word(text, i)),
        next(i for i in range(end, len(text) + 1) if not _is_inside_word(text, i)),
    )
    logger.warning(
        "%d of the spans begin or end inside a word. First span: example %d, %r of %r, from %d "
        "to %d. Offsets count characters from 0, and the end is exclusive.",
        len(cut),
        example,
        text[start:end],
        text[around],
        start,
        end,
    )


def _is_inside_word(text: str, offset: int) -> bool:
    """Return whether an offset is between two digits, or two letters of a script with capitals."""
    before, after = text[max(offset - 1, 0) : offset], text[offset : offset + 1]
    both_letters = before.lower() != before.upper() and after.lower() != after.upper()
    return both_letters or (before.isdigit() and after.isdigit())


def _list_types(labels: Sequence[str] | None) -> list[str]:
    """Return all types of spans that the tags can mark."""
    if labels is None:
        raise ValueError("Spans require label names. Create the classifier with labels=[...].")
    return parse_tags(labels).type_names


def _make_columns(y: Sequence[Sequence[dict]], texts: xp.Tensor) -> tuple:
    """Return the starts and ends of spans, ragged int32 (N, None), and a list of all labels."""
    if len(y) != len(texts):
        raise ValueError(
            f"Received {len(texts)} texts, but spans for {len(y)} texts. Expected one list per "
            "text."
        )
    _check_types(y)
    counts = xp.constant([len(spans) for spans in y], xp.int64)
    start, end, label = ([span[name] for spans in y for span in spans] for name in SPAN)
    bounds = (np.clip(values, -(2**31), 2**31 - 1).astype("int32") for values in (start, end))
    return *(xp.RaggedTensor.from_row_lengths(values, counts) for values in bounds), label


def _check_types(y: Sequence[Sequence]) -> None:
    """Raise a ValueError for the first label that is not a span."""
    for example, spans in enumerate(y):
        for span in spans:
            if not isinstance(span, dict) or not set(SPAN) <= set(span):
                raise ValueError(
                    f"Example {example}: {quote(span)} is not a span. Expected a dict with start, "
                    "end and label, or a tuple (start, end, label)."
                )
            for name in ("start", "end"):
                if not isinstance(span[name], int | np.integer):
                    raise invalid(f"Example {example}: {name}", span[name], "an integer")


def _make_ragged_spans(y: dict) -> tuple:
    """Return the starts, ends and labels of spans in tensors, without padding."""
    label = y["label"]
    if not isinstance(label, xp.RaggedTensor):
        padding = "" if label.dtype == xp.string else None
        label = xp.RaggedTensor.from_tensor(label, padding=padding)
    bounds = []
    for name in ("start", "end"):
        values = y[name]
        if not isinstance(values, xp.RaggedTensor):
            values = xp.RaggedTensor.from_tensor(values, lengths=label.row_lengths())
        same = values.row_lengths() == label.row_lengths()
        values = check_each(values, same, f" must have one {name} per label.", unit="Example")
        bounds.append(xp.cast(values, xp.int32))
    return *bounds, label.flat_values


def convert_labels(y) -> list[list]:
    """Convert labels to lists of Python values. Spans become dicts `{"start", "end", "label"}`.

    Args:
        y: Tags or spans as lists, arrays or tensors, or a dict `{"start", "end", "label"}` with
            ragged tensors. A span can be a dict, a tuple (start, end, label), or a spaCy `Span`.
            Spans for an example can also be passed in a dict as "entities" or "spans", as in spaCy
            and Prodigy.

    Raises:
        ValueError: If `y` does not contain one list per example.

    Example:
        >>> convert_labels({"start": [[0], []], "end": [[4], []], "label": [[b"LOC"], []]})
        [[{'start': 0, 'end': 4, 'label': 'LOC'}], []]
        >>> convert_labels([{"entities": [(0, 4, "LOC")]}, []])
        [[{'start': 0, 'end': 4, 'label': 'LOC'}], []]
    """

    if isinstance(y, dict):
        return _split_columns(y)
    y = _convert_to_plain(y)
    if not is_list(y):
        raise invalid("y", y, "a list of labels for every example")
    rows = [_extract_labels(_convert_to_plain(row)) for row in y]
    for i, row in enumerate(rows):
        if not is_list(row):
            raise invalid(f"Example {i} of `y`", row, "a list of tags or of spans")
    return [[_convert_label(_convert_to_plain(value)) for value in row] for row in rows]


def convert_spans_to_dicts(y) -> list[list[dict]]:
    """Convert the spans of each example to dicts, like `convert_labels`.

    Raises:
        ValueError: If a label in `y` is not a span.
    """
    rows = convert_labels(y)
    _check_types(rows)
    return rows


def _extract_labels(row):
    """Extract the labels from a dict in the format of spaCy or Prodigy."""
    if isinstance(row, dict) and not {"entities", "spans"}.isdisjoint(row):
        return row.get("entities", row.get("spans"))
    return row


def _convert_label(value):
    """Convert a span to a dict. Tags are returned unchanged."""
    if is_span(value):
        value = value.start_char, value.end_char, value.label_
    is_tuple = isinstance(value, tuple | list) and len(value) == len(SPAN)
    return dict(zip(SPAN, map(_convert_to_plain, value), strict=True)) if is_tuple else value


def separate_labels(x, y, labels: Sequence[str] | None = None) -> tuple:
    """Split training data into texts and spans, or into words and tags.

    If `y` is None, `x` can contain rows with texts and labels.

    Args:
        x: Rows (see `read_annotations`), or any other inputs, which are converted to plain lists.
            If `y` contains tags, documents are converted to words.
        y: Optional labels.
        labels: Optional list of strings. All tags, if they are known.

    Example:
        >>> separate_labels([("In Rome", {"entities": [(3, 7, "LOC")]})], None)
        (['In Rome'], [[{'start': 3, 'end': 7, 'label': 'LOC'}]])
    """
    if y is None and (rows := load_extra("read_rows")(x, ("spans", "tags"), labels)):
        return tuple(rows)
    if has_documents(x):
        return _read_documents(x, y)
    return convert_to_plain(x), name_classes(y, labels)


def _read_documents(documents: Sequence, y) -> tuple:
    """Return the texts and spans, or the words and tags, of documents."""
    texts, y = [*map(get_text, documents)], convert_to_plain(y)
    if isinstance(y, dict) or len(y) != len(documents):
        return texts, y
    y = [
        convert_spans(document, row) if is_list(row) and len(row) and is_span(row[0]) else row
        for document, row in zip(documents, y, strict=True)
    ]
    kinds = {_describe_kind(value) for row in convert_labels(y) for value in row}
    return ([*map(list_doc_words, documents)] if kinds & {"name", "number"} else texts), y


def _split_columns(y: dict) -> list[list[dict]]:
    if not set(SPAN) <= set(y):
        raise ValueError(
            f"`y` has the columns {', '.join(map(repr, sorted(y)))}. Expected 'start', 'end' and "
            "'label'."
        )
    columns = [convert_labels(y[name]) for name in SPAN]
    if len({*map(len, columns)}) > 1:
        raise ValueError(
            "The columns 'start', 'end' and 'label' in `y` have different numbers of texts. "
            "Expected one list per text in each column."
        )
    rows = []
    for i, lists in enumerate(zip(*columns, strict=True)):
        if len({*map(len, lists)}) > 1:
            raise ValueError(
                f"The lists 'start', 'end' and 'label' in `y` differ in length for text {i}. "
                "Expected equal lengths."
            )
        rows.append([dict(zip(SPAN, span, strict=True)) for span in zip(*lists, strict=True)])
    return rows


def _convert_to_plain(value):
    """Convert tensors to Python values, and bytes to strings."""
    if isinstance(value, xp.RaggedTensor):
        return value.to_list()
    if xp.is_tensor(value):
        value = value.numpy()
        value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, dict):
        return {name: _convert_to_plain(field) for name, field in value.items()}
    return value.decode() if isinstance(value, bytes) else value


def learn_labels(y: Iterable) -> list[str]:
    """Collect all tags from labels.

    Args:
        y: Word tags, or spans `{"start", "end", "label"}`, for each example.

    Returns:
        List of tags (see `sort_tags`). Spans are converted to IOB2 tags.

    Raises:
        ValueError: If `y` contains no tags, if all tags are the same, if the tags are numbers, or
            if tag names are mixed with other labels.

    Example:
        >>> learn_labels([["O", "B-PER"], ["I-PER"]])
        ['O', 'B-PER', 'I-PER']
        >>> learn_labels([[{"start": 0, "end": 4, "label": "LOC"}], []])
        ['O', 'B-LOC', 'I-LOC']
    """
    check_not_missing(y)
    rows = convert_labels(y)
    values = [value for row in rows for value in row]
    if not values:
        raise ValueError(
            "The data contains no tags, so the labels cannot be learned. Pass labels=[...]."
        )
    kind = _describe_kind(values[0])
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if kind is None or _describe_kind(value) != kind:
                raise invalid(
                    f"Example {i}, label {j}",
                    value,
                    "the name of a tag, or a span with start, end and the name of a label",
                )
    if kind == "span":
        odd = sorted({s["label"] for s in values if re.match("[BIESLU]-", s["label"])})
        if odd:
            logger.warning(
                "Labels of spans must be types, such as PER. These labels look like tags: %s.",
                ", ".join(map(repr, odd[:5])),
            )
        return list_tags(get_class_name(span["label"]) for span in values)
    if kind == "number" or (kind == "name" and all(value.isdecimal() for value in values)):
        raise ValueError(
            f"The tags are numbers without names, such as {max(values)}. Pass "
            'labels=["O", "B-PER", ...] in the order of the numbers, or num_classes=..., to '
            "from_preset, or call fit(dataset) with a Hugging Face dataset that has the names."
        )
    learned = sort_tags(map(get_class_name, values))
    if len(learned) == 1:
        raise ValueError(f"Every tag is {values[0]!r}. Pass all tags as labels=[...].")
    return learned


def _describe_kind(value) -> str | None:
    """Return the kind of a label: the name of a tag, a number or a span."""
    if isinstance(value, dict):
        return "span" if isinstance(value.get("label"), str) else None
    if isinstance(value, str):
        return "name"
    return "number" if isinstance(value, int | np.integer) else None


def check_labels(x, y, labels: list[str] | None, num_classes: int):
    """Check and convert labels: tags of words, or spans of texts."""
    if has_word_lists(x):
        return check_tags(y, make_word_tensor(x).row_lengths(), labels, num_classes)
    texts = convert_column(x)
    in_graph = xp.is_symbolic_tensor(texts)
    return check_spans(y if in_graph else convert_labels(check_not_missing(y, x)), texts, labels)


def check_tags(
    y, word_counts: xp.Tensor, labels: list[str] | None, num_classes: int
) -> xp.RaggedTensor:
    """Check word tags, and convert them to indices, in memory or inside `tf.data`.

    Args:
        y: List of tag names or indices per example. Inside `tf.data`, a ragged or padded tensor.
        word_counts: Int64 tensor of shape (N,). Number of words per example.
        labels: Optional list of strings. Names of the tags.
        num_classes: Positive integer. Number of tags C.

    Returns:
        Ragged int32 tensor of shape (N, None).

    Raises:
        ValueError: If an example does not have one tag per word, or if a tag is unknown.
        tf.errors.InvalidArgumentError: If a tag is invalid inside `tf.data`.
    """
    if xp.is_symbolic_tensor(word_counts):
        y = check_not_missing(_make_ragged_tags(y, word_counts))
        counts, given = y.row_lengths(), y.flat_values
    else:
        y = convert_labels(check_not_missing(y))
        if len(y) != len(word_counts):
            raise ValueError(
                f"Received {len(word_counts)} examples, but tags for {len(y)} examples. Expected "
                "one list per example."
            )
        counts, given = (xp.constant([*map(len, y)], xp.int64), [tag for row in y for tag in row])
        given = [*map(str, given)] if has_integer_names(labels) else given
    message = " has ", word_counts, " words but ", counts, " tags."
    counts = check_each(counts, counts == word_counts, *message, unit="Example")
    tags = xp.RaggedTensor.from_row_lengths(find_label_indices(given, labels), counts)
    right = (tags.flat_values >= 0) & (tags.flat_values < num_classes)
    expected = (
        f". Expected {f'one of {labels}' if labels else f'a number from 0 to {num_classes - 1}'}."
    )
    message = (", word ", xp.ragged.range(counts).flat_values, ": unknown tag ", given, expected)
    return check_each(tags, right, *message, unit="Example", index=tags.value_rowids())


def _make_ragged_tags(y: xp.Tensor, word_counts: xp.Tensor) -> xp.RaggedTensor:
    """Remove padding from tags ("" for names, and 0 or less for indices)."""
    if isinstance(y, xp.RaggedTensor):
        return y
    if y.dtype == xp.string:
        return xp.RaggedTensor.from_tensor(y, padding="")
    # 0 is also a valid tag, so at least one tag per word is kept.
    counts = xp.RaggedTensor.from_tensor(xp.maximum(y, 0), padding=0).row_lengths()
    return xp.RaggedTensor.from_tensor(y, lengths=xp.maximum(counts, word_counts))


def collect_labels(dataset: tf.data.Dataset) -> list:
    """Collect the labels of all examples in a dataset, without the padding ""."""
    labels = []
    for element in dataset:
        y = keras.utils.unpack_x_y_sample_weight(element)[1]
        if isinstance(y, dict):
            names = xp.reshape(getattr(y["label"], "flat_values", y["label"]), [-1])
            labels.append(
                [{"label": _convert_to_plain(n)} for n in names.numpy().tolist() if n != b""]
            )
        else:
            tags = xp.reshape(getattr(y, "flat_values", y), [-1]).numpy().tolist()
            labels.append([tag for tag in tags if tag != b""])
    return labels
