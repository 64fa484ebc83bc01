"""Negatives of all replicas: two of them have the loss and the gradients of one device."""

import json
import os

import numpy as np
import pytest
from processes import PATIENCE, cluster_of_two, run, start_process

# All losses, and an embedder that is trained. Called with a mode and a file for the results.
SCRIPT = """
import contextlib, json, sys
import numpy as np
import tensorflow as tf

mode, results_file = sys.argv[1:]
if mode == "mirrored":
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
else:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras
import encoder_zoo as ez
from encoder_zoo.tasks.losses.batch_loss import BatchLoss

rng = np.random.default_rng(0)
x = tf.constant(rng.normal(size=(5, 3, 4)), "float32")
start = tf.constant(rng.normal(size=(4, 4)), "float32")
numbers = tf.constant([[0, 1, 2], [3, 1, 4], [0, 5, 6], [7, 8, 9], [3, 10, 2]], "float32")
scores = tf.constant(rng.uniform(size=(5, 2)), "float32")
guide = tf.constant(rng.normal(size=(5, 3, 6)), "float32")
LOSSES = [
    (ez.losses.InfoNCE(), numbers),
    (ez.losses.InfoNCE(2.0, "dot", symmetric=True, margin=0.3), numbers),
    (ez.losses.SPLADE(query_weight=0.3, document_weight=0.2), numbers),
    (ez.losses.GuidedInfoNCE(5.0), guide),
    (ez.losses.CoSENT(), scores),
    (ez.losses.AnglE(), scores),
    (ez.losses.OnlineContrastive(2.0), tf.round(scores)),
    (ez.losses.Matryoshka(ez.losses.InfoNCE(), dims=[4, 2]), numbers),
    (ez.losses.Triplet(), numbers),
    (ez.losses.InfoNCE(reduction="sum"), numbers),
]


def losses_of_parts(loss, y_true):
    '''Loss and gradient of the whole batch, and of two parts of it, added up.'''
    with strategy.scope():
        weights = tf.Variable(start)

    def one(rows):
        with tf.GradientTape() as tape:
            y_pred = tf.matmul(x[rows], weights)
            value, _ = BatchLoss(loss)(y_true[rows], y_pred)
        return value, tape.gradient(value, weights)

    def part(first):
        context = tf.distribute.get_replica_context()
        rows = tf.where(context.replica_id_in_sync_group == 0, [0, first], [first, 5])
        return one(slice(rows[0], rows[1]))

    @tf.function
    def parts(first):
        values = strategy.run(part, (first,))
        return [strategy.reduce("SUM", value, axis=None) for value in values]

    runs = [one(slice(0, 5)), *(parts(tf.constant(first)) for first in (3, 1, 5))]
    return [[np.array(value).tolist() for value in run] for run in runs]


def train(scope, loss, chunk_size):
    '''Losses of an embedder on 9 rows in batches of 4: of the last, one replica has none.'''
    keras.utils.set_random_seed(0)
    words = "the cat sat on a mat and dog ran away".split()
    texts = [" ".join(np.random.default_rng(i).choice(words, 5)) for i in range(18)]
    with scope:
        sizes = dict(num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        backbone = ez.BertBackbone(30, **sizes, dropout=0.0, attention_dropout=0.0)
        tokenizer = ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        model = ez.TextEmbedder(backbone, ez.TextEmbedderPreprocessor(tokenizer))
        model.compile(loss=loss, learning_rate=1e-3, chunk_size=chunk_size)
    y = np.linspace(0, 1, 9) if isinstance(loss, ez.losses.CoSENT) else None
    history = model.fit((texts[:9], texts[9:]), y, epochs=2, batch_size=4, verbose=0)
    return history.history["loss"]


results = {"losses": [losses_of_parts(*case) for case in LOSSES]}
cases = [(ez.losses.InfoNCE(), None), (ez.losses.InfoNCE(), 1), (ez.losses.CoSENT(), None)]
for name, scope in (("two", strategy.scope), ("one", contextlib.nullcontext)):
    if name == "two" or mode == "mirrored":
        results[name] = [train(scope(), *case) for case in cases]
with open(results_file, "w") as file:
    json.dump(results, file)
"""


def start(mode, path, **environment):
    log = path.with_suffix(".json.log")
    environment = {"KERAS_BACKEND": "tensorflow", **environment}
    return start_process(SCRIPT, log, mode, path, **environment)


def results_of(processes, paths):
    try:
        codes = [process.wait(PATIENCE) for process in processes]
        log = paths[0].with_suffix(".json.log").read_text()[-3000:]
        assert codes == [0] * len(codes), log
    finally:
        for process in processes:
            process.kill()
    return [json.loads(path.read_text()) for path in paths]


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory):
    """Results of two replicas, and of one device."""
    path = tmp_path_factory.mktemp("replicas") / "mirrored.json"
    return results_of([start("mirrored", path)], [path])[0]


def check_losses(found):
    for (right, right_gradient), *parts in found["losses"]:
        assert np.abs(right_gradient).max() > 1e-3
        for loss, gradient in parts:
            np.testing.assert_allclose(loss, right, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(gradient, right_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.matrix
@pytest.mark.slow
def test_two_replicas_have_the_losses_and_gradients_of_one_device(mirrored):
    check_losses(mirrored)


@pytest.mark.matrix
@pytest.mark.slow
def test_two_replicas_and_two_workers_train_as_one_device(mirrored, tmp_path):
    np.testing.assert_allclose(mirrored["two"], mirrored["one"], rtol=1e-4)
    np.testing.assert_allclose(mirrored["one"][0], mirrored["one"][1], rtol=1e-4)  # in chunks
    paths = [tmp_path / f"worker{i}.json" for i in range(2)]
    configs = cluster_of_two()
    workers = [start("workers", p, TF_CONFIG=c) for p, c in zip(paths, configs, strict=True)]
    for worker in results_of(workers, paths):
        check_losses(worker)
        np.testing.assert_allclose(worker["two"], mirrored["one"], rtol=1e-4)


# -- JAX ------------------------------------------------------------------------------------------

JAX_SCRIPT = """
import jax, keras, numpy as np
import encoder_zoo as ez

rng = np.random.default_rng(0)
x = {n: rng.integers(5, 30, s) for n, s in
     {"token_ids": (8, 5), "candidate_token_ids": (8, 2, 5)}.items()}
numbers = np.arange(24).reshape(8, 3)


def train(chunk_size):
    keras.utils.set_random_seed(0)
    sizes = dict(num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    model = ez.TextEmbedder(ez.BertBackbone(30, **sizes, dropout=0.0, attention_dropout=0.0))
    model.compile(keras.optimizers.SGD(0.1), chunk_size=chunk_size)
    losses = [float(model.train_on_batch(x, numbers)) for _ in range(4)]
    return losses, model


one = [train(size)[0] for size in (None, 4)]
devices = jax.devices()
assert len(devices) == 2
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
for size, right in zip((None, 4), one):
    losses, model = train(size)
    np.testing.assert_allclose(losses, right, rtol=1e-5)
    assert all(len(v.value.sharding.device_set) == 2 for v in model.trainable_variables)
np.testing.assert_allclose(*one, rtol=1e-5)
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_jax_data_parallel_equals_one_device():
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    run(JAX_SCRIPT, KERAS_BACKEND="jax", XLA_FLAGS=flags)
