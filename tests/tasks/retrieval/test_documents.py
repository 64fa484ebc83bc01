"""Documents with ids and fields, in every kind of index: found, filtered, changed, saved."""

import enum
import hashlib
import inspect
import itertools
import json
import random
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval import vectors
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex, SparseIndex, VectorIndex

WORDS = [f"w{i}" for i in range(40)]
LANGUAGES = ("en", "de", "fr")


def vector_of(word: str, width: int = 16) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    vector = np.random.default_rng(seed).standard_normal(width).astype("float32")
    return vector / np.linalg.norm(vector)


class Shortest:
    """A reranker that puts short texts first.

    Args:
        asked: takes the texts of each call.
    """

    def __init__(self, asked):
        self.asked = asked

    def rank(self, query, texts, top_k=None):
        self.asked.append(texts)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))[:top_k]
        return [{"index": i, "score": -len(texts[i]), "text": texts[i]} for i in order]


class Dense:
    similarity_function, embedding_dim, dim = "cosine", 16, None

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        return np.stack([np.sum([vector_of(w) for w in text.split()], axis=0) for text in texts])


class Tokens:
    similarity_function, embedding_dim = "maxsim", 16

    def embed(self, texts, prompt=None, batch_size=None):
        return [np.stack([vector_of(word) for word in text.split()]) for text in texts]


class Terms:
    similarity_function, embedding_dim = "dot", 60

    def embed(self, texts, prompt=None, max_terms=None, batch_size=None):
        rows = np.zeros((len(texts), 60), "float32")
        for row, text in zip(rows, texts, strict=True):
            for word in text.split():
                row[int(word[1:]) % 60 if word[1:].isdigit() else 59] += 1
        return sparse.csr_array(rows)


KINDS = {
    "float32": lambda *d, **o: VectorIndex.build(Dense(), *d, **o),
    "int8": lambda *d, **o: VectorIndex.build(Dense(), *d, precision="int8", **o),
    "binary": lambda *d, **o: VectorIndex.build(Dense(), *d, precision="binary", **o),
    "tokens": lambda *d, **o: MultiVectorIndex.build(Tokens(), *d, **o),
    "tokens int8": lambda *d, **o: MultiVectorIndex.build(Tokens(), *d, precision="int8", **o),
    "tokens binary": lambda *d, **o: MultiVectorIndex.build(Tokens(), *d, precision="binary", **o),
    "sparse": lambda *d, **o: SparseIndex.build(Terms(), *d, **o),
    "words": lambda *d, **o: ez.BM25Index(*d, **o),
    "hybrid": lambda *d, **o: ez.HybridIndex([KINDS["float32"](*d, **o), KINDS["words"](d[0])]),
}
MODELS = {"float": Dense, "int8": Dense, "binary": Dense, "tokens": Tokens, "sparse": Terms}
QUERIES = ["w1 w2", "w3", "w20 w21 w22"]


def rows_of(count: int, start: int = 0) -> list[dict]:
    draw = np.random.default_rng(start)
    return [
        {
            "id": f"d{start + i}",
            "text": " ".join(draw.choice(WORDS, draw.integers(2, 9))),
            "year": int(draw.integers(2000, 2010)),
            "lang": LANGUAGES[i % 3],
            "tags": [f"t{i % 4}", "all"],
        }
        for i in range(count)
    ]


def columns(rows: list[dict]) -> tuple[list, list, list]:
    fields = [{n: v for n, v in row.items() if n not in ("id", "text")} for row in rows]
    return [row["text"] for row in rows], [row["id"] for row in rows], fields


def make(kind: str, rows: list[dict]):
    texts, ids, fields = columns(rows)
    if kind == "hybrid":  # the words have none of their own
        own = KINDS["float32"](texts, ids=ids, metadata=fields)
        return ez.HybridIndex([own, ez.BM25Index(texts)], depth=1000)
    return KINDS[kind](texts, ids=ids, metadata=fields)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def names(hits) -> list[list[str]]:
    return [[hit["id"] for hit in found] for found in hits]


class TestSearch:
    def test_hits_say_what_is_known(self, kind):
        rows = rows_of(30)
        for found in make(kind, rows).search(QUERIES, top_k=5):
            assert found
            for hit in found:
                row = dict(rows[hit["index"]])
                assert (hit["id"], hit["text"]) == (row.pop("id"), row.pop("text"))
                assert hit["metadata"] == row

    @pytest.mark.parametrize(
        ("where", "meets"),
        [
            ({"lang": "en"}, lambda row: row["lang"] == "en"),
            (
                {"year": [2001, 2002, 2003], "lang": ["de", "fr"]},
                lambda row: row["year"] in (2001, 2002, 2003) and row["lang"] != "en",
            ),
            ({"tags": ["t1", "t2"]}, lambda row: row["tags"][0] in ("t1", "t2")),
            ({"year": lambda year: year > 2006}, lambda row: row["year"] > 2006),
            (lambda row: row["year"] % 2 == 0, lambda row: row["year"] % 2 == 0),
            ({"year": 1812}, lambda row: False),
        ],
    )
    def test_where_is_a_search_among_those_that_meet_it(self, kind, where, meets, monkeypatch):
        monkeypatch.setattr(vectors, "VECTOR_BLOCK", 300)  # many blocks
        rows = rows_of(120)
        index = make(kind, rows)
        everything = index.search(QUERIES, top_k=len(rows))
        expected = [[h for h in found if meets(rows[h["index"]])][:7] for found in everything]
        found = index.search(QUERIES, top_k=7, where=where)
        if kind == "hybrid":  # ranks are those among them
            texts, ids, fields = columns([row for row in rows if meets(row)])
            if not texts:
                assert found == [[], [], []]
                return
            own = KINDS["float32"](texts, ids=ids, metadata=fields)
            some = ez.HybridIndex([own, ez.BM25Index(texts)], depth=1000)
            assert {n for row in names(found) for n in row} <= set(ids)
            dense = KINDS["float32"](texts, ids=ids)
            assert names(own.search(QUERIES)) == names(dense.search(QUERIES)) and len(some)
            return
        assert names(found) == names(expected)
        for ours, theirs in zip(found, expected, strict=True):
            a, b = ([hit["score"] for hit in hits] for hits in (ours, theirs))
            np.testing.assert_allclose(a, b, rtol=1e-5)

    def test_hits_are_the_users_own(self, kind):
        index = make(kind, rows_of(3))
        first, second = (index.search("w1 w2 w3 w4", top_k=3) for _ in range(2))
        for hit in first:
            hit["metadata"]["tags"].append("more")
        assert index.search("w1 w2 w3 w4", top_k=3) == second

    def test_pages_and_least_scores(self, kind):
        index = make(kind, rows_of(60))
        whole = index.search(QUERIES, top_k=12)
        pages = [index.search(QUERIES, top_k=4, offset=offset) for offset in (0, 4, 8)]
        for number, found in enumerate(whole):
            assert [hit for page in pages for hit in page[number]] == found
            least = found[3]["score"]
            some = index.search(QUERIES[number], top_k=12, min_score=least)
            assert some == [hit for hit in found if hit["score"] >= least]

    def test_of_each_group_the_best(self, kind):
        rows = rows_of(90)
        index = make(kind, rows)
        for query in QUERIES:
            expected = {}
            for hit in index.search(query, top_k=90):
                expected.setdefault(hit["metadata"]["year"], hit)
            found = index.search(query, top_k=4, group_by="year")
            assert names([found]) == names([list(expected.values())[:4]])

    def test_of_groups_a_reranker_reads_the_best(self):
        asked, index = [], make("float32", rows_of(60))
        shortest = Shortest(asked)
        found = index.search("w1", top_k=2, group_by="lang", reranker=shortest, candidates=3)
        assert len(asked[0]) == 3 and len(found) == 2
        assert len({hit["metadata"]["lang"] for hit in found}) == 2

    def test_own_ids_are_judged(self, kind):
        rows = rows_of(40)
        index = make(kind, rows)
        by_index = KINDS["words"]([row["text"] for row in rows])
        relevant = [3, [4, 5], {6: 2.0, 7: 1.0}]
        of_ids = ["d3", ["d4", "d5"], {"d6": 2.0, "d7": 1.0}]
        found = index.evaluate(QUERIES, of_ids)
        index.documents.ids = None if kind != "hybrid" else index.documents.ids
        if kind == "words":
            assert found == by_index.evaluate(QUERIES, relevant)
        if kind != "hybrid":
            assert found == index.evaluate(QUERIES, relevant)


class TestChanges:
    def test_after_changes_it_is_the_index_of_what_is_left(self, kind):
        rows, more = rows_of(50), rows_of(20, start=50)
        index = make(kind, rows)
        texts, ids, fields = columns(more)
        index.add(texts, ids=ids, metadata=fields)
        index.remove(["d3", "d49", "d60"])
        index.remove("d0")
        index.update(["w1 w2 w1", "w39"], ids=["d7", "d55"])
        index.update(["w5"], ids=["d8"], metadata=[{"year": 1999, "lang": "la"}])
        left = [dict(row) for row in [*rows, *more] if row["id"] not in ("d3", "d49", "d60", "d0")]
        for row in left:
            row["text"] = {"d7": "w1 w2 w1", "d55": "w39", "d8": "w5"}.get(row["id"], row["text"])
            if row["id"] == "d8":
                row.update(year=1999, lang="la")
                del row["tags"]
        assert (index.texts, index.ids, index.metadata) == columns(left)
        assert len(index) == len(left)
        if kind in ("float32", "tokens", "sparse", "words", "hybrid"):  # nothing is rounded
            assert index.search(QUERIES, top_k=30) == make(kind, left).search(QUERIES, top_k=30)
        [hit] = index.search("w5", top_k=1, where={"lang": "la"})
        assert hit["id"] == "d8"

    def test_a_failed_change_changes_nothing(self, kind):
        index = make(kind, rows_of(5))
        before = index.documents.texts, index.documents.ids, index.search(QUERIES)
        with pytest.raises(ValueError, match=r"ids\[5\] is 'd2'"):
            index.add(["w1"], ids=["d2"], metadata=[{}])
        with pytest.raises(ValueError, match="ids.*none"):
            index.add(["w1"])
        with pytest.raises(ValueError, match="'d9'"):
            index.update(["w1"], ids=["d9"])
        with pytest.raises(ValueError, match="ids is None"):
            index.update(["w1"])
        with pytest.raises(ValueError, match="'d17'"):
            index.remove(["d1", "d17"])
        with pytest.raises(ValueError, match="remove.*document"):
            index.remove(list(index.ids))
        assert (index.documents.texts, index.documents.ids, index.search(QUERIES)) == before

    def test_threads_see_one_state_and_lose_nothing(self, kind):
        rows = rows_of(40)
        index, errors, done = make(kind, rows), [], threading.Event()

        def ask():
            while not done.is_set():
                try:
                    for hit in index.search("w1 w2", top_k=20, where={"lang": ["en", "de"]}):
                        number = hit["id"][1:]
                        assert hit["text"].split()[-1] == f"end{number}", hit
                except Exception as error:
                    errors.append(error)

        for row in rows:
            row["text"] += f" w1 end{row['id'][1:]}"
        index = make(kind, rows)
        askers = [threading.Thread(target=ask) for _ in range(2)]

        def add(start):
            for i in range(start, start + 6):
                index.add([f"w1 end{i}"], ids=[f"d{i}"], metadata=[{"lang": "en"}])
                if i % 2:
                    index.remove([f"d{i}"])

        changers = [threading.Thread(target=add, args=(start,)) for start in (100, 200)]
        for thread in (*askers, *changers):
            thread.start()
        for thread in changers:
            thread.join()
        done.set()
        for thread in askers:
            thread.join()
        assert not errors
        added = {f"d{i}" for s in (100, 200) for i in range(s, s + 6) if not i % 2}
        assert set(index.ids) == {row["id"] for row in rows} | added


class TestFiles:
    def test_they_are_saved_with_the_index(self, kind, tmp_path):
        index = make(kind, rows_of(20))
        index.save(tmp_path / "index")
        model = MODELS.get(kind.split()[0].removesuffix("32"), lambda: None)()
        loaded = ez.load_index(tmp_path / "index", [Dense(), None] if kind == "hybrid" else model)
        assert loaded.search(QUERIES, where={"lang": "en"}) == index.search(
            QUERIES, where={"lang": "en"}
        )
        assert (loaded.ids, loaded.metadata) == (index.ids, index.metadata)
        loaded.remove("d1")
        loaded.save(tmp_path / "index")
        [file] = (tmp_path / "index").rglob("documents.jsonl")
        assert '"d1"' not in file.read_text() and '"d2"' in file.read_text()

    def test_without_ids_and_fields_the_files_are_as_before(self, tmp_path):
        KINDS["float32"](["w1", "w2"]).save(tmp_path)
        assert not (tmp_path / "documents.jsonl").exists()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"id": "a"}\n', "1 and 2"),
            ('{"id": "a"}\n{"id": "a"}\n', r"ids\[1\] is 'a'"),
            ('{"id": "a"}\n{"metadata": {}}\n', "line 2.*'metadata'"),
            ('{"id": "a"}\n["b"]\n', "line 2 is "),
            ('{"id": "a"}\n{"id": ' + "[" * 99_999, "line 2 is "),
            ("", "documents.jsonl.*empty"),
            ('{"metadata": {"\\ud800": 1}}\n', "has the lone surrogate"),
            ('{"id": "a"}\n{"id": {}}\n', r"ids\[1\] is {}"),
            ('{"metadata": {"a": 1}}\n{"metadata": {"a": "x"}}\n', "field 'a' is 'x'"),
        ],
    )
    def test_damaged_files(self, tmp_path, text, message):
        KINDS["float32"](["w1", "w2"], ids=["a", "b"]).save(tmp_path)
        (tmp_path / "documents.jsonl").write_text(text)
        with pytest.raises(ValueError, match="damaged or changed|truncated"):
            ez.load_index(tmp_path, Dense())
        with pytest.raises(ValueError, match=message):
            ez.load_index(tmp_path, Dense(), verify=False)


class TestInputs:
    @pytest.mark.parametrize("table", [pd.DataFrame, pa.table, dict, lambda t: _rows(t)])
    def test_of_a_table(self, table):
        given = {"id": ["a", "b"], "text": ["w1", "w2"], "year": [2001, 2002]}
        index = KINDS["float32"](table(given))
        assert (index.texts, index.ids) == (["w1", "w2"], ["a", "b"])
        assert index.metadata == [{"year": 2001}, {"year": 2002}]
        other = {"body": given["text"], "key": [7, 8], "year": given["year"], "more": ["x", "y"]}
        index = KINDS["words"](table(other), text_column="body", ids="key", metadata=["year"])
        assert (index.texts, index.ids, index.metadata) == (
            ["w1", "w2"],
            [7, 8],
            [{"year": 2001}, {"year": 2002}],
        )

    def test_missing_values_are_left_out(self):
        table = pd.DataFrame({"text": ["w1", "w2"], "year": [2001, None], "name": ["x", None]})
        assert KINDS["words"](table).metadata == [{"year": 2001.0, "name": "x"}, {}]

    @pytest.mark.parametrize(
        ("documents", "options", "message"),
        [
            (["a", "b"], {"ids": ["x", "x"]}, r"ids\[1\] is 'x'"),
            (["a", "b"], {"ids": ["x"]}, "1 ids.* 2 documents"),
            (["a", "b"], {"ids": ["x", 7]}, r"ids\[1\] is 7.*'x'"),
            (["a"], {"ids": [1.5]}, r"ids\[0\] is 1.5"),
            (["a"], {"ids": "id"}, "ids.*'id'.*table"),
            (["a"], {"metadata": [7]}, r"metadata\[0\] is 7"),
            (["a"], {"metadata": [{"x": object()}]}, "field 'x' is <object"),
            (["a"], {"metadata": [{"x": float("inf")}]}, "field 'x' is inf"),
            (
                ["a", "b"],
                {"metadata": [{"year": 2024}, {"year": "2024"}]},
                r"metadata\[1\].*'year' is '2024'.*float",
            ),
            (["a"], {"text_column": "text"}, "text_column='text'.*`documents`"),
            ({"body": ["a"]}, {}, "'body'"),
            ({"text": ["a"]}, {"ids": "key"}, "column 'key'"),
            (["a", "b"], {"ids": ["x", "\ud800"]}, "lone surrogate"),
        ],
    )
    def test_refusals(self, documents, options, message):
        with pytest.raises(ValueError, match=message):
            KINDS["words"](documents, **options)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"where": {"jear": 2001}}, "where.*'jear'.*'year'"),
            ({"where": {7: 2001}}, "field 7"),
            ({"where": {"year": "2001"}}, "'year' is '2001'.*float"),
            ({"where": 7}, "where is 7"),
            ({"where": {}}, "where is {}"),
            ({"group_by": "jear"}, "group_by.*'jear'.*'year'"),
            ({"group_by": "tags"}, "group_by.*'tags'"),
            ({"offset": -1}, "offset is -1"),
        ],
    )
    def test_searches_that_ask_for_what_is_not_there(self, options, message):
        with pytest.raises(ValueError, match=message):
            make("words", rows_of(4)).search("w1", **options)

    def test_without_ids_or_fields(self):
        index = KINDS["words"](["w1", "w2"])
        with pytest.raises(ValueError, match="no ids"):
            index.remove("a")
        with pytest.raises(ValueError, match="where.*fields"):
            index.search("w1", where={"year": 1})
        assert index.search("w1") == [{"index": 0, "score": pytest.approx(0.693, 1), "text": "w1"}]


def _rows(table: dict) -> list[dict]:
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


class Colour(str, enum.Enum):  # noqa: UP042, whose str() is another than its text
    RED = "r"
    BLUE = "b"


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([Colour.RED, Colour.BLUE], ["r", "b"]),
        ([Number.ONE, Number.TWO], [1, 2]),
        ([np.str_("r"), np.str_("b")], ["r", "b"]),
        (np.array([1, 2], "int8"), [1, 2]),
        (range(1, 3), [1, 2]),
        (pd.RangeIndex(1, 3), [1, 2]),
        ({"r": 0, "b": 0}.keys(), ["r", "b"]),
        (pd.Series(["r", "b"], dtype="category"), ["r", "b"]),
    ],
)
def test_ids_and_values_are_plain(given, found):
    index = KINDS["words"](["w1", "w1 w2"], ids=given, metadata=[{"v": one} for one in given])
    assert index.ids == found and index.metadata == [{"v": one} for one in found]
    assert [type(one) for one in index.ids] == [type(one) for one in found]
    for one, plain in zip(given, found, strict=True):
        for wanted in (one, plain, [plain], {plain}, frozenset([one]), (v for v in [plain])):
            assert [hit["id"] for hit in index.search("w1", where={"v": wanted})] == [plain]
    index.remove(next(iter(given)))
    assert index.ids == found[1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": {"x", "y"}}, r"ids is "),
        ({"ids": (name for name in "xy")}, r"ids is "),
        ({"ids": 7}, r"ids is 7"),
        ({"metadata": ({} for _ in "xy")}, r"metadata is "),
        ({"metadata": {"lang": "en"}}, r"column 'lang' is 'en'"),
        ({"metadata": {"year": 1}}, r"column 'year' is 1"),
    ],
)
def test_columns_without_order_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        KINDS["words"](["w1", "w2"], **options)
    vectors = np.eye(2, 16, dtype="float32")
    options = {name: value for name, value in options.items() if not inspect.isgenerator(value)}
    for build, rows in (
        (VectorIndex.from_vectors, (Dense(), vectors)),
        (MultiVectorIndex.from_vectors, (Tokens(), [vectors, vectors])),
        (SparseIndex.from_vectors, (Terms(), sparse.csr_array(np.eye(2, 60)))),
    ):
        if options:
            with pytest.raises(ValueError, match=message):
                build(*rows, **options)
        table = pd.DataFrame({"year": [1990, None]})
        assert build(*rows, metadata=table).metadata == [{"year": 1990.0}, {}]


def test_a_row_by_itself_is_refused():
    index = KINDS["words"]([{"id": "a", "text": "w1"}])
    with pytest.raises(ValueError, match="documents is.*'text': 'w2'}"):
        index.add({"id": "b", "text": "w2"})
    with pytest.raises(ValueError, match="documents is.*row"):
        KINDS["words"]({"id": "b", "body": "w2"}, text_column="body")
    index.add(({"id": "b", "text": "w2"},))  # rows in a tuple
    assert index.ids == ["a", "b"]


def test_indexes_of_other_ids_are_not_one():
    rows = [{"id": "a", "text": "w1"}, {"id": "b", "text": "w2"}]
    vectors = VectorIndex.build(Dense(), rows, keep_texts=False)
    for others in (rows[::-1], {"c": "w1", "d": "w2"}, {1: "w1", 2: "w2"}):
        with pytest.raises(ValueError, match="id of document 0"):
            ez.HybridIndex([vectors, ez.BM25Index(others)])
    together = ez.HybridIndex([vectors, ez.BM25Index(["w1", "w2"]), ez.BM25Index(rows)])
    together.remove("a")
    assert together.ids == ["b"] and together.texts == ["w2"]


@pytest.mark.parametrize("names", [["year"], ("year",), np.array(["year"]), pd.Index(["year"])])
def test_columns_that_are_named(names):
    table = pd.DataFrame({"text": ["w1"], "year": [1990], "more": ["x"]})
    assert KINDS["words"](table, metadata=names).metadata == [{"year": 1990}]
    with pytest.raises(ValueError, match=r"is 'year'.* \['year'\]"):
        KINDS["words"](table, metadata="year")


def test_documents_without_a_field_that_are_not_searched_need_no_group():
    metadata = [{"book": "a", "lang": "en"}, {"book": "a", "lang": "en"}, {"lang": "de"}]
    index = KINDS["words"](["w1 w2", "w1", "w1"], metadata=metadata)
    for _ in range(2):
        [hit] = index.search("w1", where={"lang": "en"}, group_by="book")
        assert hit["metadata"]["book"] == "a"
        with pytest.raises(ValueError, match="'book' of document 2 is None"):
            index.search("w1", group_by="book")


@pytest.mark.parametrize(
    "asked", ["10", 10.0, np.float64(10), True, None, [["10"]], b"10", (10.5,)]
)
def test_ids_of_another_type_are_none_of_the_index(asked):
    index = KINDS["words"](["w1", "w2"], ids=[10, 1])
    for call in (index.remove, lambda ids: index.evaluate(["w1"], [ids])):
        with pytest.raises(
            ValueError,
            match="no document.*int|ids is|ids.*where",
        ):
            call(asked)
    assert index.ids == [10, 1]
    index.remove([np.int64(10), 10])
    assert index.ids == [1]


def test_documents_as_beir_has_them():
    corpus = {"d1": {"title": "Cats", "text": "They sleep."}, "d2": {"title": "", "text": "Tax."}}
    found = Documents.create(corpus)
    assert found.ids == ["d1", "d2"] and found.texts == ["Cats They sleep.", "Tax."]
    assert found.metadata == [{"title": "Cats"}, {"title": ""}]
    plain = Documents.create({7: "Cats.", 9: "Tax."})
    assert plain.ids == [7, 9] and plain.texts == ["Cats.", "Tax."] and plain.metadata is None
    columns = Documents.create({"id": ["a"], "text": ["Tax."]})  # a table, as before
    assert columns.ids == ["a"] and columns.texts == ["Tax."]
    bodies = Documents.create({"d1": {"title": "Cats", "body": "Tax."}}, text_column="body")
    assert bodies.ids == ["d1"] and bodies.texts == ["Tax."]
    with pytest.raises(ValueError, match=r"documents\[1\] is empty"):
        Documents.create({"d1": {"text": "Tax."}, "d2": {}})
    with pytest.raises(ValueError, match="documents.*is empty"):
        Documents.create({})


def test_lines_are_json():
    documents = Documents.create(["a"], ids=[3], metadata=[{"t": 'x"\n\u2028', "n": [1, 2]}])
    [line] = documents.make_json_lines()
    assert json.loads(line) == {"id": 3, "metadata": {"t": 'x"\n\u2028', "n": [1, 2]}}
    assert Documents.from_lines([line.encode()], ["a"], "f").metadata == documents.metadata


@pytest.fixture(scope="module")
def embedder():
    return ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")


class TestChunks:
    TEXT = "The cat sat on the mat, unbelievably calm. " * 4

    @pytest.mark.slow(only="^7-0")
    @pytest.mark.parametrize(("length", "overlap"), [(7, 0), (7, 3), (20, 5), (1, 0), (200, 9)])
    def test_every_word_is_in_one_and_no_chunk_is_too_long(self, embedder, length, overlap):
        texts = [self.TEXT, "One.", "中文字 mixed 🙂 text, é"]
        chunks = embedder.chunks(texts, length, overlap)
        tokenizer = embedder.preprocessor.tokenizer
        if length > 1:  # the pieces of a word that is cut have more pieces
            assert max(len(row) for row in tokenizer.tokenize(chunks.texts)) <= length
        covered = [set() for _ in texts]
        for text, fields in zip(chunks.texts, chunks.metadata, strict=True):
            document = texts[fields["document"]]
            assert document[fields["start"] : fields["end"]] == text
            covered[fields["document"]].update(range(fields["start"], fields["end"]))
            if length > 5:  # so long that each word fits
                assert document[: fields["start"]][-1:] in ("", " ") or not text[0].isalnum()
        for text, characters in zip(texts, covered, strict=True):
            assert {i for i, c in enumerate(text) if not c.isspace()} <= characters

    def test_neighbours_share_tokens(self, embedder):
        alone, shared = (embedder.chunks([self.TEXT], 10, overlap) for overlap in (0, 4))
        bounds = [(f["start"], f["end"]) for f in shared.metadata]
        shares = [a[1] - b[0] for a, b in itertools.pairwise(bounds)]
        assert max(shares) > 0 and min(shares) >= -1  # a space
        assert len(shared) > len(alone)

    @pytest.mark.slow(only=r"^(RobertaTokenizer-roberta_nano_en)$")
    @pytest.mark.parametrize(
        ("cls", "preset"),
        [(ez.BertTokenizer, "bert_nano_en_uncased"), (ez.RobertaTokenizer, "roberta_nano_en")],
    )
    def test_no_chunk_is_blank_or_a_part_of_another(self, cls, preset):
        tokenizer = cls.from_preset(preset)
        parts = [
            "cat",
            "naïve",
            "e\u0301",
            "\r\n",
            "\n" * 5,
            " " * 9,
            "\t",
            "😀👨‍👩‍👧",
            "東京",
            "한국어",
        ]
        parts += ["\ufeff", "it's", "sixteenletterword" * 3, "<mask>", "[SEP]"]
        draw = random.Random(0)
        for length, overlap in itertools.product((1, 2, 3, 6, 9), (0, 1, 2, 8)):
            if overlap >= length:
                continue
            text = "a" + "".join(draw.choice(parts) + draw.choice(["", " "]) for _ in range(60))
            chunks = Documents.create([text]).split_into_chunks(tokenizer, length, overlap)
            spans = [(fields["start"], fields["end"]) for fields in chunks.metadata]
            assert all(text[start:end].strip() for start, end in spans)
            for (start, end), (next_start, next_end) in itertools.pairwise(spans):
                assert start < next_start and end < next_end
                assert overlap or end <= next_start  # no character is in two

    def test_no_document_is_lost(self, embedder):
        chunks = embedder.chunks(["a", "\u200b\u200d", "b"], 5)  # no width, no token
        assert [fields["document"] for fields in chunks.metadata] == [0, 1, 2]
        with pytest.raises(ValueError, match="already contain ids"):
            embedder.index(chunks, ids=["x", "y", "z"])

    def test_they_are_indexed_and_found_by_document(self, embedder):
        table = {
            "id": ["cats", "law"],
            "body": [self.TEXT, "Taxes are due in May. Courts decide. " * 5],
            "year": [1990, 2024],
        }
        chunks = embedder.chunks(table, 12, text_column="body")
        assert chunks.ids[:2] == ["cats#0", "cats#1"] and len(set(chunks.ids)) == len(chunks)
        index = embedder.index(chunks)
        hits = index.search("When do I pay tax?", group_by="document")
        assert [hit["metadata"]["document"] for hit in hits] == ["law", "cats"]
        assert hits[0]["metadata"]["year"] == 2024
        questions = ["When do I pay tax?", "Do cats sleep?"]
        options = {"group_by": "document"}
        for reranker in ({}, {"reranker": Shortest([]), "candidates": 2}):
            found = index.search(questions, top_k=2, **options, **reranker)
            firsts = [hits[0]["metadata"]["document"] for hits in found]
            right = np.mean([a == b for a, b in zip(firsts, ["law", "cats"], strict=True)])
            for relevant in (["law", "cats"], [["law"], {"cats": 2.0}]):
                metrics = index.evaluate(questions, relevant, [1, 2], **options, **reranker)
                assert (metrics["accuracy@1"], metrics["recall@2"]) == (right, 1.0)
        with pytest.raises(ValueError, match="document='low'.*Did you mean"):
            index.evaluate(["tax"], ["low"], **options)
        index.add(embedder.chunks(["A dog barks."], 12, ids=["dog"], metadata=[{"year": 2000}]))
        assert index.search("dogs", top_k=1)[0]["id"] == "dog#0"

    @pytest.mark.slow
    def test_a_prompt_takes_room(self):
        prompts = {"document": "the: "}  # two tokens
        embedder = ez.TextEmbedder.from_preset(
            "bert_nano_en_uncased_embedder", prompts=prompts, sequence_length=32
        )
        assert embedder.preprocessor.max_document_tokens == 28
        with pytest.raises(ValueError, match="length is 29.*28"):
            embedder.chunks([self.TEXT], 29)
        colbert = ez.LateInteraction.from_preset("bert_nano_en_uncased", document_length=20)
        with pytest.raises(ValueError, match="length is 19.*1[78]"):
            colbert.chunks([self.TEXT], 19)

    def test_refusals(self, embedder):
        with pytest.raises(ValueError, match="length is 600"):
            embedder.chunks(["a"], 600)
        with pytest.raises(ValueError, match="overlap is 7.*length=7"):
            embedder.chunks(["a"], 7, 7)
        with pytest.raises(ValueError, match="field 'start'"):
            embedder.chunks(["a"], metadata=[{"start": 1}])
