"""Sources of data that are empty, endless, broken or of several forms, by the methods that read
them: an error that says so, or an answer at once."""

import itertools
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.preprocessing.batching import Plan
from encoder_zoo.tasks.preprocessing.given_labels import log_suspicious_labels
from encoder_zoo.tasks.training import distribution
from encoder_zoo.tasks.training.sources import DatasetData, StreamData, TextData, make_input_data
from encoder_zoo.tasks.training.streams import Stream
from encoder_zoo.testing import tiny

pytestmark = pytest.mark.eager
TEXTS, LABELS = ["the cat sat", "a dog", "the film", "bad"], [0, 1, 0, 1]
ROW = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32)


def rows(count=None):
    numbers = itertools.count() if count is None else range(count)
    return ((TEXTS[i % 4], i % 2) for i in numbers)


def dataset(count=None):
    return tf.data.Dataset.from_generator(lambda: rows(count), output_signature=ROW)


class Elements(keras.utils.PyDataset):
    """A stream of these elements."""

    def __init__(self, *elements):
        super().__init__()
        self.elements = elements

    def __len__(self):
        return len(self.elements)

    def __getitem__(self, number):
        return self.elements[number]


class Endless(Elements):
    num_batches = None

    def __getitem__(self, number):
        return TEXTS, LABELS


BATCH = TEXTS, LABELS
EMPTY = {
    "tensors": lambda: tf.data.Dataset.from_tensor_slices((np.array([], "S"), np.array([], int))),
    "generator": lambda: dataset(0).batch(2),
    "drop_remainder": lambda: dataset(3).batch(8, drop_remainder=True),
    "take(0)": lambda: dataset().take(0),
    "filter": lambda: dataset(4).filter(lambda *_: False),
    "repeat": lambda: dataset(0).repeat(),
    "PyDataset": Elements,
    "no rows": lambda: Elements(([], [])),
}
BROKEN = {
    "None": (lambda: Elements(None), "Element 0"),
    "None later": (lambda: Elements(BATCH, None), "Element 1"),
    "no inputs": (lambda: Elements((None, LABELS)), "Element 0"),
    "other form": (lambda: Elements(BATCH, ({"a": TEXTS}, LABELS)), "Element 1"),
    "a number later": (lambda: Elements(BATCH, (5, 1)), "Element 1"),
    "a row later": (lambda: Elements(BATCH, ("a text", 1)), "Element 1"),
    "pairs later": (lambda: Elements(BATCH, ((TEXTS, TEXTS), LABELS)), "Element 1"),
    "four parts": (lambda: Elements((1, 2, 3, 4)), "format"),
}
METHODS = {
    "fit": lambda task, x, steps: task.fit(x, steps_per_epoch=steps, verbose=0),
    "evaluate": lambda task, x, steps: task.evaluate(x, steps=steps, verbose=0),
    "predict": lambda task, x, steps: task.predict(x, steps=steps, verbose=0),
    "validation_data": lambda task, x, steps: task.fit(
        TEXTS, LABELS, validation_data=x, validation_steps=steps, verbose=0
    ),
}
methods = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def task():
    task = tiny.task(get_family("bert"), ez.SequenceClassifier)
    task.compile(metrics=["auc", "accuracy"])
    return task


@methods
@pytest.mark.parametrize("source", EMPTY)
def test_empty_sources_are_refused(task, source, method):
    steps = 2 if source == "repeat" else None
    with pytest.raises(ValueError, match="empty|at least one"):
        METHODS[method](task, EMPTY[source](), steps)


@pytest.mark.slow(except_for=r"^TextEmbedder$")
@pytest.mark.parametrize("cls", [ez.TextEmbedder, ez.TokenClassifier, ez.MaskedLM, ez.SpanQA])
def test_an_empty_dataset_is_refused_by_every_task(cls):
    task = tiny.task(get_family("bert"), cls)
    for method in (task.fit, task.predict):
        with pytest.raises(ValueError):
            method(tf.data.Dataset.from_tensor_slices(np.array([], "S")), verbose=0)


@pytest.mark.slow(except_for=r"^no inputs-fit$")
@methods
@pytest.mark.parametrize("source", BROKEN)
def test_elements_of_a_wrong_form_are_named(task, source, method):
    make, words = BROKEN[source]
    with pytest.raises(ValueError, match=words):
        METHODS[method](task, make(), None)


def prepare():
    return tiny.task(get_family("bert"), ez.SequenceClassifier).preprocessor(TEXTS)


# Labels that `fit` refuses, next to inputs that can be answered: Keras ignores them in `predict`.
UNUSABLE = {
    "unknown names": lambda: Elements((TEXTS, ["x", "y", "z", "x"])),
    "a test set of GLUE": lambda: Elements((TEXTS, [-1] * 4)),
    "missing": lambda: Elements((TEXTS, [0, None, 1, None])),
    "labels in some batches": lambda: Elements((TEXTS[:2], None), (TEXTS[2:], [0, 1])),
    "labels of some rows": lambda: iter([(text, [None, 1][i > 1]) for i, text in enumerate(TEXTS)]),
    "weights": lambda: Elements((TEXTS, LABELS, [1, -1, np.nan, 1])),
    "weights in some batches": lambda: Elements((TEXTS[:2], [0, 1]), (TEXTS[2:], [0, 1], [1, 1])),
    "weights of some rows": lambda: iter([(t, 0, [None, 1][i > 1]) for i, t in enumerate(TEXTS)]),
    "preprocessed": lambda: Elements((prepare(), [-1] * 4)),
    "TokenCache": lambda: ez.TokenCache(Elements((TEXTS, [-1] * 4)), "nowhere"),
    "dataset of names": lambda: tf.data.Dataset.from_tensor_slices((TEXTS, ["x", "", "z", "x"])),
    "dataset of numbers": lambda: tf.data.Dataset.from_tensors((TEXTS, [-1, np.nan, 1, 1])),
}


@pytest.mark.slow(except_for="(labels|weights) in some|preprocessed|dataset of numbers")
@pytest.mark.parametrize("source", UNUSABLE)
def test_predictions_ignore_labels_and_weights(task, source):
    expected = task.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(task.predict(UNUSABLE[source](), verbose=0), expected, atol=1e-6)
    assert len(task.classify(UNUSABLE[source]())) == 4


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_datasets_of_unknown_rank_are_refused_by_name(task, method):
    def read(text):  # as users read files
        return tf.py_function(lambda text: text, [text], tf.string)

    texts = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    with pytest.raises(ValueError, match=r"shape of the inputs .* unknown.*set_shape\(\[\]\)"):
        METHODS[method](task, texts.map(lambda text, y: (read(text), y)), None)


def test_the_error_about_unknown_ranks_fits_preprocessed_inputs(task):
    x = {name: np.asarray(values) for name, values in prepare().items()}
    types = {name: values.dtype for name, values in x.items()}
    with pytest.raises(ValueError, match=r"output_signature.*\[None, None\]\) for preprocessed"):
        task.predict(tf.data.Dataset.from_generator(lambda: [x], output_types=types))


def test_inputs_that_are_none_have_no_rank(task):
    x = tf.data.Dataset.from_tensors({"first": TEXTS, "second": None})
    assert make_input_data(task.batch_maker, x).x is x


ENDLESS = {
    "rows": dataset,
    "batches": lambda: dataset().batch(4),
    "repeat": lambda: dataset(4).batch(4).repeat(),
    "PyDataset": Endless,
}


@pytest.mark.slow(except_for="^batches-fit")
@methods
@pytest.mark.parametrize("source", ENDLESS)
def test_endless_sources_end_after_their_steps(task, source, method):
    METHODS[method](task, ENDLESS[source](), 2)


@pytest.mark.parametrize("steps, expected", [(None, 4), (3, 9)])
def test_batches_of_datasets_are_counted_on_every_backend(task, steps, expected):
    """Operations of NumPy, as on JAX and PyTorch, are not for graphs of `tf.data`."""
    with use_numpy():
        plan = Plan(4, steps_per_epoch=steps)
        source = DatasetData(dataset(4).batch(3)).make_source(plan, task.batch_maker)
        assert source.count_examples() == expected


@pytest.mark.parametrize("source", ENDLESS)
def test_endless_sources_without_steps_are_refused(task, source, monkeypatch):
    monkeypatch.setattr(distribution, "MAX_COUNTING_SECONDS", 0.05)
    with pytest.raises(ValueError, match="steps_per_epoch"):
        task.fit(ENDLESS[source](), verbose=0)


SHORT_FIRST = ["cat", "a", "dog", "a dog", "the cat sat on the mat", "the film was very bad indeed"]


def cross_entropy(logits, y):
    logits = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -logits[np.arange(len(y)), y].mean()


@pytest.mark.slow(except_for="texts")
@pytest.mark.parametrize("form", ["texts", "arrays"])
def test_steps_of_data_in_memory_are_its_first_batches(task, form):
    """The longest texts are computed first, and are not in these batches."""
    y = [0, 1, 0, 1, 1, 0]
    logits = task.predict(SHORT_FIRST, verbose=0)
    x = SHORT_FIRST if form == "texts" else task.preprocessor(SHORT_FIRST)
    expected = pytest.approx(cross_entropy(logits[:4], y[:4]), rel=1e-4)
    found = task.evaluate(x, y, batch_size=2, steps=2, verbose=0, return_dict=True)
    assert found["loss"] == expected
    np.testing.assert_allclose(
        task.predict(x, batch_size=2, steps=2, verbose=0), logits[:4], rtol=1e-4, atol=1e-5
    )
    history = task.fit(
        x, y, validation_data=(x, y), validation_batch_size=2, validation_steps=2, verbose=0
    ).history
    logits = task.predict(SHORT_FIRST[:4], verbose=0)
    assert history["val_loss"] == [pytest.approx(cross_entropy(logits, y[:4]), rel=1e-4)]
    options = {"validation_split": 0.5, "validation_batch_size": 1, "validation_steps": 1}
    history = task.fit(x, np.array(y), verbose=0, **options).history
    logits = task.predict(SHORT_FIRST[3:4], verbose=0)
    assert history["val_loss"] == [pytest.approx(cross_entropy(logits, y[3:4]), rel=1e-4)]


SORTED = ["a", "dog", "cat", "the cat", "the dog", "bad"], [0, 0, 0, 0, 1, 1]
SORTED_SOURCES = {
    "lists": lambda: SORTED,
    "batches": lambda: (tf.data.Dataset.from_tensor_slices(SORTED).batch(2),),
    "rows": lambda: (tf.data.Dataset.from_tensor_slices(SORTED),),
    "unknown size": lambda: (
        tf.data.Dataset.from_tensor_slices(SORTED).batch(2).filter(lambda *_: True),
    ),
    "endless": lambda: (tf.data.Dataset.from_tensor_slices(SORTED).batch(2).repeat(),),
    "PyDataset": lambda: (
        Elements(*((SORTED[0][i : i + 2], SORTED[1][i : i + 2]) for i in (0, 2, 4))),
    ),
}


@pytest.mark.slow(except_for="^(lists|unknown size-1)")
@pytest.mark.parametrize("steps", [None, 1])
@pytest.mark.parametrize("source", SORTED_SOURCES)
def test_balanced_weights_count_all_labels(task, source, steps):
    """An epoch of one batch only has one of the classes."""
    if source == "endless" and steps is None:
        return
    x, *y = SORTED_SOURCES[source]()
    maker = task.batch_maker
    given = make_input_data(maker, x, *y)
    data = given.make_source(Plan(2, range(3), False, steps), maker)
    weights = task.objective.add_class_weights(data, "balanced", None).class_weights
    # As in scikit-learn. The third class of the task has no example.
    np.testing.assert_allclose(weights, [6 / (2 * 4), 6 / (2 * 2), 1])


def test_balanced_weights_count_labels_that_are_not_used_in_training(task):
    stream = Stream(SORTED_SOURCES["PyDataset"]()[0], task.batch_maker)
    plan = Plan(2, range(1), False, 1)
    data = StreamData(stream).make_source(plan, task.batch_maker)
    weights = task.objective.add_class_weights(data, "balanced", None).class_weights
    np.testing.assert_allclose(weights, [6 / (2 * 4), 6 / (2 * 2), 1])


def test_balanced_weights_read_a_stream_of_known_length_once(task):
    read = []

    class Recorded(Elements):
        def __getitem__(self, number):
            read.append(number)
            return super().__getitem__(number)

    x, y = SORTED
    stream = Stream(Recorded((x[:2], y[:2]), (x[2:], y[2:])), task.batch_maker)
    plan = Plan(2, range(50), steps_per_epoch=2)
    data = StreamData(stream).make_source(plan, task.batch_maker)
    data = task.objective.add_class_weights(data, "balanced", None)
    np.testing.assert_allclose(data.class_weights, [6 / (2 * 4), 6 / (2 * 2), 1])
    assert len(read) < 50  # 50 epochs have 100 batches, and TensorFlow reads a few ahead


def test_weights_of_given_classes_are_not_counted(task, monkeypatch):
    data = TextData(*SORTED).make_source(Plan(2), task.batch_maker)
    monkeypatch.setattr(data, "read_one_pass", None)
    weights = task.objective.add_class_weights(data, {1: 3.0}, None).class_weights
    assert weights == [1, 3, 1]


def test_steps_of_tasks_that_return_lists():
    tagger = tiny.task(get_family("bert"), ez.TokenClassifier)
    whole = tagger.predict(SHORT_FIRST, verbose=0)
    found = tagger.predict(SHORT_FIRST, batch_size=2, steps=2, verbose=0)
    endless = tf.data.Dataset.from_tensor_slices(SHORT_FIRST).batch(2).repeat()
    for rows in (found, tagger.predict(endless, steps=2, verbose=0)):
        for row, expected in zip(rows, whole[:4], strict=True):
            np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("method", ["evaluate", "predict", "validation_data"])
def test_infinite_datasets_without_steps_are_refused(task, method, batched):
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).repeat()
    with pytest.raises(ValueError, match="infinite.*steps"):
        METHODS[method](task, data.batch(2) if batched else data, None)


def test_infinite_datasets_are_refused_by_tasks_that_return_lists():
    with pytest.raises(ValueError, match="infinite.*steps"):
        tiny.task(get_family("bert"), ez.TokenClassifier).predict(
            tf.data.Dataset.from_tensor_slices(TEXTS).batch(2).repeat(), verbose=0
        )


@pytest.mark.slow
def test_a_generator_of_rows_is_not_read_to_count_its_examples(task):
    read = []

    def noted():
        for row in rows(400):
            read.append(row)
            yield row

    data = tf.data.Dataset.from_generator(noted, output_signature=ROW)
    task.evaluate(data, batch_size=4, steps=2, verbose=0)
    assert len(read) < 200  # 8 are evaluated; others are read ahead


@pytest.mark.parametrize(
    "labels, logged",
    [
        (np.array([0, -1, 1, 0]), True),
        (np.array([0, -1, 1, 0], "int8"), True),
        ([0, -1, 1, 0], True),
        (["0", "-1", "1", "0"], True),
        ([-1, 1, 1, -1], False),
        (np.array([-1, 1, 1, -1]), False),
        ([0, 1, 2, 0], False),
    ],
)
def test_the_code_of_missing_labels_is_logged(labels, logged, caplog):
    log_suspicious_labels(labels)
    assert ("pandas" in caplog.text) == logged


class TestTokenCache:
    STREAM = (TEXTS[:2], [0, 1]), (TEXTS[2:], [0, 1]), (["bad film", "dog"], [1, 0])

    def written(self, task, folder, stream=STREAM, by="fit"):
        getattr(task, by)(ez.TokenCache(Elements(*stream), folder), verbose=0)
        [inner] = pathlib.Path(folder).iterdir()
        return inner

    @pytest.mark.slow
    @pytest.mark.parametrize("by", ["fit", "evaluate"])
    def test_one_pass_completes_it(self, task, tmp_path, by):
        folder = self.written(task, tmp_path / "tokens", by=by)
        assert json.loads((folder / "tokens.json").read_text())["sizes"] == [2, 2, 2]
        read = []

        class Noted(Elements):
            def __getitem__(self, number):
                read.append(number)
                return super().__getitem__(number)

        task.evaluate(ez.TokenCache(Noted(*self.STREAM), tmp_path / "tokens"), verbose=0)
        assert set(read) == {0}

    def spoil(self, how, folder, other):
        first, second = (folder / f"tokens-00000{number}.safetensors" for number in range(2))
        if how == "swapped":
            kept = first.read_bytes()
            first.write_bytes(second.read_bytes())
            second.write_bytes(kept)
        elif how == "duplicated":
            shutil.copy(first, second)
        elif how == "truncated":
            second.write_bytes(second.read_bytes()[:-5])
        elif how == "of another cache":
            shutil.copy(other / second.name, second)
        else:
            second.unlink()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "how", ["swapped", "duplicated", "truncated", "of another cache", "gone"]
    )
    def test_changed_files_are_found(self, task, tmp_path, how):
        folder = self.written(task, tmp_path / "tokens")
        changed = (self.STREAM[0], (["cat", "cat"], [1, 1]), self.STREAM[2])
        other = self.written(task, tmp_path / "other", changed)
        self.spoil(how, folder, other)
        with pytest.raises(ValueError, match=r"tokens-00000\d"):
            self.written(task, tmp_path / "tokens")
