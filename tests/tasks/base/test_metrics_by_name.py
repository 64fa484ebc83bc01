"""Every metric that `compile` knows by name equals scikit-learn's or SciPy's, on hostile inputs."""

import warnings

import keras
import numpy as np
import pytest
from processes import PATIENCE, cluster_of_two, run, start_process
from scipy import special, stats
from sklearn import metrics as sk

from encoder_zoo.tasks.ranking.reranker import NDCG
from encoder_zoo.tasks.training.metrics import Matthews, Spearman
from encoder_zoo.tasks.training.objective import CLASS_SCORES, CORRELATIONS, METRIC_NAMES, Objective

SKLEARN = {"f1": sk.f1_score, "precision": sk.precision_score, "recall": sk.recall_score}
CASES = ["plain", "ties", "close", "absent", "one class", "saturated", "constant", "imbalanced"]
WEIGHTS = ["unweighted", "weighted"]
KINDS = {"two": ("softmax", 2), "five": ("softmax", 5), "labels": ("sigmoid", 4)}


def objective_of(activation, num_classes):
    return Objective(keras.losses.MeanSquaredError, list, activation, num_classes)


def classes_case(case, kind, seed=0):
    """Labels and logits of 61 texts, in batches of different size."""
    activation, classes = KINDS[kind]
    rng = np.random.default_rng(seed)
    y_pred = rng.normal(size=(61, classes))
    if activation == "softmax":
        y_true = rng.integers(0, classes, 61)
        y_true[:classes] = np.arange(classes)
        if case == "absent" and classes > 2:
            y_true[y_true > 2] = 0
            y_pred[:, 4] = -9.0  # neither true nor predicted
        if case == "one class":
            y_true[:] = 1
        if case == "imbalanced":
            y_true[classes:] = 0
    else:
        y_true = rng.integers(0, 2, (61, classes))
        if case in ("absent", "one class"):
            y_true[:, 1], y_true[:, 2] = 0, 1
            y_pred[:, 1] = -9.0
        if case == "imbalanced":
            y_true[3:] = 0
    if case == "ties":
        y_pred = np.round(y_pred)
        y_pred[:, 0] += 0.25  # of two classes no tie decides which one is predicted
    if case == "close":  # logits of a model that is hardly trained
        y_pred = y_pred * 2.0**-12
    if case == "saturated":
        y_pred = 1e4 * np.round(y_pred * 8) / 8
    if case == "constant":
        y_pred = np.tile(y_pred[:1], (61, 1))
    return y_true, y_pred.astype("float32")


def numbers_case(case, columns=1, seed=0):
    rng = np.random.default_rng(seed)
    y_true = rng.normal(size=(61, columns))
    y_pred = y_true + rng.normal(size=y_true.shape)
    if case == "ties":
        y_true, y_pred = np.round(y_true), np.round(y_pred)
    if case == "close":
        y_pred = y_pred * 2.0**-12
    if case == "saturated":
        y_pred = y_pred * 1e4 + 1e6
    if case == "imbalanced":
        y_true, y_pred = y_true * 1e-6, y_pred * 1e10
    if case == "constant":
        y_pred = np.full_like(y_pred, 0.3)
    if case == "one class":
        y_true[:] = 1.0
    return y_true.astype("float32"), y_pred.astype("float32")


def weights_of(kind, seed=1):
    """Integers, so that a weight means as many repetitions where no other standard is."""
    return np.random.default_rng(seed).integers(0, 4, 61) if kind == "weighted" else None


def value(metric, y_true, y_pred, weight):
    """Return the result after two batches of 31 and 30."""
    for rows in (slice(31), slice(31, None)):
        part = None if weight is None else weight[rows].astype("float32")
        metric.update_state(y_true[rows], y_pred[rows], part)
    return float(metric.result())


def standard(name, y_true, y_pred, weight, kind):
    """Return what scikit-learn or SciPy says in float64."""
    y_pred = y_pred.astype("float64")
    if name in CORRELATIONS:
        correlate = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[name]
        if weight is not None:
            y_true, y_pred = (np.repeat(y, weight, axis=0) for y in (y_true, y_pred))
        pairs = zip(y_true.T.astype("float64"), y_pred.T, strict=True)
        return np.mean([correlate(a, b).statistic for a, b in pairs])
    activation, classes = KINDS[kind]
    if name in CLASS_SCORES:
        score, _, average = name.partition("_")
        average = average or ("binary" if kind == "two" else "macro")
        labels = range(classes) if average == "macro_all" else None
        found = y_pred.argmax(1) if activation == "softmax" else (y_pred > 0).astype(int)
        options = {"average": average.removesuffix("_all"), "labels": labels, "zero_division": 0}
        if average == "binary":
            options["labels"] = None
        if average == "macro" and weight is not None and kind != "labels":
            # Classes that occur only with weight 0 do not occur.
            y_true, found = y_true[weight > 0], found[weight > 0]
            weight = weight[weight > 0]
        return SKLEARN[score](y_true, found, sample_weight=weight, **options)
    if name == "matthews":
        return sk.matthews_corrcoef(y_true, y_pred.argmax(1), sample_weight=weight)
    if name == "perplexity":
        losses = -special.log_softmax(y_pred, axis=1)[np.arange(len(y_true)), y_true]
        return np.exp(np.average(losses, weights=weight))
    kept = slice(None) if weight is None else weight > 0
    one_hot = np.eye(classes)[y_true] if activation == "softmax" else y_true
    scores = y_pred
    if activation == "softmax":  # log-odds, so that float64 does not saturate either
        others = [np.delete(y_pred, c, axis=1) for c in range(classes)]
        scores = np.stack([y_pred[:, c] - special.logsumexp(o, 1) for c, o in enumerate(others)], 1)
        is_close = np.ptp(y_pred) < 0.01
        scores = np.round(scores, 13 if is_close else 9)  # equal in spite of rounding
    columns = [1] if kind == "two" else range(classes)
    weight = None if weight is None else weight[kept]
    found = []
    for c in columns:
        true = one_hot[kept, c]
        if name == "auc" and 0 < true.sum() < len(true):
            found.append(sk.roc_auc_score(true, scores[kept, c], sample_weight=weight))
        if name == "average_precision" and true.any():
            found.append(sk.average_precision_score(true, scores[kept, c], sample_weight=weight))
    empty = {"auc": np.nan, "average_precision": 0.0}[name]
    return np.mean(found) if found else empty


def kinds_of(name):
    if name in CORRELATIONS:
        return ["one number", "three numbers"]
    if name in ("matthews", "perplexity"):
        return ["two", "five"]
    return list(KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_one_class_has_no_correlation_whatever_the_weights(seed):
    """Rounding of the weights' sums left 1e-4; scikit-learn's is 0."""
    rng = np.random.default_rng(seed)
    some, one = rng.integers(0, 5, 40), np.zeros(40, int)
    for true, found in ((some, one), (one, some)):
        metric = Matthews()
        weight = rng.random(40).astype("float32")
        metric.update_state(true, np.eye(5, dtype="float32")[found], weight)
        assert sk.matthews_corrcoef(true, found, sample_weight=weight) == 0
        assert float(metric.result()) == 0


@pytest.mark.parametrize("name", ["crossentropy", "ce"])
def test_crossentropy_is_a_metric_as_in_keras(name):
    y_true, y_pred = classes_case("plain", "five")
    weight = np.linspace(0, 2, 61).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy
    objective = Objective(lambda: loss(from_logits=True), list, "softmax", 5)
    [metric] = objective.resolve_metrics([name])
    metric.update_state(y_true, y_pred, weight)
    expected = sk.log_loss(y_true, special.softmax(y_pred, -1), sample_weight=weight)
    assert metric.name == name and float(metric.result()) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="requires classes"):
        objective_of("linear", 1).resolve_metrics([name])


@pytest.mark.slow(except_for="^perplexity")
@pytest.mark.parametrize("name", METRIC_NAMES)
def test_metric_equals_its_standard(name):
    """Of a new name `standard` raises an error until it knows the standard."""
    for kind in kinds_of(name):
        for case in CASES:
            for weights in WEIGHTS:
                weight = weights_of(weights)
                if name in CORRELATIONS:
                    metric = objective_of("linear", 1).make_metric(name)
                    y_true, y_pred = numbers_case(case, 3 if kind == "three numbers" else 1)
                else:
                    metric = objective_of(*KINDS[kind]).make_metric(name)
                    y_true, y_pred = classes_case(case, kind)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of constant inputs and absent classes
                    with np.errstate(over="ignore"):
                        expected = standard(name, y_true, y_pred, weight, kind)
                found = value(metric, y_true, y_pred, weight)
                if not expected < 1e30:
                    expected = found if found > 1e30 else expected  # float32's infinity
                message = f"{kind}, {case}, {weights}: {found} for {expected}"
                assert found == pytest.approx(expected, abs=2e-6, rel=2e-5, nan_ok=True), message


@pytest.mark.parametrize("k", [1, 3, 10])
def test_ndcg_equals_scikit_learn(k):
    rng = np.random.default_rng(0)
    y_true = rng.integers(0, 4, (20, 7)).astype("float32")
    y_true[:, 0] = 1  # each query has a relevant text
    grid = np.round(rng.normal(size=(20, 7)))
    for y_pred in (grid, 1e4 * grid, np.zeros((20, 7)), rng.normal(size=(20, 7))):
        metric = NDCG(k)
        metric.update_state(y_true[:11], y_pred[:11])
        metric.update_state(y_true[11:], y_pred[11:])
        assert float(metric.result()) == pytest.approx(sk.ndcg_score(y_true, y_pred, k=k), abs=1e-6)


def test_more_examples_than_there_is_room_for():
    metric = Spearman(capacity=4)
    y = np.arange(6.0)[:, None]
    metric.update_state(y[:4], y[:4])
    assert float(metric.result()) == 1
    metric.update_state(y[4:], y[4:])
    assert np.isnan(float(metric.result()))
    assert metric.reserve(6)
    metric.update_state(y, -y)
    assert float(metric.result()) == -1


SCRIPT = """
import contextlib
import os
import numpy as np
import keras
import encoder_zoo as ez
from encoder_zoo.testing import tiny
from scipy import special, stats
from sklearn import metrics as sk

strategies = [None]
if keras.config.backend() == "tensorflow":
    import tensorflow as tf
    if "TF_CONFIG" in os.environ:
        strategies = [tf.distribute.MultiWorkerMirroredStrategy()]
    else:
        [cpu] = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategies.append(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
rng = np.random.default_rng(0)
x = {"token_ids": rng.integers(1, 20, (17, 5))}
three, classes, numbers = rng.integers(0, 3, 17), rng.integers(0, 2, 17), rng.normal(size=17)
tags, bounds = rng.integers(0, 3, (17, 5)), np.sort(rng.integers(0, 5, (17, 2)))


def spans(row):
    '''Return the entities of a row of tags, where an I-X after O begins one, as in conlleval.'''
    found, start = set(), None
    for i, tag in enumerate([*row, 0]):
        if start is not None and tag != 2:
            found.add((start, i))
            start = None
        if tag and start is None:
            start = i
    return found


def make(cls, metrics, **arguments):
    '''Return a model whose outputs are far from ties: parts of a batch are rounded otherwise.'''
    keras.utils.set_random_seed(0)
    pooler = cls is ez.SequenceClassifier
    model = tiny.randomize_weights(cls(ez.BertBackbone(20, 1, 1, 4, 8, pooler=pooler), **arguments))
    model.compile(metrics=metrics)
    return model


def evaluated(model, y):
    found = model.evaluate(x, y, batch_size=8, return_dict=True, verbose=0)
    return found, model.predict(x, verbose=0)


for strategy in strategies:
    with strategy.scope() if strategy else contextlib.nullcontext():
        of_two = make(ez.SequenceClassifier, ["auc", "average_precision", "f1"], num_classes=2)
        of_three = make(ez.SequenceClassifier, ["auc", "matthews", "f1"], num_classes=3)
        scorer = make(
            ez.SequenceClassifier,
            ["pearson", "spearman", "mse", "mae"],
            num_classes=1,
            problem_type="regression",
        )
        tagger = make(
            ez.TokenClassifier, ["accuracy", "f1", "f1_macro"], labels=["O", "B-X", "I-X"]
        )
        reader = make(ez.SpanQA, ["exact_match", "f1"])
    found, logits = evaluated(of_two, classes)
    scores = logits[:, 1] - logits[:, 0]
    checks = [
        (found["auc"], sk.roc_auc_score(classes, scores)),
        (found["average_precision"], sk.average_precision_score(classes, scores)),
        (found["f1"], sk.f1_score(classes, scores > 0)),
    ]
    found, logits = evaluated(of_three, three)
    probabilities = special.softmax(logits.astype("float64"), axis=1)
    checks += [
        (found["auc"], sk.roc_auc_score(three, probabilities, multi_class="ovr")),
        (found["matthews"], sk.matthews_corrcoef(three, logits.argmax(1))),
        (found["f1"], sk.f1_score(three, logits.argmax(1), average="macro")),
    ]
    found, outputs = evaluated(scorer, numbers)
    checks += [
        (found["pearson"], stats.pearsonr(outputs[:, 0], numbers).statistic),
        (found["spearman"], stats.spearmanr(outputs[:, 0], numbers).statistic),
        (found["mse"], sk.mean_squared_error(numbers, outputs[:, 0])),
        (found["mae"], sk.mean_absolute_error(numbers, outputs[:, 0])),
    ]
    found, logits = evaluated(tagger, tags)
    chosen = logits.argmax(-1)
    pairs = [(spans(true), spans(guessed)) for true, guessed in zip(tags, chosen, strict=True)]
    right = sum(len(true & guessed) for true, guessed in pairs)
    all_found = sum(len(true) + len(guessed) for true, guessed in pairs)
    checks += [
        (found["accuracy"], sk.accuracy_score(tags.ravel(), chosen.ravel())),
        (found["f1"], 2 * right / all_found),
        (found["f1_macro"], sk.f1_score(tags.ravel(), chosen.ravel(), average="macro")),
    ]
    found, logits = evaluated(reader, bounds)
    exact, shared = [], []
    for (start, end), (first, last) in zip(bounds, logits, strict=True):
        begin = first.argmax()
        stop = begin + last[begin:].argmax()
        exact.append((begin, stop) == (start, end))
        both = len({*range(start, end + 1)} & {*range(begin, stop + 1)})
        shared.append(2 * both / (end - start + 1 + stop - begin + 1))
    checks += [(found["exact_match"], np.mean(exact)), (found["f1"], np.mean(shared))]
    for i, (ours, expected) in enumerate(checks):
        assert abs(ours - expected) < 1e-5, (strategy, i, ours, expected)
    print(len(checks), "metrics equal")
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_models_report_the_standard_also_on_two_replicas(backend):
    run(SCRIPT, KERAS_BACKEND=backend)


@pytest.mark.matrix
@pytest.mark.slow
def test_models_report_the_standard_on_two_workers(tmp_path):
    processes = [
        start_process(SCRIPT, tmp_path / f"{i}.log", KERAS_BACKEND="tensorflow", TF_CONFIG=config)
        for i, config in enumerate(cluster_of_two())
    ]
    codes = [process.wait(PATIENCE) for process in processes]
    assert codes == [0, 0], (tmp_path / "0.log").read_text()[-3000:]
