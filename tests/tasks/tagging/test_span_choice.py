"""The choice among overlapping spans: the same eagerly, in a graph and by definition."""

import time

import numpy as np
import pytest
import tensorflow as tf

from encoder_zoo.tasks.tagging.entities import ScoredSpans
from encoder_zoo.tasks.tagging.span_decoding import choose_spans, choose_spans_in_graph

MODES = [(nested, multi) for nested in (False, True) for multi in (False, True)]


def candidates(rows, words, widths, labels, share, seed=0, ties=False):
    draw = np.random.default_rng(seed)
    grid = np.stack(
        np.meshgrid(range(rows), range(words), range(widths), range(labels), indexing="ij"), -1
    ).reshape(-1, 4)
    grid = grid[(grid[:, 1] + grid[:, 2] < words) & (draw.random(len(grid)) < share)]
    score = draw.random(len(grid))
    score = np.round(score, 1) if ties else score
    row, start, width, label = grid.T
    kinds = ("int64", "int32", "int32", "int32", "float32")
    fields = (row, start, start + width, label, score)
    return ScoredSpans(*(tf.constant(f, k) for f, k in zip(fields, kinds, strict=True)))


def chosen_by_definition(found, nested, multi_label):
    rows = list(zip(*(np.asarray(field).tolist() for field in found), strict=True))
    kept = []
    for row, start, end, label, score in sorted(rows, key=lambda one: -one[4]):  # stable
        for other in kept:
            same = (start, end) == other[1:3]
            apart = start > other[2] or other[1] > end
            inside = start >= other[1] and end <= other[2]
            around = start <= other[1] and end >= other[2]
            if row == other[0] and not (
                (same and multi_label) or (not same and (apart or (nested and (inside or around))))
            ):
                break
        else:
            kept.append((row, start, end, label, score))
    return sorted(kept, key=lambda one: one[:2])


def listed(found):
    return list(zip(*(np.asarray(field).tolist() for field in found), strict=True))


@pytest.mark.parametrize(("nested", "multi_label"), MODES)
def test_choice_is_that_of_the_definition(nested, multi_label):
    graph = tf.function(choose_spans_in_graph, reduce_retracing=True)
    for seed, share in enumerate((0.0, 0.02, 0.1, 0.3, 1.0)):
        for ties in (False, True):
            found = candidates(3, 12, 4, 2, share, seed, ties)
            expected = chosen_by_definition(found, nested, multi_label)
            assert listed(choose_spans(found, nested, multi_label)) == expected
            assert listed(graph(found, nested, multi_label)) == expected


def seconds(function, *arguments):
    begin = time.process_time()
    function(*arguments)
    return time.process_time() - begin


@pytest.mark.slow
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("nested", "multi_label"), MODES)
@pytest.mark.parametrize("function", [choose_spans, choose_spans_in_graph])
def test_cost_follows_the_number_of_candidates(function, nested, multi_label, ties):
    # Of one text, all spans of all words with all labels: the worst case.
    run = (
        tf.function(function, reduce_retracing=True)
        if function is choose_spans_in_graph
        else function
    )
    small, large = (candidates(1, words, 6, 2, 1.0, ties=ties) for words in (250, 4000))
    run(candidates(1, 100, 6, 2, 1.0, ties=ties), nested, multi_label)  # a graph is traced
    run(small, nested, multi_label)  # and once more for any size
    first, last = (
        min(seconds(run, found, nested, multi_label) for _ in range(2)) for found in (small, large)
    )
    # 16 times as many candidates: 16 if linear, 256 if quadratic. Threads add up to a factor of 4.
    assert last < 100 * max(first, 0.02), (first, last)
