"""Messages about embedders and indexes advise what works: each is provoked here, and followed."""

import numpy as np
import pandas as pd
import pytest
from paths import ROOT
from small_tasks import BERT, TEXTS, make, new, preprocessor

import encoder_zoo as ez
from encoder_zoo.testing import tiny


@pytest.mark.slow
def test_vectors_have_unit_length():
    embedder = new("TextEmbedder", pooler=False)
    with pytest.raises(TypeError, match=r"embed.*'normalize_embeddings'.*normalize=False"):
        embedder.embed(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(embedder.embed(TEXTS), axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_vectors_are_divided():
    embedder = make("TextEmbedder")
    vectors = embedder.embed(TEXTS) * np.float32(1e30)
    with pytest.raises(ValueError, match=r"vectors\[0\].*1e\+17"):
        ez.VectorIndex.from_vectors(embedder, vectors)
    ez.VectorIndex.from_vectors(embedder, vectors / vectors.max())


@pytest.mark.slow
def test_columns_of_pairs_are_passed():
    table = pd.DataFrame({"q": TEXTS, "d": TEXTS[::-1], "source": ["web"] * 4})
    embedder = make("TextEmbedder")
    with pytest.raises(ValueError, match=r"'source'.*'web'.*x\['q'\], x\['d'\]"):
        embedder.fit(table, verbose=0)
    embedder.fit((table["q"], table["d"]), verbose=0)


@pytest.mark.slow
def test_few_shot_classes():
    few = ez.FewShotClassifier(tiny.backbone(BERT, pooler=False), preprocessor("TextEmbedder"))
    with pytest.raises(ValueError, match=r"FewShotClassifier.*fit"):
        few.classify("one")
    few.fit(TEXTS, ["a", "b", "a", "b"])
    assert few.classify("one")["label"] in "ab"


@pytest.mark.slow
def test_widths_of_late_interaction(tmp_path):
    backbone = tiny.backbone(BERT, pooler=False)
    layers = [{"units": 6}, {"units": 4}]
    with pytest.raises(ValueError, match=r"dim is 3.*projection has 4"):
        ez.LateInteraction(backbone, dim=3, projections=layers)
    for arguments in ({"projections": layers}, {"dim": 3}):
        own = ez.LateInteraction(backbone, preprocessor("LateInteraction"), **arguments)
    own.save_to_preset(tmp_path)
    with pytest.raises(ValueError, match=r"dim.*5.*3.*projections=\[\]"):
        ez.LateInteraction.from_preset(tmp_path, dim=5)
    assert ez.LateInteraction.from_preset(tmp_path).embed("one").shape[-1] == 3
    other = ez.LateInteraction.from_preset(tmp_path, dim=5, projections=[])
    assert other.embed("one").shape[-1] == 5


@pytest.mark.slow
def test_encoders_of_queries(tmp_path):
    encoder = make("SparseEncoder")
    with pytest.raises(ValueError, match="query_learning_rate"):
        encoder.compile(query_learning_rate=1e-3)
    encoder.compile()
    backbone, own = encoder.backbone, encoder.preprocessor
    table = ez.TermTable(own.tokenizer, vocabulary_size=backbone.vocabulary_size)
    of_tokens = ez.SparseEncoder(backbone, own, pooling="token_weights", query_encoder=table)
    with pytest.raises(ValueError, match=r"'token_weights'.*query_encoder"):
        of_tokens.save_to_preset(tmp_path)
    ez.SparseEncoder(backbone, own, pooling="token_weights").save_to_preset(tmp_path)
    two = ez.SparseEncoder(backbone, own, query_encoder=ez.SparseEncoder(backbone))
    with pytest.raises(ValueError, match=r"query_encoder.*preprocessor"):
        two.save_to_preset(tmp_path)
    two = ez.SparseEncoder(backbone, own, query_encoder=ez.SparseEncoder(backbone, own))
    two.save_to_preset(tmp_path)
    assert ez.SparseEncoder.from_preset(tmp_path).query_encoder is not None


@pytest.mark.slow
def test_token_weights_are_trained(tmp_path, caplog):
    make("SparseEncoder").save_to_preset(tmp_path)
    encoder = ez.SparseEncoder.from_preset(tmp_path, pooling="token_weights")
    assert "random weights" in caplog.text
    encoder.fit((TEXTS, TEXTS), verbose=0)
    with pytest.raises(ValueError, match=r"'token_weights'.*activation"):
        ez.SparseEncoder(encoder.backbone, pooling="token_weights", activation="log1p_relu")


def test_models_of_bge_m3_are_saved_one_by_one(tmp_path):
    whole = ez.HybridEmbedder.from_preset(ROOT / "tests" / "golden" / "bge_m3")
    whole.terms.similarity_function = "cosine"
    with pytest.raises(ValueError, match=r"terms.*'cosine'.*'dot'"):
        whole.save_to_preset(tmp_path)
    whole.terms.save_to_preset(tmp_path)
    assert ez.SparseEncoder.from_preset(tmp_path).similarity_function == "cosine"


@pytest.mark.slow
def test_candidates_have_a_reranker():
    index = make("TextEmbedder").index(TEXTS)
    with pytest.raises(ValueError, match=r"candidates.*3.*reranker"):
        index.search("one", candidates=3)
    assert index.search("one", candidates=3, reranker=make("Reranker"))


@pytest.mark.slow
def test_indexes_have_their_embedder(tmp_path):
    embedder, other = make("TextEmbedder"), tiny.randomize_weights(make("TextEmbedder"))
    embedder.index(TEXTS).save(tmp_path / "a")
    with pytest.raises(ValueError, match=r"another embedder.*index\(documents\)"):
        ez.VectorIndex.load(tmp_path / "a", other)
    with pytest.raises(ValueError, match=r"VectorIndex.*SparseEncoder.*SparseIndex"):
        ez.load_index(tmp_path / "a", make("SparseEncoder"))
    with pytest.raises(ValueError, match=r"VectorIndex.*embedder"):
        ez.load_index(tmp_path / "a")
    assert ez.load_index(tmp_path / "a", embedder).search("one")
    other.index(TEXTS).save(tmp_path / "b")
    assert ez.VectorIndex.load(tmp_path / "b", other).search("one")


@pytest.mark.slow
def test_indexes_are_built_anew(tmp_path):
    embedder = make("TextEmbedder")
    index = embedder.index(TEXTS)
    tiny.randomize_weights(embedder)
    with pytest.raises(ValueError, match=r"embedder has changed"):
        index.save(tmp_path)
    embedder.index(TEXTS).save(tmp_path)


def test_words_have_no_embedder(tmp_path):
    words = ez.BM25Index(TEXTS)
    with pytest.raises(TypeError, match="prompt"):
        words.search("one", prompt="query")
    assert words.search("one")
    with pytest.raises(ValueError, match=r"BM25Index.*VectorIndex"):
        words.export(tmp_path)


@pytest.mark.slow
def test_parts_of_hybrid_indexes(tmp_path):
    embedder = make("TextEmbedder")

    class Pages:
        search = embedder.index(TEXTS).search

        def __len__(self):
            return len(TEXTS)

    first = embedder.index(TEXTS)
    index = ez.HybridIndex([first, Pages()])
    with pytest.raises(ValueError, match=r"indexes\[1\].*Pages.*\badd\b"):
        index.add(["seven"])
    again = ez.HybridIndex([embedder.index([*TEXTS, "seven"]), embedder.index([*TEXTS, "seven"])])
    assert len(again) == 5
    with pytest.raises(ValueError, match=r"indexes\[1\].*Pages.*saved"):
        index.save(tmp_path / "index")
    first.save(tmp_path / "first")
    loaded = ez.VectorIndex.load(tmp_path / "first", embedder)
    assert ez.HybridIndex([loaded, Pages()]).search("one") == index.search("one")


def test_documents_have_ids():
    index = ez.BM25Index(TEXTS, ids=list("abcd"))
    with pytest.raises(ValueError, match=r"documents.*ids"):
        index.add(["more"])
    index.add(["more"], ids=["e"])
    index.update(["much more"], ids=["e"])
    with pytest.raises(ValueError, match=r"ids=\["):
        ez.BM25Index(TEXTS).remove("a")
    index.remove("a")


def test_documents_have_metadata():
    index = ez.BM25Index(TEXTS, ids=list("abcd"))
    with pytest.raises(ValueError, match=r"documents.*metadata"):
        index.update(["more"], ids=["a"], metadata=[{"year": 2024}])
    index.update(["more"], ids=["a"])
    with pytest.raises(ValueError, match=r"where.*metadata="):
        index.search("one", where={"year": 2024})
    index = ez.BM25Index(TEXTS, metadata=[{"year": year} for year in (1, 2, 3, 4)])
    assert index.search("one", where={"year": 1})


def test_columns_of_documents_are_named():
    with pytest.raises(ValueError, match=r"text_column.*'body'"):
        ez.BM25Index({"body": TEXTS})
    assert len(ez.BM25Index({"body": TEXTS}, text_column="body")) == 4
    table = pd.DataFrame([["one", 1], ["two", 2]], columns=["text", "text"])
    with pytest.raises(ValueError, match=r"several columns.*'text'"):
        ez.BM25Index(table)
    table.columns = ["text", "year"]
    assert ez.BM25Index(table).metadata == [{"year": 1}, {"year": 2}]


def test_indexes_keep_a_document():
    index = ez.BM25Index(TEXTS, ids=list("abcd"))
    with pytest.raises(ValueError, match=r"remove.*document"):
        index.remove(list("abcd"))
    index.remove(list("abc"))
    assert len(index) == 1


def test_fields_of_chunks_are_their_own():
    embedder = make("TextEmbedder")
    with pytest.raises(ValueError, match=r"metadata.*'start'"):
        embedder.chunks(TEXTS, 4, metadata=[{"start": 1}] * 4)
    assert len(embedder.chunks(TEXTS, 4, metadata=[{"begun": 1}] * 4)) >= 4
