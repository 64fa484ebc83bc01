"""Late interaction with an index, as a reranker, and in a picture."""

import tracemalloc

import numpy as np
import pytest

import encoder_zoo as ez

DOCUMENTS = [
    "A cat sat on the mat.", "The law on taxes.", "Anna sings naïve songs.", "A train to Rome.",
    "中国 🙂", "A cat sat on the mat.", "He cooks rice with salt.",
]  # fmt: skip
QUERIES = ["Who sings?", "a cat", "Straße nach Rom", "🙂"]


@pytest.fixture(scope="module")
def model():
    return ez.LateInteraction.from_preset("bert_nano_en_uncased_embedder", query_length=16)


@pytest.mark.slow(except_for="^int8")
@pytest.mark.matrix
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_index_finds_by_the_models_similarity(model, precision, tmp_path):
    index = model.index(DOCUMENTS, precision=precision)
    similar = model.similarity(QUERIES, DOCUMENTS)
    for hits, scores in zip(index.search(QUERIES, top_k=7), similar, strict=True):
        found = [hit["score"] for hit in hits]
        tolerance = 1e-4 if precision == "float32" else 0.05
        np.testing.assert_allclose(found, [scores[h["index"]] for h in hits], atol=tolerance)
        assert found == sorted(found, reverse=True)
    index.save(tmp_path / "index")
    assert model.load_index(tmp_path / "index").search("a cat") == index.search("a cat")


@pytest.mark.slow
@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-5), ("int8", 0.02)])
def test_vectors_of_any_length_are_compared_as_they_are(precision, tolerance):
    options = {"query_length": 16, "normalize": False}
    model = ez.LateInteraction.from_preset("bert_nano_en_uncased_embedder", **options)
    similar = model.similarity(QUERIES, DOCUMENTS)
    assert similar.max() > 17  # products are no cosines
    found = model.index(DOCUMENTS, precision=precision).search(QUERIES, top_k=7)
    for hits, scores in zip(found, similar, strict=True):
        expected = [scores[hit["index"]] for hit in hits]
        np.testing.assert_allclose([hit["score"] for hit in hits], expected, rtol=tolerance)


@pytest.mark.slow
def test_an_evaluation_takes_little_memory(model, monkeypatch):
    passages = [f"passage {i}" for i in range(20_000)]
    questions = passages[:400]
    drawn = np.random.default_rng(0).standard_normal((20_000, 1, 16), dtype="float32")
    drawn /= np.linalg.norm(drawn, axis=2, keepdims=True)
    monkeypatch.setattr(model, "embed", lambda texts, *_, **__: list(drawn[: len(texts)]))
    tracemalloc.start()
    found = model.evaluate_retrieval(questions, passages, range(400))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["accuracy@1"] == 1
    assert peak < 20e6 < 4 * len(questions) * len(passages)  # than all scores would


@pytest.mark.slow
def test_it_reranks_what_vectors_find(model):
    embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
    index = embedder.index(DOCUMENTS)
    nearest = [hit["text"] for hit in index.search("a cat", top_k=4)]
    hits = index.search("a cat", top_k=3, reranker=model, candidates=4)
    assert [hit["text"] for hit in hits] == [r["text"] for r in model.rank("a cat", nearest)[:3]]
    assert [DOCUMENTS[hit["index"]] for hit in hits] == [hit["text"] for hit in hits]


@pytest.mark.slow
def test_a_picture(model):
    picture = ez.display.matches(model, "Who sings?", "Anna sings naïve songs.")
    first, *lines = picture.text.splitlines()
    score = model.similarity("Who sings?", "Anna sings naïve songs.").item()
    assert first == f"Who sings? (score {score:.2f})"
    assert lines[-1].replace("[", "").startswith(("Anna", "anna")) and "[sings" in lines[-1]
    assert "markers and expansion tokens" in lines[-2]
