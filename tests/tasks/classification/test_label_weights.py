"""Several labels a text: F1 beside the accuracy, and a weight for each label."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.tasks.base.classes import compute_label_weights
from encoder_zoo.tasks.losses.batch_loss import BatchLoss
from encoder_zoo.tasks.losses.crossentropy import LabelCrossentropy

KIND = "multi_label_classification"
pytestmark = pytest.mark.eager
TEXTS = ["a b", "b c", "a", "c d", "d", "a d"]
Y = np.array([[1, 0], [1, 0], [1, 0], [1, 1], [0, 0], [0, 0]])


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd"])


@pytest.fixture
def model(tokenizer):
    backbone = ez.BertBackbone(9, 1, 1, 8, 8, dropout=0.0, attention_dropout=0.0)
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    labels = ["common", "rare"]
    return ez.SequenceClassifier(backbone, preprocessor, labels=labels, problem_type=KIND)


def loss_of(model, logits, weights) -> float:
    """Written out from the definition of the cross-entropy."""
    losses = np.logaddexp(0, np.where(Y == 1, -logits, logits))
    return float(np.mean(losses * weights))


@pytest.mark.slow
def test_f1_beside_the_accuracy_is_that_of_scikit_learn(model):
    scores = pytest.importorskip("sklearn.metrics")
    for weight in model.weights:
        weight.assign(weight + keras.random.normal(weight.shape, stddev=0.8, seed=2))
    found = model.evaluate(TEXTS, Y, verbose=0, return_dict=True)
    guess = model.predict(TEXTS, verbose=0) > 0
    expected = scores.f1_score(Y, guess, average="macro", zero_division=0)
    assert found["f1"] == pytest.approx(expected, abs=1e-6)
    assert found["accuracy"] == pytest.approx(np.mean(guess == Y), abs=1e-6)
    logits = model.predict(TEXTS, verbose=0)
    assert found["loss"] == pytest.approx(loss_of(model, logits, 1.0), rel=1e-5)


@pytest.mark.slow
def test_doing_nothing_has_a_high_accuracy_and_no_f1(model):
    model.head.output_dense.bias.assign([-9.0, -9.0])
    found = model.evaluate(["a"] * 50, [[0, 1]] + [[0, 0]] * 49, verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(0.99) and found["f1"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("class_weight", "weights"),
    [
        ({"rare": 5.0}, np.where(Y == 1, [1, 5], 1)),
        ({1: 5.0, 0: 2.0}, np.where(Y == 1, [2, 5], 1)),
        # n / (2 * count): of "common" 4 of 6 have it, of "rare" 1.
        ("balanced", np.where(Y == 1, [6 / 8, 6 / 2], [6 / 4, 6 / 10])),
    ],
)
def test_each_label_is_weighed_by_itself(model, class_weight, weights):
    before = model.predict(TEXTS, verbose=0)
    expected = loss_of(model, before, weights)
    history = model.fit(TEXTS, Y, batch_size=6, class_weight=class_weight, verbose=0).history
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)
    assert {"accuracy", "f1"} <= history.keys()


@pytest.mark.slow
def test_weights_of_texts_multiply(model):
    before, given = model.predict(TEXTS, verbose=0), np.array([1, 0, 2, 1, 0, 1.0])
    weights = np.where(Y == 1, [1, 5], 1) * given[:, None]
    expected = loss_of(model, before, weights)
    options = {"class_weight": {"rare": 5}, "sample_weight": given, "batch_size": 6}
    history = model.fit(TEXTS, Y, verbose=0, **options).history
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_prepared_inputs_and_datasets(model):
    before = model.predict(TEXTS, verbose=0)
    expected = loss_of(model, before, np.where(Y == 1, [1, 5], 1))
    model.compile(keras.optimizers.SGD(1e-9))
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, Y)).batch(6)
    inputs = {name: np.array(v) for name, v in model.preprocessor(TEXTS).items()}
    for data in ((dataset,), (inputs, Y)):
        history = model.fit(*data, batch_size=6, class_weight={"rare": 5}, verbose=0).history
        assert history["loss"][0] == pytest.approx(expected, rel=1e-4)


def test_a_label_that_no_text_has_weighs_one():
    data = tf.data.Dataset.from_tensors((0, [[1.0, 0.0], [0.0, 0.0]]))
    assert compute_label_weights("balanced", None, 2, lambda: data).tolist() == [
        [1.0, 1.0],
        [1.0, 1.0],
    ]


def test_the_loss_equals_that_of_keras():
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(5, 3)), rng.random((5, 3))
    ours, theirs = LabelCrossentropy(from_logits=True), keras.losses.BinaryCrossentropy(True)
    for weight in (None, rng.random(5)):
        expected = float(theirs(y, logits, weight))
        assert float(BatchLoss(ours)(y, logits, weight)[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow(except_for="^arguments0")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_weight": {"rarer": 2}}, "class_weight.*is 'rarer'"),
        ({"class_weight": "equal"}, "class_weight is 'equal'"),
    ],
)
def test_refusals(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.fit(TEXTS, Y, verbose=0, **arguments)


def test_another_loss_cannot_weigh_labels(model):
    model.compile(loss=keras.losses.BinaryFocalCrossentropy())
    with pytest.raises(ValueError, match="class_weight is 'balanced'.*loss='auto'"):
        model.fit(TEXTS, Y, class_weight="balanced")
