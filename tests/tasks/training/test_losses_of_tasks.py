"""Losses and metrics of Keras and of a user, in every form that `compile` takes, for every kind of
task: the formula written out in NumPy, or an error that names the loss."""

import copy
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import losses, ops

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.losses import batch_loss
from encoder_zoo.testing import tiny

EPSILON = 1e-7
WRAPPER = losses.MeanSquaredError.__mro__[1]  # Keras's `LossFunctionWrapper`


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def crossentropy(y, p):
    p = np.clip(p / p.sum(-1, keepdims=True), EPSILON, 1 - EPSILON)
    return -np.sum(y * np.log(p), -1)


def binary(y, p):
    return -(y * np.log(p) + (1 - y) * np.log(1 - p))


def focal(y, p):
    p = np.clip(p / p.sum(-1, keepdims=True), EPSILON, 1 - EPSILON)
    return -np.sum(0.25 * (1 - p) ** 2 * y * np.log(p), -1)


def huber(e):
    return np.where(np.abs(e) <= 1, e**2 / 2, np.abs(e) - 0.5)


def cosine(y, p):
    return np.sum(y * p, -1) / np.maximum(
        np.linalg.norm(y, axis=-1) * np.linalg.norm(p, axis=-1), EPSILON
    )


def signs(y):
    return 2 * y - 1 if np.isin(y, (0, 1)).all() else y


# Of labels y (..., C), 0 and 1, and probabilities p; the hinges of logits z.
OF_PROBABILITIES = {
    "kl_divergence": lambda y, p: np.sum(
        np.maximum(y, EPSILON) * np.log(np.maximum(y, EPSILON) / np.maximum(p, EPSILON)), -1
    ),
    "poisson": lambda y, p: np.mean(p - y * np.log(p), -1),
    "binary_crossentropy": lambda y, p: np.mean(binary(y, p), -1),
    "binary_focal_crossentropy": lambda y, p: np.mean(
        (1 - np.where(y > 0, p, 1 - p)) ** 2 * binary(y, p), -1
    ),
    "mean_squared_error": lambda y, p: np.mean((y - p) ** 2, -1),
    "mean_absolute_error": lambda y, p: np.mean(np.abs(y - p), -1),
    "mean_absolute_percentage_error": lambda y, p: (
        100 * np.mean(np.abs(y - p) / np.maximum(np.abs(y), EPSILON), -1)
    ),
    "mean_squared_logarithmic_error": lambda y, p: np.mean(
        (np.log1p(np.maximum(y, 0)) - np.log1p(np.maximum(p, 0))) ** 2, -1
    ),
    "cosine_similarity": lambda y, p: -cosine(y, p),
    "log_cosh": lambda y, p: np.mean(np.log(np.cosh(p - y)), -1),
    "huber": lambda y, p: np.mean(huber(p - y), -1),
}
OF_ONE_CLASS = {
    "categorical_crossentropy": crossentropy,
    "categorical_focal_crossentropy": focal,
    "sparse_categorical_crossentropy": crossentropy,
    "sparse_categorical_focal_crossentropy": focal,
    "categorical_generalized_cross_entropy": lambda y, p: 2 * (1 - np.sum(y * p, -1) ** 0.5),
}
OF_MARGINS = {
    "hinge": lambda y, z: np.mean(np.maximum(1 - signs(y) * z, 0), -1),
    "squared_hinge": lambda y, z: np.mean(np.maximum(1 - signs(y) * z, 0) ** 2, -1),
    "categorical_hinge": lambda y, z: np.maximum(
        np.max((1 - y) * z, -1) - np.sum(y * z, -1) + 1, 0
    ),
}
WHOLE = {
    "dice": lambda y, p: 1 - 2 * np.sum(y * p) / (np.sum(y) + np.sum(p)),
    "tversky": lambda y, p: (
        1 - np.sum(y * p) / (np.sum(y * p) + (np.sum((1 - p) * y) + np.sum(p * (1 - y))) / 2)
    ),
}
OTHERS = ("circle", "ctc")
FORMULAS = {**OF_PROBABILITIES, **OF_ONE_CLASS, **OF_MARGINS, **WHOLE}
FORMULAS = {name: formula for name, formula in FORMULAS.items() if hasattr(losses, name)}
ALIASES = {
    "kl_divergence": ["kld", "KLD", "KLDivergence"],
    "mean_squared_error": ["mse", "MSE", "MeanSquaredError"],
    "mean_absolute_error": ["mae", "MAE"],
    "mean_absolute_percentage_error": ["mape", "MAPE"],
    "mean_squared_logarithmic_error": ["msle", "MSLE"],
    "binary_crossentropy": ["bce", "BCE", "BinaryCrossentropy"],
    "poisson": ["Poisson"],
}


def test_every_loss_of_keras_is_in_the_table():
    assert {f.__name__ for f in batch_loss.FUNCTIONS} == {*FORMULAS, *OTHERS}


def forms(name: str) -> dict:
    """Every way to give a loss of Keras's to `compile`."""
    function = getattr(losses, name)
    cls = batch_loss.LOSS_CLASSES[function]
    keywords = {"q": 0.5} if name == "categorical_generalized_cross_entropy" else {}
    given = {
        "class": cls,
        "instance": cls(),
        "list": [cls()],
        "dict": {"logits": cls()},
        "partial": functools.partial(function, **keywords),
        "wrapper": WRAPPER(function, **keywords),
        "subclass": type("Own", (cls,), {})(),
        "mean_with_sample_weight": cls(reduction="mean_with_sample_weight"),
        "mean": cls(reduction="mean"),
        "sum": cls(reduction="sum"),
    }
    if not keywords:
        given["function"] = function
        if is_name(name):
            given["name"] = name
    return {**given, **{alias: alias for alias in ALIASES.get(name, [])}}


def is_name(name):
    try:
        return losses.get(name) is not None
    except ValueError:
        return False


rng = np.random.default_rng(0)


def sizes(**arguments):
    return {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, **arguments}


class Case:
    """A kind of task, with labels, logits and weights of a batch.

    Args:
        task: Class of the task.
        y: Labels as the task's preprocessor makes them.
        logits: Outputs.
        probabilities: Function that makes them of logits.
        weight: Sample weights that the task always has, such as those of labelled tokens.
        arguments: Arguments of the task.
    """

    def __init__(self, task, y, logits, probabilities, weight=None, **arguments):
        self.task, self.arguments = task, arguments
        self.y, self.logits = np.array(y, "float32"), np.array(logits, "float32")
        self.probabilities, self.weight = probabilities, weight
        is_index = self.y.ndim < self.logits.ndim
        self.one_hot = np.eye(self.logits.shape[-1])[self.y.astype(int)] if is_index else self.y

    @functools.cached_property
    def model(self):
        return self.task(ez.BertBackbone(30, **sizes()), **self.arguments)

    @functools.cached_property
    def optimizer(self):
        return keras.optimizers.SGD()  # creating it takes as long as the rest of `compile`

    def values(self, name):
        scores = self.logits if name in OF_MARGINS else self.probabilities(self.logits)
        return FORMULAS[name](self.one_hot.astype("float64"), scores.astype("float64"))

    def expected(self, name, reduction="sum_over_batch_size", weight=None):
        values = self.values(name)
        if name in WHOLE:
            return values
        weights = np.ones(values.shape) if weight is None else np.array(weight, float)
        weights = weights.reshape(*weights.shape, *[1] * (values.ndim - weights.ndim))
        weights = np.broadcast_to(weights, values.shape)
        total = np.sum(values * weights)
        if reduction == "sum":
            return total
        is_weighted = reduction == "mean_with_sample_weight" or self.weight is not None
        return total / (weights.sum() if is_weighted else values.size)

    def computed(self, loss, weight=None):
        self.model.compile(self.optimizer, loss=loss)
        given = (v if v is None else tf.constant(v) for v in (self.y, self.logits, weight))
        return float(self.model.compute_loss({}, *given, training=False))

    def metric(self, metric, weight=None, weighted=False):
        arguments = {"weighted_metrics" if weighted else "metrics": [metric]}
        self.model.compile(
            self.optimizer,
            loss="auto",
            **{"metrics": [], "weighted_metrics": [], **arguments},
        )
        self.model.reset_metrics()
        given = (v if v is None else tf.constant(v) for v in (self.y, self.logits, weight))
        results = self.model.compute_metrics({}, *given)
        [value] = [float(value) for name, value in results.items() if name != "loss"]
        return value


LABELLED = np.array([[1, 1, 0, 0, 0], [0, 1, 1, 1, 0]], "float32")
CASES = {
    "classes": Case(
        ez.SequenceClassifier, [2, 0, 1], rng.normal(size=(3, 4)), softmax, num_classes=4
    ),
    "two classes": Case(
        ez.SequenceClassifier, [1, 0, 1], rng.normal(size=(3, 2)), softmax, num_classes=2
    ),
    "labels": Case(
        ez.SequenceClassifier,
        [[1, 0, 1], [0, 0, 1]],
        rng.normal(size=(2, 3)),
        sigmoid,
        num_classes=3,
        problem_type="multi_label_classification",
    ),
    "tokens": Case(
        ez.TokenClassifier,
        rng.integers(0, 3, (2, 5)),
        rng.normal(size=(2, 5, 3)),
        softmax,
        LABELLED,
        num_classes=3,
    ),
    "masked tokens": Case(
        ez.MaskedLM, rng.integers(0, 9, (2, 5)), rng.normal(size=(2, 5, 30)), softmax, LABELLED
    ),
    "numbers": Case(
        ez.SequenceClassifier,
        [[0.3], [-1.2], [2.0]],
        rng.normal(size=(3, 1)),
        lambda z: z,
        num_classes=1,
        problem_type="regression",
    ),
    "pairs": Case(
        ez.Reranker, [[1.0], [0.0]], rng.normal(size=(2, 1)), sigmoid, activation="sigmoid"
    ),
    "choices": Case(ez.MultipleChoice, [1, 0], [[0.3, 1.2, -1e9], [0.1, -0.4, 0.9]], softmax),
    "answers": Case(ez.SpanQA, [[1, 2], [0, 1]], rng.normal(size=(2, 2, 6)), softmax),
}
PADDED_CLASSES = {"choices", "answers"}
TRUE_CLASS = {*OF_ONE_CLASS, "kl_divergence", "cosine_similarity"}
WEIGHT = {
    "classes": [1, 0.5, 2],
    "two classes": [0, 1, 3],
    "labels": [2, 0.5],
    "numbers": [1, 2, 3],
}
WEIGHT |= {"pairs": [0.5, 2], "choices": [1, 3]}


RARE = {"two classes", "masked tokens", "pairs", "choices", "answers"}


def slow(case: str):
    return pytest.param(case, marks=pytest.mark.slow)


def refused(case: str, name: str) -> bool:
    """Whether a loss has no meaning for a task."""
    if name in OTHERS:
        return True
    of_indices = name.startswith("sparse_") or name == "categorical_generalized_cross_entropy"
    if CASES[case].probabilities is not softmax and of_indices:
        return True
    if case == "numbers":
        probabilities = {*OF_ONE_CLASS, *WHOLE, "categorical_hinge", "kl_divergence", "poisson"}
        return name in probabilities or name.startswith("binary")
    if case == "pairs" and name in (*OF_ONE_CLASS, "categorical_hinge"):
        return True
    return case in PADDED_CLASSES and name not in TRUE_CLASS


@pytest.mark.parametrize("name", [*FORMULAS, *OTHERS])
@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_its_formula_or_refused(case, name):
    task, function = CASES[case], getattr(losses, name)
    loss = batch_loss.LOSS_CLASSES[function]()
    if refused(case, name):
        with pytest.raises(ValueError, match=type(loss).__name__):
            task.model.compile(loss=loss)
        return
    if name in WHOLE and task.weight is not None:
        with pytest.raises(ValueError, match=f"{type(loss).__name__}.*single"):
            task.computed(loss, task.weight)
        return
    expected = task.expected(name, weight=task.weight)
    assert task.computed(loss, task.weight) == pytest.approx(expected, rel=2e-5, abs=1e-6)
    for reduction in ("sum", "mean_with_sample_weight"):
        loss = type(loss)(reduction=reduction)
        weight = WEIGHT.get(case, task.weight)
        if weight is None or name in WHOLE:
            continue
        weight = np.array(weight, "float32")
        expected = task.expected(name, reduction, weight)
        assert task.computed(loss, weight) == pytest.approx(expected, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("case", ["classes", slow("tokens")])
def test_every_form_of_a_loss_is_the_same(case, name):
    task = CASES[case]
    if name in WHOLE and task.weight is not None:
        return
    for form, loss in forms(name).items():
        reduction = form if form in ("sum", "mean_with_sample_weight") else "mean"
        expected = task.expected(name, reduction, task.weight)
        found = task.computed(loss, task.weight)
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-6), form


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("case", [slow(case) if case in RARE else case for case in CASES])
def test_loss_and_metric_of_one_name_agree(case, name):
    task, metric = CASES[case], name
    if name == "categorical_generalized_cross_entropy":  # of no name in Keras
        metric = losses.CategoricalGeneralizedCrossEntropy()
    if refused(case, name):
        if case == "pairs" and name not in OTHERS and "sparse" not in name:
            return  # of several classes: Keras warns of the single output
        with pytest.raises(ValueError, match=r"^\w+ (requires|is) "):
            task.metric(metric)
        return
    if name in WHOLE and task.weight is not None:
        with pytest.raises(ValueError, match="single"):
            task.metric(metric, task.weight)
        return
    sign = -1 if name == "cosine_similarity" else 1  # of Keras's metric, against its loss
    expected = sign * task.expected(name, weight=task.weight)
    assert task.metric(metric, task.weight) == pytest.approx(expected, rel=2e-5, abs=1e-6)
    if case in WEIGHT and name not in WHOLE:
        weight = np.array(WEIGHT[case], "float32")
        expected = sign * task.expected(name, "mean_with_sample_weight", weight)
        found = task.metric(metric, weight, weighted=True)
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-6)


SETTINGS = {
    "binary_crossentropy": {"label_smoothing": 0.3},
    "binary_focal_crossentropy": {"apply_class_balancing": True, "alpha": 0.8, "gamma": 1.0},
    "categorical_crossentropy": {"label_smoothing": 0.3},
    "categorical_focal_crossentropy": {"alpha": 0.5, "gamma": 1.0},
    "huber": {"delta": 0.1},
    "sparse_categorical_crossentropy": {"ignore_class": 2},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("case", [case for case in CASES if case not in PADDED_CLASSES])
def test_every_form_of_a_loss_keeps_its_settings(case, name):
    """Values are those of Keras's function, and labels of an ignored class are not counted."""
    task, function, settings = CASES[case], getattr(losses, name), SETTINGS[name]
    if refused(case, name):
        return
    of_indices = name.startswith("sparse_")
    y = task.y if of_indices else task.one_hot.astype("float32")
    probabilities = task.probabilities(task.logits.astype("float64")).astype("float32")
    values = np.asarray(function(y, probabilities, **settings), "float64")
    weights = np.ones(values.shape) if task.weight is None else task.weight
    if of_indices:
        weights = weights * (task.y != settings["ignore_class"])
    expected = np.average(values, weights=weights)
    cls = batch_loss.LOSS_CLASSES[function]
    given = {
        "instance": cls(**settings),
        "partial": functools.partial(function, **settings),
        "wrapper": WRAPPER(function, **settings),
        "list": [functools.partial(function, **settings)],
        "subclass": type("Own", (cls,), {})(**settings),
    }
    for form, loss in given.items():
        found = task.computed(loss, task.weight)
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-6), form
        if form in ("instance", "partial"):
            found = task.metric(loss, task.weight)
            assert found == pytest.approx(expected, rel=2e-5, abs=1e-6), form


def test_ignored_classes_have_no_weight_in_the_mean():
    """Keras divides by the number of labels that are counted, whatever their weights."""
    task, weight = CASES["classes"], np.array([1, 0.5, 2], "float32")
    for reduction in ("sum_over_batch_size", "mean_with_sample_weight", "sum"):
        arguments = {"ignore_class": 0, "reduction": reduction}
        keras_loss = losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)
        expected = float(keras_loss(task.y, task.logits, weight))
        loss = losses.SparseCategoricalCrossentropy(**arguments)
        assert task.computed(loss, weight) == pytest.approx(expected, rel=2e-5), reduction


@pytest.mark.parametrize("name", ["binary_crossentropy", "categorical_crossentropy"])
@pytest.mark.parametrize("case", ["classes", "labels"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_can_be_claimed(case, name, smoothing):
    """With `from_logits=True` a loss gets the outputs, whatever makes them of logits."""
    task, cls = CASES[case], batch_loss.LOSS_CLASSES[getattr(losses, name)]
    y, z = task.one_hot, task.logits.astype("float64")
    of_binary = name.startswith("binary")
    y = y * (1 - smoothing) + smoothing * (0.5 if of_binary else 1 / y.shape[-1])
    formula = (
        (lambda p: np.mean(binary(y, p), -1)) if of_binary else functools.partial(crossentropy, y)
    )
    own, theirs = task.probabilities(z), (sigmoid if of_binary else softmax)(z)
    for from_logits, p in ((False, own), (True, theirs)):
        loss = cls(from_logits=from_logits, label_smoothing=smoothing)
        assert task.computed(loss) == pytest.approx(np.mean(formula(p)), rel=2e-5)
        metric = getattr(keras.metrics, cls.__name__)(
            from_logits=from_logits, label_smoothing=smoothing
        )
        assert task.metric(metric) == pytest.approx(np.mean(formula(p)), rel=2e-5)


def test_label_smoothing_of_tokens_is_a_mean_over_labelled_tokens():
    task = CASES["tokens"]
    y, p = 0.9 * task.one_hot + 0.1 / 3, softmax(task.logits.astype("float64"))
    expected = np.sum(crossentropy(y, p) * LABELLED) / LABELLED.sum()
    wide = [np.pad(v, [(0, 0), (0, 3), (0, 0)][: v.ndim]) for v in (task.y, task.logits, LABELLED)]
    for smoothed in (
        losses.CategoricalCrossentropy(label_smoothing=0.1),
        functools.partial(losses.categorical_crossentropy, label_smoothing=0.1),
    ):
        assert task.computed(smoothed, LABELLED) == pytest.approx(expected, rel=1e-5)
        found = task.model.compute_loss({}, *map(tf.constant, wide), training=False)
        assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("case", ["choices", "answers"])
def test_labels_are_not_smoothed_over_padding(case):
    with pytest.raises(ValueError, match="CategoricalCrossentropy.*label smoothing"):
        CASES[case].model.compile(loss=losses.CategoricalCrossentropy(label_smoothing=0.1))


# -- losses of a user ------------------------------------------------------------------------------


def by_hand(y, z):
    """Return the values of a loss of outputs, of any number of axes."""
    return ops.sum(ops.square(z), -1) * (1 + ops.reshape(ops.cast(y, z.dtype), ops.shape(z)[:-1]))


class ByHand(losses.Loss):
    def call(self, y_true, y_pred):
        return by_hand(y_true, y_pred)


class ItsOwn(losses.Loss):
    """A loss that weighs and averages by itself."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return ops.mean(by_hand(ops.cast(y_true, "float32"), y_pred)) + 1


OWN = {
    "function": by_hand,
    "lambda": lambda y, z: by_hand(y, z),
    "partial": functools.partial(by_hand),
    "class": ByHand,
    "instance": ByHand(),
    "wrapper": WRAPPER(by_hand),
}


@pytest.mark.parametrize("case", ["classes", "tokens", "masked tokens", "numbers"])
@pytest.mark.parametrize("form", OWN)
def test_losses_of_a_user_get_the_outputs(case, form):
    task = CASES[case]
    z, y = task.logits.astype("float64"), task.y.reshape(task.logits.shape[:-1])
    values = np.sum(z**2, -1) * (1 + y)
    weights = np.ones(values.shape) if task.weight is None else task.weight
    expected = np.sum(values * weights) / weights.sum()
    assert task.computed(OWN[form], task.weight) == pytest.approx(expected, rel=1e-5)
    if form in ("function", "lambda", "partial"):
        assert task.metric(OWN[form], task.weight) == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_reduces_itself_is_called_as_keras_does():
    task = CASES["classes"]
    values = np.sum(task.logits.astype("float64") ** 2, -1) * (1 + task.y)
    assert task.computed(ItsOwn()) == pytest.approx(values.mean() + 1, rel=1e-5)


def test_labels_of_numbers_have_the_axis_of_the_outputs():
    """Else labels (B,) and outputs (B, 1) are compared each with each."""
    task = CASES["numbers"]

    class Squares(losses.Loss):
        def call(self, y_true, y_pred):
            return ops.mean(ops.square(y_true - y_pred), axis=-1)

    task.model.compile(loss=Squares())
    y, z = tf.constant(task.y[:, 0]), tf.constant(task.logits)
    found = float(task.model.compute_loss({}, y, z, training=False))
    assert found == pytest.approx(np.mean((task.y - task.logits) ** 2), rel=1e-5)


@pytest.mark.parametrize(
    ("case", "loss", "message"),
    [
        (
            "classes",
            losses.MeanSquaredError(reduction=None),
            "MeanSquaredError is None",
        ),
        ("tokens", ByHand(reduction="none"), "ByHand is 'none'"),
        ("classes", ["mse", "mae"], r"loss is \['mse', 'mae'\]"),
        ("classes", {"a": "mse", "b": "mae"}, "loss is {'a': 'mse'"),
        (
            "classes",
            "mean_squared",
            "'mean_squared'.*Did you mean",
        ),
        ("classes", 3, "loss is 3"),
    ],
)
def test_what_is_no_loss_is_refused_at_once(case, loss, message):
    with pytest.raises(ValueError, match=message):
        CASES[case].model.compile(loss=loss)


def test_values_that_cannot_be_weighed_are_refused():
    tokens, labels = CASES["tokens"], CASES["labels"]
    with pytest.raises(ValueError, match="single"):
        tokens.computed(lambda y, z: ops.mean(z), LABELLED)
    with pytest.raises(ValueError, match=r" is \(2,\)"):
        tokens.computed(lambda y, z: ops.mean(z, axis=(1, 2)), LABELLED)
    with pytest.raises(ValueError, match="BinaryFocalCrossentropy.*shape"):
        labels.computed(losses.BinaryFocalCrossentropy(), np.ones((2, 3), "float32"))


def test_spans_take_sums_of_each_text_alone():
    model = tiny.task(get_family("bert"), ez.EntityExtractor)
    with pytest.raises(ValueError, match="BinaryCrossentropy.*padding"):
        model.compile(loss="binary_crossentropy")
    model.compile(loss=lambda y, z: ops.mean(z, axis=-1))
    with pytest.raises(ValueError, match=" is.*padding"):
        model.compute_loss({}, tf.zeros((2, 3, 2, 4)), tf.zeros((2, 3, 2, 4)), training=False)


def test_a_loss_has_a_weight():
    task = CASES["classes"]
    one = task.computed("mse")
    for weight in (0.5, [0.5]):
        task.model.compile(loss="mse", loss_weights=weight)
        given = tf.constant(task.y), tf.constant(task.logits)
        assert float(task.model.compute_loss({}, *given, training=False)) == pytest.approx(one / 2)
    with pytest.raises(ValueError, match="loss_weights is"):
        task.model.compile(loss="mse", loss_weights=[1, 2])
    task.model.compile(loss="mse", loss_weights=1.0)


# -- mixed precision and class weights -------------------------------------------------------------


def variant(task, **changed):
    """The same case with other logits, or of another model."""
    other = copy.copy(task)
    vars(other).update(changed)
    return other


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("case", [slow(case) if case in RARE else case for case in CASES])
@pytest.mark.parametrize("dtype", ["float16", slow("bfloat16")])
def test_losses_of_half_precision_are_computed_in_float32(half_models, case, name, dtype):
    """Outputs of a head of a user's may be in half precision: they are rounded, and no more."""
    task = CASES[case]
    if refused(case, name) or (name in WHOLE and task.weight is not None):
        return
    rounded = tf.cast(tf.constant(task.logits), dtype)
    half = variant(task, logits=tf.cast(rounded, "float32").numpy(), model=half_models(case, dtype))
    assert half.model.dtype_policy.name == f"mixed_{dtype}"
    loss = batch_loss.LOSS_CLASSES[getattr(losses, name)]()
    half.model.compile(half.optimizer, loss=loss)
    weight = task.weight if task.weight is None else tf.constant(task.weight)
    found = half.model.compute_loss({}, tf.constant(task.y), rounded, weight, training=False)
    expected = half.expected(name, weight=task.weight)
    assert float(found) == pytest.approx(expected, rel=2e-5, abs=1e-6)
    metric = loss if name == "categorical_generalized_cross_entropy" else name
    arguments = {"metrics": [metric], "weighted_metrics": []}
    half.model.compile(half.optimizer, loss="auto", **arguments)
    half.model.reset_metrics()
    results = half.model.compute_metrics({}, tf.constant(task.y), rounded, weight)
    [value] = [float(value) for name, value in results.items() if name != "loss"]
    sign = -1 if name == "cosine_similarity" else 1
    assert value == pytest.approx(sign * expected, rel=2e-5, abs=1e-6)


@pytest.fixture(scope="module")
def half_models():
    """The models of the cases in half precision, each made once."""

    @functools.cache
    def made(case, dtype):
        backbone = ez.BertBackbone(30, **sizes(dtype=f"mixed_{dtype}"))
        return CASES[case].task(backbone, **CASES[case].arguments)

    return made


WEIGHED = ["categorical_crossentropy", "categorical_focal_crossentropy", "kl_divergence"]
WEIGHED += ["mean_squared_error", "hinge"]


@pytest.mark.parametrize("name", [WEIGHED[0], *map(slow, WEIGHED[1:])])
@pytest.mark.parametrize("case", ["classes", slow("two classes"), slow("tokens")])
def test_class_weights_weigh_the_examples_of_each_class(case, name):
    task, rows = CASES[case], len(CASES[case].y)
    backbone = ez.BertBackbone(30, **sizes(dropout=0.0), pooler=case != "tokens")
    model = task.task(backbone, **task.arguments)
    x = {"token_ids": rng.integers(5, 30, (rows, 5)).astype("int32")}
    weights = {0: 3.0, 1: 0.5}
    arguments = {"loss": name, "weighted_metrics": [name], "metrics": [], "run_eagerly": True}
    model.compile(keras.optimizers.SGD(1e-6), **arguments)
    logits = ops.convert_to_numpy(model(x, training=False))
    history = model.fit(
        x, task.y.astype("int32"), sample_weight=task.weight, class_weight=weights, verbose=0
    ).history
    of_class = np.vectorize(lambda y: weights.get(int(y), 1.0))(task.y)
    weight = of_class if task.weight is None else of_class * task.weight
    given = variant(task, logits=logits)
    expected = given.expected(name, weight=weight)
    assert history["loss"][0] == pytest.approx(expected, rel=1e-4)
    expected = given.expected(name, "mean_with_sample_weight", weight)
    [found] = [values[0] for key, values in history.items() if key != "loss"]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("case", ["labels", "numbers", "pairs", "choices", "answers"])
def test_class_weights_without_a_meaning_are_refused(case):
    task = CASES[case]
    model = task.task(ez.BertBackbone(30, **sizes()), **task.arguments)
    x = {"token_ids": np.full((len(task.y), 5), 7, "int32")}
    model.compile("sgd", loss="mse" if case in ("labels", "numbers") else "auto")
    with pytest.raises(ValueError, match="class_weight"):
        model.fit(x, task.y, class_weight={0: 2.0}, verbose=0)
