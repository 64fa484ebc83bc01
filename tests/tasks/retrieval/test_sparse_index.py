"""An index of sparse vectors: equal to a search by hand; its files; its export; bad input."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy import sparse

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval import index_export
from encoder_zoo.tasks.retrieval.terms import normalize_rows

WIDTH = 40


class Encoder:
    """Sparse vectors drawn by a text's checksum; what it was called with."""

    def __init__(self, similarity_function="dot", seed=0, width=WIDTH):
        self.similarity_function = similarity_function
        self.embedding_dim = width
        self.seed = seed
        self.calls = []

    def embed(self, texts, prompt=None, max_terms=None, batch_size=None):
        self.calls.append((list(texts), prompt, max_terms, batch_size))
        return sparse.csr_array(np.stack([self.vector(text) for text in texts]))

    def vector(self, text):
        seed = int.from_bytes(hashlib.sha256(f"{self.seed}{text}".encode()).digest()[:8], "big")
        rng = np.random.default_rng(seed)
        kept = rng.random(self.embedding_dim) < 0.1
        return np.where(kept, rng.random(self.embedding_dim), 0).astype("float32")


class Reranker:
    """Prefers short texts."""

    def rank(self, query, texts, top_k=None):
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))[:top_k]
        return [{"index": i, "score": -float(len(texts[i])), "text": texts[i]} for i in order]


def texts_of(count, start=0):
    return [f"text {i}" for i in range(start, start + count)]


def scores_by_hand(encoder, queries, documents):
    q, d = (encoder.embed(texts).toarray().astype("float64") for texts in (queries, documents))
    if encoder.similarity_function == "cosine":
        q, d = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (q, d))
    return q @ d.T


class TestSearch:
    @pytest.mark.parametrize("function", ["dot", "cosine"])
    def test_finds_what_a_search_by_hand_finds(self, function):
        encoder, documents, queries = Encoder(function), texts_of(300), texts_of(70, 1000)
        index = ez.SparseIndex.build(encoder, documents)
        scores = scores_by_hand(encoder, queries, documents)
        for row, hits in zip(scores, index.search(queries, top_k=7), strict=True):
            order = np.lexsort((np.arange(300), -row))[:7]
            order = order[row[order] > 0]
            found = [hit["index"] for hit in hits]
            assert len(set(found)) == len(order)
            if function == "dot":  # cosines differ in the last bit
                assert found == order.tolist()
            np.testing.assert_allclose(row[found], row[order], rtol=1e-5)
            np.testing.assert_allclose([hit["score"] for hit in hits], row[order], rtol=1e-5)
            assert all(hit["text"] == documents[hit["index"]] for hit in hits)

    def test_of_equal_documents_the_first_comes_first(self):
        index = ez.SparseIndex.build(Encoder(), ["b", "a", "b", "a", "b"])
        assert [hit["index"] for hit in index.search("b", top_k=2)] == [0, 2]
        assert [hit["index"] for hit in index.search("a", top_k=9)][:2] == [1, 3]

    def test_documents_without_a_common_term_are_not_found(self):
        vectors = sparse.csr_array(np.eye(3, WIDTH, dtype="float32"))
        encoder = Encoder()
        index = ez.SparseIndex.from_vectors(encoder, vectors)
        queries = sparse.csr_array(np.eye(5, WIDTH, dtype="float32")[[1, 4]])  # 4: of no document
        encoder.embed = lambda *_, **__: queries
        first, nothing = index.search(["q", "r"])
        assert ([(hit["index"], hit["score"]) for hit in first], nothing) == ([(1, 1.0)], [])

    def test_limits_of_given_vectors_are_those_of_added_ones(self):
        encoder = Encoder()
        vectors = encoder.embed(["a"])
        ez.SparseIndex.from_vectors(encoder, vectors, prompt="passage", max_terms=5).add(["b"])
        assert encoder.calls[-1] == (["b"], "passage", 5, None)

    def test_a_reranker_orders_what_was_found(self):
        documents = ["a" * (1 + i % 9) + str(i) for i in range(50)]
        index = ez.SparseIndex.build(Encoder(), documents)
        first = {hit["index"] for hit in index.search("query", top_k=12)}
        hits = index.search("query", top_k=3, reranker=Reranker(), candidates=12)
        best = sorted(first, key=lambda i: len(documents[i]))[:3]
        assert {hit["score"] for hit in hits} == {-float(len(documents[i])) for i in best}
        assert {hit["index"] for hit in hits} <= first

    def test_prompts_and_limits_reach_the_encoder(self):
        encoder = Encoder()
        index = ez.SparseIndex.build(encoder, ["a"], prompt="passage", batch_size=3, max_terms=5)
        index.add(["b"], batch_size=4)
        index.search(["q"], prompt="question", max_terms=2)
        calls = [call[1:] for call in encoder.calls]
        fingerprint = ("query", None, None)
        assert calls[:4] == [("passage", 5, 3), fingerprint, fingerprint, ("passage", 5, 4)]
        assert calls[4] == ("question", 2, None)
        index.evaluate(["q"], [0], prompt="question", max_terms=3)
        assert encoder.calls[-1] == (["q"], "question", 3, None)

    def test_description(self):
        index = ez.SparseIndex.build(Encoder(), texts_of(10), keep_texts=False)
        assert repr(index).startswith("<SparseIndex: 10 vectors; ")
        found = [hit["text"] for hits in index.search(texts_of(10)) for hit in hits]
        assert found and set(found) == {None}
        assert index.nbytes > 0 and index.vectors.shape == (10, WIDTH)

    def test_options_of_other_indexes_are_refused(self):
        for name, value in {"precision": "int8", "dim": 3, "pool_factor": 2}.items():
            with pytest.raises(TypeError, match=rf"SparseIndex\.build.*'{name}'"):
                ez.SparseIndex.build(Encoder(), ["a"], **{name: value})
        with pytest.raises(ValueError, match="max_terms is 0"):
            ez.SparseIndex.build(Encoder(), ["a"], max_terms=0)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda e: ez.SparseIndex.build(e, []), "documents.*is empty"),
            (lambda e: ez.SparseIndex.build(e, ["a", " "]), r"documents\[1\] is empty"),
            (lambda e: ez.SparseIndex.build(e, ["a"]).search(["q", ""]), r"queries\[1\] is empty"),
            (lambda e: ez.SparseIndex.build(e, ["a"]).search("q", 0), "top_k is 0"),
            (
                lambda e: ez.SparseIndex.build(e, ["a"]).search("q", candidates=3),
                "candidates.*is 3",
            ),
            (lambda e: ez.SparseIndex.from_vectors(e, np.eye(WIDTH)), "vectors is.*sparse"),
            (lambda e: ez.SparseIndex.from_vectors(e, e.embed(["a"]), ["a", "b"]), "2 texts for 1"),
            (
                lambda e: ez.SparseIndex.from_vectors(e, e.embed(["a", "b"]) * np.nan),
                r"vectors\[0\] .*NaN",
            ),
            (
                lambda e: ez.SparseIndex.from_vectors(e, e.embed(["a", "b"]) * 1e30),
                r"vectors\[0\] .*1e\+17",
            ),
        ],
    )
    def test_bad_input(self, call, message):
        with pytest.raises(ValueError, match=message):
            call(Encoder())


class TestFiles:
    @pytest.fixture
    def saved(self, tmp_path):
        index = ez.SparseIndex.build(Encoder(), texts_of(30))
        index.save(tmp_path / "index")
        return index, tmp_path / "index"

    def test_an_index_is_kept(self, saved):
        index, folder = saved
        again = ez.SparseIndex.load(folder, Encoder())
        queries = texts_of(9, 500)
        assert again.search(queries) == index.search(queries)
        assert (again.prompt, again.texts) == (index.prompt, index.texts)

    def test_added_documents_are_found_as_built_ones(self, saved):
        index, folder = saved
        again = ez.SparseIndex.load(folder, Encoder())
        again.add(texts_of(20, 30))
        whole = ez.SparseIndex.build(Encoder(), texts_of(50))
        queries = texts_of(9, 500)
        assert again.search(queries) == whole.search(queries)
        again.save(folder)
        assert len(ez.SparseIndex.load(folder, Encoder())) == 50 and len(index) == 30

    def test_another_encoder_is_refused(self, saved):
        for encoder, reason in (
            (Encoder(seed=1), "different vectors"),
            (Encoder("cosine"), "similarity 'dot'"),
            (Encoder(width=20), "vectors have 40 dimensions, but this embedder has 20"),
            (Encoder(width=50), "different vectors"),
        ):
            with pytest.raises(ValueError, match=f"another embedder.*{reason}"):
                ez.SparseIndex.load(saved[1], encoder)

    def test_a_changed_file_is_refused(self, saved):
        path = saved[1] / "texts.jsonl"
        path.write_text(path.read_text().replace("text 3", "text 4", 1))
        with pytest.raises(ValueError, match="damaged or changed"):
            ez.SparseIndex.load(saved[1], Encoder())

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("terms", lambda v: np.where(v == v.max(), WIDTH, v), "terms.*contains 40"),
            ("terms", lambda v: np.where(v == v.min(), -1, v), "terms.*contains -1"),
            ("starts", lambda v: v[::-1].copy(), "starts.* "),
            ("starts", lambda v: v + 1, "starts.* "),
            ("terms", lambda v: v[::-1], "terms of document 0"),
            ("terms", lambda v: v * 0, "terms of document 0"),
            ("weights", lambda v: v[:-1], "starts.* "),
            ("weights", lambda v: v * np.nan, "NaN or infinite"),
            ("weights", lambda v: v.astype("float64"), "Expected {'weights'"),
        ],
    )
    def test_numbers_that_scipy_would_trust_are_checked(self, saved, name, change, message):
        path = saved[1] / "vectors.safetensors"
        arrays = load_file(path)
        arrays[name] = change(arrays[name]).astype(
            arrays[name].dtype if "Expected {" not in message else "float64"
        )
        save_file(arrays, path)
        with pytest.raises(ValueError, match=message):
            ez.SparseIndex.load(saved[1], Encoder(), verify=False)

    def test_other_folders_are_refused(self, saved, tmp_path):
        with pytest.raises(FileNotFoundError):
            ez.SparseIndex.load(tmp_path / "none", Encoder())
        manifest = json.loads((saved[1] / "encoder_zoo.json").read_text())
        for setting, value, message in [
            ("task", "vector_index", "does not contain an index"),
            ("precision", "int8", "encoder_zoo.json: precision is 'int8'"),
            ("max_terms", 1.5, "encoder_zoo.json: max_terms is 1.5"),
        ]:
            changed = {**manifest, setting: value}
            (saved[1] / "encoder_zoo.json").write_text(json.dumps(changed))
            with pytest.raises(ValueError, match=message):
                ez.SparseIndex.load(saved[1], Encoder(), verify=False)


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e15])
def test_weights_of_any_size_have_their_cosines(size):
    rows = sparse.csr_array(np.float32([[3, 4, 0], [0, 0, 0], [0, 0, 2]]) * np.float32(size))
    found = normalize_rows(rows, "cosine").toarray()
    np.testing.assert_allclose(found, [[0.6, 0.8, 0], [0, 0, 0], [0, 0, 1]], rtol=1e-6)


@pytest.mark.slow
def test_an_index_that_is_too_large_is_not_exported(tiny, tmp_path, monkeypatch):
    index = tiny.task(ez.BertBackbone.family, "SparseEncoder").index(["a b ab", "c"])
    count = index.vectors.nnz
    monkeypatch.setattr(index_export, "MAX_BYTES", 8 * count - 1)
    with pytest.raises(ValueError, match=f"{count} terms.*max_terms"):
        index.export(tmp_path / "1")
    monkeypatch.setattr(index_export, "MAX_BYTES", 8 * count)
    index_export._make_term_search(index._store, "dot")


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("function", ["dot", "cosine"])
def test_an_export_finds_what_the_index_finds(tiny, tmp_path, function):
    import tensorflow as tf

    encoder = tiny.task(ez.BertBackbone.family, "SparseEncoder")
    encoder.similarity_function, encoder.max_terms = function, 6
    index = encoder.index(["a b ab", "c", "c d e a b", "p", "d e f"])
    index.export(tmp_path / "1", top_k=4)
    search = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    queries = ["a b", "p", "n o"]
    found = search(query=tf.constant(queries))
    for i, hits in enumerate(index.search(queries, top_k=4)):
        count = len(hits)
        np.testing.assert_allclose(
            found["score"][i][:count], [hit["score"] for hit in hits], rtol=1e-4
        )
        assert [t.decode() for t in found["text"][i][:count].numpy()] == [h["text"] for h in hits]
        assert not found["score"][i][count:].numpy().any()
