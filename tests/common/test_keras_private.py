"""The private names of Keras in `common/keras_private.py`: one test each, which fails where a
release of Keras renames one or uses it in another way."""

import ast

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run

from encoder_zoo.common import keras_private
from encoder_zoo.common.base_model import BaseModel
from encoder_zoo.tasks.training.optimizers import check_trainable

X, Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


class Model(BaseModel):
    """A dense layer, and a list of what Keras asks for."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(1)
        self.asked = []

    def call(self, inputs):
        return self.dense(inputs)

    def make_step_function(self, step):
        self.asked.append(step.__name__)


class Metric(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred)


class Score(keras_private.HigherIsBetter, Metric):
    """Counts, where more is better, as Keras is told."""


def better_by(metric):
    """The comparison of an `EarlyStopping` on a metric, after `fit`."""
    model, stopping = Model(), keras.callbacks.EarlyStopping(monitor=metric.name)
    model.compile(loss="mse", metrics=[metric])
    model.fit(X, Y, callbacks=[stopping], verbose=0)
    return stopping.monitor_op


@pytest.mark.slow
def test_higher_is_better():
    with pytest.raises(ValueError, match="automatically determine"):
        better_by(Metric("score"))
    assert better_by(Score("score")) is keras.ops.greater


@pytest.mark.slow
@pytest.mark.parametrize(
    "inner, expected",
    [
        (keras.metrics.BinaryAccuracy(), keras.ops.greater),
        (keras.metrics.MeanSquaredError(), keras.ops.less),
    ],
)
def test_take_direction(inner, expected):
    metric = Metric("outer")
    keras_private.copy_metric_direction(metric, Metric("inner"))
    with pytest.raises(ValueError, match="automatically determine"):
        better_by(metric)
    keras_private.copy_metric_direction(metric, inner)
    assert better_by(metric) is expected


@pytest.mark.slow
def test_keras_asks_for_step_functions():
    model = Model()
    model.compile(loss="mse")
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    assert model.asked == ["train_step", "test_step"]


def test_a_step_function_takes_the_place_of_keras_own():
    class Counting(Model):
        def make_step_function(self, step):
            return lambda iterator: {**step(next(iterator)), "own": 7.0}

    model = Counting()
    model.compile(loss="mse", run_eagerly=True)
    assert model.fit(X, Y, verbose=0).history["own"] == [7.0]


class Replicas:
    """A strategy of two replicas, whose values are functions that return their parts."""

    num_replicas_in_sync = 2

    def experimental_local_results(self, values):
        return values()


def test_building_under_a_strategy_with_parts_of_different_size(monkeypatch):
    built = []

    class Building:
        distribute_strategy = Replicas()

    def build(model, iterator=None, data_batch=None):
        built.append((iterator, data_batch))

    monkeypatch.setattr(keras.Model, "_maybe_symbolic_build", build)
    parts = [lambda part=part: [tf.constant(part[:n]) for n in (3, 1)] for part in (X, Y > 0)]
    keras_private.build_from_one_replica(Building(), iter([(0, 0, iter([parts]))]))
    [(iterator, (x, y))] = built
    assert iterator is None and (x.shape, y.dtype) == ((None, 2), "bool")


def test_an_optimizer_tells_which_weights_it_was_built_for():
    weights = [keras.Variable([1.0]), keras.Variable([2.0])]
    optimizer = keras.optimizers.SGD()
    optimizer.build(weights)
    assert list(map(id, keras_private.list_optimized_weights(optimizer))) == list(map(id, weights))


def test_without_the_weights_of_an_optimizer_nothing_is_checked():
    class Renamed:
        built = True

    assert keras_private.list_optimized_weights(Renamed()) is None
    check_trainable(Renamed(), [keras.Variable([1.0])])


@pytest.mark.parametrize(
    "wrapper, function, keywords",
    [
        (keras.losses.Huber(delta=2.0), keras.losses.huber, {"delta": 2.0}),
        (keras.metrics.MeanSquaredError(), keras.losses.mean_squared_error, {}),
        (keras.losses.Loss(), None, {}),
        (keras.metrics.AUC(), None, {}),
    ],
)
def test_losses_and_metrics_hold_a_function_and_its_arguments(wrapper, function, keywords):
    assert keras_private.get_wrapped_function(wrapper) is function
    assert keras_private.get_wrapped_keywords(wrapper) == keywords


@pytest.mark.slow
def test_the_mean_loss_is_updated_once_after_each_loss():
    class Weighing(Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            [mean] = [metric for metric in self.metrics if metric.name == "loss"]
            keras_private.weigh_next_value(mean, keras.ops.sum(y))
            return keras.ops.mean(y) + 0 * keras.ops.sum(y_pred)  # `fit` requires gradients

    model, y = Weighing(), np.float32([[1], [1], [3], [3]])
    model.compile(loss="mse")
    expected = (1 * 2 + 3 * 6) / 8
    assert model.evaluate(X, y, batch_size=2, verbose=0) == pytest.approx(expected)
    loss = model.fit(X, y, batch_size=2, shuffle=False, verbose=0).history["loss"]
    assert loss == pytest.approx([expected])


LOOKED = """
import keras, numpy as np
from encoder_zoo.common.base_model import BaseModel

class Model(BaseModel):
    looked = 0

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def make_step_function(self, step):
        return None

    @property
    def non_trainable_variables(self):
        self.looked = self.looked + 1
        return super().non_trainable_variables

def looked(function, count):
    model = Model()
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    before, start = model.dense.kernel.numpy(), model.looked
    getattr(model, function)(*[np.ones((4 * count, n)) for n in (2, 1)][:model.takes[function]],
                             batch_size=4, verbose=0)
    return model.looked - start, bool((before != model.dense.kernel.numpy()).any())

Model.takes = {"fit": 2, "evaluate": 2, "predict": 1}
print("RESULT", {name: [looked(name, n) for n in (2, 40)] for name in Model.takes})
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_on_jax_variables_are_looked_for_once_in_all_steps():
    found = ast.literal_eval(run(LOOKED, KERAS_BACKEND="jax").split("RESULT ")[1])
    for name, (few, many) in found.items():
        assert few == many and few[1] == (name == "fit"), found
