"""Hard negatives: near documents that are not the query's own."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import encoder_zoo as ez


class Embedder:
    """Places texts on a circle: "30 cat" is at 30 degrees."""

    similarity_function = "cosine"

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        angles = np.radians([float(text.split()[0]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")


class Reranker:
    """Scores documents by their last number."""

    def score(self, pairs):
        self.pairs = list(zip(*pairs, strict=True))
        return np.array([float(document.split()[-1]) for _, document in self.pairs])


PASSAGES = ["0 own", "10 a", "20 b", "30 c", "60 d", "170 e"]


def mined(*args, **kwargs):
    return ez.TextEmbedder.mine_negatives(Embedder(), *args, **kwargs)


def test_negatives_are_the_nearest_that_are_not_the_own():
    found = mined(["0 q", "25 r"], PASSAGES, [0, 2], num_negatives=2)
    assert found == (["0 q", "25 r"], ["0 own", "20 b"], [["10 a", "20 b"], ["30 c", "10 a"]])


def test_the_first_may_be_left_out_and_the_last():
    assert mined(["0 q"], PASSAGES, [0], 2, skip_top=1)[2] == [["20 b", "30 c"]]
    with pytest.raises(ValueError, match="No query has 3 negatives. .*larger.*top_k"):
        mined(["0 q"], PASSAGES, [0], 3, top_k=2)
    assert mined(["0 q"], PASSAGES, [0], 2, top_k=2)[2] == [["10 a", "20 b"]]


def test_scores_and_margins_by_hand():
    """Cosines with the query: 1, .985, .940, .866, .5, -.985."""
    assert mined(["0 q"], PASSAGES, [0], 1, max_score=0.95)[2] == [["20 b"]]
    assert mined(["0 q"], PASSAGES, [0], 1, absolute_margin=0.1)[2] == [["30 c"]]
    assert mined(["0 q"], PASSAGES, [3], 1, absolute_margin=0.1)[2] == [["60 d"]]
    assert mined(["0 q"], PASSAGES, [3], 1, relative_margin=0.4)[2] == [["60 d"]]  # below .52
    assert mined(["0 q"], PASSAGES, [3], 1, relative_margin=0.45)[2] == [["170 e"]]
    # Of a document with a score of -.985, a margin of its size is above it, not below.
    with pytest.raises(ValueError, match="No query has 1 negatives"):
        mined(["0 q"], PASSAGES, [5], 1, relative_margin=0.1)


def test_equal_texts_are_never_negatives():
    documents = ["0 own", "0 own", "10 a", "0 q", "20 b"]
    assert mined(["0 q"], documents, [0], 2)[2] == [["10 a", "20 b"]]
    # An equal query in another row has another document: it is right for both.
    found = mined(["0 q", "0 q"], ["0 own", "10 a", "20 b"], [0, 1], 1)
    assert found == (["0 q", "0 q"], ["0 own", "10 a"], [["20 b"], ["20 b"]])


def test_each_relevant_passage_makes_a_row():
    found = mined(["0 q", "60 r"], PASSAGES, [[0, 2], {4: 3, 5: 0}], 1)
    assert found == (
        ["0 q", "0 q", "60 r"],
        ["0 own", "20 b", "60 d"],
        [["10 a"], ["10 a"], ["30 c"]],
    )


def test_pairs_with_too_few_are_left_out_and_logged(caplog):
    with caplog.at_level(logging.WARNING, logger="encoder_zoo"):
        found = mined(["0 q", "170 r"], PASSAGES, [0, 5], 2, max_score=0.0)
    assert found[0] == ["170 r"]
    assert found[2] == [["60 d", "30 c"]]
    assert "1 of 2 pairs have fewer than 2 negatives and are dropped." in caplog.text
    caplog.clear()
    mined(["0 q"], PASSAGES, [0], 2)
    assert not caplog.text


def test_a_reranker_scores_what_was_found():
    documents = ["0 own 5", "10 a 3", "20 b 9", "30 c 4", "170 d 1"]
    reranker = Reranker()
    assert mined(["0 q"], documents, [0], 2, reranker=reranker)[2] == [["20 b 9", "30 c 4"]]
    below = mined(["0 q"], documents, [0], 2, absolute_margin=0.5, reranker=reranker)
    assert below[2] == [["30 c 4", "10 a 3"]]
    few = mined(["0 q"], documents, [0], 2, top_k=3, absolute_margin=1, reranker=reranker)
    assert few[2] == [["30 c 4", "10 a 3"]]
    assert all(query == "0 q" for query, _ in reranker.pairs)


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_properties(seed):
    rng = np.random.default_rng(seed)
    documents = [f"{a} p" for a in rng.integers(0, 60, 30)]  # some of them equal
    queries = [f"{a} q" for a in rng.integers(0, 60, 10)]
    relevant = rng.integers(0, 30, 10)
    margin, count = 0.01, int(rng.integers(1, 4))
    try:
        found = mined(queries, documents, relevant, count, absolute_margin=margin)
    except ValueError as error:
        assert "No query has" in str(error)
        return
    right = {}
    for query, document in zip(queries, relevant, strict=True):
        right.setdefault(query, set()).add(documents[document])
    assert len(found[0]) == len(found[1]) == len(found[2])
    for query, document, negatives in zip(*found, strict=True):
        assert document in right[query]
        assert len(set(negatives)) == len(negatives) == count
        assert not right[query] & set(negatives)
        near = [float(x[0]) for x in Embedder().embed([query]) @ Embedder().embed([document]).T]
        cosines = (Embedder().embed([query]) @ Embedder().embed(negatives).T)[0]
        assert (cosines <= near[0] - margin + 1e-5).all()
        assert (np.diff(cosines) <= 1e-6).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            (["0 q"], PASSAGES, [9]),
            r"relevant\[0\].* 9\..* 5",
        ),
        (([], PASSAGES, []), "queries.*is empty"),
        ((["0 q"], PASSAGES), "1 queries and 6 documents"),
        ((["0 q"], PASSAGES, [0], 0), "num_negatives is 0"),
        ((["0 q"], PASSAGES, [0], 9), "No query has 9 negatives"),
        ((["0 q"], PASSAGES, [0], 1, -1), "skip_top is -1"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        mined(*arguments)
