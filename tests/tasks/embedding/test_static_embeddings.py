"""Embedders of a table of tokens' vectors: files, training, distillation."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import tokenizers
from keras import ops
from safetensors.numpy import load_file, save_file
from tokenizers import models, normalizers, pre_tokenizers

import encoder_zoo as ez
from encoder_zoo.encoders.families.token_table import TokenTable

TOKENS = ["[PAD]", "[UNK]", "a", "b", "##c", "cat", "dog", "the"]
TABLE = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
TEXTS = ["the catc dog z", "A b", "dog " * 40]
IDS = [[7, 5, 4, 6], [2, 3], [6] * 40]  # without the unknown "z"


def write(folder, arrays=None, config=None, modules=None, inner=""):
    """A folder as the libraries write it; of model2vec, unless there are modules."""
    library = tokenizers.Tokenizer(
        models.WordPiece({token: i for i, token in enumerate(TOKENS)}, unk_token="[UNK]")
    )
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    own = folder / inner
    own.mkdir(parents=True, exist_ok=True)
    library.save(str(own / "tokenizer.json"))
    save_file({"embeddings": TABLE} if arrays is None else arrays, own / "model.safetensors")
    if config is not None or modules is None:
        given = {"model_type": "model2vec", "normalize": True} if config is None else config
        (folder / "config.json").write_text(json.dumps(given))
    if modules is not None:
        entries = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def means(table, ids=IDS):
    return np.stack([table[row].mean(axis=0) for row in ids])


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_model2vec(tmp_path):
    embedder = ez.TextEmbedder.from_preset(write(tmp_path))
    assert embedder.embedding_dim == 4 and embedder.normalize
    np.testing.assert_allclose(embedder.embed(TEXTS), unit(means(TABLE)), atol=1e-6)
    assert embedder.embed("zz").tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(embedder.predict(TEXTS, verbose=0), embedder.embed(TEXTS), atol=1e-6)
    assert embedder.predict(["zz", "zz"], verbose=0).tolist() == [[0] * 4] * 2
    np.testing.assert_allclose(
        embedder.embed(["cat"], prompt="the "), unit(means(TABLE, [[7, 5]])), atol=1e-6
    )


def test_rows_that_tokens_share_and_weights(tmp_path):
    mapping, weights = np.array([0, 0, 1, 1, 2, 2, 3, 3]), np.linspace(0.1, 1, 8)
    arrays = {"embeddings": TABLE[:4].astype("float16"), "mapping": mapping, "weights": weights}
    embedder = ez.TextEmbedder.from_preset(write(tmp_path, arrays, {"model_type": "model2vec"}))
    table = TABLE[:4].astype("float16").astype("float32")[mapping] * weights[:, None]
    assert not embedder.normalize
    np.testing.assert_allclose(embedder.embed(TEXTS), means(table), atol=1e-6)


def test_sentence_transformers_keeps_unknown_words(tmp_path):
    modules = [("StaticEmbedding", "0_StaticEmbedding"), ("Normalize", "1_Normalize")]
    arrays = {"embedding.weight": TABLE}
    embedder = ez.TextEmbedder.from_preset(
        write(tmp_path, arrays, modules=modules, inner="0_StaticEmbedding")
    )
    ids = [[*IDS[0], 1], *IDS[1:]]
    np.testing.assert_allclose(embedder.embed(TEXTS), unit(means(TABLE, ids)), atol=1e-6)
    embedder.save_to_preset(tmp_path / "saved")
    again = ez.TextEmbedder.from_preset(tmp_path / "saved")
    np.testing.assert_array_equal(again.embed(TEXTS), embedder.embed(TEXTS))


def test_the_most_tokens_that_are_read(tmp_path, caplog):
    config = {"model_type": "model2vec", "max_length": 3}
    embedder = ez.TextEmbedder.from_preset(write(tmp_path, config=config))
    expected = means(TABLE, [row[:3] for row in IDS])
    np.testing.assert_allclose(embedder.embed(TEXTS), expected, atol=1e-6)
    assert "2 of 3 texts" in caplog.text
    np.testing.assert_allclose(embedder.embed(TEXTS, windows="mean"), means(TABLE), atol=1e-6)


@pytest.mark.slow
def test_it_trains_and_is_saved(tmp_path):
    embedder = ez.TextEmbedder.from_preset(write(tmp_path / "given"))
    pairs = ["dog", "cat", "a"], ["the dog", "catc", "b zz"]
    before = embedder.evaluate_retrieval(*pairs, cutoffs=[1])["mrr@1"]
    loss = embedder.fit(pairs, epochs=30, batch_size=3, verbose=0).history["loss"]
    assert loss[-1] < 0.5 * loss[0]
    assert embedder.evaluate_retrieval(*pairs, cutoffs=[1])["mrr@1"] >= before
    assert np.abs(embedder.embed(TEXTS) - unit(means(TABLE))).max() > 0.01
    embedder.save_to_preset(tmp_path / "saved")
    embedder.save(tmp_path / "saved.keras")
    found = embedder.embed(TEXTS)
    for again in (
        ez.TextEmbedder.from_preset(tmp_path / "saved"),
        keras.saving.load_model(tmp_path / "saved.keras"),
    ):
        np.testing.assert_array_equal(again.embed(TEXTS), found)
    held = load_file(tmp_path / "saved" / "model.safetensors")["embeddings"]
    assert held.shape == (8, 4) and not held[1].any()  # the unknown word's
    index = embedder.index(["the dog", "a b"])
    index.save(tmp_path / "index")
    assert ez.load_index(tmp_path / "index", again).search("dog")[0]["text"] == "the dog"
    chunks = embedder.chunks(["the dog a cat b a"], 2, late=True)
    np.testing.assert_allclose(embedder.embed(chunks), embedder.embed(chunks.texts), atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "config", "message"),
    [
        ({"embeddings": TABLE[0]}, None, "the weights have.* Expected embedding.weight or embed"),
        ({"vectors": TABLE}, None, "the weights have.* Expected embedding.weight or embeddings"),
        (
            {"embeddings": TABLE, "mapping": np.arange(1, 9)},
            None,
            "mapping.*embeddings",
        ),
        (
            {"embeddings": TABLE, "weights": np.ones(5)},
            None,
            r"weights.*is \(5,\). Expected \(8,\)",
        ),
        ({"embeddings": TABLE[:5]}, None, "8 tokens, but vocab_size in config.jso"),
        (
            {"embeddings": TABLE},
            {"model_type": "model2vec", "max_length": -1},
            "max_length is -1. Expected an integer of 1 or more, or null",
        ),
        ({"embeddings": np.where(TABLE > 0, TABLE, np.nan)}, None, "NaN"),
        ({"embeddings": TABLE > 0}, None, "'embeddings' has dtype 'bool'. Expected float16"),
        ({"embeddings": TABLE.astype("int64")}, None, "'embeddings' has dtype 'int64'"),
        (
            None,
            {"model_type": "model2vec", "normalize": []},
            r"normalize is \[\]. Expected true or",
        ),
    ],
)
def test_files_that_cannot_be(tmp_path, arrays, config, message):
    with pytest.raises(ValueError, match=message):
        ez.TextEmbedder.from_preset(write(tmp_path, arrays, config))


def test_other_tasks_and_a_missing_tokenizer(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match="head is.*'static'"):
        ez.SequenceClassifier.from_preset(tmp_path, num_classes=2)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Sonnet"}}')
    with pytest.raises(ValueError, match="tokenizer.json"):
        ez.TextEmbedder.from_preset(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="does not contain tokenizer.json"):
        ez.TextEmbedder.from_preset(tmp_path)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("keeps_unknown", [False, True])
def test_graphs_and_exports_have_the_same_vectors(tmp_path, keeps_unknown):
    config = {"model_type": "model2vec", "normalize": True, "max_length": 30}
    folder = write(tmp_path / "given", config={**config, "keeps_unknown": keeps_unknown})
    texts = [*TEXTS, "zz", "[UNK] cat [CLS]", "THE ça\u0300 東 dog" * 9]
    embedder = ez.TextEmbedder.from_preset(folder, prompts={"query": "the "})
    embedder.export(tmp_path / "served")
    signatures = tf.saved_model.load(tmp_path / "served").signatures
    for name, prompt in (("serving_default", None), ("query", "query"), ("document", "document")):
        found = signatures[name](text=tf.constant(texts))["embedding"]
        np.testing.assert_allclose(found, embedder.embed(texts, prompt=prompt), atol=1e-6)
    data = tf.data.Dataset.from_tensor_slices(texts).batch(4)
    np.testing.assert_allclose(embedder.predict(data, verbose=0), embedder.embed(texts), atol=1e-6)


@pytest.mark.slow
def test_special_tokens_of_the_file_are_found_in_graphs(tmp_path):
    static = ez.TextEmbedder.from_preset("bert_nano_en_uncased").distil_static(dim=4)
    tokenizer = static.preprocessor.tokenizer
    texts = ["a [SEP] cat", "[MASK][UNK]", "[no start_token]"]
    found = tf.function(tokenizer.tokenize)(tf.constant(texts)).to_list()
    assert found == tokenizer.tokenize(texts).to_list()


@pytest.mark.slow
def test_a_model_without_a_graph_stays_in_memory(tmp_path):
    write(tmp_path)
    vocabulary = dict(zip(TOKENS, range(8), strict=True))
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    library.normalizer = tokenizers.normalizers.Nmt()
    library.save(str(tmp_path / "tokenizer.json"))
    embedder = ez.TextEmbedder.from_preset(tmp_path)
    np.testing.assert_allclose(embedder.embed("cat"), unit(TABLE[5:6])[0], atol=1e-6)
    with pytest.raises(ValueError, match="tokenizer.json.*'Nmt'"):
        embedder.export(tmp_path / "served")


@pytest.mark.slow
def test_distillation_by_hand():
    keras.utils.set_random_seed(0)
    letters = list("efghijklmnop")
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = ez.BertTokenizer([*special, *letters])
    backbone = ez.BertBackbone(18, 1, 2, 8, 16, dropout=0.0, max_sequence_length=16)
    teacher = ez.TextEmbedder(backbone, ez.TextEmbedderPreprocessor(tokenizer))
    static = teacher.distil_static(dim=3, batch_size=5)
    assert isinstance(static.backbone, TokenTable)
    rows = np.array([[3, 6 + i, 4] for i in range(12)])
    states = ops.convert_to_numpy(backbone({"token_ids": rows})["sequence_output"]).mean(axis=1)
    centred = states - states.mean(axis=0)
    expected = np.linalg.svd(centred, full_matrices=False)
    scores = expected[0][:, :3] * expected[1][:3]
    p = 1 / np.arange(2, 14)
    weights = 1e-4 / (1e-4 + p / p.sum())
    table = static.backbone.get_table()
    assert not table[:6].any()
    for found, right in zip(table[6:].T, (scores * weights[:, None]).T, strict=True):
        np.testing.assert_allclose(np.abs(found), np.abs(right), rtol=1e-3, atol=1e-6)
    vector = table[[6, 9]].mean(axis=0)
    np.testing.assert_allclose(static.embed("e h zz"), vector / np.linalg.norm(vector), atol=1e-5)
    with pytest.raises(ValueError, match="static"):
        static.distil_static()
