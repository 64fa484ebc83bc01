"""An index of vectors: equal to a search by hand, in every precision; its files; bad input."""

import hashlib
import json
import threading
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from not_installed import hide
from paths import CHECKPOINTS
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval import engines, index_export, vectors
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex

FUNCTIONS = ("cosine", "dot", "euclidean", "manhattan")
PRECISIONS = ("float32", "int8", "binary")
DIM = 24


class Embedder:
    """Vectors drawn by a text's checksum; what it was called with."""

    def __init__(self, similarity_function="cosine", dim=DIM, seed=0):
        self.similarity_function = similarity_function
        self.embedding_dim = dim
        self.dim = None
        self.seed = seed
        self.calls = []

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        self.calls.append((list(texts), prompt, dim, batch_size))
        return np.stack([self.vector(text) for text in texts])[:, : dim or self.embedding_dim]

    def vector(self, text):
        seed = int.from_bytes(hashlib.sha256(f"{self.seed}{text}".encode()).digest()[:8], "big")
        return np.random.default_rng(seed).standard_normal(self.embedding_dim).astype("float32")


class Reranker:
    """Prefers short texts."""

    def rank(self, query, texts, top_k=None):
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))[:top_k]
        return [{"index": i, "score": -float(len(texts[i])), "text": texts[i]} for i in order]


def texts_of(count, start=0):
    return [f"text {i}" for i in range(start, start + count)]


def scores_by_hand(queries, documents, function):
    """Similarities (Q, N) in float64, by their definitions."""
    q, d = queries.astype("float64")[:, None], documents.astype("float64")[None]
    if function == "cosine":
        q = q / np.linalg.norm(q, axis=2, keepdims=True)
        return (q * d).sum(2)  # the vectors of an index have unit length, but for rounding
    if function == "dot":
        return (q * d).sum(2)
    return -np.linalg.norm(q - d, ord=2 if function == "euclidean" else 1, axis=2)


def found_by(hits):
    return [hit["index"] for hit in hits], [hit["score"] for hit in hits]


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks, of queries too."""
    monkeypatch.setattr(vectors, "VECTOR_BLOCK", 300)
    monkeypatch.setattr(vectors, "THRESHOLD_SAMPLE", 8)
    monkeypatch.setattr(vectors, "QUERY_BLOCK", 5)


class TestSearch:
    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_it_finds_what_a_search_by_hand_finds(self, function, precision, small_blocks):
        embedder = Embedder(function)
        index = VectorIndex.build(embedder, texts_of(199), precision)
        queries = [f"query {i}" for i in range(12)]
        expected = scores_by_hand(embedder.embed(queries), index.vectors, function)
        for k in (1, 7, 60, 199):  # 200 candidates are all documents
            for hits, scores in zip(index.search(queries, top_k=k), expected, strict=True):
                indices, found = found_by(hits)
                assert len({*indices}) == k
                # Some distances of int8 are equal, but for the rounding of one of both sums.
                np.testing.assert_allclose(scores[indices], np.sort(scores)[::-1][:k], rtol=1e-6)
                np.testing.assert_allclose(found, scores[indices], atol=1e-5)
                assert [hit["text"] for hit in hits] == [f"text {i}" for i in indices]

    def test_vectors_are_those_of_the_embedder(self):
        embedder = Embedder("cosine")
        given = embedder.embed(texts_of(9))
        index = VectorIndex.build(embedder, texts_of(9))
        lengths = np.linalg.norm(given, axis=1, keepdims=True)
        np.testing.assert_allclose(index.vectors, given / lengths, rtol=1e-6)
        dot = VectorIndex.build(Embedder("dot"), texts_of(9))
        np.testing.assert_array_equal(dot.vectors, given)

    @pytest.mark.slow(except_for=r"^dot-int8$")
    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_of_equal_documents_the_first_are_found(self, precision, function):
        index = VectorIndex.build(Embedder(function, dim=65), ["same"] * 3_001, precision)
        alone = index.search("query", top_k=5)
        assert [hit["index"] for hit in alone] == [0, 1, 2, 3, 4]
        assert len({hit["score"] for hit in alone}) == 1
        assert index.search(["other", *["query"] * 40], top_k=5)[7] == alone

    def test_a_query_finds_the_same_alone_and_among_others(self):
        index = VectorIndex.build(Embedder(dim=97), texts_of(1_000))
        queries = [f"query {i}" for i in range(30)]
        together = index.search(queries, top_k=20)
        assert [index.search(query, top_k=20) for query in queries] == together

    def test_prompts_batch_size_and_dim_go_to_the_embedder(self):
        embedder = Embedder()
        index = VectorIndex.build(embedder, ["a", "b"], batch_size=7, dim=16)
        assert embedder.calls[0] == (["a", "b"], "document", 16, 7)
        index.search("q")
        assert embedder.calls[-1] == (["q"], "query", 16, None)
        index.search(["q"], prompt="search: ")
        assert embedder.calls[-1][1] == "search: "
        index.add(["c"], batch_size=3)
        assert embedder.calls[-1] == (["c"], "document", 16, 3)
        assert (index.dim, len(index)) == (16, 3)

    def test_more_results_than_documents_are_all(self):
        index = VectorIndex.build(Embedder(), ["a", "b"])
        assert len(index.search("q", top_k=1_000_000)) == 2
        assert index.search([]) == []

    def test_columns_of_other_libraries(self):
        import pandas as pd

        index = VectorIndex.build(Embedder(), pd.Series(["a", "b"]))
        assert index.texts == ["a", "b"]
        assert len(index.search(np.array(["q", "r"]))) == 2

    def test_without_texts(self):
        index = VectorIndex.build(Embedder(), ["a", "b"], keep_texts=False)
        assert {hit["text"] for hit in index.search("a")} == {None}
        assert repr(index) == "<VectorIndex: 2 vectors; vectors of 24, float32; cosine>"

    def test_a_reranker_orders_the_candidates(self):
        documents = ["a" * n for n in range(1, 100)]
        index = VectorIndex.build(Embedder(), documents)
        nearest = [hit["index"] for hit in index.search("q", top_k=50)]
        hits = index.search("q", top_k=4, reranker=Reranker())
        assert [hit["index"] for hit in hits] == sorted(nearest)[:4]
        assert [hit["score"] for hit in hits] == [-len(hit["text"]) for hit in hits]
        [few] = index.search(["q"], top_k=2, reranker=Reranker(), candidates=3)
        assert [hit["index"] for hit in few] == sorted(nearest[:3])[:2]
        assert len(index.search("q", top_k=60, reranker=Reranker())) == 60


class TestPrecisions:
    def test_memory(self):
        drawn = np.random.default_rng(0).standard_normal((5_000, 128), dtype="float32")
        sizes = [VectorIndex.from_vectors(Embedder(dim=128), drawn, precision=p).nbytes
                 for p in PRECISIONS]  # fmt: skip
        ranges = 2 * 128 * 4
        assert sizes == [drawn.nbytes, drawn.nbytes // 4 + ranges, drawn.nbytes * 9 // 32 + ranges]

    @pytest.mark.slow
    def test_searching_takes_little_memory(self):
        drawn = np.random.default_rng(0).standard_normal((20_000, 64), dtype="float32")
        index = VectorIndex.from_vectors(Embedder(dim=64), drawn, precision="int8")
        queries = [f"query {i}" for i in range(1_100)]
        tracemalloc.start()
        index.search(queries, top_k=3)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 50e6 < 4 * len(queries) * len(index)  # than all scores would

    def test_int8_is_half_a_step_from_the_vectors(self):
        drawn = np.random.default_rng(0).standard_normal((500, 8), dtype="float32") * [[1, 50] * 4]
        drawn[:, 3] = 0.25  # no range
        index = VectorIndex.from_vectors(
            Embedder("dot", dim=8), drawn.astype("float32"), precision="int8"
        )
        steps = np.ptp(drawn, axis=0) / 255
        assert (np.abs(index.vectors - drawn) <= 0.501 * steps + 1e-5).all()
        np.testing.assert_array_equal(index.vectors[:, 3], 0.25)

    def test_binary_orders_the_documents_whose_signs_differ_least(self, monkeypatch):
        monkeypatch.setattr(vectors, "MIN_CANDIDATES", 30)
        monkeypatch.setattr(vectors, "CANDIDATES_PER_RESULT", 3)
        embedder = Embedder(dim=70)
        index = VectorIndex.build(embedder, texts_of(400), "binary")
        queries = [f"query {i}" for i in range(9)]
        wanted = embedder.embed(queries)
        given = embedder.embed(texts_of(400))
        for query, hits in zip(wanted, index.search(queries, top_k=5), strict=True):
            differ = ((query > 0) != (given > 0)).sum(1)
            candidates = np.flatnonzero(differ <= np.sort(differ)[29])  # the last may be several
            scores = scores_by_hand(query[None], index.vectors[candidates], "cosine")[0]
            expected = candidates[np.argsort(-scores, kind="stable")[:5]]
            assert [hit["index"] for hit in hits] == expected.tolist()

    @pytest.mark.parametrize("precision, least", [("int8", 0.97), ("binary", 0.9)])
    def test_most_of_the_nearest_are_found(self, precision, least):
        draw = np.random.default_rng(0)
        centres = draw.standard_normal((40, 96))
        drawn = centres[draw.integers(40, size=2_000)] + draw.standard_normal((2_000, 96))
        drawn = drawn.astype("float32")
        exact, coarse = (
            VectorIndex.from_vectors(Embedder(dim=96), drawn, precision=p)
            for p in ("float32", precision)
        )
        near = drawn[:100] + 0.3 * draw.standard_normal((100, 96)).astype("float32")
        near /= np.linalg.norm(near, axis=1, keepdims=True)
        found = zip(*(i._store.find_nearest(near, 10)[0] for i in (exact, coarse)), strict=True)
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in found]) > least

    def test_bits_are_counted_without_numpy_2_too(self, monkeypatch):
        words = np.random.default_rng(0).integers(2**64, size=99, dtype="uint64")
        expected = [int(word).bit_count() for word in words]
        assert vectors.count_bits(words).tolist() == expected
        monkeypatch.delattr(np, "bitwise_count", raising=False)
        assert vectors.count_bits(words).tolist() == expected


class TestAdding:
    @pytest.mark.parametrize("function", ("cosine", "euclidean"))
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_added_documents_are_found(self, function, precision):
        index = VectorIndex.build(Embedder(function), texts_of(50), precision)
        index.add(texts_of(30, start=50))
        whole = VectorIndex.build(Embedder(function), texts_of(80), precision)
        assert len(index) == 80 and index.texts == whole.texts
        atol = 0 if precision == "float32" else 0.03  # rounded twice
        np.testing.assert_allclose(index.vectors, whole.vectors, atol=atol)
        hits = index.search(["text 7", "text 63"], top_k=1)
        assert [hit["index"] for [hit] in hits] == [7, 63]

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_an_index_that_began_with_one_document_finds_the_same(self, precision, small_blocks):
        index = VectorIndex.build(Embedder(), texts_of(1), precision)
        index.add(texts_of(59, start=1))
        index.add(texts_of(1, start=3))  # within the ranges: nothing is rounded again
        whole = VectorIndex.build(Embedder(), [*texts_of(60), "text 3"], precision)
        np.testing.assert_array_equal(index.vectors, whole.vectors)
        queries = [f"query {i}" for i in range(9)]
        assert index.search(queries) == whole.search(queries)

    @staticmethod
    def vector_without_b(text):
        return Embedder().vector(text) * np.float32(np.nan if text == "b" else 1)

    def test_a_failed_add_changes_nothing(self, monkeypatch):
        index = VectorIndex.build(Embedder(), ["a"])
        for bad in ([], ["b", " "], ["b", None]):
            with pytest.raises(ValueError):
                index.add(bad)
        monkeypatch.setattr(index.embedder, "vector", self.vector_without_b)
        with pytest.raises(ValueError, match=r"vectors\[0\] .*NaN"):
            index.add(["b"])
        assert (len(index), index.texts) == (1, ["a"])


class TestFiles:
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_round_trip(self, precision, tmp_path):
        documents = [*texts_of(40), "two\nlines", "naïve 中国 🙂 \u2028", '"quoted" \\n']
        index = VectorIndex.build(Embedder(), documents, precision, prompt="passage: ")
        index.save(tmp_path / "index")
        loaded = VectorIndex.load(tmp_path / "index", Embedder())
        assert loaded.texts == documents
        assert (loaded.precision, loaded.prompt, repr(loaded)) == (
            precision, "passage: ", repr(index))  # fmt: skip
        np.testing.assert_array_equal(loaded.vectors, index.vectors)
        assert loaded.search(["text 3", "q"]) == index.search(["text 3", "q"])
        loaded.add(["more"])
        loaded.save(tmp_path / "index")  # over the file that its vectors are mapped from
        assert len(VectorIndex.load(tmp_path / "index", Embedder())) == 44
        assert [path.name for path in tmp_path.iterdir()] == ["index"]

    def test_files_of_others_stay(self, tmp_path):
        index, folder = VectorIndex.build(Embedder(), ["a", "b"]), tmp_path / "notes"
        (folder / "deep").mkdir(parents=True)
        (folder / "weights.h5").write_text("many")
        (folder / "deep" / "link").symlink_to("nothing")
        for _ in range(2):
            index.save(folder)
            assert (folder / "weights.h5").read_text() == "many"
            assert VectorIndex.load(folder, Embedder()).texts == ["a", "b"]
        names = ["deep", "encoder_zoo.json", "texts.jsonl", "vectors.safetensors", "weights.h5"]
        assert sorted(path.name for path in folder.iterdir()) == names
        VectorIndex.build(Embedder(), ["a"], keep_texts=False).save(folder)
        names.remove("texts.jsonl")  # of the index before
        assert sorted(path.name for path in folder.iterdir()) == names

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("encoder_zoo.json", "broken"),
            ("encoder_zoo.json", '{"format": 1, "task": "TextEmbedder", "files": {}}'),
            ("texts.jsonl", '"mine"\n'),  # which an index without texts would read
        ],
    )
    def test_a_file_of_others_with_a_name_of_ours_is_kept(self, tmp_path, name, content):
        index = VectorIndex.build(Embedder(), ["a", "b"], keep_texts=name != "texts.jsonl")
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=f"contains {name}"):
            index.save(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        index.save(tmp_path / "saved")  # as the error says

    def test_without_texts(self, tmp_path):
        VectorIndex.build(Embedder(), ["a", "b"], keep_texts=False).save(tmp_path / "index")
        loaded = VectorIndex.load(tmp_path / "index", Embedder())
        assert loaded.texts is None and loaded.search("a", top_k=1)[0]["index"] == 0

    @pytest.mark.parametrize(
        "embedder, reason",
        [
            (Embedder(seed=1), "different vectors"),
            (Embedder(dim=8), "vectors have 24 dimensions, but this embedder has 8"),
            (Embedder("dot"), "similarity 'cosine', but this embedder uses 'dot'"),
        ],
    )
    def test_another_embedder_is_refused(self, embedder, reason, tmp_path):
        VectorIndex.build(Embedder(), ["a", "b"]).save(tmp_path / "index")
        with pytest.raises(ValueError, match=f"another embedder: .*{reason}"):
            VectorIndex.load(tmp_path / "index", embedder)

    def test_an_embedder_that_learned_more_is_another(self, tmp_path):
        embedder = Embedder()
        index = VectorIndex.build(embedder, ["a", "b"])
        index.save(tmp_path / "index")
        embedder.seed = 1
        with pytest.raises(ValueError, match="another embedder"):
            VectorIndex.load(tmp_path / "index", embedder)
        for call in (lambda: index.add(["c"]), lambda: index.save(tmp_path / "index")):
            with pytest.raises(ValueError, match="embedder has changed"):
                call()
        assert len(index) == 2
        embedder.seed = 0
        VectorIndex.load(tmp_path / "index", embedder)
        index.add(["c"])

    def test_a_search_notices_that_its_embedder_learned_more(self):
        embedder = Embedder()
        index = VectorIndex.build(embedder, ["a", "b"])
        expected = index.search("a")
        embedder.backbone = SimpleNamespace(weights_version=1)  # trained, and nothing moved
        embedder.calls.clear()
        assert index.search("a") == expected == index.search("a")
        assert [len(texts) for texts, *_ in embedder.calls] == [2, 1, 1]  # compared once
        embedder.vector = lambda text: Embedder().vector(text) * np.float32(1.001)  # a little
        assert index.search("a")  # it is not asked: nothing said that the weights changed
        embedder.backbone.weights_version += 1
        for call in (lambda: index.search("a"), lambda: index.evaluate(["a"], [0])):
            with pytest.raises(ValueError, match="embedder has changed"):
                call()

    @pytest.mark.parametrize("name", ["vectors.safetensors", "texts.jsonl", "encoder_zoo.json"])
    def test_a_changed_file_is_refused(self, name, tmp_path):
        VectorIndex.build(Embedder(), texts_of(20)).save(tmp_path)
        path = tmp_path / name
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged or changed|JSON"):
            VectorIndex.load(tmp_path, Embedder())
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match="is truncated|JSON"):
            VectorIndex.load(tmp_path, Embedder())
        path.unlink()
        with pytest.raises(ValueError, match="file not found|does not contain an index"):
            VectorIndex.load(tmp_path, Embedder())

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda a: {**a, "vectors": a["vectors"][0]}, r"{'vectors': \('int8', 2\)"),
            (lambda a: {**a, "vectors": a["vectors"][:0]}, r"vectors.shape is \(0,"),
            (
                lambda a: {**a, "vectors": a["vectors"].astype("float32")},
                r"{'vectors': \('int8', 2\)",
            ),
            (lambda a: {**a, "more": a["ranges"]}, r"{'vectors': \('int8', 2\)"),
            (lambda a: {**a, "ranges": a["ranges"][:, :3]}, r"ranges.shape is \(2, 3\)"),
            (lambda a: {**a, "signs": a["signs"][:, :3]}, r"signs.shape is \(1, 3\)"),
            (
                lambda a: {**a, "fingerprint": a["fingerprint"][:1]},
                r"fingerprint.shape is \(1, 24\)",
            ),
            (lambda a: {**a, "ranges": a["ranges"] * np.inf}, "NaN or infinite"),
            (
                lambda a: {**a, "ranges": a["ranges"][::-1]},
                "range of dimension 0",
            ),
            (lambda a: {**a, "fingerprint": a["fingerprint"] * np.inf}, "another embedder"),
            (
                lambda a: {**a, "fingerprint": np.full_like(a["fingerprint"], 3e38)},
                "another embedder",
            ),
        ],
    )
    def test_a_file_that_was_made_up_is_refused(self, change, message, tmp_path):
        VectorIndex.build(Embedder(), texts_of(20), "binary").save(tmp_path)
        arrays = change(load_file(tmp_path / "vectors.safetensors"))
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(arrays, tmp_path / "vectors.safetensors")
        with pytest.raises(ValueError, match=message):
            VectorIndex.load(tmp_path, Embedder(), verify=False)

    @pytest.mark.parametrize(
        "lines, message",
        [
            ('"a"\n', "1 documents.* 2"),
            ('"a"\n["b"]\n', "line 2.*JSON"),
            ('"a\n"b"\n', "line 1.*JSON"),
            ('"a"\n"\\ud800"\n', "line 2.*surrogate"),
        ],
    )
    def test_texts_that_were_made_up_are_refused(self, lines, message, tmp_path):
        VectorIndex.build(Embedder(), ["a", "b"]).save(tmp_path)
        (tmp_path / "texts.jsonl").write_text(lines)
        with pytest.raises(ValueError, match=message):
            VectorIndex.load(tmp_path, Embedder(), verify=False)

    def test_an_unknown_precision_is_refused(self, tmp_path):
        VectorIndex.build(Embedder(), ["a", "b"]).save(tmp_path)
        manifest = json.loads((tmp_path / "encoder_zoo.json").read_text())
        (tmp_path / "encoder_zoo.json").write_text(json.dumps({**manifest, "precision": "int2"}))
        with pytest.raises(ValueError, match="precision is 'int2'"):
            VectorIndex.load(tmp_path, Embedder(), verify=False)

    def test_other_folders_are_refused(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            VectorIndex.load(tmp_path / "none", Embedder())
        for folder in (tmp_path, CHECKPOINTS / "Bert_Model"):
            with pytest.raises(ValueError, match="does not contain an index"):
                VectorIndex.load(folder, Embedder())

    def test_a_failed_save_leaves_the_older_one(self, tmp_path, monkeypatch):
        VectorIndex.build(Embedder(), ["a"]).save(tmp_path / "index")
        newer = VectorIndex.build(Embedder(), ["b", "c"])
        newer.documents.texts = ["b", object()]
        with pytest.raises(TypeError):
            newer.save(tmp_path / "index")
        assert VectorIndex.load(tmp_path / "index", Embedder()).texts == ["a"]
        assert [path.name for path in tmp_path.iterdir()] == ["index"]

    def test_a_reader_sees_one_version(self, tmp_path):
        versions = [VectorIndex.build(Embedder(), [name] * 300) for name in "ab"]
        for index in versions:
            index.save(tmp_path / "index")
        done = threading.Event()

        def write():
            for _ in range(10):
                for index in versions:
                    index.save(tmp_path / "index")
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not done.is_set():
            loaded = VectorIndex.load(tmp_path / "index", Embedder())
            [hit] = loaded.search(loaded.texts[0], top_k=1)
            assert hit["score"] == pytest.approx(1, abs=1e-5)
        writer.join()


VALID = np.ones((3, DIM), "float32")


class TestErrors:
    @pytest.mark.parametrize(
        "documents, options, message",
        [
            ([], {}, "documents.*is empty"),
            (["a", " \n"], {}, r"documents\[1\] is empty"),
            ("a text", {}, "documents is 'a text'.*load_index"),
            (["a", None], {}, "None"),
            (["a"], {"precision": "int4"}, "precision is 'int4'"),
            (["a"], {"engine": "annoy"}, "engine is 'annoy'"),
            (
                ["a"],
                {"engine": "faiss", "precision": "int8"},
                "engine='faiss' does not support precision='int8'",
            ),
            (["a"], {"dim": 0}, "dim is 0"),
            (["a"], {"keep_texts": 1}, "keep_texts is 1"),
        ],
    )
    def test_documents(self, documents, options, message):
        embedder = Embedder()
        with pytest.raises(ValueError, match=message):
            VectorIndex.build(embedder, documents, **options)
        assert embedder.calls == []

    @pytest.mark.parametrize(
        "given, texts, message",
        [
            (VALID[0], None, r"vectors.*\(24,\)"),
            (VALID[:0], None, r"vectors.*\(0, 24\)"),
            (VALID.astype(int), None, "vectors.*int64"),
            (np.ones((2, 30)), None, "vectors.* 30 .* 24"),
            (VALID * [[1], [np.nan], [1]], None, r"vectors\[1\] .*NaN"),
            (VALID * [[1], [1], [np.inf]], None, r"vectors\[2\] .*NaN"),
            (VALID * [[1], [1], [1e30]], None, r"vectors\[2\] .*1e\+17"),
            (VALID, ["a", "b"], "2 texts for 3 vectors"),
            (VALID, ["a", "b \udcff", "c"], r"texts\[1\] .*'\\udcff'"),
            (VALID, [], "texts.*is empty"),
        ],
    )
    def test_vectors(self, given, texts, message):
        with pytest.raises(ValueError, match=message):
            VectorIndex.from_vectors(Embedder(), given, texts)

    @pytest.mark.parametrize("size", [1e-35, 1e-12, 1.0, 1e16])
    def test_vectors_of_any_size_have_their_cosines(self, size):
        embedder = Embedder()
        index = VectorIndex.from_vectors(embedder, np.float32(VALID * size), ["a", "b", "c"])
        expected = VectorIndex.from_vectors(embedder, np.float32(VALID), ["a", "b", "c"])
        found, known = (each.search("q", top_k=3) for each in (index, expected))
        assert [hit["index"] for hit in found] == [hit["index"] for hit in known]
        scores = [[hit["score"] for hit in hits] for hits in (found, known)]
        np.testing.assert_allclose(*scores, rtol=1e-5)

    @pytest.mark.parametrize(
        "queries, options, message",
        [
            ("", {}, r"queries\[0\] is empty"),
            (["q", " "], {}, r"queries\[1\] is empty"),
            ("q", {"top_k": 0}, "top_k is 0"),
            ("q", {"candidates": 3}, "candidates.*is 3.*reranker="),
        ],
    )
    def test_queries(self, queries, options, message):
        embedder = Embedder()
        index = VectorIndex.build(embedder, ["a"])
        embedder.calls.clear()
        with pytest.raises(ValueError, match=message):
            index.search(queries, **options)
        assert embedder.calls == []

    @pytest.mark.parametrize(
        "answer",
        [
            None,
            "abc",
            {"index": 0, "score": 1.0},
            [(0, 1.0)],
            [{"index": 0}],
            [{"score": 1.0}],
            *([{"index": i, "score": 1.0}] for i in (3, -1, 10**30, "0", 0.5, True, None)),
            *([{"index": 0, "score": s}] for s in (np.nan, np.inf, "a", None, True, np.ones(2))),
            [{"index": 1, "score": 1.0}] * 2,
        ],
    )
    def test_the_answer_of_a_reranker_is_checked(self, answer):
        index = VectorIndex.build(Embedder(), ["a", "b", "c"])
        reranker = SimpleNamespace(rank=lambda query, texts, top_k=None: answer)
        with pytest.raises(ValueError, match="reranker.*'index'.*'score'"):
            index.search("q", reranker=reranker)
        with pytest.raises(ValueError, match="reranker.*'index'.*'score'"):
            index.evaluate(["q"], [[0]], reranker=reranker)

    @pytest.mark.parametrize(
        "vectors",
        [
            np.ones(24),
            np.ones((1, 8)),
            np.ones((3, 24)),
            np.ones((0, 24)),
            np.ones((1, 1, 24)),
            np.ones((1, 24)) * 1j,
            None,
            [["a"] * 24],
        ],
    )
    def test_the_vectors_of_an_embedder_are_checked(self, vectors):
        embedder = Embedder()
        index = VectorIndex.build(embedder, ["a", "b"])
        embed = embedder.embed
        embedder.embed = lambda texts, *a, **o: embed(texts) if len(texts) > 1 else vectors
        asks = [index.search, index.add, lambda texts: VectorIndex.build(embedder, texts)]
        for ask in asks[:2] if np.shape(vectors) == (1, 8) else asks:  # which may be narrower
            with pytest.raises(ValueError, match="The embedder returned vectors"):
                ask(["q"])
        assert len(index) == 2

    def test_a_reranker_without_texts(self):
        index = VectorIndex.build(Embedder(), ["a"], keep_texts=False)
        with pytest.raises(ValueError, match="reranker.*texts"):
            index.search("q", reranker=Reranker())

    def test_faiss_that_is_not_installed(self, monkeypatch):
        hide(monkeypatch, engines.faiss)
        embedder = Embedder()
        with pytest.raises(ImportError, match="pip install faiss-cpu"):
            VectorIndex.build(embedder, ["a"], engine="faiss")
        assert embedder.calls == []


@pytest.fixture(scope="module")
def embedder():
    return ez.TextEmbedder.from_preset("bert_nano_en_uncased", pooling="mean")


class TestWithATask:
    @pytest.mark.slow
    def test_search_save_and_load(self, embedder, tmp_path):
        documents = ["A cat sat down.", "The law on taxes.", "Anna sings.", "A train to Rome."]
        index = embedder.index(documents, precision="int8")
        assert [hits[0]["text"] for hits in index.search(documents, top_k=2)] == documents
        hits = index.search("Anna sings.")
        expected = embedder.similarity("Anna sings.", documents)
        for hit in hits:
            assert hit["score"] == pytest.approx(expected[hit["index"]], abs=0.02)
        index.save(tmp_path / "index")
        assert embedder.load_index(tmp_path / "index").search("Anna sings.") == hits

    @pytest.mark.slow
    def test_a_shorter_dim(self, embedder):
        index = embedder.index(["A cat.", "A dog."], dim=32)
        assert index.dim == 32 and index.search("A dog.", top_k=1)[0]["index"] == 1


def test_exports_that_cannot_be(monkeypatch, tmp_path):
    index = VectorIndex.build(Embedder(), ["a"])
    index.embedder.preprocessor = None
    with pytest.raises(ValueError, match="no preprocessor"):
        index.export(tmp_path / "1")
    index.embedder.preprocessor = object()
    monkeypatch.setattr(index_export, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="vectors in float32.*GB"):
        index.export(tmp_path / "1")
    monkeypatch.setattr(index_export.keras.config, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="backend 'jax'.*KERAS_BACKEND=tensorflow"):
        index.export(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []
