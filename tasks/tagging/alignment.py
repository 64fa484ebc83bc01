"""Convert word tags and character spans to token labels, and token logits to word tags.

Comments use these letters for shapes: N texts, P tokens of all texts, S spans of all texts, C tags,
T types.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.base.classes import compute_softmax
from encoder_zoo.tasks.preprocessing.character_bounds import trim_to_visible
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    compute_sort_keys,
    mark_row_starts,
    mark_word_starts,
    number_groups,
    shift_left,
    shift_right,
)
from encoder_zoo.tasks.tagging.entities import Transitions, find_best_tags
from encoder_zoo.tasks.tagging.tags import (
    BEGIN,
    END,
    INSIDE,
    OUTSIDE,
    SINGLE,
    find_outside_index,
    map_subword_tags,
    map_word_tags,
    mark_span_starts,
    parse_tags,
)

logger = logging.getLogger("encoder_zoo")

SPAN_MARKS = "span_marks"  # (B, L) int, an input for the entity metric
INEXACT, LOST = 1, 2  # Marks of spans that cannot be predicted. LOST is added once per lost span.
ONLY, FIRST, MIDDLE, LAST = range(4)  # columns of `map_subword_tags`


def convert_words(
    tokens: TokenizedTexts, tags: xp.RaggedTensor, names: Sequence[str] | None, all_tokens: bool
) -> tuple[xp.Tensor, xp.Tensor]:
    """Convert word tags to token labels.

    Args:
        tokens: `TokenizedTexts` for sentences split into words.
        tags: Ragged integer tensor of shape (N, None). Tag for each word.
        names: Optional list of strings. Names for all C tags.
        all_tokens: Boolean. Whether to label all tokens. If False, only the first token in each
            word will be labelled.

    Returns:
        Tuple of int32 labels (P,) and a boolean mask (P,) of the labelled tokens.
    """
    row = tokens.ids.value_rowids()
    index = xp.gather(tags.row_starts(), row) + xp.cast(tokens.words.flat_values, xp.int64)
    labels = xp.gather(xp.cast(tags.flat_values, xp.int32), index)
    begins = mark_word_starts(tokens)
    if not all_tokens:
        return labels, begins
    if names is not None:
        index = xp.stack([labels, _find_span_position(begins, shift_left(begins, True))], axis=1)
        labels = xp.gather_nd(map_subword_tags(names), index)
    return labels, xp.ones_like(begins)


def compute_word_tags(
    tokens: TokenizedTexts,
    logits: np.ndarray,
    word_counts: Sequence[int],
    names: list[str],
    by_all_tokens: bool,
    allowed: Transitions | None,
) -> list[list[str]]:
    """Compute word tags from token logits.

    Args:
        tokens: `TokenizedTexts` with P tokens.
        logits: Float array of shape (P, C).
        word_counts: List of integers. Number of words per text.
        names: List of strings. Names of the tags.
        by_all_tokens: Boolean. Whether training labelled all tokens of each word. If False, it only
            labelled the first token.
        allowed: Optional `Transitions`. Valid transitions between tags. If None, all transitions
            are allowed.

    Returns:
        List of tags per text. Words without tokens are inside an entity if it goes on after them.
        Otherwise, they have the tag O.
    """
    begins, row = mark_word_starts(tokens).numpy(), tokens.ids.value_rowids().numpy()
    units = np.ones_like(begins) if by_all_tokens else begins
    best = np.zeros(len(units), "int32")
    best[units] = find_best_tags(
        xp.constant(compute_softmax(logits[units])), xp.constant(row[units]), allowed
    )
    found = best[begins]
    if by_all_tokens:
        # The first token of all tokens begins a word, so the last token ends a word.
        found = map_word_tags(names)[found, best[np.roll(begins, -1)]]
    first_words = np.cumsum([0, *word_counts])  # of the texts, among the words of all texts
    word, row = (first_words[row] + tokens.words.flat_values.numpy())[begins], row[begins]
    index = find_outside_index(names)
    tags = np.full(first_words[-1], "O" if index is None else names[index], object)
    tags[word] = np.array(names, object)[found]
    if index is not None:
        parsed, middle = parse_tags(names), map_subword_tags(names)[:, MIDDLE]
        prefix, kind = parsed.prefixes[found], parsed.types[found]
        starts = mark_span_starts(prefix[1:], kind[1:], prefix[:-1], kind[:-1])
        goes_on = (prefix[1:] != OUTSIDE) & ~starts & (row[1:] == row[:-1])
        for i in np.flatnonzero(goes_on & (np.diff(word) > 1)):
            tags[word[i] + 1 : word[i + 1]] = names[middle[found[i + 1]]]
    return [tags[i:j].tolist() for i, j in itertools.pairwise(first_words)]


def convert_spans(
    tokens: TokenizedTexts,
    spans: dict[str, xp.RaggedTensor],
    names: Sequence[str],
    all_tokens: bool,
) -> tuple[xp.Tensor, xp.Tensor, xp.Tensor]:
    """Convert character spans to token labels.

    A token belongs to a span if they share a character. If a span cuts a word, both parts of the
    word are treated as separate words.

    Args:
        tokens: `TokenizedTexts`.
        spans: Dict {"start", "end", "label"} of ragged integer tensors (N, None). Labels are
            indices in the sorted types of the tags. The spans of a text do not overlap.
        names: List of strings. Names for all C tags.
        all_tokens: Boolean. Whether to label all tokens. If False, only the first token in each
            word will be labelled.

    Returns:
        Tuple of int32 labels (P,), a boolean mask (P,) of the labelled tokens, and int32 marks (P,)
        of the spans that answers cannot match (see `_compute_marks`).
    """
    span = _find_span_indices(tokens, spans)
    # Mark the beginnings of spans and of text outside spans.
    other = (span != shift_right(span, -2)) | mark_row_starts(tokens.ids)
    units = xp.ones_like(other) if all_tokens else other | mark_word_starts(tokens)
    # Only the first token of a unit is labelled, so its tag depends on where the unit ends.
    unit = xp.cumsum(xp.cast(units, xp.int32)) - 1
    span_ends = xp.cast(shift_left(other, True), xp.int32)
    ends = xp.gather(xp.math.segment_max(span_ends, unit), unit) > 0
    table = xp.concat([_map_type_tags(names), [[_find_outside(names)] * 4]], 0)
    kind = xp.cast(spans["label"].flat_values, xp.int32)
    kind = xp.gather(xp.concat([kind, [-1]], 0), xp.maximum(span, 0))
    kind = xp.where(span < 0, -1, kind) % xp.shape(table)[0]
    labels = xp.gather_nd(table, xp.stack([kind, _find_span_position(other, ends)], axis=1))
    return labels, units, _compute_marks(tokens, spans, span, units)


def mark_cut_spans(tokens: TokenizedTexts, spans: dict[str, xp.RaggedTensor]) -> np.ndarray:
    """Return whether each span (S,) starts or ends inside a word, between two tokens.

    Args:
        tokens: `TokenizedTexts`.
        spans: See `convert_spans`.
    """
    span = _find_span_indices(tokens, spans).numpy()
    inside = np.flatnonzero((span != np.append(-1, span[:-1])) & ~mark_word_starts(tokens).numpy())
    # the last value is for tokens without a span
    cut = np.zeros(len(spans["start"].flat_values) + 1, bool)
    cut[np.concatenate([span[inside], span[inside - 1]])] = True
    return cut[:-1]


def _find_span_indices(tokens: TokenizedTexts, spans: dict[str, xp.RaggedTensor]) -> xp.Tensor:
    """Return the index of the span of each token, shape (P,). Tokens without a span have -1."""
    order = xp.argsort(compute_sort_keys(spans["start"]))
    start_keys = xp.gather(compute_sort_keys(spans["start"]), order)
    # the last span that starts before the end of the token, if it ends after its start
    span = xp.searchsorted(start_keys, compute_sort_keys(tokens.ends), side="left") - 1
    none = xp.size(order)  # the index of tokens if there are no spans
    index = xp.gather(xp.concat([order, [none]], 0), xp.maximum(span, 0))
    row, end = (
        xp.gather(xp.concat([xp.cast(values, xp.int64), [-1]], 0), index)
        for values in (spans["start"].value_rowids(), spans["end"].flat_values)
    )
    inside = (span >= 0) & (row == tokens.ids.value_rowids())
    inside &= end > xp.cast(tokens.starts.flat_values, xp.int64)
    return xp.where(inside, index, -1)


# Example of `_compute_marks`, with three spans in one text. "~" has no token.
#
#   text          A n n a s   ~   s i n g s
#   spans         "~" at 6-7, "si" at 8-10, "ng" at 10-12
#     lost        True        True          False       no token belongs to the span
#     inexact     False       False         True        the token "sings" is longer than "ng"
#     token       1           2             2           "~" begins after ##as
#     unit        0           1             1
#
#   tokens        ann    ##as   sings
#     span        -1     -1     2
#     units       True   False  True                    ann and ##as are one unit
#     number      1      0      1                       lost spans of the unit, at its first token
#     result      LOST   0      INEXACT + LOST
def _compute_marks(
    tokens: TokenizedTexts, spans: dict[str, xp.RaggedTensor], span: xp.Tensor, units: xp.Tensor
) -> xp.Tensor:
    """Return int32 marks (P,) of the spans that cannot be predicted, because they cut tokens.

    A token has the mark `INEXACT` if its span begins or ends inside a token. The first token of a
    unit has the mark `LOST` for each span that begins in the unit and has no token of its own. For
    data in memory, the number of spans of both kinds is logged.

    Args:
        tokens: `TokenizedTexts`.
        spans: See `convert_spans`.
        span: Integer tensor of shape (P,). Index of the span of each token, or -1.
        units: Boolean tensor of shape (P,). Tokens with a label.
    """
    row = tokens.ids.value_rowids()
    span_row, start = spans["start"].value_rowids(), spans["start"].flat_values
    count, inside = xp.size(start), span >= 0
    segment = xp.where(inside, span, count)  # the last segment is for tokens without a span
    ends = xp.concat([spans["end"].flat_values, [0]], 0)
    begin, behind = trim_to_visible(
        tokens.texts, row, tokens.starts.flat_values, tokens.ends.flat_values
    )
    wrong = begin < xp.gather(xp.concat([start, [0]], 0), segment)
    wrong |= behind > xp.gather(ends, segment)
    inexact = _segment_any(inside & wrong, segment, count)
    lost = ~_segment_any(inside, segment, count)
    if not xp.is_symbolic_tensor(span):
        log_spans(
            "%d of the spans have no token of their own, so they are ignored.",
            spans["start"],
            spans["end"],
            np.flatnonzero(lost.numpy()),
        )
        log_spans(
            "%d of the spans begin or end inside a token of the vocabulary. Answers contain the "
            "whole token, which counts as an error.",
            spans["start"],
            spans["end"],
            np.flatnonzero(inexact.numpy()),
        )

    # The token in which each span begins, or the token before the span.
    token = (
        xp.searchsorted(
            compute_sort_keys(tokens.starts), compute_sort_keys(spans["start"]), side="right"
        )
        - 1
    )
    token_row = xp.gather(xp.concat([row, [-1]], 0), xp.maximum(token, 0))
    lost &= (token >= 0) & (token_row == span_row)
    unit = xp.cumsum(xp.cast(units, xp.int32)) - 1
    places = xp.concat([xp.where(units)[:, 0], [0]], 0)
    unit = xp.gather(xp.concat([unit, [0]], 0), xp.maximum(token, 0))
    size, number = xp.size(span), xp.cast(lost, xp.int32)
    number = xp.math.unsorted_segment_sum(number, xp.gather(places, unit), size)
    marked = inside & xp.gather(xp.concat([inexact, [False]], 0), segment)
    return xp.cast(marked, xp.int32) * INEXACT + number * LOST


def _segment_any(values: xp.Tensor, segment: xp.Tensor, count: xp.Tensor) -> xp.Tensor:
    """Return whether each of the first `count` segments of values (P,) contains True."""
    numbers = xp.cast(values, xp.int32)
    return xp.math.unsorted_segment_sum(numbers, segment, count + 1)[:-1] > 0


def log_spans(
    message: str, start: xp.RaggedTensor, end: xp.RaggedTensor, indices: np.ndarray
) -> None:
    """Log the number of selected spans and the position of the first span, if there are any.

    Args:
        message: String with "%d" for the number of spans.
        start, end: Ragged tensors of shape (N, None). Offsets of all spans.
        indices: Integer array. Indices of the selected spans among all spans.
    """
    if len(indices):
        columns = start.value_rowids(), start.flat_values, end.flat_values
        logger.warning(
            f"{message} First span: example %d, from %d to %d.",
            len(indices),
            *(int(values[indices[0]]) for values in columns),
        )


def _find_span_position(begins: xp.Tensor, ends: xp.Tensor) -> xp.Tensor:
    """Return the position of each token in its word or span: ONLY, FIRST, MIDDLE or LAST."""
    return xp.where(begins, xp.where(ends, ONLY, FIRST), xp.where(ends, LAST, MIDDLE))


def _map_type_tags(names: Sequence[str]) -> np.ndarray:
    """Return the tags (T, 4) of the only, first, middle and last word in spans of each type."""

    tags = parse_tags(names)
    pairs = list(zip(tags.prefixes.tolist(), tags.types.tolist(), strict=True))
    numbers = {pair: i for i, pair in reversed([*enumerate(pairs)])}  # tags of the first words

    def choose_best(prefixes: Sequence[int], kind: int) -> int:
        return next(numbers[p, kind] for p in prefixes if (p, kind) in numbers)

    choices = (  # tags of the only, first, middle and last word
        (SINGLE, BEGIN, END, INSIDE),
        (BEGIN, INSIDE, SINGLE, END),
        (INSIDE, BEGIN, SINGLE, END),
        (END, INSIDE, BEGIN, SINGLE),
    )
    table = [
        [choose_best(prefixes, kind) for prefixes in choices]
        for kind in range(len(tags.type_names))
    ]
    return np.array(table, "int32").reshape(-1, 4)


def _find_outside(names: Sequence[str]) -> int:
    index = find_outside_index(names)
    if index is None:
        raise invalid("labels", names, "a list with the tag O, for text outside of spans")
    return index


def make_symbol_table(tokenizer) -> np.ndarray:
    """Return a boolean table (vocabulary, 3) that describes the symbols in each token.

    The columns are: whether the token begins with a symbol, ends with a symbol, and consists of
    symbols that can be part of a word. Symbols are neither letters nor digits. An apostrophe cannot
    be part of a word, because most corpora split "Zoë's" into "Zoë" and "'s".

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> make_symbol_table(BertTokenizer([*special, "a", "-", "'"]))[-3:].tolist()
        [[False, False, False], [True, True, True], [True, True, False]]
    """
    ids = xp.range(tokenizer.vocabulary_size)[:, None]
    spelled = tokenizer.detokenize(ids, skip_special_tokens=False)
    symbol = r"[^\p{L}\p{M}\p{N}\s]"
    patterns = (rf"(?s)\s*{symbol}.*", rf"(?s).*{symbol}\s*", r"[^\p{L}\p{M}\p{N}\s'’]+")
    columns = [xp.strings.regex_full_match(spelled, pattern).numpy() for pattern in patterns]
    return np.stack(columns, axis=1)


def split_words_at_symbols(
    tokens: TokenizedTexts, table: np.ndarray, inside: bool = True
) -> TokenizedTexts:
    """Split words at symbols without changing the tokens.

    For example, the period in "London." becomes a separate word.

    Args:
        tokens: `TokenizedTexts`.
        table: Boolean array. Result of `make_symbol_table` for the tokenizer.
        inside: Boolean. Whether to split at symbols between letters or digits. If False,
            "Rhein-Main" is one word, even if the tokenizer splits it into three. Defaults to True.
    """
    begins_so, ends_so, joins = xp.unstack(xp.gather(table, tokens.ids.flat_values), axis=1)
    begins = mark_word_starts(tokens) | begins_so | shift_right(ends_so, False)
    if not inside:
        touches = tokens.starts.flat_values <= shift_right(tokens.ends.flat_values, -1)
        touches &= ~mark_row_starts(tokens.ids)
        joins &= touches & shift_right(~ends_so, False) & shift_left(touches & ~begins_so, False)
        begins &= ~(joins | shift_right(joins, False))
    return tokens._replace(words=number_groups(tokens.ids, begins))
