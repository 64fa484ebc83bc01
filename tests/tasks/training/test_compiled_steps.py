"""Steps that XLA compiles, at few shapes and with filled batches, equal the plain ones."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks import get_task, list_tasks
from encoder_zoo.tasks.preprocessing.batch_shapes import REAL_ROWS
from encoder_zoo.tasks.preprocessing.batching import Plan
from encoder_zoo.tasks.training.sources import TextData
from encoder_zoo.testing import tiny

WORDS = "a b c d ab cd".split()


def several(values, count):
    """So many rows of tiny data, a list or a tuple of lists."""
    if isinstance(values, tuple):
        return tuple(several(part, count) for part in values)
    return values if values is None else (list(values) * count)[:count]


def without_dropout(cls):
    """A tiny task, with the same weights every time."""
    keras.utils.set_random_seed(0)
    task = tiny.task(get_family("electra" if cls.supports(get_family("electra")) else "bert"), cls)
    for layer in list_layers(task):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    return task


def results(cls, jit_compile):
    """Losses, metrics and outputs of a short training in uneven batches."""
    task, record = without_dropout(cls), cls.record
    if record.pretrains:  # what is masked depends on the shape
        tokenizer = task.preprocessor.tokenizer
        task.preprocessor = record.preprocessor_class(tokenizer, sequence_length=16)
    task.compile(jit_compile=jit_compile, learning_rate=1e-3)
    data = cls.tiny_data()
    count = 8 if task.preprocessor.sequence_length else 7
    x, y = several(data.x, count), several(data.y, count)
    keras.utils.set_random_seed(0)
    options = {"batch_size": 4, "verbose": 0, "shuffle": False}
    history = task.fit(x, y, epochs=2, validation_data=(x, y), **options).history
    if cls is ez.ReplacedTokenDetection:  # its generator's draws are others under XLA
        history = {name: values for name, values in history.items() if "generator" in name}
    found = [np.array(values) for values in history.values()]
    if task.record.instead_of_predict is None:
        found += keras.tree.flatten(task.predict(x, batch_size=4, verbose=0))
    return found


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("name", [task.record.name for task in list_tasks()])
def test_every_task_trains_and_predicts_compiled_as_it_does_plain(name):
    cls = get_task(name)
    if cls is ez.EntityExtractor:
        with pytest.raises(ValueError, match="jit_compile is True.* LSTM"):
            results(cls, True)
        return
    plain, compiled = (results(cls, jit_compile) for jit_compile in (False, True))
    for expected, found in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_a_crf_is_not_trained_compiled():
    family, cls = get_family("bert"), ez.TokenClassifier
    arguments = {**cls.tiny_data().arguments, "crf": True}
    preprocessor = cls.record.preprocessor_class(tiny.tokenizer(family))
    task = cls(tiny.backbone(family), preprocessor, **arguments)
    with pytest.raises(ValueError, match="jit_compile is True.* CRF"):
        task.compile(jit_compile=True)
    task.compile(jit_compile=False)


LENGTHS = (7, 33, 40, 70, 130)  # of texts, in words; parts of positions and chunks have others


def longer(values, row=None):
    """Return tiny data with every text of the i-th row made as long as `LENGTHS[i]` says."""
    if isinstance(values, str):
        rng = np.random.default_rng(len(values) + row)
        return " ".join([values, *rng.choice(WORDS, LENGTHS[row])])
    if isinstance(values, tuple):
        return tuple(longer(part) for part in values)
    if not isinstance(values, list | np.ndarray):
        return values
    if row is not None:
        return [longer(value, row) for value in values]
    return [longer(values[i % len(values)], i) for i in range(len(LENGTHS))]


def numbers_and_names(answers):
    """Return the numbers of answers, one after the other, and all else."""
    if isinstance(answers, dict):
        answers = list(answers.values())
    if hasattr(answers, "toarray"):
        answers = answers.toarray()
    if isinstance(answers, list | tuple):
        pairs = [numbers_and_names(answer) for answer in answers]
        return [n for pair in pairs for n in pair[0]], [n for pair in pairs for n in pair[1]]
    if np.issubdtype(np.asarray(answers).dtype, np.number):
        return np.ravel(answers).tolist(), []
    return [], np.ravel(np.asarray(answers, object)).tolist()


def answers_to_long_texts(cls, jit_compile):
    """Return answers to texts of all lengths, the outputs for them, and the losses on them."""
    keras.utils.set_random_seed(0)
    family = get_family("electra" if cls.supports(get_family("electra")) else "bert")
    task = tiny.task(family, cls, max_sequence_length=160)
    task.compile(jit_compile=jit_compile)
    found = []
    if task.record.text_method:
        found.append(getattr(task, task.record.text_method)(*map(longer, task.tiny_questions())))
    data = cls.tiny_data()
    x, y = longer(data.x), several(data.y, len(LENGTHS))
    if task.record.instead_of_predict is None:
        found.append(keras.tree.flatten(task.predict(x, batch_size=3, verbose=0)))
    if not task.record.pretrains:  # which masks at random
        keras.utils.set_random_seed(0)
        found.append(task.evaluate(x, y, 3, verbose=0, return_dict=True))
    return numbers_and_names(found)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["token_classifier", "span_qa", "sparse_encoder", "late_interaction"]
)
def test_answers_to_texts_of_all_lengths_are_compiled_as_plain(name):
    cls = get_task(name)
    if cls is ez.EntityExtractor:
        with pytest.raises(ValueError, match="jit_compile is True.* LSTM"):
            results(cls, True)
        return
    plain, compiled = (answers_to_long_texts(cls, jit_compile) for jit_compile in (False, True))
    assert plain[0] and compiled[1] == plain[1]
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-4, atol=1e-4)


def classifier(jit_compile, **compiled):
    task = without_dropout(ez.SequenceClassifier)
    task.compile(jit_compile=jit_compile, learning_rate=1e-3, **compiled)
    return task


def sentences(count, longest, seed=0):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)]
    return texts, rng.integers(0, 2, count).tolist()


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    "compiled",
    [
        {"metrics": ["accuracy", "auc"], "weighted_metrics": ["accuracy"]},
        {"loss": keras.losses.SparseCategoricalCrossentropy(reduction="sum"), "metrics": ["f1"]},
    ],
)
def test_filled_rows_count_in_no_metric_and_no_gradient(compiled):
    texts, labels = sentences(11, 6)
    weights = np.random.default_rng(1).random(11).astype("float32")
    found = []
    for jit_compile in (False, True):
        task = classifier(jit_compile, **compiled)
        dataset = tf.data.Dataset.from_tensor_slices((texts, labels, weights)).batch(4)
        histories = [
            task.fit(texts, labels, 4, sample_weight=weights, shuffle=False, verbose=0),
            task.fit(texts, labels, 4, class_weight="balanced", shuffle=False, verbose=0),
            task.fit(dataset, verbose=0),
        ]
        values = [value for history in histories for value in history.history.values()]
        results = task.evaluate(texts, labels, 8, verbose=0)
        found.append([*np.ravel(values), *results, *task.predict(dataset, verbose=0).ravel()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_batches_have_few_shapes_and_say_which_rows_count():
    task = classifier(True)
    texts, labels = sentences(37, 9)
    data = TextData(texts, labels).make_source(Plan(8), task.batch_maker)
    batches = list(data.make_batches(seed=0))
    assert {batch[0]["token_ids"].shape[0] for batch in batches} == {8}
    assert len({batch[0]["token_ids"].shape for batch in batches}) <= 3
    assert sum(int(tf.reduce_sum(tf.cast(b[0][REAL_ROWS], "int32"))) for b in batches) == 37
    assert sum(len(batch[1]) for batch in data.read_one_pass()) == 37


@pytest.mark.slow
def test_losses_that_compare_rows_are_not_filled():
    task = classifier(True, loss=lambda y_true, y_pred: keras.ops.mean(y_pred, axis=-1))
    assert not task.batch_maker.fills
    assert classifier(True).batch_maker.fills
    assert not classifier(False).batch_maker.fills
