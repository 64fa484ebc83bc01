"""Training does what it says: the first step, accumulation, executions, precision and replicas
beside the plain loop of `plain_training`; and a `fit` that would train nothing is an error."""

import keras
import numpy as np
import plain_training
import pytest
import tensorflow as tf
from processes import run

from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.training.optimizers import LinearWarmupDecay
from encoder_zoo.testing import tiny

TEXTS, LABELS = ["a b", "c", "d e", "ab"], [0, 1, 0, 1]


def classifier(**compiled):
    task = plain_training.CASES["SequenceClassifier"].task("float32")
    if compiled:
        task.compile(**compiled)
    return task


def weights_of(task):
    return [np.array(weight) for weight in task.trainable_variables]


def moves(task, train):
    """Whether training changes a weight."""
    before = weights_of(task)
    train()
    return any(not np.array_equal(*pair) for pair in zip(before, weights_of(task), strict=True))


# -- the table ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_accumulated_tags_are_those_of_the_large_batch():
    # Seven sentences in batches of two, three of which make a step: steps of 6, 6 and 2 sentences.
    result = plain_training.compare("TokenClassifier", "accumulation")
    assert result["steps"] == (3, 3)
    assert plain_training.wrong(result) == []


@pytest.mark.slow
def test_a_fault_shows_in_the_table():
    put_in, cell = plain_training.FAULTS["a mean of the batches' means"]
    with put_in():
        assert plain_training.wrong(plain_training.compare(*cell))


WHOLE = "import plain_training as table; table.main()"
PART = """import plain_training as table
ways = ("batches", "accumulation", "mixed_float16, accumulation")
table.main(*ways, names=("SequenceClassifier", "TokenClassifier"))"""


@pytest.mark.matrix
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
@pytest.mark.parametrize(
    "table",
    [  # all tasks and ways take some ten minutes for each backend: `-m peers` and this file
        pytest.param(PART, marks=pytest.mark.slow, id="part"),
        pytest.param(WHOLE, marks=pytest.mark.peers, id="whole"),
    ],
)
def test_tasks_train_as_a_plain_loop(table, backend):
    """On TensorFlow also on two replicas."""
    print(run(table, KERAS_BACKEND=backend))


@pytest.mark.peers
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_every_fault_shows(backend):
    print(run("import plain_training as table; table.faults()", KERAS_BACKEND=backend))


# -- the first step ----------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("warmup", [0.0, 0.01, 0.1, 1.0])
def test_no_step_has_the_rate_zero(total, warmup):
    schedule = LinearWarmupDecay(2.0, total, warmup)
    rates = [float(schedule(step)) for step in range(total)]
    assert min(rates) > 0 and max(rates) == 2.0


@pytest.mark.slow
def test_one_step_trains():
    task = classifier()
    assert moves(task, lambda: task.fit(TEXTS, LABELS, verbose=0))


@pytest.mark.slow
def test_train_on_batch_holds_the_peak_before_and_after_a_fit():
    task, x = classifier(learning_rate=1e-3), tiny.examples(get_family("bert"))
    for fitted in (False, True):
        if fitted:
            task.fit(TEXTS, LABELS, verbose=0)
        for _ in range(3):
            assert moves(task, lambda: task.train_on_batch(x, np.array([0, 1, 0])))
            assert float(task.optimizer.learning_rate) == pytest.approx(1e-3)
    task.optimizer.learning_rate = 5e-4  # somebody's own stays
    task.train_on_batch(x, np.array([0, 1, 0]))
    assert float(task.optimizer.learning_rate) == pytest.approx(5e-4)


# -- numbers of steps --------------------------------------------------------------------------


@pytest.mark.slow(except_for="None-texts")
@pytest.mark.parametrize("data", ["texts", "dataset", "prepared"])
@pytest.mark.parametrize("accumulated", [None, 3])
def test_executions_that_do_not_divide_an_epoch(data, accumulated):
    texts, labels = TEXTS * 2, LABELS * 2
    task = classifier(steps_per_execution=3, gradient_accumulation_steps=accumulated)
    x = (texts, labels, 2)
    if data == "dataset":
        x = (tf.data.Dataset.from_tensor_slices((texts, labels)).batch(2),)
    if data == "prepared":
        prepared, y = task.preprocessor(texts, labels)[:2]
        x = ({name: np.asarray(v) for name, v in prepared.items()}, np.asarray(y), 2)
    task.fit(*x, epochs=3, validation_data=(texts, labels), validation_steps=2, verbose=0)
    assert int(task.optimizer.batches) == 12  # 18 before
    assert int(task.optimizer.iterations) == (4 if accumulated else 12)


# -- nothing to train --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fit_that_would_train_nothing_is_an_error():
    task = classifier()
    task.trainable = False
    with pytest.raises(ValueError, match="SequenceClassifier are frozen"):
        task.fit(TEXTS, LABELS)
    task.trainable = True  # as the error says
    assert moves(task, lambda: task.fit(TEXTS, LABELS, verbose=0))
    with pytest.raises(ValueError, match="sample_weight is 0"):
        task.fit(TEXTS, LABELS, sample_weight=[0.0] * 4)
    with pytest.raises(ValueError, match="class_weight is 0"):
        task.fit(TEXTS, LABELS, class_weight=dict.fromkeys(range(task.num_classes), 0))
    rising = keras.optimizers.schedules.PolynomialDecay(0.0, 10, 0.0)
    for rate in (0.0, rising):
        task.compile(keras.optimizers.SGD(rate))
        with pytest.raises(ValueError, match="learning rate is 0.*1 steps"):
            task.fit(TEXTS, LABELS)
    task.compile(keras.optimizers.Adam(1e-3, gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="gradient_accumulation_steps is 2.* 1"):
        task.fit(TEXTS, LABELS)
    task.compile("auto")
    assert moves(task, lambda: task.fit(TEXTS, LABELS, verbose=0))


NO_EPOCHS = """
import keras
import plain_training

class Calls(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_begin(self, logs=None):
        self.seen.append("begin")

    def on_train_end(self, logs=None):
        self.seen.append("end")

task = plain_training.CASES["SequenceClassifier"].task("float32")
before = [keras.ops.convert_to_numpy(w).copy() for w in task.weights]
for options in ({"epochs": 0}, {"epochs": 2, "initial_epoch": 2}):
    calls = Calls()
    history = task.fit(["a b", "c"] * 2, [0, 1] * 2, verbose=0, callbacks=[calls], **options)
    assert history.epoch == [] and history.history == {}, history.history
    assert calls.seen == ["begin", "end"]
assert all((a == keras.ops.convert_to_numpy(w)).all() for a, w in zip(before, task.weights))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_no_epochs_are_no_training(backend):
    run(NO_EPOCHS, KERAS_BACKEND=backend)


@pytest.mark.slow
def test_gradients_that_are_all_zero_are_logged(caplog):
    dataset = tf.data.Dataset.from_tensors((TEXTS, LABELS, [0.0] * 4))
    classifier().fit(dataset, verbose=0)
    assert "gradients were 0" in caplog.text


@pytest.mark.matrix
@pytest.mark.slow
def test_a_fit_in_float16_that_makes_no_step_is_logged(caplog):
    task = plain_training.CASES["SequenceClassifier"].task("mixed_float16")
    task.compile()
    task.optimizer.initial_scale = 1e38  # every gradient overflows
    before = weights_of(task)
    task.fit(TEXTS, LABELS, verbose=0)
    assert all(map(np.array_equal, before, weights_of(task)))
    assert "overflowed in float16" in caplog.text


@pytest.mark.slow
def test_batches_left_over_make_the_last_step():
    task = classifier(gradient_accumulation_steps=2)
    task.fit(TEXTS + TEXTS[:1], LABELS + LABELS[:1], 2, verbose=0)
    assert int(task.optimizer.iterations) == 2


@pytest.mark.slow
def test_accumulating_one_batch_is_none():
    task = classifier(gradient_accumulation_steps=1)
    assert moves(task, lambda: task.fit(TEXTS, LABELS, verbose=0))


@pytest.mark.matrix
@pytest.mark.slow
def test_every_epoch_of_short_executions_has_its_own_batches():
    losses = []
    for steps in (1, 3):  # also of the third epoch, in which Keras would begin again
        task = classifier(steps_per_execution=steps, learning_rate=1e-3)
        keras.utils.set_random_seed(3)
        history = task.fit(TEXTS * 2, [0, 0, 1, 1, 0, 1, 1, 0], 2, epochs=4, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-4)
