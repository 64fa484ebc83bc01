"""MaxSim losses: by hand, shapes, and two replicas of different lengths beside one device."""

import json
import pathlib

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.tasks.losses import max_sim as max_sim_module
from encoder_zoo.tasks.losses.max_sim import compute_max_sim, compute_row_max_sim


def tokens(shape, seed=0):
    """Vectors of texts with different numbers of tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, shape[-2] + 1, shape[:-2])
    present = np.arange(shape[-2]) < lengths[..., None]
    return (rng.normal(size=shape) * present[..., None]).astype("float32")


def by_hand(query, document):
    query, document = (x[x.any(1)] for x in (query, document))
    return (query @ document.T).max(1).sum()


def test_scores_leave_out_vectors_of_zeros():
    queries, documents = tokens((3, 4, 5)), tokens((4, 6, 5), seed=1)
    expected = [[by_hand(q, d) for d in documents] for q in queries]
    np.testing.assert_allclose(compute_max_sim(queries, documents), expected, rtol=1e-5)
    rows = tokens((3, 2, 6, 5), seed=2)
    expected = [[by_hand(q, d) for d in row] for q, row in zip(queries, rows, strict=True)]
    np.testing.assert_allclose(compute_row_max_sim(queries, rows), expected, rtol=1e-5)


def by_definition(queries, documents):
    """All products at once, as TensorFlow derives their gradients."""
    products = tf.einsum("bqd,mld->bqml", queries, documents)
    products += tf.where(tf.reduce_any(documents != 0, -1), 0.0, -1e9)
    present = tf.cast(tf.reduce_any(queries != 0, -1), "float32")
    return tf.einsum("bqm,bq->bm", tf.reduce_max(products, -1), present)


@pytest.mark.slow(except_for="^False")
@pytest.mark.parametrize("products", [1, 700, 2**24])  # 1, 3 and all queries in a part
@pytest.mark.parametrize("is_traced", [False, True])
def test_parts_have_the_scores_and_gradients_of_the_whole(products, is_traced, monkeypatch):
    monkeypatch.setattr(max_sim_module, "PRODUCTS", products)
    texts = [tf.constant(tokens((7, 4, 5))), tf.constant(tokens((6, 9, 5), seed=1))]
    weights = tf.constant(np.random.default_rng(2).normal(size=(7, 6)), "float32")

    def run(score):
        with tf.GradientTape() as tape:
            tape.watch(texts)
            scores = score(*texts)
            total = tf.reduce_sum(weights * scores)
        return scores, *tape.gradient(total, texts)

    unknown = [tf.TensorSpec((None, None, 5))] * 2
    score = tf.function(compute_max_sim, input_signature=unknown) if is_traced else compute_max_sim
    for found, expected in zip(run(score), run(by_definition), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert score(texts[0][:0], texts[1]).shape == (0, 6)


MEMORY = """
import json
import keras, numpy as np
import encoder_zoo as ez


def peak(rows):
    model = keras.Sequential([keras.Input((2, 64, 16)), keras.layers.Dense(16)])
    model.compile("sgd", loss=ez.losses.MaxSimInfoNCE(query_length=32))
    x = np.random.default_rng(0).normal(size=(rows, 2, 64, 16))
    model.train_on_batch(x, np.arange(2 * rows).reshape(rows, 2))
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


print(json.dumps([peak(16), peak(512)]))
"""


@pytest.mark.matrix
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_memory_is_that_of_a_part(backend):
    """Peaks in MB of a process that trains on a small batch, then on a large one."""
    output = processes.run(MEMORY, KERAS_BACKEND=backend, MALLOC_TRIM_THRESHOLD_="65536")
    small, large = json.loads(output.splitlines()[-1])
    assert large < small + 500  # of all products: 2,100


def test_a_shorter_query_length_changes_nothing_where_no_query_is_longer():
    y_pred, y_true = tokens((3, 3, 6, 4)), np.arange(9).reshape(3, 3)
    y_pred[:, 0, 2:] = 0
    for make, y in (
        (ez.losses.MaxSimInfoNCE, y_true),
        (ez.losses.MaxSimDistillation, y_true[:, 1:]),
    ):
        whole, short = make()(y, y_pred), make(query_length=2)(y, y_pred)
        np.testing.assert_allclose(short, whole, rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "y_true", "y_pred", "message"),
    [
        (ez.losses.MaxSimInfoNCE(), (2, 2), (2, 2, 3), r"MaxSimInfoNCE: y_pred.* \(2, 2, 3\)"),
        (ez.losses.MaxSimInfoNCE(), (2, 3), (2, 2, 4, 3), r"y_true.* \(2, 3\)\..* \(B, 2\)"),
        (
            ez.losses.MaxSimDistillation(),
            (2, 1),
            (2, 2, 4, 3),
            r"y_pred.*2, 4, 3\)\..* 3 texts",
        ),
        (ez.losses.MaxSimDistillation(), (2, 3), (2, 3, 4, 3), r"y_true.* \(2, 3\)\..* \(B, 2\)"),
    ],
)
def test_other_shapes_are_refused(loss, y_true, y_pred, message):
    with pytest.raises(ValueError, match=message):
        loss(tf.zeros(y_true), tf.zeros(y_pred))


NUMBERS = np.arange(12).reshape(4, 3)
LOSSES = [
    (ez.losses.MaxSimInfoNCE(scale=0.5, query_length=5), NUMBERS),
    (ez.losses.MaxSimDistillation(temperature=2.0, min_max=False), NUMBERS[:, 1:]),
    (ez.losses.MaxSimDistillation(), NUMBERS[:, 1:]),
]


@pytest.mark.parametrize(("loss", "y_true"), LOSSES)
def test_configuration_and_finite_values(loss, y_true):
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(loss)))
    again = keras.saving.deserialize_keras_object(saved)
    for y_pred in (np.zeros((4, 3, 6, 5)), np.ones((4, 3, 6, 5)), 100 * tokens((4, 3, 6, 5))):
        x = tf.constant(y_pred, "float32")
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = loss.call(tf.constant(y_true, "float32"), x)
        assert values.shape == (4,)
        assert np.isfinite(values).all() and np.isfinite(tape.gradient(values, x)).all()
        np.testing.assert_array_equal(again.call(tf.constant(y_true, "float32"), x), values)


@pytest.mark.slow(only="^loss0")
@pytest.mark.parametrize(("loss", "y_true"), LOSSES)
def test_one_graph_for_batches_of_any_size(loss, y_true):
    y_true = y_true.astype("float32")
    shapes = [tf.TensorSpec((None, *y_true.shape[1:])), tf.TensorSpec((None, None, None, 5))]
    graph = tf.function(lambda y_true, y_pred: loss(y_true, y_pred), input_signature=shapes)
    for rows, length in ((4, 6), (2, 3)):
        y_pred = tokens((rows, 3, length, 5))
        expected = loss(y_true[:rows], y_pred)
        np.testing.assert_allclose(graph(y_true[:rows], y_pred), expected, rtol=1e-5, atol=1e-6)


REPLICAS = """
import json, sys
import numpy as np
import tensorflow as tf

[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

import contextlib
import keras
import encoder_zoo as ez
from encoder_zoo.tasks.losses.batch_loss import BatchLoss

sys.path[:0] = [sys.argv[1]]
from test_max_sim import tokens

x = tokens((5, 3, 6, 4))
x[:3, :, 4:] = 0  # the first rows are shorter
x = tf.constant(x)
start = tf.constant(np.random.default_rng(0).normal(size=(4, 4)), "float32")
numbers = tf.constant([[0, 1, 2], [3, 1, 4], [0, 5, 6], [7, 8, 9], [3, 10, 2]], "float32")
loss = ez.losses.MaxSimInfoNCE()
with strategy.scope():
    weights = tf.Variable(start)


def one(rows, length):
    with tf.GradientTape() as tape:
        y_pred = tf.einsum("btld,de->btle", x[rows, :, :length], weights)
        value, _ = BatchLoss(loss)(numbers[rows], y_pred)
    return value, tape.gradient(value, weights)


def part(first):
    context = tf.distribute.get_replica_context()
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    rows = tf.where(is_first, [0, first], [first, 5])
    return one(slice(rows[0], rows[1]), tf.where(is_first, 4, 6))


@tf.function
def parts(first):
    return [strategy.reduce("SUM", value, axis=None) for value in strategy.run(part, (first,))]


def train(scope, chunk_size):
    '''Losses of 9 rows in batches of 4: of the last, one replica has none.'''
    keras.utils.set_random_seed(0)
    words = "the cat sat on a mat and dog ran away".split()
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 1 + i % 7)) for i in range(18)]
    with scope:
        sizes = dict(num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        backbone = ez.BertBackbone(30, **sizes, dropout=0.0, attention_dropout=0.0)
        tokenizer = ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        prepares = ez.LateInteractionPreprocessor(tokenizer, query_length=6)
        model = ez.LateInteraction(backbone, prepares, dim=4)
        model.compile(learning_rate=1e-3, chunk_size=chunk_size)
    history = model.fit((texts[:9], texts[9:]), epochs=2, batch_size=4, verbose=0)
    return history.history["loss"]


runs = [one(slice(0, 5), 6), *(parts(tf.constant(first)) for first in (3, 2))]
results = {"losses": [[np.array(value).tolist() for value in run] for run in runs]}
results["one"] = [train(contextlib.nullcontext(), size) for size in (None, 2)]
results["two"] = [train(strategy.scope(), size) for size in (None, 2)]
print(json.dumps(results))
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_two_replicas_of_different_lengths_learn_as_one_device():
    output = processes.run(REPLICAS, pathlib.Path(__file__).parent, KERAS_BACKEND="tensorflow")
    found = json.loads(output.splitlines()[-1])
    (right, right_gradient), *parts = found["losses"]
    assert np.abs(right_gradient).max() > 1e-3
    for loss, gradient in parts:
        np.testing.assert_allclose(loss, right, rtol=1e-5)
        np.testing.assert_allclose(gradient, right_gradient, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["two"], found["one"], rtol=1e-4)
    np.testing.assert_allclose(found["one"][0], found["one"][1], rtol=1e-4)  # in chunks
