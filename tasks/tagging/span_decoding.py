"""Select entities from the scores of spans in windows.

Comments use these letters for shapes: N texts, M windows, W words, K widths, C labels, P
candidates, G entities.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.tasks.preprocessing.tokenized_texts import ROW_STRIDE, cut_texts
from encoder_zoo.tasks.tagging.entities import ScoredSpans
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import SpanWindows, WordsOfTexts


def merge_windows(found: ScoredSpans, words: WordsOfTexts, read: SpanWindows) -> ScoredSpans:
    """Convert candidates in windows to candidates in texts.

    Each span is only taken from one window: the window that its middle token is read from.

    Args:
        found: `ScoredSpans` in windows, sorted by window.
        words: `WordsOfTexts`.
        read: `SpanWindows`.
    """
    count = array_ops.cast(array_ops.gather(read.word_count, found.row), array_ops.int32)
    found = found.keep(found.end < count)  # words without tokens come after the other words
    window = found.row
    text = array_ops.gather(read.windows.example, window)
    first = array_ops.gather(read.first_word, window)
    start, end = found.start + first, found.end + first
    # the index of the first token of each word among all tokens of its text
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
    return ScoredSpans(text, start, end, found.label, found.score).keep(owned)


def choose(found: ScoredSpans, nested: bool, multi_label: bool) -> ScoredSpans:
    """Select the best spans from overlapping spans, as in gliner.

    A span is selected unless it overlaps a selected span with a higher score, or with the same
    score and an earlier position. With `nested`, spans can be inside each other. With
    `multi_label`, the same words can be selected for several labels.

    Args:
        found: `ScoredSpans` in texts.
        nested, multi_label: See `EntityExtractor.extract_entities`.

    Returns:
        The selected `ScoredSpans`, sorted by text and first word. If several have the same first
        word, the best comes first.

    Example:
        >>> import tensorflow as tf
        >>> found = ScoredSpans(*map(tf.constant, ([0, 0, 0], [0, 1, 1], [2, 1, 3], [0, 0, 0],
        ...                                       [0.9, 0.8, 0.7])))
        >>> choose(found, nested=False, multi_label=False).start.numpy().tolist()
        [0]
        >>> choose(found, nested=True, multi_label=False).start.numpy().tolist()
        [0, 1]
    """
    row, start, end, _, score = map(np.asarray, found)
    spans = list(zip(row.tolist(), start.tolist(), end.tolist(), strict=True))
    kept: dict[tuple[int, int, int], bool] = {}
    taken: set[tuple[int, int]] = set()  # words of the selected spans
    # For each word: the last word of a selected span that begins at it, or the first word of a
    # selected span that ends at it.
    last, first = {}, {}

    def clashes(row: int, start: int, end: int) -> bool:
        if not nested:
            return any((row, word) in taken for word in range(start, end + 1))
        return any(last.get((row, word), end) > end for word in range(start + 1, end + 1)) or any(
            first.get((row, word), start) < start for word in range(start, end)
        )

    chosen = []
    for i in np.argsort(-score, kind="stable").tolist():
        row, start, end = span = spans[i]
        if span in kept:  # other labels of the same words overlap the same spans
            if kept[span] and multi_label:
                chosen.append(i)
            continue
        kept[span] = not clashes(*span)
        if kept[span]:
            chosen.append(i)
            taken.update((row, word) for word in range(start, end + 1))
            last[row, start] = max(end, last.get((row, start), end))
            first[row, end] = min(start, first.get((row, end), start))
    chosen.sort(key=lambda i: spans[i][:2])
    return found.reorder(array_ops.constant(np.array(chosen, "int64")))


def choose_in_graph(found: ScoredSpans, nested: bool, multi_label: bool) -> ScoredSpans:
    """Return the same result as `choose`, inside `tf.function`.

    Spans that are not connected by a chain of overlapping spans are independent. Each step decides
    about one span of every connected group, so the number of steps is the size of the largest
    group.
    """
    order = array_ops.argsort(found.score, direction="DESCENDING", stable=True)
    found = found.reorder(order)
    row, start, end = (array_ops.cast(field, array_ops.int64) for field in found[:3])
    # indices over all texts, with gaps between texts. The last indices are for windows that are too
    # long.
    most = array_ops.reduce_max(array_ops.concat([end, [0]], axis=0)) + 2
    widest = array_ops.reduce_max(array_ops.concat([end - start, [0]], axis=0)) + 1
    size = (array_ops.reduce_max(array_ops.concat([row, [0]], axis=0)) + 1) * most + widest
    start, end = row * most + start, row * most + end
    # distinct spans, the best first. All labels of a span share the result.
    span = array_ops.unique(start * widest + end - start).idx  # (P,)
    count = array_ops.reduce_max(array_ops.concat([span, [-1]], axis=0)) + 1
    position = array_ops.range(array_ops.size(span))
    best = array_ops.math.unsorted_segment_min(position, span, count)
    start, end = array_ops.gather(start, best), array_ops.gather(end, best)
    steps, offsets = _divide_into_steps(start, end, size)

    def step(i, kept, a, b):
        chosen = steps[offsets[i] : offsets[i + 1]]
        begin, stop = array_ops.gather(start, chosen), array_ops.gather(end, chosen)
        words = begin[:, None] + array_ops.range(widest)  # (S, widest)
        inside = words <= stop[:, None]
        # The last words of spans that begin at it, and the first of spans that end at it.
        if nested:
            later = array_ops.gather(a, words) > stop[:, None]
            earlier = array_ops.gather(b, words) < begin[:, None]
            later &= inside & (words > begin[:, None])
            clash = later | (earlier & (words < stop[:, None]))
        else:  # 1 for words of selected spans
            clash = inside & (array_ops.gather(a, words) > 0)
        free = ~array_ops.reduce_any(clash, axis=1)
        if nested:
            begin, stop = array_ops.boolean_mask(begin, free), array_ops.boolean_mask(stop, free)
            a = array_ops.tensor_scatter_nd_max(a, begin[:, None], stop)
            b = array_ops.tensor_scatter_nd_min(b, stop[:, None], begin)
        else:
            words = array_ops.boolean_mask(words, inside & free[:, None])
            a = array_ops.tensor_scatter_nd_max(a, words[:, None], array_ops.ones_like(words))
        return i + 1, kept.write(i, free), a, b

    number = array_ops.size(offsets) - 1
    kept = array_ops.TensorArray("bool", number, infer_shape=False, element_shape=[None])
    none = array_ops.zeros([size], array_ops.int64)
    _, kept, _, _ = array_ops.while_loop(
        lambda i, *_: i < number, step, (0, kept, none, none + size)
    )
    # Whether each span is selected.
    fate = array_ops.scatter_nd(steps[:, None], kept.concat(), [count])
    kept = array_ops.gather(fate, span)
    if not multi_label:
        kept &= position == array_ops.gather(best, span)
    found = found.keep(kept)
    key = array_ops.cast(found.row, array_ops.int64) * ROW_STRIDE
    key += array_ops.cast(found.start, array_ops.int64)
    return found.reorder(array_ops.argsort(key, stable=True))


def _divide_into_steps(
    start: array_ops.Tensor, end: array_ops.Tensor, size: array_ops.Tensor
) -> tuple[array_ops.Tensor, array_ops.Tensor]:
    """Divide spans into steps. Each step contains the next best span of every connected group.

    Args:
        start, end: Int64 tensors of shape (U,). First and last words of the spans, the best span
            first.
        size: Integer. Number of words.

    Returns:
        The indices (U,) of the spans, and the offsets (steps + 1,) at which the steps begin.
    """
    # The number of spans that contain both a word and the next word. A group ends if it is 0.
    ones = array_ops.ones_like(start)
    links = array_ops.math.unsorted_segment_sum(ones, start, size)
    links = array_ops.cumsum(links - array_ops.math.unsorted_segment_sum(ones, end, size))
    ends = array_ops.cast(links == 0, array_ops.int64)
    group = array_ops.gather(array_ops.cumsum(ends, exclusive=True), start)
    by_group = array_ops.argsort(group, stable=True)
    sorted_group = array_ops.gather(group, by_group)
    place = array_ops.range(array_ops.size(group))
    begins = array_ops.math.unsorted_segment_min(place, sorted_group, size)
    rank = place - array_ops.gather(begins, sorted_group)  # ranks of the spans sorted by group
    by_rank = array_ops.argsort(rank, stable=True)
    counts = array_ops.math.bincount(rank)
    offsets = array_ops.concat([[0], array_ops.cumsum(counts)], axis=0)
    return array_ops.gather(by_group, by_rank), offsets


def make_entity_columns(
    found: ScoredSpans, words: WordsOfTexts, texts: array_ops.Tensor, names: array_ops.RaggedTensor
) -> dict[str, array_ops.RaggedTensor]:
    """Return "label", "text", "start", "end" and "score" of entities, each ragged (N, None).

    Args:
        found: `ScoredSpans` with G entities in texts.
        words: `WordsOfTexts`.
        texts: String tensor of shape (N,).
        names: Ragged string tensor of shape (N, None). Labels for each text.
    """
    row = array_ops.cast(found.row, array_ops.int64)
    start, end = (
        get_text_values(words.starts, row, found.start),
        get_text_values(words.ends, row, found.end),
    )
    text = cut_texts(texts, row, start, end)
    fields = {"label": get_text_values(names, row, found.label), "text": text}
    fields |= {"start": start, "end": end, "score": found.score}
    count = array_ops.size(texts, array_ops.int64)
    return {
        name: array_ops.RaggedTensor.from_value_rowids(values, row, count)
        for name, values in fields.items()
    }


def get_text_values(
    values: array_ops.RaggedTensor, row: array_ops.Tensor, number: array_ops.Tensor
) -> array_ops.Tensor:
    """Gather values of words or labels, such as offsets, by text and index.

    Args:
        values: Ragged tensor of shape (N, None).
        row: Integer tensor of shape (P,). Index of the text of each value.
        number: Integer tensor of shape (P,). Index of each value in its text.
    """
    begin = array_ops.cast(array_ops.gather(values.row_starts(), row), array_ops.int64)
    return array_ops.gather(values.values, begin + array_ops.cast(number, array_ops.int64))
