"""The best answers of each question, against a loop over questions and windows."""

import math

import numpy as np
import pytest

from encoder_zoo.common.lazy import use_numpy, use_tensorflow, xp
from encoder_zoo.tasks.preprocessing.windows import make_windows
from encoder_zoo.tasks.question_answering.answer_ranking import (
    compute_answer_scores,
    find_best_answers,
    insert_null_answers,
)
from encoder_zoo.tasks.question_answering.answers import IMPOSSIBLE_LOGIT, AnswerCandidates
from encoder_zoo.tasks.question_answering.span_qa_preprocessor import QuestionContexts

# Numbers of tokens of the contexts: their windows hold four tokens each.
LENGTHS = {
    "even": [9, 7, 11, 8],
    "one long": [1, 200, 2, 1, 3],
    "empty": [0, 6, 0],
    "one question": [12],
    "without tokens": [0],
    "none": [],
}


def reference(spans, totals, nulls, n_best):
    """[(start, end, score)], total and null of one question, in plain Python."""
    best = {}
    for start, end, score in spans:
        best[start, end] = max(score, best.get((start, end), score))
    ordered = sorted(((*span, score) for span, score in best.items()), key=lambda span: -span[2])
    most = max(totals)
    total = most + math.log(sum(math.exp(total - most) for total in totals))
    return ordered[:n_best], total, min(nulls)


@pytest.mark.parametrize("n_best", [1, 4])
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("engine", [use_numpy, use_tensorflow])
def test_the_best_spans_of_all_windows(engine, kind, n_best):
    with engine():
        for seed in range(3):
            check_best_answers(np.asarray(LENGTHS[kind], int), n_best, seed)


def check_best_answers(lengths, n_best, seed):
    rng = np.random.default_rng(seed)
    windows = make_windows(xp.constant(lengths, xp.int64), 4, 2)
    example, begin, length = (np.asarray(field) for field in windows[:3])
    n, count = 3, len(example)
    positions = np.concatenate([np.arange(0), *map(np.arange, lengths)]).astype("int32")
    ids, starts, ends = (
        xp.RaggedTensor.from_row_lengths(xp.constant(values), lengths)
        for values in (positions, 2 * positions, 2 * positions + 1)
    )
    texts = xp.constant(np.full(len(lengths), "", object), xp.string)
    contexts = QuestionContexts(texts, ids, ids, starts, ends, windows)
    columns = rng.integers(3, 9, count)
    first = rng.integers(0, np.maximum(length, 1)[:, None], (count, n))
    last = np.minimum(first + rng.integers(0, 2, (count, n)), length[:, None] - 1)
    score = rng.integers(0, 4, (count, n)).astype("float32")  # many are equal
    score[(rng.random((count, n)) < 0.3) | (length == 0)[:, None]] = IMPOSSIBLE_LOGIT
    total, null = rng.normal(size=(2, count)).astype("float32")
    fields = score, first + columns[:, None], last + columns[:, None], total, null
    candidates = AnswerCandidates(*map(xp.constant, fields))
    found = find_best_answers(candidates, contexts, xp.constant(columns, xp.int32), n_best)
    assert all(field.shape[0] == len(lengths) for field in found)
    shares = np.asarray(compute_answer_scores(insert_null_answers(found, None)))
    for question in range(len(lengths)):
        rows = np.flatnonzero(example == question)
        spans = [
            (2 * (begin[w] + a), 2 * (begin[w] + b) + 1, s)
            for w in rows
            for a, b, s in zip(first[w], last[w], score[w], strict=True)
            if s > IMPOSSIBLE_LOGIT / 2
        ]
        expected, everything, nothing = reference(
            spans, total[rows].tolist(), null[rows].tolist(), n_best
        )
        start, end, best, *both, context = (np.asarray(field)[question] for field in found)
        exists = best > IMPOSSIBLE_LOGIT / 2
        fields = start[exists], end[exists], best[exists]
        assert list(zip(*(field.tolist() for field in fields), strict=True)) == expected
        np.testing.assert_allclose(both, [everything, nothing], rtol=1e-5)
        assert np.all(context == question) and np.all(shares[question][~exists] == 0)
