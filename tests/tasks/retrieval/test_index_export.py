"""Exports of an index: what `search` finds, in a process that has TensorFlow alone."""

import json

import numpy as np
import pytest
import tensorflow as tf
from processes import run

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval import index_export
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex

DOCUMENTS = [
    "A cat sat on the mat.", "The law on taxes.", "Anna sings naïve songs.", "A train to Rome.",
    "中国 🙂", "A cat sat on the mat.", "He cooks rice with " + "much " * 300 + "salt.",
]  # fmt: skip
QUERIES = ["Who sings?", "a cat", "Straße nach Rom", "the taxes " * 100, "🙂"]
ALONE = """
import json, sys

blocked = ["encoder_zoo", "tensorflow_text", "keras", "keras_hub", "keras_nlp"]
sys.modules |= dict.fromkeys(blocked)  # to None: not to be imported
import tensorflow as tf

for request in json.load(sys.stdin):
    search = tf.saved_model.load(request["folder"]).signatures["serving_default"]
    found = search(query=tf.constant(request["queries"], tf.string))
    text = [[one.decode() for one in row] for row in found["text"].numpy().tolist()]
    numbers = {name: found[name].numpy().tolist() for name in ("index", "score")}
    print(json.dumps({**numbers, "text": text}))
"""


@pytest.fixture(scope="module")
def embedder():
    prompts = {"query": "query: ", "document": "passage: "}
    loaded = ez.TextEmbedder.from_preset("bert_nano_en_uncased", pooling="mean")
    preprocessor = ez.TextEmbedderPreprocessor(loaded.preprocessor.tokenizer, prompts=prompts)
    return ez.TextEmbedder(loaded.backbone, preprocessor, pooling="mean")


def with_similarity(embedder, function):
    normalize = function == "cosine"
    return ez.TextEmbedder(
        embedder.backbone, embedder.preprocessor, normalize=normalize, similarity_function=function
    )


def assert_found(found: dict, index: VectorIndex, top_k: int):
    expected = index.search(QUERIES, top_k=top_k)
    for row, hits in enumerate(expected):
        assert found["index"][row] == [hit["index"] for hit in hits]
        assert found["text"][row] == [hit["text"] for hit in hits]
        scores = [hit["score"] for hit in hits]
        np.testing.assert_allclose(found["score"][row], scores, rtol=1e-5, atol=1e-5)


def searched(index: VectorIndex, folder, top_k: int) -> dict:
    """The answers of an export that is loaded in this process."""
    index.export(folder, top_k=top_k)
    search = tf.saved_model.load(str(folder)).signatures["serving_default"]
    assert search.structured_input_signature[1]["query"].shape.as_list() == [None]
    plain = {n: v.numpy().tolist() for n, v in search(query=tf.constant(QUERIES)).items()}
    plain["text"] = [[text.decode() for text in row] for row in plain.get("text", [])]
    return plain


@pytest.mark.slow
def test_it_finds_what_search_finds(embedder, tmp_path):
    index = embedder.index(DOCUMENTS)
    found = searched(index, tmp_path / "1", top_k=3)
    assert_found(found, index, top_k=3)
    assert found["index"][1][:2] == [0, 5]  # equal documents, in their order
    names = {str(path.relative_to(tmp_path / "1")) for path in (tmp_path / "1").rglob("*")}
    assert {"saved_model.pb", "assets.extra/tf_serving_warmup_requests"} <= names


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    "ids", [[f"d{i}é" for i in range(7)], [*range(100, 106), -(2**62)], [2**63, *range(6)]]
)
def test_ids(embedder, ids, tmp_path):
    index = embedder.index(DOCUMENTS, ids=ids)
    index.export(tmp_path / "1", top_k=3)
    search = tf.saved_model.load(tmp_path / "1").signatures["serving_default"]
    found = search(query=tf.constant(QUERIES))
    for row, hits in zip(found["id"].numpy().tolist(), index.search(QUERIES, 3), strict=True):
        expected = [hit["id"] for hit in hits]
        if isinstance(row[0], bytes):
            row, expected = [one.decode() for one in row], [str(one) for one in expected]
        assert row == expected
    assert (found["id"].dtype == tf.int64) is (ids[0] == 100)


def test_vectors_alone(embedder, tmp_path):
    vectors = embedder.embed(DOCUMENTS, prompt="document", dim=64)
    index = VectorIndex.from_vectors(embedder, vectors)
    found = searched(index, tmp_path / "1", top_k=100)
    assert found.pop("text") == []
    expected = index.search(QUERIES, top_k=100)
    assert found["index"] == [[hit["index"] for hit in hits] for hits in expected]


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("function", ["dot", "euclidean", "manhattan"])
def test_every_similarity(embedder, function, tmp_path):
    index = with_similarity(embedder, function).index(DOCUMENTS)
    assert_found(searched(index, tmp_path / "1", top_k=7), index, top_k=7)


@pytest.mark.matrix
@pytest.mark.slow
def test_tensorflow_alone(embedder, tmp_path):
    indices = {p: embedder.index(DOCUMENTS, precision=p) for p in ("float32", "int8", "binary")}
    requests = []
    for name, index in indices.items():
        index.export(tmp_path / "served" / "1", top_k=4)
        (tmp_path / "served").rename(tmp_path / name)
        requests.append({"folder": str(tmp_path / name / "1"), "queries": QUERIES})
    lines = run(ALONE, given=json.dumps(requests)).splitlines()
    for index, line in zip(indices.values(), lines, strict=True):
        assert_found(json.loads(line), index, top_k=4)


@pytest.fixture(scope="module")
def late_interaction():
    return ez.LateInteraction.from_preset("bert_nano_en_uncased_embedder", query_length=16)


@pytest.mark.matrix
@pytest.mark.slow
def test_tokens_with_tensorflow_alone(late_interaction, tmp_path):
    indexes = [
        late_interaction.index(DOCUMENTS),
        late_interaction.index(DOCUMENTS, precision="int8", pool_factor=2),
    ]
    requests = []
    for i, index in enumerate(indexes):
        index.export(tmp_path / str(i) / "1", top_k=4)
        requests.append({"folder": str(tmp_path / str(i) / "1"), "queries": QUERIES})
    lines = run(ALONE, given=json.dumps(requests)).splitlines()
    for index, line in zip(indexes, lines, strict=True):
        assert_found(json.loads(line), index, top_k=4)


@pytest.mark.slow
def test_tokens_that_are_too_many_are_not_unpacked(late_interaction, tmp_path, monkeypatch):
    index = late_interaction.index(DOCUMENTS, precision="int8")
    monkeypatch.setattr(index_export, "MAX_BYTES", 1_000)
    monkeypatch.setattr(type(index._store.store), "rows", None)
    message = "The vectors in float32 take.* Expected at most.*larger pool_factor"
    with pytest.raises(ValueError, match=message):
        index.export(tmp_path / "1")


@pytest.mark.matrix
@pytest.mark.slow
def test_tokens_without_texts(late_interaction, tmp_path):
    index = late_interaction.index(DOCUMENTS, keep_texts=False)
    index.export(tmp_path / "1", top_k=100)
    search = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    found = search(query=tf.constant(QUERIES))
    assert sorted(found) == ["index", "score"]
    assert found["index"].shape == (len(QUERIES), len(DOCUMENTS))
