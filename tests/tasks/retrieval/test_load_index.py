"""Saved indexes of every kind open by one function; an index notices what its embedder learned."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

import encoder_zoo as ez
from encoder_zoo.presets.files.manifest import compute_manifest_digest

DOCUMENTS = ["a b ab", "c", "c d e a b", "p"]
EMBEDDERS = {
    "TextEmbedder": "VectorIndex",
    "LateInteraction": "MultiVectorIndex",
    "SparseEncoder": "SparseIndex",
}


@pytest.fixture
def make(tiny):
    """Make an embedder by its name."""
    return lambda name: tiny.task(ez.BertBackbone.family, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", EMBEDDERS)
def test_every_kind_opens(make, name, tmp_path):
    embedder = make(name)
    index = embedder.index(DOCUMENTS)
    index.save(tmp_path / "index")
    for loaded in (
        ez.load_index(tmp_path / "index", embedder),
        embedder.load_index(tmp_path / "index"),
    ):
        assert type(loaded) is type(index) is getattr(ez, EMBEDDERS[name])
        assert loaded.search(["a b", "p"]) == index.search(["a b", "p"])
        assert (loaded.texts, loaded.prompt, repr(loaded)) == (DOCUMENTS, "document", repr(index))
    with pytest.raises(ValueError, match=f"{EMBEDDERS[name]}.*embedder"):
        ez.load_index(tmp_path / "index")
    for other in EMBEDDERS.keys() - {name}:
        with pytest.raises(ValueError, match=rf"{EMBEDDERS[name]}\b.*\b{other}\b"):
            ez.load_index(tmp_path / "index", make(other))


@pytest.mark.slow
def test_words_and_several_indexes_open(make, tmp_path):
    pytest.importorskip("bm25s")
    embedder, words = make("TextEmbedder"), ez.BM25Index(DOCUMENTS)
    words.save(tmp_path / "words")
    assert ez.load_index(tmp_path / "words").search("c d") == words.search("c d")
    hybrid = ez.HybridIndex([embedder.index(DOCUMENTS), words])
    hybrid.save(tmp_path / "hybrid")
    loaded = ez.load_index(tmp_path / "hybrid", [embedder, None])
    assert loaded.search("c d") == hybrid.search("c d")
    for wrong in (None, embedder):
        with pytest.raises(ValueError, match="contains a HybridIndex"):
            ez.load_index(tmp_path / "hybrid", wrong)
    with pytest.raises(ValueError, match="contains a BM25Index, which does not use"):
        ez.load_index(tmp_path / "words", embedder)
    with pytest.raises(TypeError, match="BM25Index.load got an unknown argument 'engine'"):
        ez.load_index(tmp_path / "words", engine="faiss")
    for index in (words, hybrid):
        assert index.nbytes > 0
        with pytest.raises(ValueError, match=f"{type(index).__name__}.*VectorIndex"):
            index.export(tmp_path / "1")
        with pytest.raises(TypeError, match="does not embed queries.*prompt"):
            index.search("c d", prompt="query")


def test_other_folders_are_refused(make, tmp_path):
    embedder = make("TextEmbedder")
    with pytest.raises(FileNotFoundError):
        ez.load_index(tmp_path / "none", embedder)
    with pytest.raises(ValueError, match="does not contain an index"):
        ez.load_index(tmp_path, embedder)
    (tmp_path / "encoder_zoo.json").write_text('{"format": 1, "task": "tree_index", "files": {}}')
    with pytest.raises(ValueError, match="contains a tree_index"):
        ez.load_index(tmp_path, embedder)


@pytest.mark.slow
def test_a_folder_as_release_0_2_0_wrote_it_opens(make, tmp_path):
    """By its files: arrays, texts, settings."""
    embedder = make("TextEmbedder")
    fingerprint = embedder.embed(
        ["Where is the key?", "A naïve 东西 of 12.5 kg, isn't it?"], "query"
    )
    vectors = embedder.embed(DOCUMENTS, "document")
    save_file({"vectors": vectors, "fingerprint": fingerprint}, tmp_path / "vectors.safetensors")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(t) + "\n" for t in DOCUMENTS))
    settings = {"precision": "float32", "similarity_function": "cosine", "prompt": "document"}
    manifest = {"format": 1, "task": "vector_index", "files": {}, **settings}
    (tmp_path / "encoder_zoo.json").write_text(json.dumps(manifest))
    loaded = ez.load_index(tmp_path, embedder, verify=False)
    expected = embedder.index(DOCUMENTS).search("p")
    assert [hit["text"] for hit in loaded.search("p")] == [hit["text"] for hit in expected]


def changed(model):
    return [weight + 0.3 * np.cos(np.arange(weight.size)).reshape(weight.shape)
            for weight in model.get_weights()]  # fmt: skip


def train(embedder, tmp_path):
    embedder.compile(learning_rate=0.1)
    embedder.fit((["a", "c"], ["b", "d"]), epochs=3, verbose=0)


def set_weights(embedder, tmp_path):
    embedder.set_weights(changed(embedder))


def set_weights_of_the_backbone(embedder, tmp_path):
    embedder.backbone.set_weights(changed(embedder.backbone))


def load_weights(embedder, tmp_path):
    kept = embedder.get_weights()
    embedder.set_weights(changed(embedder))
    embedder.save_weights(tmp_path / "other.weights.h5")
    embedder.set_weights(kept)
    embedder.load_weights(tmp_path / "other.weights.h5")


def train_another_task_of_the_backbone(embedder, tmp_path):
    preprocessor = ez.TextEmbedderPreprocessor(embedder.preprocessor.tokenizer)
    train(ez.TextEmbedder(embedder.backbone, preprocessor), tmp_path)


WAYS = (train, set_weights, set_weights_of_the_backbone, load_weights,
        train_another_task_of_the_backbone)  # fmt: skip


# All ways with one kind, and all kinds with the quickest: each `fit` takes seconds.
USUAL = [("TextEmbedder", way) for way in WAYS] + [(name, set_weights) for name in EMBEDDERS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, way, id=f"{way.__name__}-{name}", marks=marks)
        for name in EMBEDDERS
        for way in WAYS
        for marks in [() if (name, way) in USUAL else pytest.mark.slow]
    ],
)
def test_a_search_after_the_embedder_has_changed_is_an_error(make, name, change, tmp_path):
    embedder = make(name)
    index = embedder.index(DOCUMENTS)
    found = index.search("a b")
    embedder.set_weights(embedder.get_weights())  # the same ones
    assert index.search("a b") == found
    change(embedder, tmp_path)
    for use in (
        lambda: index.search("a b"),
        lambda: ez.HybridIndex([index]).search(["a b"]),
        lambda: index.evaluate(["a b"], [0]),
        lambda: index.add(["new"]),
        lambda: index.save(tmp_path / "index"),
    ):
        with pytest.raises(ValueError, match="The embedder has changed"):
            use()
    assert len(embedder.index(DOCUMENTS).search("a b")) > 0


@pytest.mark.slow(except_for="^TextEmbedder")
@pytest.mark.parametrize("name", EMBEDDERS)
def test_all_embedders_have_the_same_methods(make, name):
    """The nearest texts come first, by every method, as `similarity` says."""
    embedder = make(name)
    queries = ["a b", "p"]
    scores = embedder.similarity(
        embedder.embed(queries, "query"), embedder.embed(DOCUMENTS, "document")
    )
    best = int(scores[0].argmax())
    assert embedder.rank("a b", DOCUMENTS, top_k=1)[0]["index"] == best
    assert embedder.index(DOCUMENTS).search("a b", top_k=1)[0]["index"] == best
    order = (-scores).argsort(axis=1)
    found = embedder.evaluate_retrieval(queries, DOCUMENTS, order[:, 0], cutoffs=[1])
    assert found["accuracy@1"] == 1
    mined = embedder.mine_negatives(queries, DOCUMENTS, order[:, 0], num_negatives=1)
    expected = [[DOCUMENTS[row[1]]] for row in order]
    assert mined == (queries, [DOCUMENTS[row[0]] for row in order], expected)
    pairs = [(query, document) for query in queries for document in DOCUMENTS[:2]]
    agreed = embedder.evaluate_similarity(pairs, [1.0, 2.0, 3.0, 4.0])
    assert sorted(agreed) == ["pearson", "spearman"]


@pytest.mark.slow(only="^(0-None|function4-None|function5-None)")
@pytest.mark.parametrize("engine", [None, "hnsw"])
@pytest.mark.parametrize("function", ["", "x", None, 0, [[]], {}])
def test_a_similarity_that_is_none_is_refused(make, engine, function, tmp_path):
    if engine:
        pytest.importorskip("faiss")
    embedder = make("TextEmbedder")
    embedder.index(DOCUMENTS, engine=engine).save(tmp_path / "index")
    path = tmp_path / "index" / "encoder_zoo.json"
    manifest = {**json.loads(path.read_text()), "similarity_function": function}
    path.write_text(json.dumps({**manifest, "sha256": compute_manifest_digest(manifest)}))
    with pytest.raises(ValueError, match="another embedder.*similarity"):
        ez.load_index(tmp_path / "index", embedder)


@pytest.mark.slow(except_for="^encoder_zoo")
@pytest.mark.skipif(os.name != "posix", reason="links are made")
@pytest.mark.parametrize(
    "name", ["encoder_zoo.json", "vectors.safetensors", "texts.jsonl", "documents.jsonl"]
)
def test_links_that_lead_to_each_other_are_refused(make, name, tmp_path):
    embedder = make("TextEmbedder")
    embedder.index(DOCUMENTS, ids=list("abcd")).save(tmp_path / "index")
    path = tmp_path / "index" / name
    path.unlink()
    path.symlink_to("other")
    path.with_name("other").symlink_to(name)
    with pytest.raises((ValueError, OSError), match=name):
        ez.load_index(tmp_path / "index", embedder)
    with pytest.raises((ValueError, OSError)):
        embedder.index(DOCUMENTS).save(tmp_path / "index")
    assert path.is_symlink()
