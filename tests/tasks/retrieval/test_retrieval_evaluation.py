"""Metrics of retrieval and similarity, worked out by hand; evaluation on given vectors."""

import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import encoder_zoo as ez
from encoder_zoo.common.validation import list_argument_names
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.evaluation import (
    compute_average_ranks,
    compute_pearson,
    compute_ranking_metrics,
    compute_spearman,
    merge_judgements,
)
from encoder_zoo.tasks.retrieval.index import Index

evaluate_retrieval = ez.TextEmbedder.evaluate_retrieval  # of anything with its `embed`
evaluate_similarity = ez.TextEmbedder.evaluate_similarity


class Embedder:
    """Returns given vectors of texts, and keeps what it was asked."""

    def __init__(self, vectors, similarity_function="cosine"):
        self.vectors = vectors
        self.similarity_function = similarity_function
        self.calls = []

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        self.calls.append((list(texts), prompt, dim, batch_size))
        return np.array([self.vectors[text][:dim] for text in texts], "float32")


def at_angles(**degrees):
    """An embedder whose vectors are at these angles, so that near angles are near texts."""
    return Embedder({n: [np.cos(np.radians(d)), np.sin(np.radians(d))] for n, d in degrees.items()})


TEXTS = ["A cat sat on a mat.", "The tax is due in May.", "Cats are animals.", "The river is long."]
QUESTIONS = ["What do cats do?", "When is the tax due?", "How long is the river?"]
CIRCLE = {"q": 0, "r": 90, "a": 10, "b": 20, "c": 80, "d": 180}


def test_metrics_of_one_ranking_by_hand():
    """Relevant are 1 of grade 3 at rank 2, 5 of grade 1 at rank 4, and 9, which is not found."""
    relevant = [{1: 3.0, 5: 1.0, 9: 2.0, 0: 0.0}]
    found = compute_ranking_metrics(np.array([[0, 1, 2, 5, 3]]), relevant, [1, 3, 5])
    best = 3 + 2 / np.log2(3) + 1 / 2
    expected = {
        "ndcg@1": 0,
        "ndcg@3": 3 / np.log2(3) / best,
        "ndcg@5": (3 / np.log2(3) + 1 / np.log2(5)) / best,
        **{"mrr@1": 0, "mrr@3": 1 / 2, "mrr@5": 1 / 2},
        **{"recall@1": 0, "recall@3": 1 / 3, "recall@5": 2 / 3},
        **{"accuracy@1": 0, "accuracy@3": 1, "accuracy@5": 1},
        "map@100": (1 / 2 + 2 / 4) / 3,
    }
    assert found == pytest.approx(expected)


def test_metrics_are_means_over_the_questions():
    found = compute_ranking_metrics(np.array([[0, 1], [0, 1]]), [{0: 1.0}, {1: 1.0}], [1, 10])
    assert found["mrr@10"] == pytest.approx(0.75) and found["accuracy@1"] == 0.5
    assert found["ndcg@10"] == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert found["recall@10"] == 1


@given(st.integers(0, 10**6))
def test_the_ideal_ranking_has_the_best_metrics(seed):
    rng = np.random.default_rng(seed)
    grades = dict(enumerate(rng.integers(1, 4, rng.integers(1, 6)).astype(float)))
    ideal = [*sorted(grades, key=lambda n: -grades[n]), 100, 101]
    found = compute_ranking_metrics(np.array([ideal]), [grades], [1, len(ideal)])
    recall = found.pop("recall@1")
    assert recall == pytest.approx(1 / len(grades))
    assert all(value == pytest.approx(1) for value in found.values())
    other = compute_ranking_metrics(np.array([rng.permutation(ideal)]), [grades], [1, len(ideal)])
    assert all(other[name] <= value + 1e-12 for name, value in found.items())


def orders_of_ties(scores):
    """All orders of documents by falling scores."""
    groups = [np.flatnonzero(scores == score) for score in sorted(set(scores), reverse=True)]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [int(i) for part in parts for i in part]


def by_hand(order, grades, k):
    """The metrics of one order, without ties."""
    gains = np.array([grades.get(i, 0.0) for i in order])
    best = np.sort([g for g in grades.values() if g > 0])[::-1]
    hits, total = gains > 0, len(best)
    ranks = [rank for rank, hit in enumerate(hits, 1) if hit]
    discounts = 1 / np.log2(np.arange(2, 2 + max(len(order), total)))
    return {
        f"ndcg@{k}": gains[:k]
        @ discounts[: len(gains[:k])]
        / (best[:k] @ discounts[: len(best[:k])]),
        f"mrr@{k}": next((1 / rank for rank in ranks if rank <= k), 0.0),
        f"recall@{k}": sum(rank <= k for rank in ranks) / total,
        f"accuracy@{k}": float(any(rank <= k for rank in ranks)),
        "map@100": sum(found / rank for found, rank in enumerate(ranks, 1)) / total,
    }


def tied_case(seed):
    """Scores of 7 documents with ties, and grades; document 9 is relevant and not found."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 1 + seed % 4, 7).astype(float)
    grades = dict(enumerate(rng.integers(0, 3, 7).astype(float)))
    grades[int(rng.integers(7))] = 2.0
    return scores, {**grades, **({9: 1.0} if seed % 3 == 0 else {})}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("k", [1, 2, 4, 7, 10])
def test_metrics_with_ties_are_means_over_all_orders(seed, k):
    scores, grades = tied_case(seed)
    each = [by_hand(order, grades, k) for order in orders_of_ties(scores)]
    expected = {name: np.mean([row[name] for row in each]) for name in each[0]}
    rng = np.random.default_rng(seed)
    for _ in range(3):  # however they are listed
        listed = rng.permutation(7)
        order = listed[np.argsort(-scores[listed], kind="stable")]
        found = compute_ranking_metrics([order], [grades], [k], [scores[order]])
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_ndcg_with_ties_is_that_of_scikit_learn(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    scores, grades = rng.integers(0, 1 + seed, (5, 30)) / 7, rng.integers(0, 4, (5, 30))
    orders = np.argsort(-scores, axis=1)
    relevant = [dict(enumerate(map(float, row))) for row in grades]
    found = compute_ranking_metrics(
        orders, relevant, [1, 5, 30], np.take_along_axis(scores, orders, 1)
    )
    for k in (1, 5, 30):
        assert found[f"ndcg@{k}"] == pytest.approx(metrics.ndcg_score(grades, scores, k=k))


def test_a_search_goes_deeper_while_scores_at_the_cut_are_equal():
    """The relevant one of 600 documents is among 500 equal ones, after 3 better ones."""
    scores = np.array([1.0] * 500 + [0.5] * 97 + [2.0] * 3, "float32")
    for relevant in (0, 499):
        found = Scored(scores).evaluate(["q"], [relevant], cutoffs=[1, 50])
        places = np.arange(4, 504)
        expected = {
            **{"accuracy@1": 0, "recall@1": 0, "mrr@1": 0, "ndcg@1": 0},
            "accuracy@50": 47 / 500,
            "recall@50": 47 / 500,
            "mrr@50": (1 / places[:47]).sum() / 500,
            "ndcg@50": (1 / np.log2(1 + places[:47])).sum() / 500,
            "map@100": (1 / places[:97]).sum() / 500,
        }
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean", "manhattan"])
def test_equally_near_passages_have_no_order(function):
    """150 passages of one vector: the relevant one is anywhere among them."""
    passages = [f"p{i}" for i in range(150)]
    embedder = Embedder({"q": [1.0, 0.0], **{p: [0.6, 0.8] for p in passages}}, function)
    results = [
        evaluate_retrieval(embedder, ["q"], passages, [relevant], cutoffs=[10])
        for relevant in (0, 99, 149)
    ]
    assert results[0] == results[1] == results[2]
    assert results[0]["recall@10"] == pytest.approx(10 / 150)
    assert results[0]["map@100"] == pytest.approx((1 / np.arange(1, 101)).sum() / 150)


class Late:
    """Finds all texts equal."""

    similarity_function = "maxsim"

    def embed(self, texts, prompt, batch_size=None):
        return [np.eye(2, dtype="float32")] * len(texts)


class Sparse:
    """Finds all texts equal."""

    similarity_function = "dot"

    def embed(self, texts, prompt, batch_size=None):
        return csr_array(np.ones((len(texts), 2), "float32"))


@pytest.mark.parametrize("model", [Late(), Sparse()])
def test_equal_scores_have_no_order_in_all_searches(model):
    passages = [f"p{i}" for i in range(150)]
    for relevant in (0, 149):
        found = evaluate_retrieval(model, ["q"], passages, [relevant], cutoffs=[10])
        found = {name: found[name] for name in ("recall@10", "accuracy@10", "ndcg@10")}
        ndcg = (1 / np.log2(np.arange(2, 12))).sum() / 150
        expected = {"recall@10": 10 / 150, "accuracy@10": 10 / 150, "ndcg@10": ndcg}
        assert found == pytest.approx(expected)


def test_words_in_another_order_are_as_near():
    pytest.importorskip("bm25s")
    texts = ["a cat sat", "sat a cat", "cat sat a", "rivers run"]
    for listed in itertools.permutations(range(4)):
        index = ez.BM25Index([texts[i] for i in listed])
        found = index.evaluate(["cat"], [[listed.index(0)]], cutoffs=[1, 3])
        assert found["mrr@1"] == pytest.approx(1 / 3) and found["recall@3"] == pytest.approx(1)
        assert found["map@100"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_correlations_by_hand():
    assert compute_average_ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]
    a, b = np.array([1, 2, 3, 4]), np.array([1, 3, 2, 4])
    assert compute_spearman(a, b) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert compute_pearson(a, 3 - 2 * a) == pytest.approx(-1)
    assert compute_spearman(np.exp(a), -b) == pytest.approx(-0.8)


def test_questions_find_their_passages():
    embedder = at_angles(**CIRCLE)
    found = evaluate_retrieval(embedder, ["q", "r"], ["d", "a", "b", "c"], [2, [3, 1]])
    # Of q: a, b, c, d, so its document is second; of r: c, b, a, d, so first and third.
    assert found["mrr@10"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["recall@1"] == pytest.approx((0 + 1 / 2) / 2)
    assert found["map@100"] == pytest.approx((1 / 2 + (1 + 2 / 3) / 2) / 2)
    assert list(found) == [
        *[f"{name}@{k}" for k in (1, 5, 10) for name in ("ndcg", "mrr", "recall", "accuracy")],
        "map@100",
    ]
    assert [prompt for _, prompt, *_ in embedder.calls] == ["query", "document"]


def test_each_question_has_its_own_passage_where_nothing_else_is_said():
    embedder = at_angles(**CIRCLE)
    assert evaluate_retrieval(embedder, ["q", "r"], ["a", "c"])["accuracy@1"] == 1
    assert evaluate_retrieval(embedder, ["q", "r"], ["c", "a"])["accuracy@1"] == 0


def test_equal_passages_are_one():
    """Two queries of one document: its copy is no rival."""
    embedder = at_angles(**CIRCLE, s=5)
    found = evaluate_retrieval(embedder, ["q", "s", "r"], ["a", "a", "c"], cutoffs=[1])
    assert found["accuracy@1"] == found["recall@1"] == found["map@100"] == 1
    assert embedder.calls[1][0] == ["a", "c"]


@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean", "manhattan"])
def test_all_similarities_and_large_corpora(function):
    """600 documents beside rankings by the full matrix of similarities."""
    rng = np.random.default_rng(0)
    texts = [f"t{i}" for i in range(600)]
    vectors = dict(zip(texts, rng.normal(size=(600, 8)), strict=True))
    embedder = Embedder(vectors, function)
    queries = texts[:20]
    relevant = [rng.choice(600, 3, replace=False).tolist() for _ in queries]
    x = np.array(list(vectors.values()))
    if function == "cosine":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    if function in ("cosine", "dot"):
        scores = x[:20] @ x.T
    else:
        order = 1 if function == "manhattan" else 2
        scores = -np.linalg.norm(x[:20, None] - x[None], ord=order, axis=2)
    rankings = np.argsort(-scores, axis=1, kind="stable")
    expected = compute_ranking_metrics(
        rankings, [dict.fromkeys(row, 1.0) for row in relevant], [5, 50]
    )
    found = evaluate_retrieval(embedder, queries, texts, relevant, cutoffs=[5, 50])
    assert found == pytest.approx(expected, abs=1e-6)


def test_dims_batch_sizes_and_prompts_are_those_of_embed():
    embedder = at_angles(**CIRCLE)
    evaluate_retrieval(embedder, ["q"], ["a"], None, (1,), 7, None, "document: ", dim=1)
    assert embedder.calls == [(["q"], None, 1, 7), (["a"], "document: ", 1, 7)]


def test_similarities_beside_scores():
    embedder = at_angles(**CIRCLE)
    found = evaluate_similarity(embedder, (["q", "q", "q"], ["a", "c", "d"]), [5, 3, 1])
    cosines = [np.cos(np.radians(angle)) for angle in (10, 80, 180)]
    assert found["spearman"] == pytest.approx(1)
    assert found["pearson"] == pytest.approx(np.corrcoef(cosines, [5, 3, 1])[0, 1], rel=1e-5)
    assert embedder.calls[0][1] is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([], ["a"], []), "queries.*is empty"),
        ((["q"], [], [0]), "documents.*is empty"),
        ((["q", " "], ["a", "b"]), r"queries\[1\] is empty"),
        ((["q"], ["a", "b"]), "1 queries and 2 documents.*relevant"),
        ((["q", "r"], ["a"], [0]), "relevant.*has 1.*2 queries"),
        (
            (["q", "r"], ["a"], [0, 1]),
            r"relevant\[1\].* 1\..* 0",
        ),
        ((["q"], ["a"], [[-1]]), r"relevant\[0\].* -1\."),
        ((["q", "r"], ["a"], [0, []]), r"relevant\[1\] is \[\].*Remove"),
        ((["q"], ["a"], [{0: 0}]), r"relevant\[0\] is {0: 0}"),
        ((["q"], ["a"], [{0: -1}]), r"relevant\[0\].*document 0 is -1\."),
        ((["q"], ["a"], [{0: float("nan")}]), r"relevant\[0\].*document 0 is nan"),
        ((["q"], ["a"], ["a"]), r"relevant\[0\].* 'a'"),
        ((["q"], ["a"], [0.0]), r"relevant\[0\].* 0\.0"),
        ((["q"], ["a"], [0], []), r"cutoffs is \[\]"),
        ((["q"], ["a"], [0], [0]), r"cutoffs is \[0\]."),
        ((["q"], ["a"], [0], [1], 0), "batch_size is 0"),
    ],
)
def test_errors_come_before_any_work(arguments, message):
    embedder = at_angles(**CIRCLE)
    with pytest.raises(ValueError, match=message):
        evaluate_retrieval(embedder, *arguments)
    assert not embedder.calls


@pytest.mark.parametrize(
    "pairs, scores, message",
    [
        ((["q"], ["a"]), [1.0, 2.0], "1 first texts, 1 second texts.*2,"),
        ((["q", "r"], ["a"]), [1.0, 2.0], "anchors and positives"),
        ((["q", "r"], ["a", "b"]), [1.0, np.nan], "Row 1.*nan"),
        ((["q", "r"], ["a", "b"]), ["1", "2"], "2 second texts.*scores with shape"),
        ((["q", "r"], ["a", "b"]), [1.0, 1.0], "All scores are 1.0"),
        (["q", "r", "a"], [1.0], "pairs.*has 1 columns"),
    ],
)
def test_errors_of_scores_come_before_any_work(pairs, scores, message):
    embedder = at_angles(**CIRCLE)
    with pytest.raises(ValueError, match=message):
        evaluate_similarity(embedder, pairs, scores)
    assert not embedder.calls


def test_vectors_that_are_not_finite_are_refused():
    embedder = Embedder({"q": [1.0, 0.0], "r": [np.nan, 0.0], "a": [0.0, 1.0]})
    with pytest.raises(ValueError, match=r"vectors\[1\] .*NaN"):
        evaluate_similarity(embedder, (["q", "r", "a"], ["q", "q", "q"]), [1.0, 0.5, 0.0])
    with pytest.raises(ValueError, match=r"vectors\[1\] .*NaN"):
        evaluate_retrieval(embedder, ["q", "r"], ["q", "a"])


def test_judgements_by_question_are_refused():
    with pytest.raises(ValueError, match="relevant is {0: "):
        merge_judgements(["q", "r"], ["a", "b"], {0: {1: 1}, 1: {0: 1}})


def test_equal_similarities_have_no_correlation():
    with pytest.raises(ValueError, match="similarity 1"):
        evaluate_similarity(at_angles(q=0, r=0), (["q", "r"], ["r", "q"]), [1.0, 2.0])


def test_indices_may_be_of_any_kind_of_sequence():
    documents = ["a", "b", "c"]
    for relevant in (np.array([2, 0]), [np.array([2]), (0,)], [{2}, {0: 2}], [[2], np.int64(0)]):
        found = merge_judgements(["q", "r"], documents, relevant).relevant
        assert [set(grades) for grades in found] == [{2}, {0}]
    assert merge_judgements(["q"], ["a", "b", "a"], [{0: 1, 2: 3}]).relevant == [{0: 3.0}]


# -- of an index -----------------------------------------------------------------------------------


class Scored(Index):
    """Finds documents in the order of given scores, the same for each query, above 0 alone."""

    def __init__(self, scores, texts=None):
        self.scores = np.array(scores, "float32")
        self.documents = Documents(texts)

    def __len__(self):
        return len(self.scores)

    def _find_documents(self, queries, top_k, among=None):
        order = [i for i in np.argsort(-self.scores)[:top_k] if self.scores[i] > 0]
        return [(order, self.scores[order])] * len(queries)


class Longest:
    """A reranker that prefers long texts."""

    def rank(self, query, texts, top_k):
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))[:top_k]
        return [{"index": i, "score": 0.0, "text": texts[i]} for i in order]


@pytest.mark.slow
def test_a_search_is_evaluated_as_its_vectors_are():
    embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
    documents = [*TEXTS, TEXTS[1]]  # twice
    relevant = [[0, 2], {len(TEXTS): 2.0}, 0]
    found = embedder.index(documents).evaluate(QUESTIONS, relevant, cutoffs=[1, 3])
    assert found == embedder.evaluate_retrieval(QUESTIONS, documents, relevant, cutoffs=[1, 3])
    assert 0 < found["ndcg@3"] < 1


def test_documents_that_a_search_does_not_find_are_at_no_rank():
    found = Scored([3, 0, 2, 0]).evaluate(["p", "q"], [2, [0, 3]], cutoffs=[1, 10])
    assert found["mrr@10"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["recall@10"] == pytest.approx((1 + 1 / 2) / 2)
    assert found["map@100"] == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_a_reranker_is_part_of_the_search():
    index = Scored([4, 3, 2, 1], ["a", "bb", "ccc", "dddd"])
    assert index.evaluate(["q"], [3])["mrr@10"] == 1 / 4
    assert index.evaluate(["q"], [3], reranker=Longest())["mrr@10"] == 1
    found = index.evaluate(["q"], [3], reranker=Longest(), candidates=3)
    assert found["mrr@10"] == 0  # it is not among the three that the reranker reads
    assert index.evaluate(["q"], [1], reranker=Longest(), candidates=3)["mrr@10"] == 1 / 2


@pytest.mark.parametrize(
    "cls", [ez.VectorIndex, ez.MultiVectorIndex, ez.SparseIndex, ez.BM25Index, ez.HybridIndex]
)
def test_an_evaluation_takes_the_options_of_its_search(cls):
    of_search = list_argument_names(cls.search) - {"self", "queries", "top_k"}
    of_itself = {"self", "queries", "relevant", "cutoffs"}
    assert list_argument_names(cls.evaluate) - of_itself == of_search
    assert inspect.getdoc(cls.evaluate) == inspect.getdoc(ez.VectorIndex.evaluate)


def test_questions_that_find_equal_documents_are_searched_deeper():
    class Asked(Scored):
        """Finds two documents for the query "few"."""

        def _find_documents(self, queries, top_k, among=None):
            asked.append((queries, top_k))
            found = zip(queries, super()._find_documents(queries, top_k), strict=True)
            return [[part[: 2 if query == "few" else None] for part in one] for query, one in found]

    for texts, searches in (
        (["a", "b", "c", *["same"] * 5_000], [(["q", "few"], 4)]),
        ([*["same"] * 10, "a", "b", *["same"] * 5_000], [(["q", "few"], 3), (["q"], 12)]),
        ([*["same"] * 10, "a", "same", "b"], [(["q", "few"], 3), (["q"], 12), (["q"], 13)]),
    ):
        asked = []
        index = Asked(np.arange(len(texts), 0, -1), texts)
        found = index.evaluate(["q", "few"], [texts.index("b"), 0], cutoffs=[3])
        assert asked == searches
        rank = 1 + list(dict.fromkeys(texts)).index("b")
        assert found["mrr@3"] == pytest.approx((1 / rank + 1) / 2)


def test_judgements_of_an_index_are_checked():
    index = Scored([4, 3])
    with pytest.raises(ValueError, match=r"relevant\[0\].* 2\."):
        index.evaluate(["q"], [2])
    with pytest.raises(ValueError, match="reranker.*texts"):
        index.evaluate(["q"], [1], reranker=Longest())
    for cutoffs in ([0], [], 10, [True], [1.0], "5"):
        with pytest.raises(ValueError, match="cutoffs is"):
            index.evaluate(["q"], [1], cutoffs=cutoffs)
    for grade in ("1", None, float("nan"), -1):
        with pytest.raises(ValueError, match=r"relevant\[0\].*document 1 is"):
            index.evaluate(["q"], [{1: grade}])
    with pytest.raises(TypeError, match="Scored does not embed queries.*prompt"):
        index.evaluate(["q"], [1], prompt="query")


def test_judgements_by_ids():
    index = ez.BM25Index(["tax", "law", "cat"], ids=["1", "2", "12"])
    once = index.evaluate(["cat"], ["12"], cutoffs=[1])
    assert once["recall@1"] == 1
    for entry in ("12", ["12"], {"12"}, {"12": 3}):  # one id is no list of its characters
        assert index.evaluate({"q": "cat"}, {"q": entry}, cutoffs=np.array([1])) == once
    numbered = ez.BM25Index(["tax", "law", "cat"], ids=[7, 8, 9])
    for entry in (9, np.int64(9), [9], np.array([9])):
        assert numbered.evaluate({"q": "cat"}, {"q": entry}, cutoffs=[1]) == once
    for relevant in ({"12": 1}, "1", None, 7):
        with pytest.raises(ValueError, match="relevant is.*per query"):
            index.evaluate(["cat"], relevant)
