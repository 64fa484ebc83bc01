"""Attention part by part gives what attention over all pairs does, and takes less memory."""

import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import encoder_zoo as ez
from encoder_zoo.common.context import use_context
from encoder_zoo.encoders.attention_masks import make_attention_mask
from encoder_zoo.encoders.kernels import long_attention
from encoder_zoo.encoders.kernels.attention import FastAttention, attend_fast
from encoder_zoo.encoders.positions import compute_text_indices, compute_text_positions

SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


@pytest.fixture
def compute(monkeypatch):
    """Outputs and gradients of a backbone: of all pairs, and part by part."""

    def outputs_and_gradients(backbone, inputs):
        with tf.GradientTape() as tape:
            outputs = backbone(inputs, training=True)["sequence_output"]
            total = tf.reduce_sum(tf.sin(3 * outputs))
        return outputs, tape.gradient(total, [v.value for v in backbone.trainable_variables])

    def compute(backbone, inputs, short, mode="graph"):
        monkeypatch.setattr(long_attention, "SHORT_LENGTH", short)
        monkeypatch.setattr(long_attention, "SMALLEST_BLOCK", 1)
        monkeypatch.setattr(long_attention, "SMALLEST_CHUNK", 3)
        monkeypatch.setattr(long_attention, "CHUNK_NUMBERS", 0)
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        specs = {n: tf.TensorSpec([None, None], v.dtype) for n, v in inputs.items()}

        def function(inputs):
            return outputs_and_gradients(backbone, inputs)

        if mode != "eager":  # in a graph whose sizes are open
            function = tf.function(function, input_signature=[specs], jit_compile=mode == "xla")
        outputs, gradients = function(inputs)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return outputs.numpy(), [gradient.numpy() for gradient in gradients]

    return compute


def rows(length, padded="right"):
    rng = np.random.default_rng(0)
    real = np.arange(length) < np.array([[length], [max(1, length // 2)], [1]])
    real = real[:, ::-1] if padded == "left" else real
    return {"token_ids": rng.integers(0, 30, real.shape), "padding_mask": real}


def packed_rows(length):
    inputs = rows(length)
    starts = np.array([[0, 3, length], [0, length // 2, length // 2 + 1], [0, length, length]])
    return {**inputs, "text_starts": starts}


PACKED = packed_rows(17)
CASES = {
    "short": (rows(3), 7),
    "one more than a block": (rows(5), 4),
    "only itself": (rows(23), 1),
    "padded right": (rows(23), 4),
    "padded left": (rows(24, "left"), 7),
    "packed": (PACKED, 4),
}


@pytest.mark.slow(except_for="^packed-eager")
@pytest.mark.parametrize(
    "case, mode",
    [
        *(
            pytest.param(case, "graph", marks=[] if case == "packed" else pytest.mark.slow)
            for case in CASES
        ),
        ("packed", "eager"),
    ],
)
def test_part_by_part_is_all_at_once(tiny, compute, case, mode):
    inputs, window = CASES[case]
    backbone = tiny.randomize_weights(ez.ModernBertBackbone(30, **SIZES, local_attention=window))
    expected, expected_gradients = compute(backbone, inputs, short=1000, mode=mode)
    found, gradients = compute(backbone, inputs, short=1, mode=mode)
    real = inputs["padding_mask"]
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-5)
    assert np.isfinite(found).all()
    for variable, a, b in zip(
        backbone.trainable_variables, gradients, expected_gradients, strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=variable.path)


def test_the_window_is_found_by_its_distances():
    """Beside the definition: a query's own loop over the keys that it reaches."""
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 2, 21, 2, 4)).astype("float32")
    real = np.arange(21) < np.array([[21], [9]])
    mask = make_attention_mask(real, max_distance=2)
    layer = FastAttention(hidden_dim=8, num_heads=2)
    layer.build()

    def attend(query, key, value, mask):
        return attend_fast(layer, query, key, value, mask)

    found = long_attention.attend_in_blocks(attend, query, key, value, mask)
    for row, place, head in [(0, 0, 1), (0, 12, 0), (0, 20, 1), (1, 8, 0), (1, 4, 1)]:
        keys = [k for k in range(21) if abs(k - place) <= 2 and real[row, k]]
        scores = key[row, keys, head] @ query[row, place, head] / 2
        weights = np.exp(scores) / np.exp(scores).sum()
        expected = weights @ value[row, keys, head]
        np.testing.assert_allclose(found[row, place, head], expected, atol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_gradient_checkpointing_of_long_texts_changes_nothing(tiny, compute):
    backbone = tiny.randomize_weights(ez.ModernBertBackbone(30, **SIZES, local_attention=4))
    expected, expected_gradients = compute(backbone, PACKED, short=1)
    backbone.enable_gradient_checkpointing()
    found, gradients = compute(backbone, PACKED, short=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for a, b in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.matrix
@pytest.mark.slow
def test_gradient_checkpointing_of_long_texts_drops_the_same(tiny, compute):
    found = []
    for checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        rates = {"dropout": 0.0, "attention_dropout": 0.5}
        backbone = tiny.randomize_weights(
            ez.ModernBertBackbone(30, **SIZES, **rates, local_attention=4)
        )
        if checkpointing:
            backbone.enable_gradient_checkpointing()
        found.append(compute(backbone, PACKED, short=1))
    (outputs, gradients), (other_outputs, other_gradients) = found
    np.testing.assert_allclose(other_outputs, outputs, atol=1e-5)
    for a, b in zip(other_gradients, gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("max_distance", [None, 40])
def test_chunks_and_blocks_drop_in_training(monkeypatch, max_distance):
    """Queries that ask the same of all keys, whose values are a 1 each at a place of their own."""
    monkeypatch.setattr(long_attention, "SHORT_LENGTH", 1)
    monkeypatch.setattr(long_attention, "SMALLEST_CHUNK", 8)
    monkeypatch.setattr(long_attention, "CHUNK_NUMBERS", 0)
    layer = FastAttention(hidden_dim=80, num_heads=2, attention_dropout=0.25)
    layer.build()
    zeros = tf.zeros((3, 40, 2, 40))
    value = zeros + tf.eye(40)[:, None]
    mask = make_attention_mask(np.ones((3, 40), bool), max_distance=max_distance)
    with tf.GradientTape() as tape:
        tape.watch(value)
        mixed = attend_fast(layer, zeros, zeros, value, mask, training=True)
    weights = tf.random.stateless_normal(mixed.shape, (1, 2))
    probabilities = mixed.numpy()  # (B, Q, H, K)
    assert abs((probabilities == 0).mean() - 0.25) < 0.02
    np.testing.assert_allclose(probabilities[probabilities > 0], 1 / 40 / 0.75, rtol=1e-4)
    dropped = np.moveaxis(probabilities == 0, 1, 0).reshape(40, -1)
    assert len(np.unique(dropped, axis=0)) == 40  # no chunk as another
    others = attend_fast(layer, zeros, zeros, value, mask, training=True)
    assert (others.numpy() != probabilities).any()  # every step drops others
    # What is linear in its values is their product with its gradient: of the same dropped ones.
    gradient = tape.gradient(mixed, value, output_gradients=weights)
    np.testing.assert_allclose(
        tf.reduce_sum(gradient * value), tf.reduce_sum(weights * mixed), rtol=1e-4
    )


@pytest.mark.slow
def test_long_texts_are_close_in_mixed_precision(tiny, monkeypatch):
    exact = tiny.randomize_weights(ez.ModernBertBackbone(30, **SIZES, local_attention=4))
    mixed = ez.ModernBertBackbone(30, **SIZES, local_attention=4, dtype="mixed_bfloat16")
    mixed.set_weights(exact.get_weights())
    monkeypatch.setattr(long_attention, "SHORT_LENGTH", 1)
    outputs = [
        ops.cast(backbone(rows(23))["sequence_output"], "float32") for backbone in (exact, mixed)
    ]
    assert 0 < float(ops.mean(ops.abs(outputs[0] - outputs[1]))) < 0.05


@pytest.mark.parametrize("length", [1, 2, 9])
def test_texts_of_a_row_are_counted(length):
    starts = np.array([[0, 1, 5, 9], [0, 9, 9, 12], [0, 2, 3, 4]])
    places = np.arange(length)
    expected = (places[None, :, None] >= starts[:, None]).sum(-1) - 1
    np.testing.assert_array_equal(compute_text_indices(starts, length), expected)
    begun = np.take_along_axis(starts, expected, axis=1)
    np.testing.assert_array_equal(compute_text_positions(starts, length), places - begun)


LINUX = pathlib.Path("/proc/self/clear_refs")


def memory(name):
    """MiB that this process holds ("VmRSS"), or held at most ("VmHWM")."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    [kibibytes] = [line.split()[1] for line in lines if line.startswith(name)]
    return int(kibibytes) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not os.access(LINUX, os.W_OK), reason="memory is counted on Linux")
@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_long_texts_never_write_a_matrix_of_their_tokens(training):
    """Where one of (H, L, L) numbers takes 512 MiB, and one of (K, L) 128 MiB."""
    backbone = ez.ModernBertBackbone(30, **SIZES, attention_dropout=0.1)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None])]
    )
    def run(ids, starts):
        inputs = {"token_ids": ids, "text_starts": tf.cast(starts, tf.int32)}
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.sin(backbone(inputs, training=training)["sequence_output"]))
        return tape.gradient(y, [v.value for v in backbone.trainable_variables]) if training else y

    starts = np.arange(0, 8192, 2, "float32")[None]  # a text for every two tokens
    run(np.ones((1, 600), "int32"), starts)
    LINUX.write_text("5")  # the most begins anew
    before = memory("VmRSS")
    run(np.ones((1, 8192), "int32"), starts)
    assert memory("VmHWM") - before < 400


@pytest.mark.slow
def test_a_backbone_of_short_texts_has_its_mask_once():
    inputs = {"token_ids": np.ones((1, 4), int), "padding_mask": np.ones((1, 4), bool)}
    sizes = {**SIZES, "vocabulary_size": 30}
    [mask, *_] = ez.BertBackbone(**sizes).block_contexts(inputs)
    assert keras.ops.shape(mask["attention_mask"]) == (1, 1, 1, 4)
    longer = ez.RobertaBackbone(**sizes, max_sequence_length=1024).block_contexts(inputs)
    assert longer[0]["attention_mask"].max_distance is None


@pytest.mark.slow
def test_graphs_for_others_hold_attention_all_at_once(tiny, compute):
    """XLA has no gradient for a choice between two ways, other runtimes no loops."""
    backbone = tiny.randomize_weights(ez.ModernBertBackbone(30, **SIZES, local_attention=4))
    inputs = rows(23)
    expected, expected_gradients = compute(backbone, inputs, short=1000)
    compiled = compute(backbone, inputs, short=1, mode="xla")
    real = inputs["padding_mask"]
    np.testing.assert_allclose(compiled[0][real], expected[real], rtol=1e-5, atol=1e-5)
    for a, b in zip(compiled[1], expected_gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)

    ids = tf.TensorSpec([None, None], tf.int32)
    graph = tf.function(lambda ids: backbone({"token_ids": ids})["sequence_output"])
    choices = {"If", "StatelessIf", "While", "StatelessWhile"}
    assert choices & {op.type for op in graph.get_concrete_function(ids).graph.get_operations()}
    with use_context(is_long=False):
        graph = tf.function(graph.python_function).get_concrete_function(ids).graph
    assert not choices & {op.type for op in graph.get_operations()}


@pytest.mark.matrix
@pytest.mark.slow
def test_fit_and_predict_trace_the_way_that_their_texts_need(monkeypatch):
    """Beside all at once: the same losses; and no graph but `classify`'s of long ones chooses."""
    chosen = []
    monkeypatch.setattr(ops, "cond", lambda *a: [chosen.append(a), tf.cond(*a)][1])
    short, long = ["a b", "b a"], ["a b " * 10, "b a b " * 8]

    def results(limit):
        chosen.clear()
        monkeypatch.setattr(long_attention, "SHORT_LENGTH", limit)
        keras.utils.set_random_seed(0)
        tokens = ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", "a", "b", "Ġ"]
        tokenizer = ez.ModernBertTokenizer({token: i for i, token in enumerate(tokens)}, [])
        backbone = ez.ModernBertBackbone(
            len(tokens), **SIZES, local_attention=4, max_sequence_length=1024
        )
        preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
        model = ez.SequenceClassifier(backbone, preprocessor, num_classes=2, dropout=0.0)
        texts, y = [*short, *long], [0, 1] * 2
        losses = model.fit(texts, y, batch_size=2, epochs=2, verbose=0).history["loss"]
        predicted = model.predict(texts, batch_size=2, verbose=1)
        measured = model.evaluate(texts, y, batch_size=2, verbose=0)
        assert not chosen
        return losses, predicted, measured, model.predict(long, verbose=0)

    for a, b in zip(results(12), results(10**6), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
