"""Rankings that are fused, and BM25 beside its formula."""

import importlib.util
import json
import math

import numpy as np
import pytest
from not_installed import hide

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval import terms
from encoder_zoo.tasks.retrieval.hybrid_index import HybridIndex
from encoder_zoo.tasks.retrieval.index_kinds import BM25Index, VectorIndex
from encoder_zoo.tasks.retrieval.terms import split_words

needs_bm25s = pytest.mark.skipif(
    importlib.util.find_spec("bm25s") is None, reason="needs the package bm25s"
)
DOCUMENTS = [
    "A cat sat on the mat, a red mat.", "The law on taxes.", "Anna sings naïve songs of a cat.",
    "A train to Rome.", "Rom, 東京 and Oslo: the train.", "?!",
]  # fmt: skip


TEXTS = ["a cat", "tax law", "a dog"]


class Fixed:
    """An index that finds always the same documents."""

    def __init__(self, ranking, texts=None, count=9):
        self.ranking, self.texts, self.count = ranking, texts, count
        self.asked = []

    def __len__(self):
        return self.count

    def search(self, queries, top_k=10):
        self.asked.append((list(queries), top_k))
        hits = [{"index": i, "score": 0.5, "text": None} for i in self.ranking[:top_k]]
        return [hits for _ in queries]

    def add(self, documents):
        self.count += len(documents)


class Embedder:
    """Vectors of letters."""

    similarity_function, embedding_dim, dim = "cosine", 128, None

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        codes = [[min(ord(c), 127) for c in text.lower()] for text in texts]
        return np.stack([np.bincount(row, minlength=128) for row in codes]).astype("float32")

    def load_index(self, folder, **options):
        return VectorIndex.load(folder, self, **options)


class Reranker:
    def rank(self, query, texts, top_k=None):
        order = sorted(range(len(texts)), key=lambda i: texts[i])[:top_k]
        return [{"index": i, "score": 0.0, "text": texts[i]} for i in order]


def found(hits):
    return [(hit["index"], round(hit["score"], 6)) for hit in hits]


class TestFusion:
    def test_worked_by_hand(self):
        index = HybridIndex([Fixed([4, 7, 1]), Fixed([7, 2])])
        expected = [
            (7, 1 / 62 + 1 / 61), (4, 1 / 61), (2, 1 / 62), (1, 1 / 63)
        ]  # fmt: skip
        assert found(index.search("q")) == [(i, round(score, 6)) for i, score in expected]
        assert found(index.search("q", top_k=2)) == found(index.search("q"))[:2]
        assert index.search(["q", "r"])[1] == index.search("q")

    def test_of_equal_scores_the_earlier_index_is_first(self):
        index = HybridIndex([Fixed([3]), Fixed([0]), Fixed([1])])
        assert [hit["index"] for hit in index.search("q")] == [3, 0, 1]

    def test_the_same_ranks_in_other_indexes_are_the_same_score(self):
        """And have no order in metrics; a sum of floats in another order may differ."""
        cycles = [[*range(i, 9), *range(i)] for i in range(9)]  # each at each rank once
        index = HybridIndex([Fixed(ranking) for ranking in cycles])
        assert len({hit["score"] for hit in index.search("q")}) == 1
        for relevant in range(9):
            assert index.evaluate(["q"], [relevant])["recall@1"] == pytest.approx(1 / 9)

    @pytest.mark.parametrize("weights", [None, [1.0, 0.5]])
    def test_the_batch_size_is_that_of_every_embedder(self, weights):
        sizes = []

        class Counting(Embedder):
            def embed(self, texts, prompt=None, dim=None, batch_size=None):
                sizes.append(batch_size)
                return super().embed(texts)

        index = HybridIndex(
            [VectorIndex.build(Counting(), TEXTS), BM25Index(TEXTS)], weights=weights
        )
        expected = index.search(TEXTS[1])
        sizes.clear()
        assert index.search(TEXTS[1], batch_size=7) == expected
        assert sizes == [7]
        assert index.evaluate([TEXTS[1]], [1], batch_size=7)["recall@1"] == 1
        with pytest.raises(TypeError, match="HybridIndex does not embed queries.*prompt"):
            index.search(TEXTS[1], batch_size=7, prompt="query")

    def test_the_constant_and_the_depth(self):
        first, second = Fixed([0, 1, 2]), Fixed([2, 1, 0])
        index = HybridIndex([first, second], rank_constant=1, depth=2)
        assert found(index.search("q", top_k=1)) == [(1, round(2 / 3, 6))]
        assert first.asked == [(["q"], 2)]
        index.search("q", top_k=3)
        assert second.asked[-1] == (["q"], 3)

    def test_equal_to_the_formula_on_random_rankings(self):
        draw = np.random.default_rng(0)
        rankings = [draw.permutation(50)[: draw.integers(1, 50)].tolist() for _ in range(4)]
        index = HybridIndex([Fixed(r, count=50) for r in rankings], depth=50)
        scores = np.zeros(50)
        for ranking in rankings:
            scores[ranking] += 1 / (60 + np.arange(1, len(ranking) + 1))
        hits = index.search("q", top_k=50)
        assert {hit["index"] for hit in hits} == set(np.flatnonzero(scores))
        np.testing.assert_allclose([h["score"] for h in hits], -np.sort(-scores)[: len(hits)])

    def test_texts_come_from_the_index_that_has_them_and_go_to_a_reranker(self):
        texts = list("ihgfedcba")
        index = HybridIndex([Fixed([4, 7, 1]), Fixed([7], texts)])
        assert [hit["text"] for hit in index.search("q")] == ["b", "e", "h"]
        hits = index.search("q", top_k=2, reranker=Reranker(), candidates=3)
        assert [hit["text"] for hit in hits] == ["b", "e"]
        with pytest.raises(ValueError, match="reranker.*texts"):
            HybridIndex([Fixed([4])]).search("q", reranker=Reranker())

    def test_adding(self):
        index = HybridIndex([Fixed([4]), Fixed([7])])
        index.add(["new"])
        assert len(index) == 10
        with pytest.raises(ValueError, match="documents.*is empty"):
            index.add([])

    def test_documents_of_one_part_alone_are_refused(self):
        words, vectors = ez.BM25Index(["a b", "c"]), ez.BM25Index(["a b", "c"])
        index = ez.HybridIndex([vectors, words])
        words.add(["d"])
        with pytest.raises(ValueError, match="The indexes have 2 and 3 documents"):
            index.search("d")

    def test_a_failed_add_changes_no_index(self):
        class Failing(Embedder):
            def embed(self, texts, **options):
                if "new" in texts:
                    raise MemoryError
                return super().embed(texts, **options)

        parts = [
            VectorIndex.build(Embedder(), DOCUMENTS),
            Fixed([4], count=6),
            HybridIndex([VectorIndex.build(Embedder(), DOCUMENTS)]),
            VectorIndex.build(Failing(), DOCUMENTS),
        ]
        index = HybridIndex(parts)
        with pytest.raises(MemoryError):
            index.add(["new"])
        assert [len(part) for part in parts] == [6] * 4
        index.add(["more"])
        assert [len(part) for part in parts] == [7] * 4

    def test_an_index_without_add_is_refused_before_any_work(self):
        class Pages:
            search = Fixed.search

            def __len__(self):
                return 6

        first = VectorIndex.build(Embedder(), DOCUMENTS)
        with pytest.raises(ValueError, match=r"indexes\[1\] is a Pages, which has no method add"):
            HybridIndex([first, Pages()]).add(["new"])
        assert len(first) == 6

    @pytest.mark.parametrize(
        "indexes, message",
        [
            ([], "indexes.*is empty"),
            ([Fixed([], count=3), Fixed([], count=4)], "The indexes have 3 and 4 documents."),
            (
                [Fixed([], ["a", "b"], 2), Fixed([], ["a", "c"], 2)],
                "differ in the text of document 1",
            ),
        ],
    )
    def test_indexes_of_other_documents(self, indexes, message):
        with pytest.raises(ValueError, match=message):
            HybridIndex(indexes)

    def test_bad_arguments(self):
        index = HybridIndex([Fixed([4])])
        for call, message in (
            (lambda: HybridIndex([Fixed([4])], rank_constant=0), "rank_constant is 0"),
            (lambda: index.search(" "), r"queries\[0\] is empty"),
            (lambda: index.search("q", top_k=0), "top_k is 0"),
        ):
            with pytest.raises(ValueError, match=message):
                call()


class TestFiles:
    def saved(self, tmp_path):
        embedder = Embedder()
        parts = [VectorIndex.build(embedder, DOCUMENTS, p) for p in ("float32", "int8")]
        index = HybridIndex(parts, rank_constant=10, depth=4)
        index.save(tmp_path / "index")
        return embedder, index

    def test_round_trip(self, tmp_path):
        embedder, index = self.saved(tmp_path)
        loaded = HybridIndex.load(tmp_path / "index", [embedder, embedder])
        assert (loaded.rank_constant, loaded.depth, loaded.texts) == (10, 4, DOCUMENTS)
        assert loaded.search(["taxes", "Rome"]) == index.search(["taxes", "Rome"])
        assert repr(loaded) == "<HybridIndex: VectorIndex, VectorIndex; 6 documents>"
        loaded.add(["more"])
        loaded.save(tmp_path / "index")
        assert len(HybridIndex.load(tmp_path / "index", [embedder, embedder])) == 7
        assert [path.name for path in tmp_path.iterdir()] == ["index"]

    def test_files_of_others_stay(self, tmp_path):
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "link").symlink_to("nothing")
        embedder, index = self.saved(tmp_path)
        for _ in range(2):
            index.save(tmp_path)
            assert HybridIndex.load(tmp_path, [embedder, embedder]).texts == DOCUMENTS
            assert (tmp_path / "config.json").read_text() == "{}"
            assert (tmp_path / "deep" / "link").is_symlink()

    def test_what_cannot_be_opened_again_is_not_saved(self, tmp_path):
        first = VectorIndex.build(Embedder(), DOCUMENTS)
        for other in (HybridIndex([first]), Fixed([4], count=6)):
            message = rf"indexes\[1\] is a {type(other).__name__}, which cannot be saved"
            with pytest.raises(ValueError, match=message):
                HybridIndex([first, other]).save(tmp_path / "index")
        assert not list(tmp_path.iterdir())

    def test_damage_and_other_folders_are_refused(self, tmp_path):
        embedder, _ = self.saved(tmp_path)
        with pytest.raises(ValueError, match="1 models for 2 indexes: 0_VectorIndex, 1_V"):
            HybridIndex.load(tmp_path / "index", [embedder])
        with pytest.raises(ValueError, match="does not contain an index"):
            HybridIndex.load(tmp_path / "index" / "0_VectorIndex", [embedder, embedder])
        manifest = tmp_path / "index" / "encoder_zoo.json"
        content = manifest.read_text()
        manifest.write_text(json.dumps({**json.loads(content), "indexes": ["../other"]}))
        with pytest.raises(ValueError, match="indexes is.*other"):
            HybridIndex.load(tmp_path / "index", [embedder], verify=False)
        manifest.write_text(content)
        path = tmp_path / "index" / "1_VectorIndex" / "texts.jsonl"
        path.write_text(path.read_text().replace("cat", "dog"))
        with pytest.raises(ValueError, match="is damaged or changed"):
            HybridIndex.load(tmp_path / "index", [embedder, embedder])


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("indexes", [[1]], "indexes is"),
        ("rank_constant", None, "rank_constant is None. Expected an integer"),
        ("depth", "4", "depth is '4'. Expected an integer"),
    ],
)
def test_wrong_settings_of_a_file_are_refused(tmp_path, field, value, message):
    embedder, path = Embedder(), tmp_path / "index" / "encoder_zoo.json"
    HybridIndex([VectorIndex.build(embedder, DOCUMENTS)]).save(tmp_path / "index")
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ValueError, match=f"encoder_zoo.json: {message}"):
        HybridIndex.load(tmp_path / "index", [embedder], verify=False)


@pytest.mark.parametrize(
    "field, value, message",
    [("precision", ["int8"], "precision is"), ("prompt", 5, "prompt is 5")],
)
def test_wrong_settings_of_vectors_are_refused(tmp_path, field, value, message):
    embedder, path = Embedder(), tmp_path / "encoder_zoo.json"
    VectorIndex.build(embedder, DOCUMENTS).save(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ValueError, match=f"encoder_zoo.json: {message}"):
        VectorIndex.load(tmp_path, embedder, verify=False)


def bm25(query, documents):
    """Scores (N,) by Lucene's formula, k1 = 1.5, b = 0.75, of words between spaces."""
    words = [document.split() for document in documents]
    mean = np.mean([len(one) for one in words])
    scores = np.zeros(len(words))
    for word in query.split():
        holding = sum(word in one for one in words)
        idf = math.log(1 + (len(words) - holding + 0.5) / (holding + 0.5))
        for i, one in enumerate(words):
            count = one.count(word)
            scores[i] += idf * count / (count + 1.5 * (0.25 + 0.75 * len(one) / mean))
    return scores


@needs_bm25s
class TestBM25:
    def test_equal_to_the_formula(self):
        draw = np.random.default_rng(0)
        documents = [
            " ".join(f"w{word}" for word in draw.integers(30, size=draw.integers(1, 20)))
            for _ in range(80)
        ]
        index = BM25Index(documents)
        for query in ("w1", "w3 w7 w20", "w1 w1 unknown", *documents[:5]):
            scores = bm25(query, documents)
            expected = [i for i in np.argsort(-scores.round(5), kind="stable") if scores[i] > 0]
            hits = index.search(query, top_k=7)
            np.testing.assert_allclose(
                [hit["score"] for hit in hits], scores[expected[:7]], rtol=1e-4
            )
            assert [hit["text"] for hit in hits] == [documents[hit["index"]] for hit in hits]

    def test_words(self):
        index = BM25Index(DOCUMENTS)
        assert [hit["index"] for hit in index.search("MAT")] == [0]
        assert [hit["index"] for hit in index.search("naïve")] == [2]
        assert [hit["index"] for hit in index.search("京都?")] == [4]
        assert index.search("unknown") == [] and index.search("?!") == []
        assert index.search(["unknown", "Rome"])[1][0]["index"] == 3
        assert index.search("unknown", reranker=Reranker()) == []
        assert len(index.search("a the train", top_k=100)) == 5

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs and virama are marks
            ("cafe\u0301 CAFÉ", ["café", "café"]),
            ("İstanbul'da", ["i\u0307stanbul", "da"]),
            ("東京へTokyo2020", ["東", "京", "へ", "tokyo2020"]),
            ("カメラ 한국어", ["カメラ", "한국어"]),
            ("snake_case x²", ["snake_case", "x²"]),
        ],
    )
    def test_words_of_other_scripts(self, text, words):
        assert split_words(text) == words

    def test_texts_without_words(self, tmp_path):
        index = BM25Index(["?!", "🙂"])
        assert index.search("a word") == []
        index.save(tmp_path / "index")
        assert BM25Index.load(tmp_path / "index").search("?!") == []
        index.add(["A word."])
        assert [hit["index"] for hit in index.search("a word")] == [2]

    def test_of_equal_documents_the_first_are_found(self):
        index = BM25Index(["same words"] * 50 + ["other"])
        assert [hit["index"] for hit in index.search("same", top_k=3)] == [0, 1, 2]

    def test_adding_and_files(self, tmp_path):
        index = BM25Index(DOCUMENTS[:3])
        index.add(DOCUMENTS[3:])
        whole = BM25Index(DOCUMENTS)
        assert index.search("a train") == whole.search("a train")
        index.save(tmp_path / "index")
        assert BM25Index.load(tmp_path / "index").search("the law") == whole.search("the law")
        with pytest.raises(ValueError, match="does not contain an index"):
            VectorIndex.load(tmp_path / "index", Embedder())

    def test_beside_vectors(self, tmp_path):
        embedder = Embedder()
        index = HybridIndex([VectorIndex.build(embedder, DOCUMENTS), BM25Index(DOCUMENTS)])
        assert index.search("the law", top_k=1)[0]["text"] == "The law on taxes."
        index.save(tmp_path)
        loaded = HybridIndex.load(tmp_path, [embedder, None])
        assert loaded.search("the law") == index.search("the law")

    def test_bad_documents(self):
        with pytest.raises(ValueError, match=r"documents\[1\] is empty"):
            BM25Index(["a", " "])


def test_bm25s_that_is_not_installed(monkeypatch):
    hide(monkeypatch, terms.bm25s)
    with pytest.raises(ImportError, match="BM25.*package bm25s: `pip install"):
        ez.BM25Index(["a"])
