"""GradCache: the loss and the gradients of the whole batch, in the memory of a part."""

import json
import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run

import encoder_zoo as ez
from encoder_zoo.tasks.losses import InfoNCE
from encoder_zoo.tasks.losses.chunks import recompute_in_chunks

SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


def embedder(dropout=0.0, **arguments):
    keras.utils.set_random_seed(0)
    backbone = ez.BertBackbone(30, **SIZES, dropout=dropout, attention_dropout=dropout)
    model = ez.TextEmbedder(backbone, **arguments)
    rng = np.random.default_rng(0)
    for weight in model.weights:  # large, so that rounding stays small beside the gradients
        if weight.ndim > 1:
            weight.assign(rng.normal(size=weight.shape) * 0.5)
    return model


def batch(rows, candidates=2, length=5):
    rng = np.random.default_rng(rows)
    ids = {"token_ids": (rows, length), "candidate_token_ids": (rows, candidates, length + 2)}
    x = {name: rng.integers(5, 30, shape).astype("int32") for name, shape in ids.items()}
    for name in ids:
        x[name.replace("token_ids", "padding_mask")] = rng.random(ids[name]) < 0.8
    x["padding_mask"][..., 0] = x["candidate_padding_mask"][..., 0] = True
    return x, np.arange(rows * (1 + candidates)).reshape(rows, -1)


def step(model, x, y):
    """Return the loss and the gradients of the weights that have one."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(y=y, y_pred=model(x, training=True))
    found = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return loss, [None if g is None else tf.convert_to_tensor(g) for g in found]


def check_equal(model, chunk_size, rows, run=step):
    x, y = batch(rows)
    x = {name: tf.constant(values) for name, values in x.items()}
    y = tf.constant(y)
    model.compile(chunk_size=None)
    loss, gradients = step(model, x, y)
    model.compile(chunk_size=chunk_size)
    found_loss, found = run(model, x, y)
    np.testing.assert_allclose(found_loss, loss, rtol=1e-6)
    assert [g is None for g in found] == [g is None for g in gradients]
    pairs = [
        (np.array(f), np.array(g)) for f, g in zip(found, gradients, strict=True) if g is not None
    ]
    length = sum((gradient**2).sum() for _, gradient in pairs) ** 0.5
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * length)


@pytest.mark.slow
def test_loss_and_gradients_are_those_of_the_whole_batch():
    dense = [{"units": 6, "activation": "tanh", "residual": True}]
    check_equal(embedder(pooling=["cls", "max"], dense=dense), chunk_size=2, rows=5)


def test_parts_are_of_like_lengths_without_common_padding():
    lengths, shapes = np.array([3, 1, 4, 2, 6, 1]), []
    mask = np.arange(7) < lengths[:, None]

    def call(inputs, training):
        shapes.append(inputs["x"].shape[1])
        return tf.reduce_sum(inputs["x"], axis=1, keepdims=True)

    x = np.where(mask, np.arange(6, dtype="float32")[:, None] + 1, 0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.build((None, 1))
    found = recompute_in_chunks(model, call, {"x": x, "padding_mask": mask}, 2)
    np.testing.assert_allclose(found[:, 0], lengths * (np.arange(6) + 1))  # in the order given
    assert shapes == [1, 3, 6]


@pytest.mark.matrix
@pytest.mark.slow
def test_one_graph_has_the_gradients_of_batches_of_every_size():
    model = embedder()
    model.compile(chunk_size=3)
    specs = tf.nest.map_structure(
        lambda v: tf.TensorSpec([None] * v.ndim, v.dtype), batch(2), expand_composites=True
    )
    one = tf.function(lambda x, y: step(model, x, y), input_signature=specs, autograph=False)
    for rows in (7, 6, 2, 1):
        check_equal(model, 3, rows, run=lambda model, x, y: one(x, y))
    assert one.experimental_get_tracing_count() == 1


@pytest.mark.matrix
@pytest.mark.slow
def test_frozen_weights_and_gradient_checkpointing_go_together_with_chunks():
    model = embedder()
    model.compile(frozen_layers=1)
    model.backbone.enable_gradient_checkpointing()
    check_equal(model, 2, 5)


@pytest.mark.matrix
@pytest.mark.slow
def test_dropout_is_drawn_alike_for_values_and_gradients():
    """For equal draws the loss is a smooth function of the weights, whose slope is the gradient."""
    model = embedder(0.3)
    model.compile(chunk_size=2)
    x, y = batch(5)
    states = [v for v in model.variables if "seed" in v.path]
    start = [state.numpy() for state in states]
    graph = tf.function(lambda: step(model, x, y), autograph=False)

    def run():
        for state, value in zip(states, start, strict=True):
            state.assign(value)
        return graph()

    loss, gradients = run()
    assert float(run()[0]) == float(loss)
    assert any((state.numpy() != value).any() for state, value in zip(states, start, strict=True))
    moved, expected = 1e-3, 0.0
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        if gradient is not None:
            direction = tf.sign(gradient)
            expected += float(tf.reduce_sum(direction * gradient))
            variable.assign_add(moved * direction / 2)
    after = float(run()[0])
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        if gradient is not None:
            variable.assign_sub(moved * tf.sign(gradient))
    slope = (after - float(run()[0])) / moved
    assert slope == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_every_part_has_a_dropout_of_its_own():
    model = embedder(0.5)
    inputs = {"token_ids": np.tile([[2, 7, 9, 3]], (6, 1))}
    model.compile(chunk_size=2)
    vectors = model(inputs, training=True).numpy()
    assert len(np.unique(vectors.round(5), axis=0)) == 6
    assert (model(inputs, training=True).numpy() != vectors).any()
    again = model(inputs, training=False).numpy()
    np.testing.assert_allclose(again, again[:1].repeat(6, 0), atol=1e-6)


@pytest.mark.matrix
@pytest.mark.slow
def test_the_mean_over_dropout_is_that_of_the_plain_batch():
    """Means of losses over 60 draws; the standard error of each is about a hundredth."""
    model, (x, y) = embedder(0.1), batch(6)
    means = []
    for chunk_size in (None, 2):
        model.compile(chunk_size=chunk_size, loss=InfoNCE(5.0))
        loss = tf.function(lambda: model.compute_loss(y=y, y_pred=model(x, training=True)))
        losses = [float(loss()) for _ in range(60)]
        means.append((np.mean(losses), np.std(losses) / 60**0.5))
    (plain, error), (chunked, other_error) = means
    assert abs(plain - chunked) < 5 * (error**2 + other_error**2) ** 0.5
    assert 0.5 < error / other_error < 2


def test_parts_have_at_most_so_many_rows():
    seen = []
    model = keras.Sequential([keras.layers.Dense(2)])
    model.build((None, 3))

    def call(inputs, training):
        seen.append(inputs["x"].shape[0])
        return model(inputs["x"])

    x = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")
    found = recompute_in_chunks(model, call, {"x": x}, 3)
    assert seen == [3, 3, 3]
    np.testing.assert_allclose(found, model(x), rtol=1e-6)
    assert recompute_in_chunks(model, call, {"x": x[:0]}, 3).shape == (0, 2)


# -- memory ---------------------------------------------------------------------------------------

MEMORY = """
import json
import keras, numpy as np
import encoder_zoo as ez
sizes = dict(num_layers=1, num_heads=8, hidden_dim=32, intermediate_dim=32)


def peak(rows, chunk_size):
    model = ez.TextEmbedder(ez.BertBackbone(1000, **sizes))
    model.compile(keras.optimizers.SGD(0.1), chunk_size=chunk_size)
    x = {n: np.random.randint(5, 1000, s) for n, s in
         {"token_ids": (rows, 64), "candidate_token_ids": (rows, 1, 64)}.items()}
    y = np.arange(2 * rows).reshape(rows, 2)
    model.train_on_batch(x, y)
    with open("/proc/self/status") as status:  # `ru_maxrss` counts the process that started this
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


print(json.dumps([peak(64, 32), peak(512, 32), peak(512, None)]))
"""


@pytest.mark.matrix
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_memory_is_that_of_a_part(backend):
    """Peaks in MB of a process that gives back what it frees, each at least the one before."""
    output = run(MEMORY, KERAS_BACKEND=backend, MALLOC_TRIM_THRESHOLD_="65536")
    small, in_chunks, whole = json.loads(output.splitlines()[-1])
    assert in_chunks < small + 100
    assert whole > in_chunks + 300


# -- other backends -------------------------------------------------------------------------------

BACKENDS = """
import json, sys
import keras, numpy as np
sys.path[:0] = [sys.argv[1]]
from test_chunks import SIZES, batch, embedder
SIZES["num_layers"] = 1  # less to compile
x, y = batch(7)
losses = {}
for dropout, chunk_size in ((0.0, None), (0.0, 2), (0.3, 2)):
    model = embedder(dropout)
    model.compile(keras.optimizers.SGD(0.5), chunk_size=chunk_size)
    losses[f"{dropout} {chunk_size}"] = [float(model.train_on_batch(x, y)) for _ in range(6)]
print(json.dumps(losses))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_training_in_chunks_is_training_on_every_backend(backend):
    found = run(BACKENDS, os.path.dirname(__file__), KERAS_BACKEND=backend)
    losses = json.loads(found.splitlines()[-1])
    np.testing.assert_allclose(losses["0.0 2"], losses["0.0 None"], rtol=1e-5)
    assert losses["0.3 2"][-1] < losses["0.3 2"][0]
    assert len(set(losses["0.3 2"])) == 6
