"""Longformer's attention beside a loop over tokens, and which tokens are global for which task."""

import keras
import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez
from encoder_zoo.encoders.families import longformer
from encoder_zoo.encoders.families.longformer import LongformerAttention
from encoder_zoo.encoders.kernels import long_attention

FAMILY = ez.LongformerBackbone.family
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
LENGTH = 21
REAL = np.arange(LENGTH) < np.array([[LENGTH], [13]])
GLOBAL = np.isin(np.arange(LENGTH), [0, 7, 8])[None].repeat(2, axis=0)


@pytest.fixture
def in_parts(monkeypatch):
    """Make texts of more than four tokens long, with small blocks and chunks."""
    monkeypatch.setattr(long_attention, "SHORT_LENGTH", 4)
    monkeypatch.setattr(long_attention, "SMALLEST_BLOCK", 1)
    monkeypatch.setattr(long_attention, "SMALLEST_CHUNK", 3)
    monkeypatch.setattr(long_attention, "CHUNK_NUMBERS", 0)


def made(attention_window=4):
    own = {"attention_window": attention_window, "dropout": 0.0, "attention_dropout": 0.0}
    backbone = ez.LongformerBackbone(30, **SIZES, **own, pooler=False)
    rng = np.random.default_rng(0)
    for weight in backbone.weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return backbone


def attention_by_loop(layer: LongformerAttention, x, real, is_global, reach) -> np.ndarray:
    """The formulas of section 3.1 for one text and one token after the other."""

    def project(name):
        dense = getattr(layer, f"{name}_dense")
        y = x @ ops.convert_to_numpy(dense.kernel) + ops.convert_to_numpy(dense.bias)
        return y.reshape(len(x), layer.num_heads, -1)

    parts = {name: project(name) for name in ("query", "key", "value")}
    parts_global = {name: project(f"global_{name}") for name in ("query", "key", "value")}
    mixed = np.zeros((len(x), layer.num_heads, layer.hidden_dim // layer.num_heads))
    for i in range(len(x)):
        keys = [j for j in range(len(x)) if real[j]]
        if not is_global[i]:
            keys = [j for j in keys if abs(i - j) <= reach or is_global[j]]
        used = parts_global if is_global[i] else parts
        for head in range(layer.num_heads):
            query = used["query"][i, head]
            scores = used["key"][keys, head] @ query / len(query) ** 0.5
            weights = np.exp(scores - scores.max())
            mixed[i, head] = weights / weights.sum() @ used["value"][keys, head]
    dense = layer.output_dense
    rows = mixed.reshape(len(x), -1)
    return rows @ ops.convert_to_numpy(dense.kernel) + ops.convert_to_numpy(dense.bias)


@pytest.mark.parametrize("slots", [64, 2], ids=["slots", "pairs"])
@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
def test_attention_is_that_of_a_loop(request, monkeypatch, is_long, slots):
    if is_long:
        request.getfixturevalue("in_parts")
    monkeypatch.setattr(longformer, "MAX_LINEAR_GLOBAL_TOKENS", slots)
    backbone, ids = made(), np.ones((2, LENGTH), "int32")
    inputs = {"token_ids": ids, "padding_mask": REAL, "global_mask": GLOBAL}
    layer = backbone.blocks[0].attention
    x = np.random.default_rng(1).normal(size=(2, LENGTH, 8)).astype("float32")
    context = backbone.block_contexts(inputs)[0]
    found = ops.convert_to_numpy(layer(x, training=False, **context))
    shown, probabilities = layer(x, training=False, return_probabilities=True, **context)
    for row, real in enumerate(REAL):
        expected = attention_by_loop(layer, x[row].astype("float64"), real, GLOBAL[0] & real, 2)
        for output in (found, ops.convert_to_numpy(shown)):
            np.testing.assert_allclose(output[row, real], expected[real], atol=1e-5)
    sums = ops.convert_to_numpy(probabilities).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="uses a tape of TensorFlow")
@pytest.mark.parametrize("slots", [64, 2], ids=["slots", "pairs"])
def test_gradients_of_parts_are_those_of_all_pairs(request, monkeypatch, slots):
    import tensorflow as tf

    inputs = {"token_ids": np.arange(2 * LENGTH).reshape(2, -1) % 25 + 5, "padding_mask": REAL}
    starts = np.array([[0, 9, LENGTH], [0, 6, LENGTH]])
    inputs |= {"global_mask": GLOBAL, "text_starts": starts}
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    backbone = made(attention_window=[4, 2])
    monkeypatch.setattr(longformer, "MAX_LINEAR_GLOBAL_TOKENS", slots)

    def compute():
        specs = {n: tf.TensorSpec([None, None], v.dtype) for n, v in inputs.items()}

        @tf.function(input_signature=[specs])
        def run(inputs):
            with tf.GradientTape() as tape:
                outputs = backbone(inputs, training=True)["sequence_output"]
                total = tf.reduce_sum(tf.sin(3 * outputs[REAL]))
            return outputs, tape.gradient(total, [v.value for v in backbone.trainable_weights])

        outputs, gradients = run(inputs)
        return [outputs.numpy()[REAL], *map(np.array, map(tf.convert_to_tensor, gradients))]

    expected = compute()
    request.getfixturevalue("in_parts")
    for a, b in zip(compute(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("ForSequenceClassification", [1, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("ForQuestionAnswering", [1, 1, 1, 0, 0, 0, 0, 0, 0]),
        ("ForMultipleChoice", [0, 0, 0, 0, 0, 1, 1, 1, 1]),
        ("ForMaskedLM", None),
    ],
)
def test_the_head_says_which_tokens_are_global(head, expected):
    backbone = made()
    inputs = {"token_ids": np.array([[0, 7, 8, 2, 2, 9, 10, 2, 1]])}
    found = backbone.add_head_inputs(inputs, FAMILY.heads[head]).get("global_mask")
    if expected is None:
        assert found is None
        return
    assert ops.convert_to_numpy(found).tolist() == [expected]
    given = {**inputs, "global_mask": np.zeros((1, 9), "int32")}
    assert backbone.add_head_inputs(given, FAMILY.heads[head]) is given
    both = {"token_ids": np.concatenate([inputs["token_ids"][:, :8]] * 2, axis=1)}
    both["text_starts"] = np.array([[0, 8]])
    found = backbone.add_head_inputs(both, FAMILY.heads[head])["global_mask"]
    assert ops.convert_to_numpy(found).tolist() == [expected[:8] * 2]


def test_windows_must_fit_the_layers():
    with pytest.raises(ValueError, match="num_layers=2"):
        made(attention_window=[4, 4, 4])
    with pytest.raises(ValueError, match="attention_window"):
        made(attention_window=5)
