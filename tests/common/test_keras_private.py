"""The private names of Keras in `common/keras_private.py`: one test each, which fails where a
release of Keras renames one or uses it in another way."""

import ast

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run
from tensorflow.python.eager import context

from encoder_zoo.common import keras_private
from encoder_zoo.common.keras_private import HookedAdamW, opens_training
from encoder_zoo.encoders import get_family

X, Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


@opens_training
class Model(keras.Model):
    """A dense layer, and a list of what Keras asks for."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(1)
        self.asked = []

    def call(self, inputs):
        return self.dense(inputs)

    def step_function(self, step):
        self.asked.append(step.__name__)

    def evaluate(self, *args, **kwargs):
        self.asked.append(kwargs.get(keras_private.VALIDATION_OF_FIT, False))
        return super().evaluate(*args, **kwargs)


def nested():
    block = keras.Sequential([keras.layers.Dense(1, name="a"), keras.layers.Dropout(0.1, name="b")])
    return keras.Sequential([block, keras.layers.Dense(1, name="c")], name="outer")


def test_wrapped_function():
    found = keras_private.wrapped_function(keras.losses.Huber(delta=2.0))
    assert found == (keras.losses.huber, {"delta": 2.0})
    found = keras_private.wrapped_function(keras.metrics.KLDivergence())
    assert found == (keras.losses.kl_divergence, {})
    assert keras_private.wrapped_function(keras.metrics.AUC()) is None


def test_weigh_next_loss():
    model = Model()
    model.compile()
    for loss, size in ((1.0, 3.0), (2.0, 1.0)):
        keras_private.weigh_next_loss(model, size)
        model._loss_tracker.update_state(loss, sample_weight=7)
    assert float(model._loss_tracker.result()) == 1.25


def test_separate_collectives():
    strategies = [tf.distribute.MirroredStrategy(["CPU:0"]) for _ in range(2)]
    for strategy in strategies:
        keras_private.separate_collectives(strategy)
    first, second = (s.extended._collective_ops._launchers[0]._group_key for s in strategies)
    assert first != second


def test_strategy_of():
    assert keras_private.strategy_of(Model()) is None
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        assert keras_private.strategy_of(Model()) is strategy


@pytest.mark.slow
def test_adapter_that_calls():
    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return X, Y

        def on_epoch_begin(self):
            self.adapter = keras_private.adapter_that_calls()

    class EndsEarly(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = False
            data.adapter.on_epoch_end()

    data, model = Data(), keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(data, epochs=3, callbacks=[EndsEarly()], verbose=0)
    assert history.epoch == [0, 1, 2]


def test_layers_in():
    names = [layer.name for layer in keras_private.layers_in(nested())]
    assert names[0] == "outer" and {"a", "b", "c"} < set(names)


def test_innermost_layers():
    names = sorted(layer.name for layer in keras_private.innermost_layers(nested()))
    assert names == ["a", "b", "c"]


def test_own_trainable_variables():
    model = Model()
    model(X)
    assert keras_private.own_trainable_variables(model) == []
    variables = keras_private.own_trainable_variables(model.dense)
    assert [v.name for v in variables] == ["kernel", "bias"]


def test_frozen_kernel():
    dense = keras.layers.Dense(2)
    dense.build((None, 3))
    before = dense.kernel
    dense.enable_lora(1)
    assert keras_private.frozen_kernel(dense) is before
    assert dense.kernel is not before


def test_compiled_parts():
    model = Model()
    model.compile(loss="mse", metrics=["mae"])
    parts = keras_private.compiled_parts(model)
    assert [part.built for part in parts] == [False, False]
    model.fit(X, Y, verbose=0)
    assert [part.built for part in parts] == [True, True]


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
    keras_private.take_direction(metric, Metric("inner"))
    with pytest.raises(ValueError, match="automatically determine"):
        better_by(metric)
    keras_private.take_direction(metric, inner)
    assert better_by(metric) is expected


def test_keras_asks_for_step_functions():
    model = Model()
    model.compile(loss="mse")
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    assert model.asked == ["train_step", False, "test_step"]


def test_a_step_function_takes_the_place_of_keras_own():
    class Counting(Model):
        def step_function(self, step):
            return lambda iterator: {**step(next(iterator)), "own": 7.0}

    model = Counting()
    model.compile(loss="mse", run_eagerly=True)
    assert model.fit(X, Y, verbose=0).history["own"] == [7.0]


@pytest.mark.slow
def test_validation_of_fit():
    model = Model()
    model.compile(loss="mse")
    model.fit(X, Y, validation_data=(X, Y), verbose=0)
    assert model.asked == ["train_step", True, "test_step"]


def test_building_under_a_strategy_with_parts_of_different_size():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = Model()
        model.compile(loss="mse")
    built = []
    model._symbolic_build = lambda data_batch: built.append(data_batch)
    strategy = keras_private.strategy_of(model)
    data = tf.data.Dataset.from_tensor_slices((X, Y > 0)).batch(3)
    distributed = strategy.distribute_datasets_from_function(lambda context: data)

    class Iterator:
        _distributed_dataset = distributed

    model._maybe_symbolic_build(iterator=Iterator())
    x, y = keras.tree.flatten(built[0])
    assert (x.shape, y.dtype) == ((None, 2), "bool")


def test_keras_gives_its_iterator_the_distributed_dataset():
    found = []

    class Watched(Model):
        def _maybe_symbolic_build(self, iterator=None, data_batch=None):
            found.append(iterator)
            super()._maybe_symbolic_build(iterator, data_batch)

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = Watched()
        model.compile(loss="mse")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).repeat()
    parts = strategy.distribute_datasets_from_function(lambda context: data)
    model.fit(parts, steps_per_epoch=2, shuffle=False, verbose=0)
    assert found and found[0]._distributed_dataset is not None


class TestHookedAdamW:
    def optimizer(self, **arguments):
        optimizer = HookedAdamW(0.1, weight_decay=0.5, **arguments)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        kernel, bias = (keras.Variable([1.0, 2.0], name=name) for name in ("kernel", "bias"))
        optimizer.build([kernel, bias])
        return optimizer, kernel, bias

    def test_schedule(self):
        schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
        assert HookedAdamW(schedule).schedule is schedule

    def test_track(self):
        optimizer, variable = HookedAdamW(0.1), keras.Variable([1.0])
        optimizer.track(variable)
        assert any(v is variable for v in optimizer.variables)

    def test_decays(self):
        optimizer, kernel, bias = self.optimizer()
        assert optimizer.decays(kernel) and not optimizer.decays(bias)

    def test_index_of_and_moments_of(self):
        optimizer, kernel, bias = self.optimizer(beta_1=0.9, beta_2=0.99)
        assert [optimizer.index_of(v) for v in (kernel, bias)] == [0, 1]
        optimizer.apply([np.float32([1, 2]), np.float32([0, 0])])
        first, second = (np.asarray(m) for m in optimizer.moments_of(kernel))
        np.testing.assert_allclose(first, [0.1, 0.2], rtol=1e-5)
        np.testing.assert_allclose(second, [0.01, 0.04], rtol=1e-4)
        assert not np.any(optimizer.moments_of(bias))

    def test_sums_and_batches(self):
        optimizer, kernel, _ = self.optimizer(gradient_accumulation_steps=3)
        for count in (1, 2):
            optimizer.apply([keras.ops.array([1.0, 2.0])] * 2)
            assert (int(optimizer.batches), int(optimizer.iterations)) == (count, 0)
        np.testing.assert_allclose(optimizer.sum_of(kernel), [2.0, 4.0])
        optimizer.add_gradients([keras.ops.array([1.0, 1.0])], [optimizer.sum_of(kernel)])
        np.testing.assert_allclose(optimizer.sum_of(kernel), [3.0, 5.0])

    def test_merge_call(self):
        optimizer, kernel, _ = self.optimizer()
        seen = []
        optimizer.merge_call(lambda strategy, *args: seen.append((strategy, args)), kernel, 3)
        [(strategy, args)] = seen
        assert hasattr(strategy, "extended") and args == (kernel, 3)

    @pytest.mark.parametrize("name", ["update", "clip_and_update"])
    def test_keras_calls_the_hooks(self, name, monkeypatch):
        calls, own = [], getattr(HookedAdamW, name)

        def counted(self, gradients, variables, *rest):
            calls.append((len(gradients), len(variables)))
            own(self, gradients, variables, *rest)

        monkeypatch.setattr(HookedAdamW, name, counted)
        optimizer, kernel, _ = self.optimizer()
        optimizer.apply([keras.ops.array([1.0, 2.0])] * 2)
        assert calls == [(2, 2)]
        assert not np.allclose(kernel, [1.0, 2.0])


def test_clip_summed_gradients():
    weight, order = keras.Variable([0.0, 0.0]), []

    class Watched(keras.optimizers.SGD):
        def _clip_gradients(self, grads):
            order.append("clip")
            return super()._clip_gradients(grads)

        def _all_reduce_sum_gradients(self, pairs):
            order.append("sum")
            return super()._all_reduce_sum_gradients(pairs)

    optimizer = Watched(1.0, clipnorm=1.0)
    optimizer.build([weight])
    for _ in range(2):  # the second call changes nothing
        keras_private.clip_summed_gradients(optimizer)
    optimizer.apply([tf.constant([3.0, 4.0])])
    np.testing.assert_allclose(weight, [-0.6, -0.8], rtol=1e-6)
    assert order == ["sum", "clip"]


LOOKED = """
import keras, numpy as np
from encoder_zoo.common.keras_private import opens_training

@opens_training
class Model(keras.Model):
    looked = 0

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def step_function(self, step):
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


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="SavedModels are TensorFlow's.")
def test_a_model_that_is_saved_for_tensorflow_keeps_its_functions(tiny, monkeypatch):
    """Other threads call them."""
    task = tiny.task(get_family("bert"), "SequenceClassifier")
    task.predict(["a b"], verbose=0)
    base = next(c for c in type(task).__mro__ if c.__name__ == "TFLayer").__base__
    children, there = base._trackable_children, []

    def watched(self, *args, **kwargs):
        there.append(self is not task or self.predict_function is not None)
        return children(self, *args, **kwargs)

    monkeypatch.setattr(base, "_trackable_children", watched)
    found = task._trackable_children("savedmodel")
    assert there and all(there)
    assert not any(name.endswith("_function") for name in found)


@pytest.fixture
def rewriting():
    """Graphs are rewritten, as by default; in the quick run of the tests they are not."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options(before)


@pytest.mark.usefixtures("rewriting")
def test_graphs_as_traced():
    """TensorFlow does not rewrite graphs that are called inside, and does again afterwards."""

    def rewrites():
        config = tf.compat.v1.ConfigProto.FromString(
            context.context().function_call_options.config_proto_serialized
        )
        return not config.graph_options.rewrite_options.disable_meta_optimizer

    double = tf.function(lambda x: x + x)
    with keras_private.graphs_as_traced(True):
        assert not rewrites() and float(double(tf.constant(2.0))) == 4
    assert rewrites()
    with keras_private.graphs_as_traced(False):
        assert rewrites()
