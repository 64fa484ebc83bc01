"""Metrics of rankings beside trec_eval's, by pytrec_eval; correlations beside SciPy's."""

import numpy as np
import pytest

from encoder_zoo.tasks.retrieval.evaluation import (
    compute_pearson,
    compute_ranking_metrics,
    compute_spearman,
)

pytestmark = pytest.mark.peers

CUTOFFS = [1, 3, 5, 10]


def random_case(seed, graded):
    """Rankings of 60 questions over 150 of 200 passages, and 1 to 8 relevant ones of each."""
    rng = np.random.default_rng(seed)
    rankings = np.stack([rng.permutation(200)[:150] for _ in range(60)])
    relevant = []
    for _ in range(60):
        passages = rng.choice(200, rng.integers(1, 9), replace=False).tolist()
        grades = rng.integers(0, 4, len(passages)) if graded else np.ones(len(passages))
        grades[0] = max(grades[0], 1)
        relevant.append(dict(zip(passages, map(float, grades), strict=True)))
    return rankings, relevant


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_metrics_equal_trec_eval(seed, graded, scored):
    import pytrec_eval

    rankings, relevant = random_case(seed, graded)
    judgements = {
        str(i): {str(n): int(grade) for n, grade in row.items()} for i, row in enumerate(relevant)
    }

    def theirs(measure, depth=150):
        run = {
            str(i): {str(n): float(-rank) for rank, n in enumerate(row[:depth])}
            for i, row in enumerate(rankings)
        }
        evaluator = pytrec_eval.RelevanceEvaluator(judgements, {measure})
        results = evaluator.evaluate(run)
        name = measure.replace(".", "_")
        return np.mean([results[str(i)][name] for i in range(60)])

    scores = -np.sort(np.random.default_rng(seed).random(rankings.shape)) if scored else None
    found = compute_ranking_metrics(rankings, relevant, CUTOFFS, scores)
    expected = {"map@100": theirs("map_cut.100")}
    for k in CUTOFFS:
        expected[f"ndcg@{k}"] = theirs(f"ndcg_cut.{k}")
        expected[f"recall@{k}"] = theirs(f"recall.{k}")
        expected[f"accuracy@{k}"] = theirs(f"success.{k}")
        expected[f"mrr@{k}"] = theirs("recip_rank", depth=k)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_correlations_equal_scipy(seed):
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(seed)
    a = rng.normal(size=100)
    b = np.round(a + rng.normal(size=100))  # with ties
    assert compute_spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    assert compute_pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-12)
