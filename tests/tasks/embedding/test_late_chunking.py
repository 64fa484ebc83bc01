"""Chunks whose vectors are means of their tokens' vectors in the whole text."""

import keras
import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez

LETTERS = list("abcdefghijklmnop")
PROMPT = "a b "
NO_TOKENS = "\u200b\u200d"  # no width
DOCUMENTS = [
    "c d e f g h i j k",
    "l",
    "m n o p a b c d e f g h i j k l m n o p a b c d",
    NO_TOKENS,
    "e f",
]


def words(text):
    return text.split()


@pytest.fixture(scope="module")
def build():
    tokenizer = ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])

    def build(max_length=32, prompts=None, **arguments):
        keras.utils.set_random_seed(3)
        sizes = {"hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 32}
        backbone = ez.BertBackbone(21, 1, 2, dropout=0.0, attention_dropout=0.0, **sizes)
        for weight in backbone.weights:
            weight.assign(weight + keras.random.normal(weight.shape, stddev=0.5, seed=1))
        preprocessor = ez.TextEmbedderPreprocessor(
            tokenizer, max_length=max_length, prompts=prompts
        )
        return ez.TextEmbedder(backbone, preprocessor, **arguments)

    return build


def states(embedder, tokens):
    """The vectors of the tokens between [CLS] and [SEP], by the backbone alone."""
    ids = [2, *(5 + LETTERS.index(token) for token in tokens), 3]
    outputs = embedder.backbone({"token_ids": np.array([ids])})
    return ops.convert_to_numpy(outputs["sequence_output"])[0, 1:-1]


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.slow
def test_a_chunk_is_the_mean_of_its_tokens_in_the_whole_text(build):
    embedder = build()
    chunks = embedder.chunks(DOCUMENTS, 4, overlap=1, late=True)
    found = embedder.embed(chunks)
    assert found.shape == (len(chunks), 8) and len(chunks) > 10
    for vector, text, fields in zip(found, chunks.texts, chunks.metadata, strict=True):
        document = DOCUMENTS[fields["document"]]
        if text == NO_TOKENS:
            continue
        whole, first = states(embedder, words(document)), len(words(document[: fields["start"]]))
        mean = whole[first : first + len(words(text))].mean(axis=0)
        np.testing.assert_allclose(vector, unit(mean), atol=1e-5)
    early = embedder.embed(embedder.chunks(DOCUMENTS, 4, overlap=1))
    assert np.abs(early - found).max() > 0.1  # the context counts
    alone = chunks.texts.index(NO_TOKENS)
    np.testing.assert_allclose(found[alone], embedder.embed(NO_TOKENS), atol=1e-6)


@pytest.mark.slow
def test_prompts_are_read_and_belong_to_no_chunk(build):
    embedder = build(prompts={"document": PROMPT})
    chunks = embedder.chunks(DOCUMENTS[:2], 3, late=True)
    whole = states(embedder, [*words(PROMPT), *words(DOCUMENTS[0])])[2:]
    expected = unit(whole.reshape(3, 3, 8).mean(axis=1))
    for found in (
        embedder.embed(chunks, prompt="document", batch_size=1),
        embedder.index(chunks).vectors,
    ):
        np.testing.assert_allclose(found[:3], expected, atol=1e-5)
    plain = embedder.embed(chunks)
    np.testing.assert_allclose(
        plain[:3],
        unit(states(embedder, words(DOCUMENTS[0])).reshape(3, 3, 8).mean(axis=1)),
        atol=1e-5,
    )


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["", PROMPT])
def test_texts_that_are_longer_than_the_model_reads(build, prompt):
    """Windows that share a quarter, each token in the one where it is further from the edge."""
    embedder = build(max_length=12, prompts={"document": prompt})
    tokens, before = words(DOCUMENTS[2]), words(prompt)
    room = 10 - len(before)
    step, left = room - room // 4, room // 4 // 2
    expected, starts = np.zeros((len(tokens), 8)), range(0, len(tokens) - room // 4, step)
    for start in starts:
        window = tokens[start : start + room]
        seen = states(embedder, [*before, *window])[len(before) :]
        first = left if start else 0
        expected[start + first : start + len(window)] = seen[first:]
    chunks = embedder.chunks([DOCUMENTS[2]], 5, late=True)
    found = embedder.embed(chunks, prompt="document")
    means = [expected[i : i + 5].mean(axis=0) for i in range(0, len(tokens), 5)]
    assert len(starts) > 1 and len(found) == len(means)
    np.testing.assert_allclose(found, unit(np.stack(means)), atol=1e-5)


def test_dense_layers_follow_the_mean(build):
    embedder = build(dense=[{"units": 6, "activation": "tanh"}], normalize=False, dim=4)
    chunks = embedder.chunks([DOCUMENTS[0]], 9, late=True)
    mean = states(embedder, words(DOCUMENTS[0])).mean(axis=0)
    expected = ops.convert_to_numpy(embedder.dense_layers[0](mean[None]))[:, :4]
    np.testing.assert_allclose(embedder.embed(chunks), expected, atol=1e-5)


@pytest.mark.slow
def test_indexes_of_them(build, tmp_path):
    embedder = build()
    index = embedder.index(embedder.chunks(DOCUMENTS[:2], 3, late=True, ids=["x", "y"]))
    more = embedder.chunks([DOCUMENTS[2]], 3, late=True, ids=["z"])
    index.add(more)
    np.testing.assert_allclose(index.vectors[-len(more) :], embedder.embed(more), atol=1e-6)
    [new] = (embedder.chunks(["o p a"], 3, late=True, ids=["y"]),)
    index.update(new)
    np.testing.assert_allclose(index.vectors[-1], embedder.embed(new)[0], atol=1e-6)
    both = ez.HybridIndex([embedder.index(more), ez.BM25Index(more)])
    both.add(embedder.chunks([DOCUMENTS[0]], 3, late=True, ids=["w"]))
    np.testing.assert_allclose(both.indexes[0].vectors[-3:], index.vectors[:3], atol=1e-6)
    index.save(tmp_path)
    assert ez.load_index(tmp_path, embedder).search("o p a") == index.search("o p a")


@pytest.mark.slow
def test_only_means_have_parts(build):
    with pytest.raises(ValueError, match="late=True.*pooling='cls'"):
        build(pooling="cls").chunks(["a"], 3, late=True)
    chunks = build().chunks(["a"], 3, late=True)
    with pytest.raises(ValueError, match=r"late=True.*\['mean', 'max'\]"):
        build(pooling=["mean", "max"]).embed(chunks)
    sparse = ez.SparseEncoder.from_preset("bert_nano_en_uncased")
    with pytest.raises(ValueError, match="SparseEncoder"):
        sparse.chunks(["a"], 3, late=True)
    chunks = build().chunks(DOCUMENTS, 3, late=True)
    tokens = ez.LateInteraction.from_preset("bert_nano_en_uncased", dim=16)
    for ask in (sparse.embed, sparse.index, tokens.embed, tokens.embed_with_spans, tokens.index):
        with pytest.raises(ValueError, match="chunks.*late=False"):
            ask(chunks)
    assert len(ez.BM25Index(chunks)) == len(chunks)
