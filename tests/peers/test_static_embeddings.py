"""Static embeddings beside model2vec and sentence-transformers: their files here, ours there."""

import numpy as np
import pytest

import encoder_zoo as ez

model2vec = pytest.importorskip("model2vec", reason="compares with model2vec")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TEXTS = ["A cat sleeps on the mat.", "Tax law of 1990, amended!", "naïve 东西", "x" * 20]


@pytest.fixture(scope="module")
def static():
    return ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder").distil_static(dim=32)


def test_ours_opens_in_both(static, tmp_path):
    from sentence_transformers import SentenceTransformer

    static.save_to_preset(tmp_path / "ours")
    expected = static.embed(TEXTS)
    theirs = model2vec.StaticModel.from_pretrained(tmp_path / "ours")
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)
    theirs = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("clusters", [None, 500])
def test_model2vecs_opens_here(static, clusters, tmp_path):
    static.save_to_preset(tmp_path / "first")
    options = {"vocabulary_quantization": clusters, "quantize_to": "float16"}
    theirs = model2vec.StaticModel.from_pretrained(tmp_path / "first", **options)
    theirs.save_pretrained(tmp_path / "theirs")
    theirs = model2vec.StaticModel.from_pretrained(tmp_path / "theirs")
    ours = ez.TextEmbedder.from_preset(tmp_path / "theirs")
    np.testing.assert_allclose(ours.embed(TEXTS), theirs.encode(TEXTS), atol=1e-3)


def test_sentence_transformers_opens_here(static, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    static.save_to_preset(tmp_path / "ours")
    tokenizer = Tokenizer.from_file(str(tmp_path / "ours" / "tokenizer.json"))
    for after in ([], [Normalize()]):
        table = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 16))
        module = StaticEmbedding(tokenizer, embedding_weights=table.astype("float32"))
        theirs = SentenceTransformer(modules=[module, *after], device="cpu")
        theirs.save(str(tmp_path / f"theirs{len(after)}"))
        ours = ez.TextEmbedder.from_preset(tmp_path / f"theirs{len(after)}")
        np.testing.assert_allclose(ours.embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)
