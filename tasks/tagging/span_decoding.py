"""Select entities from the scores of spans in windows.

Comments use these letters for shapes: N texts, M windows, W words, K widths, C labels, P
candidates, G entities.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    cumsum_in_rows,
    get_row_values,
    make_sort_keys,
)
from encoder_zoo.tasks.tagging import entities
from encoder_zoo.tasks.tagging.entities import ScoredSpans
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import SpanWindows, TokenizedWords


def merge_windows(found: ScoredSpans, words: TokenizedWords, read: SpanWindows) -> ScoredSpans:
    """Convert candidates in windows to candidates in texts.

    Each span is only taken from one window: the window that owns its middle token (see `Windows`).

    Args:
        found: `ScoredSpans` in windows, sorted by window.
        words: `TokenizedWords`.
        read: `SpanWindows`.
    """
    count = xp.cast(xp.gather(read.word_count, found.row), xp.int32)
    found = found.select(found.end < count)  # words without tokens come after the other words
    window = found.row
    text = xp.gather(read.windows.example, window)
    first_word = xp.gather(read.first_word, window)
    start, end = found.start + first_word, found.end + first_word
    # The token in the middle of each span, counted from the start of the text.
    behind = cumsum_in_rows(words.counts)
    first_tokens = words.counts.with_values(behind - words.counts.values)
    last_tokens = words.counts.with_values(behind - 1)
    middle = get_row_values(first_tokens, text, start) + get_row_values(last_tokens, text, end)
    middle = middle // 2 - xp.gather(read.windows.begin, window)
    owned = middle >= xp.gather(read.windows.owned_from, window)
    owned &= middle < xp.gather(read.windows.owned_to, window)
    return ScoredSpans(text, start, end, found.label, found.score).select(owned)


def choose_spans(found: ScoredSpans, nested: bool, multi_label: bool) -> ScoredSpans:
    """Select the best spans from overlapping spans, as in gliner.

    A span is selected unless it overlaps a selected span with a higher score, or with the same
    score and an earlier position. With `nested`, spans can be inside each other. With
    `multi_label`, the same words can be selected for several labels.

    Args:
        found: `ScoredSpans` in texts.
        nested, multi_label: See `EntityExtractor.extract_entities`.

    Returns:
        The selected `ScoredSpans`, sorted by text and first word. Spans with the same first word
        are sorted by score, the best first.

    Example:
        >>> import tensorflow as tf
        >>> found = ScoredSpans(*map(tf.constant, ([0, 0, 0], [0, 1, 1], [2, 1, 3], [0, 0, 0],
        ...                                       [0.9, 0.8, 0.7])))
        >>> choose_spans(found, nested=False, multi_label=False).start.numpy().tolist()
        [0]
        >>> choose_spans(found, nested=True, multi_label=False).start.numpy().tolist()
        [0, 1]
    """
    row, start, end, _, score = map(np.asarray, found)
    spans = list(zip(row.tolist(), start.tolist(), end.tolist(), strict=True))
    kept: dict[tuple[int, int, int], bool] = {}
    taken: set[tuple[int, int]] = set()  # words of the selected spans
    # For each word: the last word of a selected span that begins at it, or the first word of a
    # selected span that ends at it.
    last, first = {}, {}

    def overlaps_better(row: int, start: int, end: int) -> bool:
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
        kept[span] = not overlaps_better(*span)
        if kept[span]:
            chosen.append(i)
            taken.update((row, word) for word in range(start, end + 1))
            last[row, start] = max(end, last.get((row, start), end))
            first[row, end] = min(start, first.get((row, end), start))
    chosen.sort(key=lambda i: spans[i][:2])
    return found.reorder(xp.constant(np.array(chosen, "int64")))


def choose_spans_in_graph(found: ScoredSpans, nested: bool, multi_label: bool) -> ScoredSpans:
    """Return the same result as `choose_spans`, inside `tf.function`.

    Spans that are not connected by a chain of overlapping spans are independent. Each step decides
    about one span of every connected group, so the number of steps is the size of the largest
    group.
    """
    order = xp.argsort(found.score, direction="DESCENDING", stable=True)
    found = found.reorder(order)
    row, start, end = (xp.cast(field, xp.int64) for field in found[:3])
    # Word indices over all texts, with gaps between texts. The last indices are padding, because
    # each step reads `widest` words per span.
    most = xp.reduce_max(xp.concat([end, [0]], axis=0)) + 2
    widest = xp.reduce_max(xp.concat([end - start, [0]], axis=0)) + 1
    size = (xp.reduce_max(xp.concat([row, [0]], axis=0)) + 1) * most + widest
    start, end = row * most + start, row * most + end
    # distinct spans, the best first. All labels of a span share the result.
    span = xp.unique(start * widest + end - start).idx  # (P,)
    count = xp.reduce_max(xp.concat([span, [-1]], axis=0)) + 1
    position = xp.range(xp.size(span))
    best = xp.math.unsorted_segment_min(position, span, count)
    start, end = xp.gather(start, best), xp.gather(end, best)
    steps, offsets = _divide_into_steps(start, end, size)

    def step(i, kept, a, b):
        chosen = steps[offsets[i] : offsets[i + 1]]
        begin, stop = xp.gather(start, chosen), xp.gather(end, chosen)
        words = begin[:, None] + xp.range(widest)  # (S, widest)
        inside = words <= stop[:, None]
        # If nested, `a` is the last word of the selected spans that begin at each word, and `b` is
        # the first word of the selected spans that end at each word.
        if nested:
            later = xp.gather(a, words) > stop[:, None]
            earlier = xp.gather(b, words) < begin[:, None]
            later &= inside & (words > begin[:, None])
            clash = later | (earlier & (words < stop[:, None]))
        else:  # 1 for words of selected spans
            clash = inside & (xp.gather(a, words) > 0)
        free = ~xp.reduce_any(clash, axis=1)
        if nested:
            begin, stop = xp.boolean_mask(begin, free), xp.boolean_mask(stop, free)
            a = xp.tensor_scatter_nd_max(a, begin[:, None], stop)
            b = xp.tensor_scatter_nd_min(b, stop[:, None], begin)
        else:
            words = xp.boolean_mask(words, inside & free[:, None])
            a = xp.tensor_scatter_nd_max(a, words[:, None], xp.ones_like(words))
        return i + 1, kept.write(i, free), a, b

    number = xp.size(offsets) - 1
    kept = xp.TensorArray("bool", number, infer_shape=False, element_shape=[None])
    none = xp.zeros([size], xp.int64)
    _, kept, _, _ = xp.while_loop(lambda i, *_: i < number, step, (0, kept, none, none + size))
    # Whether each span is selected.
    fate = xp.scatter_nd(steps[:, None], kept.concat(), [count])
    kept = xp.gather(fate, span)
    if not multi_label:
        kept &= position == xp.gather(best, span)
    found = found.select(kept)
    return found.reorder(xp.argsort(make_sort_keys(found.row, found.start), stable=True))


def _divide_into_steps(
    start: xp.Tensor, end: xp.Tensor, size: xp.Tensor
) -> tuple[xp.Tensor, xp.Tensor]:
    """Divide spans into steps. Each step contains the next best span of every connected group.

    Args:
        start, end: Int64 tensors of shape (U,). First and last words of the spans, the best span
            first.
        size: Integer. Number of words.

    Returns:
        The indices (U,) of the spans, and the offsets (steps + 1,) at which the steps begin.

    Example:
        The spans 0-1, 1-2 and 2-3 are connected, so each step decides about one of them. The span
        5-5 is a group of its own, so the first step also decides about it.

        >>> import tensorflow as tf
        >>> start, end = tf.constant([0, 1, 5, 2], tf.int64), tf.constant([1, 2, 5, 3], tf.int64)
        >>> spans, offsets = _divide_into_steps(start, end, 7)
        >>> spans.numpy().tolist(), offsets.numpy().tolist()
        ([0, 2, 1, 3], [0, 2, 3, 4])
    """
    # For each word, the number of spans that also contain the next word. If it is 0, a group ends.
    ones = xp.ones_like(start)
    links = xp.math.unsorted_segment_sum(ones, start, size)
    links = xp.cumsum(links - xp.math.unsorted_segment_sum(ones, end, size))
    ends = xp.cast(links == 0, xp.int64)
    group = xp.gather(xp.cumsum(ends, exclusive=True), start)
    by_group = xp.argsort(group, stable=True)
    sorted_group = xp.gather(group, by_group)
    place = xp.range(xp.size(group))
    begins = xp.math.unsorted_segment_min(place, sorted_group, size)
    rank = place - xp.gather(begins, sorted_group)  # ranks of the spans sorted by group
    by_rank = xp.argsort(rank, stable=True)
    counts = xp.math.bincount(rank)
    offsets = xp.concat([[0], xp.cumsum(counts)], axis=0)
    return xp.gather(by_group, by_rank), offsets


def make_entity_columns(
    found: ScoredSpans, words: TokenizedWords, texts: xp.Tensor, names: xp.RaggedTensor
) -> dict[str, xp.RaggedTensor]:
    """Convert entities to ragged columns (N, None): "label", "text", "start", "end" and "score".

    Args:
        found: `ScoredSpans` with G entities in texts.
        words: `TokenizedWords`.
        texts: String tensor of shape (N,).
        names: Ragged string tensor of shape (N, None). Labels for each text.
    """
    row = found.row
    start = get_row_values(words.starts, row, found.start)
    end = get_row_values(words.ends, row, found.end)
    label = xp.gather(names.row_starts(), row) + xp.cast(found.label, xp.int64)
    found = found._replace(start=start, end=end, label=label)
    return entities.make_entity_columns(found, texts, names.values)
