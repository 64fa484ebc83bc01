"""Lists, datasets, prepared inputs and other sources are one thing to `fit` and `evaluate`."""

import types

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.tasks.preprocessing.batching import Plan
from encoder_zoo.tasks.training.data import Source
from encoder_zoo.tasks.training.sources import DatasetData, make_input_data

TEXTS = ["the cat", "a dog ran", "it sat", "the mat", "a cat sat on it"]
LABELS = [0, 1, 1, 0, 1]
PLAN = Plan(batch_size=2, epochs=range(1, 3))


def source_of(task, *data, plan=PLAN):
    return make_input_data(task.batch_maker, *data).make_source(plan, task.batch_maker)


@pytest.fixture(scope="module")
def task():
    model = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
    model.compile(run_eagerly=True)
    return model


def sources(task):
    prepared = {name: values.numpy() for name, values in task.preprocessor(TEXTS).items()}
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    return {
        "texts": (TEXTS, LABELS),
        "dataset": (dataset,),
        "batches": (dataset.batch(2),),
        "prepared": (prepared, np.array(LABELS)),
    }


@pytest.mark.slow(only=r"^(texts)$")
@pytest.mark.parametrize("name", ["texts", "dataset", "batches", "prepared"])
def test_every_source_has_steps(task, name):
    data = source_of(task, *sources(task)[name])
    assert (data.steps, data.steps_per_epoch, data.total_steps) == (3, 3, 6)
    fewer = Plan(2, range(3), steps_per_epoch=2)
    assert source_of(task, *sources(task)[name], plan=fewer).total_steps == 6


@pytest.mark.slow(except_for="^texts")
@pytest.mark.parametrize(
    "name", ["texts", pytest.param("dataset", marks=pytest.mark.slow), "batches"]
)
def test_batches_follow_from_the_seed_and_begin_anywhere(task, name):
    data = source_of(task, *sources(task)[name])
    whole, again, rest = (
        [
            (x["token_ids"].numpy().tolist(), y.numpy().tolist())
            for x, y in data.make_batches(*place)
        ]
        for place in ((7,), (7,), (7, 4))
    )
    assert len(whole) == 6 and whole == again and rest == whole[4:]
    assert sum(y.count(1) for _, y in whole[:3]) == 3


@pytest.mark.slow(except_for="^(prepared|texts)")
@pytest.mark.parametrize("name", ["texts", "dataset", "batches", "prepared"])
def test_weights_are_those_of_a_function(task, name):
    data = source_of(task, *sources(task)[name])

    def weigh(x, y, sample_weight=None, *, weights):
        return x, y, tf.gather(weights, y)

    data = data.change_weights(weigh, np.float32([0, 3]))
    for _, y, weights in data.make_batches(0):
        assert weights.numpy().tolist() == [3 * label for label in y.numpy()]


def test_only_data_in_memory_are_split(task):
    first, held_out = source_of(task, TEXTS, LABELS).split(0.4, Plan(32))
    assert first.steps == 2 and [len(y) for _, y in held_out.read_in_order()] == [2]
    with pytest.raises(ValueError, match="validation_split.*dataset"):
        source_of(task, *sources(task)["dataset"]).split(0.4, Plan(32))


@pytest.mark.slow(except_for=r"^Series$")
@pytest.mark.parametrize("kind", [np.array, tf.constant, pd.Series, list])
def test_weights_of_classes_are_of_the_training_share(task, kind):
    prepared = task.preprocessor(["a"] * 6)
    plan = Plan(batch_size=3, shuffle=False)
    data = source_of(task, prepared, kind([0, 0, 1, 1, 1, 1]), plan=plan)
    first, held_out = data.split(0.5, Plan(32))
    [(x, y)] = held_out.read_in_order()
    assert first.steps == 1 and list(y) == [1, 1, 1]
    assert len(x["token_ids"]) == len(x["padding_mask"]) == 3
    [(_, y, weights)] = task.objective.add_class_weights(first, "balanced", None).make_batches(0)
    assert list(y) == [0, 0, 1]
    np.testing.assert_allclose(weights, [0.75, 0.75, 1.5])  # 3 / (2 classes * 2 or 1)


@pytest.mark.slow
def test_the_validation_share_of_prepared_inputs_is_not_weighed(task):
    backbone = ez.BertBackbone(task.backbone.vocabulary_size, 1, 1, 4, 4)
    model = ez.SequenceClassifier(backbone, task.preprocessor, labels=["down", "up"])
    for weight in model.weights[-2:]:
        weight.assign(np.zeros(weight.shape))  # both classes are as likely
    model.compile(optimizer=keras.optimizers.SGD(1e-9), run_eagerly=True)
    options = {"validation_split": 0.5, "class_weight": {"up": 100}, "shuffle": False}
    for x in (model.preprocessor(["a", "b", "c", "d"]), ["a", "b", "c", "d"]):
        y = np.array([0, 1, 1, 1])
        history = model.fit(x, y, verbose=0, **options).history
        np.testing.assert_allclose(history["loss"], [(1 + 100) / 2 * np.log(2)], rtol=1e-5)
        np.testing.assert_allclose(history["val_loss"], [np.log(2)], rtol=1e-5)
    with pytest.raises(ValueError, match="validation_split is 0.9"):
        model.fit(model.preprocessor(["a", "b"]), y[:2], validation_split=0.9)


@pytest.mark.parametrize("first_has", [True, False])
def test_rows_of_a_stream_that_only_sometimes_have_weights(task, first_has):
    rows = [("the cat", 0, 0.5), ("it sat", 1)][:: 1 if first_has else -1]
    with pytest.raises(ValueError, match="weight"):
        task.fit(iter(rows * 2), batch_size=2, steps_per_epoch=2, verbose=0)


@pytest.mark.parametrize(("row", "message"), [(0, "missing"), (1, "Row 1 has no label")])
def test_rows_of_a_stream_that_only_sometimes_have_labels(task, row, message):
    rows = [("the cat", 0), ("it sat", 1)]
    rows[row] = rows[row][0], None
    with pytest.raises(ValueError, match=message):
        task.fit(iter(rows), batch_size=2, steps_per_epoch=1, verbose=0)


class ClassColumn(list):
    """A column of a Hugging Face dataset."""

    def __init__(self, values, names):
        super().__init__(values)
        self.features = types.SimpleNamespace(names=names)


def test_other_class_names_in_the_validation_data_are_matched_by_index():
    model = ez.SequenceClassifier.from_preset("bert_nano_en_uncased")
    held_out = TEXTS[:2], ClassColumn([1, 0], ["negative", "positive"])
    model.fit(
        TEXTS, ClassColumn(LABELS, ["neg", "pos"]), validation_data=held_out, epochs=0, verbose=0
    )
    assert model.labels == ["neg", "pos"]


def test_validation_data_overrides_the_validation_split(task):
    held_out = TEXTS[:2], LABELS[:2]
    history = task.fit(TEXTS, LABELS, 1, verbose=0, validation_split=0.4, validation_data=held_out)
    assert history.params["steps"] == len(TEXTS)  # no text is held out
    loss = task.evaluate(*held_out, verbose=0)[0]
    np.testing.assert_allclose(history.history["val_loss"], [loss], rtol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_a_source_brings_its_own_data(task):
    class Own:
        def make_training_data(self, plan, maker):
            return Batches(plan, maker)

    class Batches(Source):
        steps = 2

        def _make_epoch_batches(self, seed, start):
            dataset = tf.data.Dataset.from_tensor_slices((TEXTS[:2], LABELS[:2])).batch(1)
            data = DatasetData(dataset).make_source(self.plan, self.maker)
            return data.make_batches(seed, start)

        def read_in_order(self):
            return self._make_epoch_batches(0, 0)

        def describe(self):
            return {}

    data = source_of(task, Own())
    assert isinstance(data, Batches) and data.total_steps == 4
    with pytest.raises(ValueError, match="Received y with a dataset"):
        source_of(task, Own(), LABELS)
    backbone = ez.BertBackbone(task.backbone.vocabulary_size, 1, 1, 4, 4)
    model = ez.SequenceClassifier(backbone, task.preprocessor, num_classes=2)
    model.compile(run_eagerly=True)
    source = Own()
    model._check_labels = lambda x, y: None
    assert len(model.fit(source, epochs=2, verbose=0).history["loss"]) == 2
    assert np.isfinite(model.evaluate(source, verbose=0)).all()


def test_a_column_may_be_called_make_training_data(task):
    table = pd.DataFrame({"make_training_data": TEXTS, "second": TEXTS[::-1]})
    data = source_of(task, table, LABELS)
    assert data.describe()["examples"] == len(TEXTS)
