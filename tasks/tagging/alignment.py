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
    find_overlapping,
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


# Example of two texts with spans. "~" is U+200B, which has no token.
#
#   texts         A n n a s   ~   s i n g s                      A n n
#   spans         "~" at 6-7, "si" at 8-10, "ng" at 10-12        "Ann" at 0-3
#   tokens        ann     ##as    sings                          ann
#
#   span          0       0       3                              4        from 1, 0 for no span
#   other         True    False   True                           True     other span than before
#   units         True    False   True                           True     first tokens of words
#   ends          True    True    True                           True     the span ends in the unit
#   labels        O       O       B-X                            B-X
#
# The spans "~" and "si" are lost: no token belongs to them, because "sings" belongs to "ng". The
# span "ng" is inexact, because its token is longer. The metric needs their number:
#
#   token         2       3       3                              4        at "~", "si", "ng", "Ann"
#   marks         LOST    0       INEXACT + LOST                 0        at first tokens of units
#
# The test `test_arrays_of_the_example_in_the_comments` computes labels and marks.
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
    spans = _sort_spans(spans)
    span = _number_spans(tokens, spans)
    # Mark the beginnings of spans and of text outside spans.
    other = (span != shift_right(span, -1)) | mark_row_starts(tokens.ids)
    units = xp.ones_like(other) if all_tokens else other | mark_word_starts(tokens)
    # Only the first token of a unit is labelled, so its tag depends on where the unit ends.
    unit = xp.cumsum(xp.cast(units, xp.int32)) - 1
    span_ends = xp.cast(shift_left(other, True), xp.int32)
    ends = xp.gather(xp.math.segment_max(span_ends, unit), unit) > 0
    kinds = xp.cast(spans["label"].flat_values, xp.int32) + 1
    kind = xp.gather(xp.concat([[0], kinds], 0), span)
    index = xp.stack([kind, _find_span_position(other, ends)], axis=1)
    labels = xp.gather_nd(xp.constant(_map_type_tags(names)), index)
    inexact, lost = _find_impossible_spans(tokens, spans, span)
    return labels, units, _compute_marks(tokens, spans, span, units, inexact, lost)


def mark_cut_spans(tokens: TokenizedTexts, spans: dict[str, xp.RaggedTensor]) -> np.ndarray:
    """Return whether each span (S,) starts or ends inside a word, between two tokens.

    Args:
        tokens: `TokenizedTexts`.
        spans: See `convert_spans`. The result is sorted by text and start.
    """
    spans = _sort_spans(spans)
    span = _number_spans(tokens, spans).numpy()
    inside = np.flatnonzero((span != np.append(0, span[:-1])) & ~mark_word_starts(tokens).numpy())
    # the first value is for tokens without a span
    cut = np.zeros(len(spans["start"].flat_values) + 1, bool)
    cut[np.concatenate([span[inside], span[inside - 1]])] = True
    return cut[1:]


def _sort_spans(spans: dict[str, xp.RaggedTensor]) -> dict[str, xp.RaggedTensor]:
    """Sort the spans of each text by their start."""
    order = xp.argsort(compute_sort_keys(spans["start"]))
    return {name: rows.with_values(xp.gather(rows.values, order)) for name, rows in spans.items()}


def _number_spans(tokens: TokenizedTexts, spans: dict[str, xp.RaggedTensor]) -> xp.Tensor:
    """Return the span of each token, int32 (P,), counted from 1 over all texts. 0 for no span.

    If a token shares characters with several spans, it belongs to the last of them.
    """
    row, bounds = tokens.ids.value_rowids(), (tokens.starts.flat_values, tokens.ends.flat_values)
    first, last = find_overlapping(spans["start"], spans["end"], row, *bounds)
    before = xp.cast(xp.gather(spans["start"].row_starts(), row), xp.int32)
    return xp.where(first <= last, before + last + 1, 0)


def _find_impossible_spans(
    tokens: TokenizedTexts, spans: dict[str, xp.RaggedTensor], span: xp.Tensor
) -> tuple[xp.Tensor, xp.Tensor]:
    """Find spans that cut tokens, so that they cannot be predicted.

    For data in memory, their numbers are logged.

    Args:
        tokens: `TokenizedTexts`.
        spans: Sorted spans, see `convert_spans`.
        span: Integer tensor of shape (P,). See `_number_spans`.

    Returns:
        Two boolean tensors of shape (S,): spans that begin or end inside a token, and spans without
        a token.
    """
    start, end = spans["start"], spans["end"]
    bounds = tokens.starts.flat_values, tokens.ends.flat_values
    bounds = trim_to_visible(tokens.texts, tokens.ids.value_rowids(), *bounds)
    wrong = bounds[0] < xp.gather(xp.concat([[0], start.flat_values], 0), span)
    wrong |= bounds[1] > xp.gather(xp.concat([[0], end.flat_values], 0), span)

    def mark_spans(chosen: xp.Tensor) -> xp.Tensor:
        """Return whether each span (S,) has a token that is chosen."""
        numbers, count = xp.cast(chosen, xp.int32), xp.size(start.flat_values) + 1
        return xp.math.unsorted_segment_sum(numbers, span, count)[1:] > 0

    inexact, lost = mark_spans(wrong), ~mark_spans(span > 0)
    if not xp.is_symbolic_tensor(span):
        message = "%d of the spans have no token of their own, so they are ignored."
        log_spans(message, start, end, np.flatnonzero(lost.numpy()))
        message = (
            "%d of the spans begin or end inside a token of the vocabulary. Answers contain the "
            "whole token, which counts as an error."
        )
        log_spans(message, start, end, np.flatnonzero(inexact.numpy()))
    return inexact, lost


def _compute_marks(
    tokens: TokenizedTexts,
    spans: dict[str, xp.RaggedTensor],
    span: xp.Tensor,
    units: xp.Tensor,
    inexact: xp.Tensor,
    lost: xp.Tensor,
) -> xp.Tensor:
    """Return int32 marks (P,) of the spans that cannot be predicted, for the metric.

    A token of an inexact span has the mark `INEXACT`. The first token of a unit has the mark `LOST`
    for each lost span that begins in the unit.

    Args:
        tokens, spans, span, inexact, lost: See `_find_impossible_spans`.
        units: Boolean tensor of shape (P,). Tokens with a label.
    """
    # The token in which each span begins, or the token before the span.
    starts = compute_sort_keys(tokens.starts), compute_sort_keys(spans["start"])
    token = xp.searchsorted(*starts, side="right")  # counted from 1
    first_token = xp.gather(tokens.ids.row_starts(), spans["start"].value_rowids())
    lost &= xp.cast(token, xp.int64) > first_token
    unit = xp.cumsum(xp.cast(units, xp.int32)) - 1
    first = xp.gather(xp.where(units)[:, 0], unit)  # the first token of the unit of each token
    place = xp.gather(xp.concat([[0], xp.cast(first, xp.int32) + 1], 0), token)
    number = xp.math.unsorted_segment_sum(xp.cast(lost, xp.int32), place, xp.size(span) + 1)[1:]
    marked = xp.gather(xp.concat([[False], inexact], 0), span)
    return xp.cast(marked, xp.int32) * INEXACT + number * LOST


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
    """Return the tags of the only, first, middle and last word of a span, (1 + T, 4), by type.

    The first row is for text outside of spans.

    Example:
        >>> _map_type_tags(["O", "B-PER", "I-PER", "E-PER"]).tolist()
        [[0, 0, 0, 0], [1, 1, 2, 3]]
    """
    outside = find_outside_index(names)
    if outside is None:
        raise invalid("labels", names, "a list with the tag O, for text outside of spans")
    tags = parse_tags(names)
    pairs = list(zip(tags.prefixes.tolist(), tags.types.tolist(), strict=True))
    numbers = {pair: i for i, pair in reversed([*enumerate(pairs)])}  # tags of the first words
    choices = (  # tags of the only, first, middle and last word, the best first
        (SINGLE, BEGIN, END, INSIDE),
        (BEGIN, INSIDE, SINGLE, END),
        (INSIDE, BEGIN, SINGLE, END),
        (END, INSIDE, BEGIN, SINGLE),
    )
    table = [
        [next(numbers[p, kind] for p in prefixes if (p, kind) in numbers) for prefixes in choices]
        for kind in range(len(tags.type_names))
    ]
    return np.array([[outside] * 4, *table], "int32")


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
