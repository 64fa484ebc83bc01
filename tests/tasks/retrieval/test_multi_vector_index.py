"""An index of tokens' vectors: MaxSim by its definition, in every precision; pooling; its files."""

import hashlib
import json

import numpy as np
import pytest
from not_installed import hide
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval import token_vectors
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex
from encoder_zoo.tasks.retrieval.token_vectors import pool_tokens

PRECISIONS = ("float32", "int8", "binary")
DIM = 20


class Model:
    """A vector of unit length for each word, drawn by its checksum; what it was called with."""

    similarity_function = "maxsim"

    def __init__(self, dim=DIM, seed=0):
        self.embedding_dim = dim
        self.seed = seed
        self.calls = []

    def embed(self, texts, prompt=None, batch_size=None):
        self.calls.append((list(texts), prompt, batch_size))
        return [np.stack([self.vector(word) for word in text.split()]) for text in texts]

    def vector(self, word):
        seed = int.from_bytes(hashlib.sha256(f"{self.seed}{word}".encode()).digest()[:8], "big")
        vector = np.random.default_rng(seed).standard_normal(self.embedding_dim)
        return (vector / np.linalg.norm(vector)).astype("float32")


class Meanings(Model):
    """Words of 100 meanings."""

    def vector(self, word):
        number = int(word[1:]) if word[1:].isdigit() else 0
        vector = super().vector(f"m{number % 100}") + 0.7 * super().vector(word)
        return vector / np.linalg.norm(vector)


class Lengths(Model):
    """Vectors of lengths 1 and 2."""

    def vector(self, word):
        return super().vector(word) * np.float32(1 + len(word) % 2)


class Reranker:
    """Prefers short texts."""

    def rank(self, query, texts, top_k=None):
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))[:top_k]
        return [{"index": i, "score": -float(len(texts[i])), "text": texts[i]} for i in order]


def texts_of(count, seed=0, words=90):
    """Texts of 1 to 12 words out of some."""
    draw = np.random.default_rng(seed)
    return [
        " ".join(f"w{word}" for word in draw.integers(words, size=draw.integers(1, 13)))
        for _ in range(count)
    ]


def maxsim(query, document):
    """The definition, in float64."""
    return sum(
        max(float(q @ d) for d in document.astype("float64")) for q in query.astype("float64")
    )


def by_hand(model, queries, documents):
    """MaxSim of texts with arrays, (Q, N)."""
    return np.array([[maxsim(q, d) for d in documents] for q in model.embed(queries)])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(token_vectors, "VECTOR_BLOCK", 300)
    monkeypatch.setattr(token_vectors, "CACHED", 100)
    monkeypatch.setattr(token_vectors, "ONE_THREAD", 1_000)
    monkeypatch.setattr(token_vectors, "TOKEN_QUERIES_PER_STEP", 3)


class TestSearch:
    @pytest.mark.slow(except_for=r"^float32$")
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_it_finds_what_a_search_by_hand_finds(self, precision, small_blocks):
        model, documents = Model(), texts_of(97)
        index = MultiVectorIndex.build(model, documents, precision)
        queries = texts_of(7, seed=1)
        expected = by_hand(model, queries, index.vectors).astype("float32")
        for k in (1, 9, 97):  # 512 candidates are all documents
            for hits, scores in zip(index.search(queries, top_k=k), expected, strict=True):
                indices = [hit["index"] for hit in hits]
                assert [hit["text"] for hit in hits] == [documents[i] for i in indices]
                np.testing.assert_allclose([h["score"] for h in hits], scores[indices], atol=1e-5)
                np.testing.assert_allclose(scores[indices], -np.sort(-scores)[:k], atol=1e-5)

    def test_worked_by_hand(self):
        documents = [np.array([[1, 0], [0, 1]], "float32"), np.array([[0.6, 0.8]], "float32")]
        index = MultiVectorIndex.from_vectors(Model(dim=2), documents, ["a", "b"])
        index.embedder.embed = lambda texts, **_: [np.array([[0.8, 0.6], [0, -1]], "float32")]
        assert [(hit["text"], round(hit["score"], 4)) for hit in index.search("q")] == [
            ("a", 0.8), ("b", 0.16)]  # fmt: skip

    @pytest.mark.slow(except_for=r"^int8$")
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_of_equal_documents_the_first_are_found(self, precision):
        index = MultiVectorIndex.build(Model(), ["a b c d e"] * 1_001, precision)
        alone = index.search("a c f", top_k=5)
        assert [hit["index"] for hit in alone] == [0, 1, 2, 3, 4]
        assert len({hit["score"] for hit in alone}) == 1
        assert index.search(["other", *["a c f"] * 9], top_k=5)[7] == alone

    @pytest.mark.slow(except_for="^float32")
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_a_query_finds_the_same_alone_and_among_others(self, precision):
        index = MultiVectorIndex.build(Model(), texts_of(600), precision)
        queries = texts_of(11, seed=1)
        together = index.search(queries, top_k=5)
        assert [index.search(query, top_k=5) for query in queries] == together

    def test_prompts_and_batch_size_go_to_the_model(self):
        model = Model()
        index = MultiVectorIndex.build(model, ["a", "b"], batch_size=7)
        assert model.calls[0] == (["a", "b"], "document", 7)
        index.search("q")
        assert model.calls[-1] == (["q"], "query", None)
        index.search(["q"], prompt="search: ")
        assert model.calls[-1][1] == "search: "
        index.add(["c"], batch_size=3)
        assert model.calls[-1] == (["c"], "document", 3)

    def test_more_results_than_documents_are_all(self):
        index = MultiVectorIndex.build(Model(), ["a", "b"], keep_texts=False)
        assert len(index.search("q", top_k=1_000_000)) == 2
        assert index.search([]) == [] and index.search("a")[0]["text"] is None
        assert (type(index.embedder), hasattr(index, "model")) == (Model, False)
        assert repr(index) == "<MultiVectorIndex: 2 documents, 2 vectors of 20, float32>"

    def test_a_reranker_orders_the_candidates(self):
        index = MultiVectorIndex.build(Model(), texts_of(99))
        nearest = [hit["text"] for hit in index.search("w1 w2", top_k=20)]
        hits = index.search("w1 w2", top_k=4, reranker=Reranker(), candidates=20)
        assert [hit["text"] for hit in hits] == sorted(nearest, key=len)[:4]
        assert all(index.texts[hit["index"]] == hit["text"] for hit in hits)
        with pytest.raises(ValueError, match="candidates.*is 3.*reranker="):
            index.search("q", candidates=3)


class TestPrecisions:
    @pytest.mark.slow
    def test_memory(self):
        model = Model(dim=128)
        tokens = np.random.default_rng(0).standard_normal((500, 16, 128)).astype("float32")
        sizes = {
            p: MultiVectorIndex.from_vectors(model, list(tokens), precision=p) for p in PRECISIONS
        }
        count = 500 * 16
        beside = 500 * 8 + 512 * 128 * 4  # ends, centroids
        assert sizes["float32"].nbytes == count * 512 + 500 * 8
        assert sizes["int8"].nbytes == count * (128 + 4) + beside
        assert sizes["binary"].nbytes == count * (16 + 4) + beside

    def test_int8_is_half_a_step_from_the_vectors(self):
        given = Model(dim=30).embed([" ".join(f"w{i}" for i in range(700))])
        index = MultiVectorIndex.from_vectors(Model(dim=30), given, precision="int8")
        steps = index._store.store.scales
        assert (np.abs(index.vectors[0] - given[0]) <= 0.51 * steps + 1e-6).all()

    def test_a_bit_is_nearer_than_the_centroid_alone(self):
        given = Model(dim=32).embed([" ".join(f"w{i}" for i in range(4_000))])[0]
        store = token_vectors.BinaryResiduals.create(given)
        cosines = (store.rows(slice(None)) * given).sum(1)
        of_centroids = (store.centroids[store.codes] * given).sum(1)
        assert cosines.mean() > 0.85 and of_centroids.mean() < 0.7

    def test_a_width_that_is_no_multiple_of_8(self):
        given = Model(dim=13).embed(texts_of(60))
        index = MultiVectorIndex.from_vectors(Model(dim=13), given, precision="binary")
        assert index.dim == 13 and index._store.store.vectors.shape[1] == 2
        assert [tokens.shape for tokens in index.vectors] == [tokens.shape for tokens in given]

    @pytest.mark.slow
    @pytest.mark.parametrize("precision, least", [("int8", 0.97), ("binary", 0.75)])
    def test_most_of_the_best_are_found(self, precision, least):
        model = Meanings(dim=64)
        documents = texts_of(1_200, words=2_000)
        queries = [" ".join(text.split()[:6]) for text in documents[::40]]
        exact, coarse = (
            MultiVectorIndex.build(model, documents, p).search(queries)
            for p in ("float32", precision)
        )
        same = [
            len({hit["index"] for hit in a} & {hit["index"] for hit in b}) / 10
            for a, b in zip(exact, coarse, strict=True)
        ]
        assert np.mean(same) > least
        assert [hits[0]["index"] for hits in coarse] == [hits[0]["index"] for hits in exact]

    @pytest.mark.slow(except_for=r"^binary-0\.4$")
    @pytest.mark.parametrize(
        "precision, most", [("float32", 1e-5), ("int8", 0.01), ("binary", 0.4)]
    )
    def test_vectors_of_any_length(self, precision, most):
        """Scores are of the vectors as the model makes them."""
        model, documents = Lengths(dim=64), texts_of(300)
        index = MultiVectorIndex.build(model, documents, precision)
        exact = by_hand(model, ["w1 w5 w7"], model.embed(documents))[0]
        for hit in index.search("w1 w5 w7", top_k=20):
            assert hit["score"] == pytest.approx(exact[hit["index"]], rel=most)
        assert index.search("w1 w5 w7", top_k=1)[0]["index"] == exact.argmax()
        index.add(["w1 w5 w7 w1"])
        assert len(index) == 301

    def test_centroids_are_as_long_as_their_vectors_and_nearest(self):
        vectors = Model().embed([" ".join(f"w{i}" for i in range(900))])[0]
        found = token_vectors.compute_centroids(vectors)
        assert found.shape == (128, DIM)  # 8 * sqrt(900) = 240
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
        codes = token_vectors.find_nearest_centroids(vectors, found)
        np.testing.assert_array_equal(codes, (vectors @ found.T).argmax(1))
        longer = token_vectors.compute_centroids(vectors * np.repeat([[1.0], [3.0]], 450, axis=0))
        assert 0.99 < np.linalg.norm(longer, axis=1).min() < 1.5
        assert 2.99 < np.linalg.norm(longer, axis=1).max() < 3.01
        drawn = vectors[np.random.default_rng(1).choice(900, 128, replace=False)]
        assert (vectors @ found.T).max(1).mean() > (vectors @ drawn.T).max(1).mean() + 0.02


class TestPooling:
    def test_tokens_that_are_alike_become_one(self):
        base = Model().embed(["a b c d"])[0]
        noise = 0.01 * np.random.default_rng(0).standard_normal((8, DIM)).astype("float32")
        tokens = np.concatenate([base, base]) + noise  # a b c d a b c d
        found = pool_tokens(tokens, 2)
        expected = tokens[:4] + tokens[4:]
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        lengths = np.linalg.norm(tokens, axis=1, keepdims=True)
        expected *= (lengths[:4] + lengths[4:]) / 2
        np.testing.assert_allclose(found, expected, atol=1e-6)  # in the order of the first ones

    @pytest.mark.parametrize("count", [1, 2, 3, 7, 30])
    @pytest.mark.parametrize("factor", [1, 2, 3, 50])
    def test_counts_and_lengths(self, count, factor):
        tokens = Model().embed([" ".join(f"w{i}" for i in range(count))])[0]
        found = pool_tokens(tokens, factor)
        assert len(found) == -(-count // factor)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
        assert factor > 1 or found is tokens

    def test_it_joins_what_costs_least(self):
        """Ward's method, step by step: of all pairs of groups that with the least growth."""
        tokens = Model(dim=4).embed([" ".join(f"w{i}" for i in range(14))])[0].astype("float64")
        groups = [[i] for i in range(14)]
        while len(groups) > 5:
            pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
            a, b = min(pairs, key=lambda pair: _growth(tokens, groups[pair[0]], groups[pair[1]]))
            groups[b] += groups.pop(a)
        sums = [tokens[sorted(group)].sum(0) for group in sorted(groups, key=min)]
        expected = np.array([total / np.linalg.norm(total) for total in sums])
        np.testing.assert_allclose(pool_tokens(tokens.astype("float32"), 3), expected, atol=1e-6)

    def test_of_an_index(self):
        model, documents = Model(), texts_of(40)
        index = MultiVectorIndex.build(model, documents, pool_factor=2)
        expected = [pool_tokens(tokens, 2) for tokens in model.embed(documents)]
        for found, tokens in zip(index.vectors, expected, strict=True):
            np.testing.assert_allclose(found, tokens, atol=1e-6)
        index.add(["a b c d"])
        assert len(index.vectors[-1]) == 2
        [hit] = index.search(documents[7], top_k=1)
        assert hit["score"] <= len(documents[7].split())  # a query is not pooled


def _growth(tokens, a, b):
    def spread(group):
        return ((tokens[group] - tokens[group].mean(0)) ** 2).sum()

    return spread(a + b) - spread(a) - spread(b)


class TestAdding:
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_added_documents_are_found(self, precision):
        documents = texts_of(60)
        index = MultiVectorIndex.build(Model(), documents[:40], precision)
        index.add(documents[40:])
        assert len(index) == 60 and index.texts == documents
        least = {"float32": 0.999, "int8": 0.99, "binary": 0.5}[precision]
        exact = Model().embed(documents)
        for found, given in zip(index.vectors, exact, strict=True):
            assert (found * given).sum(1).min() > least

    def test_a_failed_add_changes_nothing(self):
        index = MultiVectorIndex.build(Model(), ["a"])
        index.embedder.vector = lambda word: Model().vector(word) * (np.nan if word == "b" else 1)
        for bad, message in (
            ([], "documents.*is empty"),
            (["b", " "], r"documents\[1\] is empty"),
            (["b"], r"vectors\[0\]\[0\] has a value that is NaN"),
        ):
            with pytest.raises(ValueError, match=message):
                index.add(bad)
        assert (len(index), index.texts) == (1, ["a"])


class TestFiles:
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_round_trip(self, precision, tmp_path):
        documents = [*texts_of(40), "naïve 中国 🙂 \u2028", '"quoted" \\n']
        index = MultiVectorIndex.build(
            Model(), documents, precision, pool_factor=2, prompt="passage: "
        )
        index.save(tmp_path / "index")
        loaded = MultiVectorIndex.load(tmp_path / "index", Model())
        assert loaded.texts == documents
        assert (loaded.precision, loaded.prompt, loaded.pool_factor, repr(loaded)) == (
            precision, "passage: ", 2, repr(index))  # fmt: skip
        assert loaded.search(["w1 w7", "q"]) == index.search(["w1 w7", "q"])
        loaded.add(["more"])
        loaded.save(tmp_path / "index")  # over the file that its vectors are mapped from
        assert len(MultiVectorIndex.load(tmp_path / "index", Model())) == 43
        assert [path.name for path in tmp_path.iterdir()] == ["index"]

    @pytest.mark.parametrize(
        "model, reason",
        [
            (Model(seed=1), "different vectors"),
            (Model(dim=8), "vectors have 20 dimensions, but this embedder has 8"),
            (Model(dim=40), "different vectors"),
        ],
    )
    def test_another_model_is_refused(self, model, reason, tmp_path):
        MultiVectorIndex.build(Model(), ["a", "b"]).save(tmp_path / "index")
        with pytest.raises(ValueError, match=f"another embedder: .*{reason}.*Build"):
            MultiVectorIndex.load(tmp_path / "index", model)

    def test_an_index_of_another_kind_is_refused(self, tmp_path):
        MultiVectorIndex.build(Model(), ["a", "b"]).save(tmp_path)
        with pytest.raises(ValueError, match="does not contain an index"):
            ez.VectorIndex.load(tmp_path, Model())

    @pytest.mark.parametrize("name", ["vectors.safetensors", "texts.jsonl"])
    def test_a_changed_file_is_refused(self, name, tmp_path):
        MultiVectorIndex.build(Model(), texts_of(20)).save(tmp_path)
        content = bytearray((tmp_path / name).read_bytes())
        content[-5] ^= 1
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="is damaged or changed"):
            MultiVectorIndex.load(tmp_path, Model())

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda a: {**a, "vectors": a["vectors"][0]}, "Expected {'vectors'"),
            (lambda a: {**a, "centroids": a["centroids"][0]}, "Expected {'vectors'"),
            (lambda a: {**a, "centroids": a["centroids"][:0]}, r"centroids.shape is \(0,"),
            (lambda a: {**a, "scales": a["scales"][:3]}, r"scales.shape is \(3, 1\)"),
            (lambda a: {**a, "codes": a["codes"][:3]}, r"codes.shape is \(3,\)"),
            (lambda a: {**a, "codes": a["codes"] + 500}, "codes.*centroid 5.*at most"),
            (lambda a: {**a, "scales": a["scales"] + np.inf}, "NaN or infinite"),
            (lambda a: {**a, "scales": -a["scales"]}, "scales.*contains -.* Expected no negative"),
            (lambda a: {**a, "ends": a["ends"][:0]}, "ends.*is not an increasing list up to"),
            (lambda a: {**a, "ends": a["ends"][::-1]}, "ends.*is not an increasing list up to"),
            (lambda a: {**a, "ends": a["ends"] - 1}, "ends.*is not an increasing list up to"),
            (lambda a: {**a, "ends": a["ends"][:-1]}, "ends.*is not an increasing list up to"),
        ],
    )
    def test_a_file_that_was_made_up_is_refused(self, change, message, tmp_path):
        MultiVectorIndex.build(Model(), texts_of(20), "binary").save(tmp_path)
        arrays = change(load_file(tmp_path / "vectors.safetensors"))
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(arrays, tmp_path / "vectors.safetensors")
        with pytest.raises(ValueError, match=message):
            MultiVectorIndex.load(tmp_path, Model(), verify=False)

    def test_settings_that_were_made_up_are_refused(self, tmp_path):
        MultiVectorIndex.build(Model(), ["a", "b"]).save(tmp_path)
        manifest = json.loads((tmp_path / "encoder_zoo.json").read_text())
        (tmp_path / "encoder_zoo.json").write_text(json.dumps({**manifest, "pool_factor": 0}))
        with pytest.raises(ValueError, match="encoder_zoo.json: pool_factor is 0. Expected an i"):
            MultiVectorIndex.load(tmp_path, Model(), verify=False)
        (tmp_path / "encoder_zoo.json").write_text(json.dumps(manifest))
        (tmp_path / "texts.jsonl").write_text('"a"\n')
        with pytest.raises(ValueError, match="1 documents.* 2"):
            MultiVectorIndex.load(tmp_path, Model(), verify=False)


TOKENS = np.ones((3, DIM), "float32")


class TestErrors:
    @pytest.mark.parametrize(
        "documents, options, message",
        [
            ([], {}, "documents.*is empty"),
            (["a", " \n"], {}, r"documents\[1\] is empty"),
            (["a"], {"precision": "int4"}, "precision is 'int4'. Expected 'float32' or 'int8' or"),
            (["a"], {"pool_factor": 0}, "pool_factor is 0. Expected an integer of 1 or more"),
        ],
    )
    def test_documents(self, documents, options, message):
        model = Model()
        with pytest.raises(ValueError, match=message):
            MultiVectorIndex.build(model, documents, **options)
        assert model.calls == []

    @pytest.mark.parametrize(
        "given, texts, message",
        [
            ([], None, "vectors.*is empty"),
            ([TOKENS[0]], None, r"vectors\[0\] .*\(20,\).*float32"),
            ([TOKENS, TOKENS[:0]], None, r"vectors\[1\] .*\(0, 20\)"),
            ([TOKENS[:, :7]], None, r"vectors\[0\] .*\(3, 7\)"),
            ([TOKENS.astype(int)], None, "type int64"),
            ([TOKENS, TOKENS * np.nan], None, r"vectors\[1\]\[0\] has a value that is NaN"),
            ([TOKENS], ["a", "b"], "2 texts for 1 documents."),
        ],
    )
    def test_vectors(self, given, texts, message):
        with pytest.raises(ValueError, match=message):
            MultiVectorIndex.from_vectors(Model(), given, texts)

    def test_scipy_that_is_not_installed(self, monkeypatch):
        hide(monkeypatch, token_vectors.hierarchy)
        model = Model()
        with pytest.raises(ImportError, match="pool_factor.*package scipy: `pip install"):
            MultiVectorIndex.build(model, ["a b"], pool_factor=2)
        assert model.calls == []

    def test_given_vectors_are_copied(self):
        given = 2 * TOKENS
        index = MultiVectorIndex.from_vectors(Model(), [given])
        given[:] = 7
        assert (index.vectors[0] == 2).all()
