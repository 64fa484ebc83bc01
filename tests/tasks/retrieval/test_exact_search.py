"""The search in float32 finds what float64 finds, whatever the vectors have in common."""

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex

WIDTH, COUNT, QUERIES, TOP = 32, 3000, 30, 10


class Fixed:
    """An embedder in name: its vectors are given."""

    embedding_dim, dim = WIDTH, None

    def __init__(self, similarity_function):
        self.similarity_function = similarity_function

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        return np.ones((len(texts), WIDTH), "float32")


def corpus(kind: str, draw: np.random.Generator) -> np.ndarray:
    noise = draw.standard_normal((COUNT, WIDTH))
    if kind == "plain":
        return noise
    if kind == "offset":  # of an encoder that was not trained, or collapsed
        return 1000 + noise
    if kind == "far offset":
        return 1e5 + 10 * noise
    if kind == "two offsets":  # their mean is no help
        return np.where(np.arange(COUNT)[:, None] % 2, 3000.0, -3000.0) + noise
    if kind == "one direction":
        return 1 + 1e-3 * noise
    if kind == "long and short":
        return noise * np.exp(draw.uniform(-8, 8, (COUNT, 1)))
    return noise[draw.integers(0, 40, COUNT)]  # many equal ones


KINDS = ("plain", "offset", "far offset", "two offsets", "one direction", "long and short", "equal")


@pytest.mark.parametrize("asked", ["one", "many", "among"])
@pytest.mark.parametrize("engine", [None, "faiss"])
@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("kind", KINDS)
def test_hits_are_those_of_float64(kind, function, engine, asked):
    if engine:
        pytest.importorskip("faiss")
    draw = np.random.default_rng(0)
    vectors = corpus(kind, draw).astype("float32")
    queries = (vectors[draw.integers(0, COUNT, QUERIES)]).astype("float64")
    scale = np.abs(vectors - vectors.mean(axis=0)).mean()
    queries = (queries + scale * draw.standard_normal(queries.shape)).astype("float32")
    index = VectorIndex.from_vectors(
        Fixed(function), vectors, engine=engine, metadata=[{"odd": i % 2} for i in range(COUNT)]
    )
    among = np.arange(1, COUNT, 2) if asked == "among" else np.arange(COUNT)
    where = {"odd": 1} if asked == "among" else None
    if asked == "one":
        found = [index.search(query, TOP) for query in queries]
    else:
        found = index.search(queries, TOP, where=where)
    exact, own = index.vectors.astype("float64"), queries.astype("float64")
    if function == "cosine":  # the query of the search has unit length in float32
        own = (queries / np.linalg.norm(own, axis=1, keepdims=True).astype("float32")).astype(
            "float64"
        )
    for query, hits in zip(own, found, strict=True):
        if function in ("cosine", "dot"):
            truth = exact @ query
        elif function == "euclidean":
            truth = -np.sqrt(((exact - query) ** 2).sum(axis=1))
        else:
            truth = -np.abs(exact - query).sum(axis=1)
        best = np.sort(truth[among])[::-1][:TOP]
        numbers = [hit["index"] for hit in hits]
        assert len(set(numbers)) == TOP
        assert set(numbers) <= set(among.tolist())
        # Equal but for float64's own rounding.
        np.testing.assert_allclose(
            truth[numbers], best, rtol=0, atol=1e-13 * scale_of(exact, query)
        )
        np.testing.assert_allclose([hit["score"] for hit in hits], best, rtol=1e-6, atol=1e-30)


def scale_of(vectors: np.ndarray, query: np.ndarray) -> float:
    return float(np.linalg.norm(vectors, axis=1).max() * np.linalg.norm(query) + 1)


@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean", "manhattan"])
def test_of_equal_vectors_the_earlier_is_found(function):
    vectors = np.ones((50, WIDTH), "float32") * 1000
    index = VectorIndex.from_vectors(Fixed(function), vectors)
    assert [hit["index"] for hit in index.search(vectors[0], 5)] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_collapsed_embedder_finds_what_float64_finds():
    embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased", similarity_function="euclidean")
    texts = [f"Text {i} of {i * 7 % 13}." for i in range(60)]
    vectors = embedder.embed(texts, prompt="document") + np.float32(500)
    index = VectorIndex.from_vectors(embedder, vectors)
    exact = vectors.astype("float64")
    for i in range(len(texts)):
        truth = np.linalg.norm(exact - exact[i], axis=1)
        hits = index.search(vectors[i], 3)
        np.testing.assert_allclose(
            truth[[hit["index"] for hit in hits]], np.sort(truth)[:3], rtol=1e-6
        )
