"""From the logits of spans to the entities of texts: which windows count, which spans are kept.

Comment letters: N texts, M windows, W words, K widths, C labels, P candidates, G entities.
"""

from __future__ import annotations

from typing import NamedTuple

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.tasks.preprocessing.tokenized_texts import ROW, cut_texts
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import SpanWindows, WordsOfTexts


class Candidates(NamedTuple):
    """Spans whose score is above the threshold, ordered by text, first word, width and label.

    Attributes:
        row: (P,) int64, the text; of candidates in windows the window.
        start: (P,) int32, the first word.
        end: (P,) int32, the last word.
        label: (P,) int32, its number among the labels of the text.
        score: (P,) float32.
    """

    row: array_ops.Tensor
    start: array_ops.Tensor
    end: array_ops.Tensor
    label: array_ops.Tensor
    score: array_ops.Tensor

    def masked(self, kept: array_ops.Tensor) -> Candidates:
        """Return those that are kept, (P,) bool."""
        return Candidates(*(array_ops.boolean_mask(field, kept) for field in self))

    def ordered(self, order: array_ops.Tensor) -> Candidates:
        """Return those of some indices, in their order."""
        return Candidates(*(array_ops.gather(field, order) for field in self))


def in_texts(found: Candidates, words: WordsOfTexts, read: SpanWindows) -> Candidates:
    """Return the candidates of texts from those of their windows.

    A span counts in the window of its middle token, of those that its text is read in.

    Args:
        found: in windows, ordered by these.
        words: of the texts.
        read: the windows.
    """
    count = array_ops.cast(array_ops.gather(read.word_count, found.row), array_ops.int32)
    found = found.masked(found.end < count)  # words without tokens are behind the others
    window = found.row
    text = array_ops.gather(read.windows.example, window)
    first = array_ops.gather(read.first_word, window)
    start, end = found.start + first, found.end + first
    # Of tokens: where the words begin among all tokens of their text.
    counts = array_ops.cast(words.counts.values, array_ops.int64)
    behind = array_ops.cumsum(counts)  # of all texts
    base = array_ops.gather(array_ops.cast(words.ids.row_starts(), array_ops.int64), text)
    index = array_ops.gather(array_ops.cast(words.starts.row_starts(), array_ops.int64), text)
    begin = index + array_ops.cast(start, array_ops.int64)
    last = index + array_ops.cast(end, array_ops.int64)
    begin = array_ops.gather(behind - counts, begin)
    middle = (begin + array_ops.gather(behind, last) - 1) // 2 - base
    middle -= array_ops.gather(read.windows.begin, window)
    owned_from, owned_to = (
        array_ops.gather(bound, window)
        for bound in (read.windows.owned_from, read.windows.owned_to)
    )
    owned = (middle >= owned_from) & (middle < owned_to)
    return Candidates(text, start, end, found.label, found.score).masked(owned)


def choose(found: Candidates, nested: bool, multi_label: bool) -> Candidates:
    """Return the spans that are kept of those that overlap, the best first as in gliner.

    A span is kept unless it overlaps one of a higher score that is kept, or of the same score that
    comes first in the text. Spans inside of each other do not count as overlapping if `nested`, and
    the same words with several labels not if `multi_label`.

    Args:
        found: of texts.
        nested, multi_label: see `EntityExtractor.extract_entities`.

    Returns:
        Those kept, ordered by text and first word; of one first word, the best first.

    Example:
        >>> import tensorflow as tf
        >>> found = Candidates(*map(tf.constant, ([0, 0, 0], [0, 1, 1], [2, 1, 3], [0, 0, 0],
        ...                                       [0.9, 0.8, 0.7])))
        >>> choose(found, nested=False, multi_label=False).start.numpy().tolist()
        [0]
        >>> choose(found, nested=True, multi_label=False).start.numpy().tolist()
        [0, 1]
    """
    by_score = array_ops.argsort(found.score, direction="DESCENDING", stable=True)
    by_text = array_ops.argsort(array_ops.gather(found.row, by_score), stable=True)
    found = found.ordered(array_ops.gather(by_score, by_text))
    count = array_ops.size(found.row)
    position = array_ops.range(count)
    # Texts with candidates, numbered from 0.
    text = array_ops.unique(found.row).idx
    texts = array_ops.reduce_max(array_ops.concat([text, [-1]], axis=0)) + 1

    def step(alive, kept):
        # The best of each text, which is the first that is left.
        rank = array_ops.where(alive, count - position, array_ops.zeros_like(position))
        best = array_ops.math.unsorted_segment_max(rank, text, texts)  # (texts,)
        chosen = array_ops.minimum(count - best, count - 1)
        of_text = array_ops.gather(chosen, text)
        has = array_ops.gather(best, text) > 0
        start, end = (array_ops.gather(v, of_text) for v in (found.start, found.end))
        same = (found.start == start) & (found.end == end)
        apart = (found.start > end) | (start > found.end)
        if nested:
            inside = (found.start >= start) & (found.end <= end)
            apart |= inside | ((start >= found.start) & (end <= found.end))
        conflicts = ~apart & ~same
        if not multi_label:
            conflicts |= same
        is_best = has & (position == of_text)
        return alive & ~(has & conflicts) & ~is_best, kept | is_best

    alive = array_ops.ones_like(position) > 0
    _, kept = array_ops.while_loop(
        lambda alive, _: array_ops.reduce_any(alive), step, (alive, ~alive)
    )
    found = found.masked(kept)
    key = array_ops.cast(found.row, array_ops.int64) * ROW
    key += array_ops.cast(found.start, array_ops.int64)
    return found.ordered(array_ops.argsort(key, stable=True))


def entity_columns(
    found: Candidates,
    words: WordsOfTexts,
    texts: array_ops.Tensor,
    names: array_ops.RaggedTensor,
) -> dict[str, array_ops.RaggedTensor]:
    """Return "label", "text", "start", "end" and "score" of the entities, each ragged (N, None).

    Args:
        found: (G,) in texts.
        words: of the texts.
        texts: (N,) strings.
        names: ragged (N, None) strings, the labels of each text.
    """
    row = array_ops.cast(found.row, array_ops.int64)
    start, end = of_texts(words.starts, row, found.start), of_texts(words.ends, row, found.end)
    text = cut_texts(texts, row, start, end)
    fields = {"label": of_texts(names, row, found.label), "text": text}
    fields |= {"start": start, "end": end, "score": found.score}
    count = array_ops.size(texts, array_ops.int64)
    return {
        name: array_ops.RaggedTensor.from_value_rowids(values, row, count)
        for name, values in fields.items()
    }


def of_texts(
    values: array_ops.RaggedTensor, row: array_ops.Tensor, number: array_ops.Tensor
) -> array_ops.Tensor:
    """Return values of words or labels.

    Args:
        values: ragged (N, None).
        row: (P,) the text of each.
        number: (P,) its number in the text.
    """
    begin = array_ops.cast(array_ops.gather(values.row_starts(), row), array_ops.int64)
    return array_ops.gather(values.values, begin + array_ops.cast(number, array_ops.int64))
