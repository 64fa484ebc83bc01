"""What a user of other search libraries expects of filters, ids, chunks and vectors of an index."""

import datetime
import itertools
import time
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from paths import ROOT, TOPS

import encoder_zoo as ez
from encoder_zoo.common import wording
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex, SparseIndex, VectorIndex
from tests.tasks.retrieval.test_documents import Dense, Terms, Tokens

SYMBOLS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<=", "$eq": "==", "$ne": "!="}
DAYS = [datetime.date(2024, 1, day) for day in (1, 2, 2, 3)]
NOON = datetime.datetime(2024, 1, 2, 12)
COLUMNS = {
    "int": pd.Series([1, 2, 2, 30]),
    "int8": pd.Series([1, 2, 2, 30], dtype="int8"),
    "with missing": pd.Series([1, None, 2, 30]),
    "nullable": pd.Series([1, None, 2, 30], dtype="Int64"),
    "float64": pd.Series([0.1, 0.5, 0.1, 2.0]),
    "float32": pd.Series([0.1, 0.5, 0.1, 2.0], dtype="float32"),
    "float32 of halves": pd.Series([0.5, 0.25, 0.5, 2.0], dtype="float32"),
    "long float64": pd.Series([1234567.25, 0.1, 1 / 3, 0.5]),
    "text": pd.Series(["a", "b", "b", "c"]),
    "category": pd.Series(["a", "b", "b", "c"], dtype="category"),
    "bool": pd.Series([True, False, True, True]),
}
WANTED = {
    "text": ["a", "b", "x"],
    "category": ["a", "b", "x"],
    "bool": [True, False],
}
NUMBERS = [1, 2, 2.0, 30, 0.1, 0.5, 1e9, -1, 1234567.25, 1234567.26, 1 / 3, np.float32(0.1)]
# How a table reaches the index.
TABLES = {
    "pandas": pd.DataFrame,
    "arrow": lambda c: pa.table({n: pa.Array.from_pandas(v) for n, v in c.items()}),
    "lists": lambda c: {n: [None if pd.isna(x) else x for x in v.tolist()] for n, v in c.items()},
    "arrays": lambda c: {n: v.to_numpy() for n, v in c.items()},
    "rows": lambda c: [dict(zip(c, row, strict=True)) for row in zip(*c.values(), strict=True)],
}


def found(documents: Documents, where: object) -> list[int]:
    return documents.where(where).tolist()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", COLUMNS)
def test_filters_find_what_pandas_finds(name, table):
    column = COLUMNS[name]
    given = TABLES[table]({"text": pd.Series(["w"] * len(column)), "v": column})
    documents = Documents.create(given)
    frame = pd.DataFrame({"v": column})
    for value, (operator, symbol) in itertools.product(WANTED.get(name, NUMBERS), SYMBOLS.items()):
        if name in ("category", "text") and operator not in ("$eq", "$ne"):
            frame["v"] = column.astype(object)
        met = eval(f"frame['v'] {symbol} value", {"frame": frame, "value": value})
        truth = np.flatnonzero((met.fillna(False) & column.notna()).to_numpy(bool)).tolist()
        assert found(documents, {"v": {operator: value}}) == truth, (operator, value)
        if operator == "$eq":
            assert found(documents, {"v": value}) == truth
            assert found(documents, {"v": {"$in": [value]}}) == truth
            others = sorted(set(np.flatnonzero(column.notna())) - set(truth))
            assert found(documents, {"v": {"$nin": [value]}}) == others


def test_conditions_of_one_field_hold_together():
    words = [{"words": n} for n in (100, 300, 301, 500, 501)] + [{}]
    documents = Documents.create(["w"] * 6, metadata=words)
    assert found(documents, {"words": {"$gt": 300, "$lte": 500}}) == [2, 3]
    assert found(documents, {"words": {"$ne": 300, "$lt": 500}}) == [0, 2]
    assert found(documents, {"words": {"$gte": 600}}) == []
    tags = Documents.create(["w"] * 3, metadata=[{"t": ["a", "b"]}, {"t": ["b"]}, {}])
    assert found(tags, {"t": {"$ne": "a"}}) == [1]
    assert found(tags, {"t": {"$in": ["a", "c"]}}) == [0]


@pytest.mark.parametrize(
    "column",
    [
        [datetime.datetime(2024, 1, 1), NOON, NOON, datetime.datetime(2024, 1, 3)],
        pd.Series(pd.DatetimeIndex([*map(pd.Timestamp, (DAYS[0], NOON, None, DAYS[3]))])),
        pd.DatetimeIndex([*map(pd.Timestamp, (DAYS[0], NOON, None, DAYS[3]))]).to_numpy(),
        np.array(["2024-01-01", "2024-01-02T12:00", "NaT", "2024-01-03"], "datetime64[s]"),
        DAYS,
    ],
)
def test_dates_are_compared_by_time(column):
    documents = Documents.create({"text": ["w"] * 4, "day": column})
    for bound in (
        datetime.date(2024, 1, 2),
        datetime.datetime(2024, 1, 2),
        np.datetime64("2024-01-02"),
        pd.Timestamp("2024-01-02"),
        "2024-01-02",
    ):
        assert found(documents, {"day": {"$lt": bound}}) == [0]
        assert 3 in found(documents, {"day": {"$gte": bound}})
    assert found(documents, {"day": datetime.date(2024, 1, 3)}) == [3]
    assert documents.metadata[0] == {"day": "2024-01-01"}


def test_times_of_several_zones_are_compared_in_utc():
    east = datetime.timezone(datetime.timedelta(hours=9))
    times = [datetime.datetime(2024, 1, 2, 8, tzinfo=east), datetime.datetime(2024, 1, 2, 1)]
    documents = Documents.create(["w"] * 2, metadata=[{"at": time} for time in times])
    assert found(documents, {"at": {"$lt": datetime.date(2024, 1, 2)}}) == [0]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"year": {"$gtt": 1}}, r"condition for the field 'year'.*\$gte"),
        ({"year": {}}, r"\$gt.*or a function"),
        ({"year": {"$gt": [1, 2]}}, "Expected one value"),
        ({"year": {"$in": 1}}, "Expected a list of values"),
        ({"year": {"$gt": "1"}}, "'year' is '1'.*float"),
        ({"year": {"$gt": None}}, "'year' is None"),
        ({"year": float("nan")}, "'year' is nan"),
        ({"year": 10**5000}, "integer of 16610 bits"),
        ({"$or": [{"year": 1}]}, "function of a document's fields"),
    ],
)
def test_conditions_that_are_refused(where, message):
    documents = Documents.create(["w"], metadata=[{"year": 2000}])
    with pytest.raises(ValueError, match=message):
        documents.where(where)


@pytest.mark.parametrize(
    "columns", [{"ids": [10**5000]}, {"ids": [1], "metadata": [{"v": 10**5000}]}]
)
def test_integers_that_no_file_holds_are_refused(columns):
    with pytest.raises(ValueError, match="integer of 16610 bits"):
        VectorIndex.build(Dense(), ["w1"], **columns)


def test_large_integers_are_kept(tmp_path):
    index = VectorIndex.build(Dense(), ["w1", "w2"], ids=[7**40, 2**200])
    index.save(tmp_path)
    assert ez.load_index(tmp_path, Dense()).ids == index.ids
    with pytest.raises(ValueError, match="no document"):
        index.remove(10**5000)


def test_a_function_changes_nothing():
    index = VectorIndex.build(Dense(), ["w1", "w2"], metadata=[{"t": ["a"]}, {"t": ["b"]}])

    def clear(fields):
        fields["t"].clear()
        fields.clear()
        return True

    assert len(index.search("w1", where=clear)) == 2
    assert index.metadata == [{"t": ["a"]}, {"t": ["b"]}]


# -- ids -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_unknown_id_is_named_at_once():
    ids = [str(uuid.UUID(int=(i + 7) ** 99 % 2**128)) for i in range(200_000)]
    documents = Documents(None, ids)
    _ = documents.chunk_indices, documents._index_by_id
    begin = time.process_time()
    for unknown in (str(uuid.uuid4()), "a" * 100_000, ids[7][:-1]):
        with pytest.raises(ValueError, match="no document"):
            documents.find_indices(unknown)
    assert time.process_time() - begin < 3  # 31 s each


def test_names_are_compared_with_a_bounded_number(monkeypatch):
    compared = []
    monkeypatch.setattr(
        wording.difflib, "get_close_matches", lambda name, known, **_: compared.append(known) or []
    )
    for name in ("x1", "a" * 10**6):
        wording.find_close_names(name, [f"x{i}" for i in range(5000)] + ["b" * 10**6])
    assert all(len(known) <= 1000 and max(map(len, known)) <= 200 for known in compared)


def test_names_are_compared_in_one_place():
    sources = [path for folder in TOPS for path in (ROOT / folder).rglob("*.py")]
    found = [path.name for path in sources if "difflib" in path.read_text()]
    assert found == ["wording.py"]


# -- chunks ----------------------------------------------------------------------------------------

BOOKS = [
    {"id": "a", "text": "A cat sleeps. A dog barks. A bird sings.", "year": 1990},
    {"id": "b", "text": "Tax law.", "year": 2024},
    {"id": "c", "text": "A red bird. The sun is up.", "year": 2020},
]


@pytest.fixture(scope="module")
def embedder():
    return ez.TextEmbedder.from_preset("bert_nano_en_uncased")


def indexes(embedder, books):
    chunks = embedder.chunks(books, length=4)
    dense = VectorIndex.build(embedder, chunks)
    return {
        "dense": dense,
        "without texts": VectorIndex.build(embedder, chunks, keep_texts=False),
        "hybrid": ez.HybridIndex(
            [dense, VectorIndex.from_vectors(embedder, dense.vectors, ids=dense.ids)]
        ),
    }


@pytest.mark.slow(only=r"^(dense)$")
@pytest.mark.parametrize("kind", ["dense", "without texts", "hybrid"])
def test_chunks_are_removed_by_the_id_of_their_document(embedder, kind):
    index = indexes(embedder, BOOKS)[kind]
    index.remove("a")
    assert index.ids == ["b#0", "c#0", "c#1", "c#2"]
    index.remove(["c#0", "b"])
    assert index.ids == ["c#1", "c#2"]
    with pytest.raises(ValueError, match="no document.*'a'"):
        index.remove("a")
    with pytest.raises(ValueError, match="remove"):
        index.remove("c")


@pytest.mark.slow(except_for=r"^dense$")
@pytest.mark.parametrize("kind", ["dense", "without texts", "hybrid"])
def test_chunks_are_updated_with_their_document(embedder, kind):
    new = [{"id": "a", "text": "The law of taxes is long and old.", "year": 1991}]
    later = [book for book in BOOKS if book["id"] != "a"] + new
    index, fresh = indexes(embedder, BOOKS)[kind], indexes(embedder, later)[kind]
    index.update(embedder.chunks(new, length=4))
    assert (index.ids, index.texts, index.metadata) == (fresh.ids, fresh.texts, fresh.metadata)
    asked = ["law of taxes", "red bird"]
    for hits, others in zip(index.search(asked), fresh.search(asked), strict=True):
        assert [hit["id"] for hit in hits] == [hit["id"] for hit in others]
        assert [hit["score"] for hit in hits] == pytest.approx([hit["score"] for hit in others])
    index.update(embedder.chunks(BOOKS, length=4))  # all of them
    assert sorted(index.ids) == sorted(indexes(embedder, BOOKS)[kind].ids)
    with pytest.raises(ValueError, match="no document.*'d'"):
        index.update(embedder.chunks([{"id": "d", "text": "A day.", "year": 1}], length=4))
    with pytest.raises(ValueError, match="has 5 chunks.*chunks"):
        index.update(BOOKS[:1])


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_documents_are_removed_by_their_fields(embedder, kind):
    index = indexes(embedder, BOOKS)[kind]
    index.remove(where={"year": {"$lt": 2020}})
    assert index.ids == ["b#0", "c#0", "c#1", "c#2"]
    for arguments in ({}, {"ids": "b", "where": {"year": 2024}}):
        with pytest.raises(ValueError, match="ids.*where"):
            index.remove(**arguments)


# -- vectors ---------------------------------------------------------------------------------------

TEXTS = ["w1 w2", "w3 w4", "w1 w3 w5"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_vector_finds_what_its_text_finds(dtype):
    index = VectorIndex.build(Dense(), TEXTS)
    vectors = Dense().embed(TEXTS).astype(dtype)
    expected = [[hit["index"] for hit in hits] for hits in index.search(TEXTS)]
    for given in (vectors, vectors.tolist(), list(vectors)):
        assert [[hit["index"] for hit in hits] for hits in index.search(given)] == expected
    for given in (vectors[1], vectors[1].tolist()):
        assert [hit["index"] for hit in index.search(given)] == expected[1]
    assert index.search(index.vectors[2], top_k=1)[0]["index"] == 2
    assert index.search(np.zeros((0, 16), "float32")) == []
    assert index.search([]) == []


def test_vectors_of_tokens_and_terms_find_what_their_text_finds():
    index = MultiVectorIndex.build(Tokens(), TEXTS)
    vectors = Tokens().embed(TEXTS)
    assert index.search(vectors) == index.search(TEXTS)
    assert index.search(vectors[1]) == index.search(TEXTS[1])
    index = SparseIndex.build(Terms(), TEXTS)
    assert index.search(Terms().embed(TEXTS)) == index.search(TEXTS)


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        (np.zeros(3), {}, r"queries.*\(3,\).* 16 "),
        (np.zeros((2, 2, 16)), {}, r"queries.*\(2, 2, 16\)"),
        (np.full(16, np.nan), {}, "NaN"),
        (np.ones(16), {"prompt": "query"}, "queries.*prompt"),
    ],
)
def test_vectors_that_are_refused(queries, options, message):
    with pytest.raises(ValueError, match=message):
        VectorIndex.build(Dense(), TEXTS).search(queries, **options)


def test_words_are_no_vectors():
    with pytest.raises(ValueError, match="`queries` contains vectors.*BM25Index"):
        ez.BM25Index(TEXTS).search(np.ones(3))


# -- arguments that are mixed up -------------------------------------------------------------------


def test_arguments_in_the_wrong_order_are_named(embedder, tmp_path):
    vectors = Dense().embed(TEXTS)
    with pytest.raises(ValueError, match="embedder is.*Expected an embedder"):
        VectorIndex.from_vectors(vectors, Dense())
    with pytest.raises(ValueError, match="embedder is.*Expected an embedder"):
        VectorIndex.build(TEXTS, Dense())
    VectorIndex.build(embedder, TEXTS).save(tmp_path / "folder")
    for folder in (tmp_path / "folder", str(tmp_path / "folder")):
        with pytest.raises(ValueError, match=r"load_index\(folder\)"):
            embedder.index(folder)
