"""Temperatures and thresholds of labels: found, used in answers and exports, saved, forgotten."""

import json

import keras
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.metrics import f1_score

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.base.classes import compute_sigmoid, compute_softmax
from encoder_zoo.tasks.base.confidence import find_best_threshold, find_calibration
from encoder_zoo.testing import tiny

TEXTS = ["a b c", "d e", "f g h", "a d", "b e h", "c", "g a b", "h d e"]
MULTI = [["up"], ["up", "down"], [], ["down"], ["up"], ["down"], [], ["up"]]


def classifier(**options):
    keras.utils.set_random_seed(3)
    family = get_family("bert")
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
    options = {"labels": ["O", "B-X", "I-X"], **options}
    return spread(
        ez.SequenceClassifier(tiny.backbone(family, dropout=0.0), preprocessor, **options)
    )


def tagger():
    keras.utils.set_random_seed(3)
    return spread(tiny.task(get_family("bert"), ez.TokenClassifier, dropout=0.0))


def spread(task):
    """The task with logits that are far apart."""
    kernel, _ = task.head.weights[-2:]
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape) * 3)
    return task


def named(names, scores, least):
    """The names of the labels with enough score, of each text."""
    return [{names[i] for i in np.flatnonzero(row >= np.float32(least))} for row in scores]


def f1_of(found, true):
    right = sum(len(a & b) for a, b in zip(found, true, strict=True))
    return 2 * right / (sum(map(len, found)) + sum(map(len, true)))


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_the_temperature_is_the_best(activation):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(300, 4)) * 6
    noisy = logits / 3 + rng.gumbel(size=logits.shape)
    targets = np.eye(4)[noisy.argmax(axis=1)]
    if activation == "sigmoid":
        targets = (rng.uniform(size=logits.shape) < compute_sigmoid(logits / 3)).astype(float)

    def loss(temperature):
        if activation == "softmax":
            return -np.mean(np.log((compute_softmax(logits / temperature) * targets).sum(axis=1)))
        right = compute_sigmoid(np.where(targets > 0, logits, -logits) / temperature)
        return -np.mean(np.log(right))

    best = minimize_scalar(loss, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-9})
    found = find_calibration(logits, targets, activation)
    assert found["temperature"] == pytest.approx(best.x, rel=1e-4)
    assert 2.5 < found["temperature"] < 3.5  # as the labels were drawn
    assert found["loss"] == pytest.approx(best.fun, rel=1e-9)
    assert found["loss_before"] == pytest.approx(loss(1.0), rel=1e-9)
    assert found["error"] < found["error_before"] / 2


def test_nothing_to_find_a_temperature_in(caplog):
    with pytest.raises(ValueError, match="requires labels"):
        find_calibration(np.zeros((0, 2)), np.zeros((0, 2)), "softmax")
    assert find_calibration(np.eye(2), np.eye(2), "softmax")["temperature"] == 0.01
    assert find_calibration(np.eye(2), 1 - np.eye(2), "softmax")["temperature"] == 100.0
    assert ["all correct" in caplog.messages[0], "no better than chance" in caplog.messages[1]] == [
        True
    ] * 2


@pytest.mark.slow
def test_the_threshold_has_the_highest_f1():
    rng = np.random.default_rng(2)
    for _ in range(50):
        count = int(rng.integers(1, 30))
        scores = rng.integers(0, 12, count) / 11  # some of them equal
        right = rng.uniform(size=count) < scores
        threshold, f1 = find_best_threshold(scores, right, int(right.sum()))
        of_all = [f1_score(right, scores >= t, zero_division=0) for t in np.unique(scores)]
        assert f1 == pytest.approx(max(of_all))
        if f1:
            assert f1_score(right, scores >= threshold) == pytest.approx(f1)
    # answers that are found nowhere count as well
    assert find_best_threshold(np.array([0.9, 0.2]), np.array([True, False]), 3) == (0.5, 0.5)


def test_metrics_without_thresholds_are_logged(caplog):
    task = classifier(labels=["no", "yes"])
    for thresholds in (None, {"yes": 0.4}):
        task.thresholds = thresholds
        caplog.clear()
        task.evaluate(TEXTS, ["no", "yes"] * (len(TEXTS) // 2), verbose=0)
        assert ("evaluate_classes" in caplog.text) == (thresholds is not None)


@pytest.mark.slow
def test_a_calibrated_classifier(tmp_path, caplog):
    task = classifier()
    labels = ["O", "B-X", "I-X", "O", "O", "B-X", "I-X", "I-X"]
    logits = task.predict(TEXTS, verbose=0)
    found = task.calibrate(TEXTS, labels)
    assert found["temperature"] == task.temperature != 1
    np.testing.assert_array_equal(task.predict(TEXTS, verbose=0), logits)
    expected = compute_softmax(logits / task.temperature)
    np.testing.assert_allclose(task.predict_proba(TEXTS), expected, atol=1e-6)
    [answer] = task.classify(TEXTS[:1])
    assert answer["score"] == pytest.approx(expected[0].max(), abs=1e-6)
    assert task.explain(TEXTS[0])["score"] == pytest.approx(expected[0].max(), abs=1e-5)

    task.save_to_preset(tmp_path / "preset")
    again = ez.SequenceClassifier.from_preset(tmp_path / "preset")
    assert again.temperature == task.temperature
    task.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").temperature == task.temperature
    others = ez.SequenceClassifier.from_preset(tmp_path / "preset", labels=["x", "y"])
    assert others.temperature == 1.0

    again.fit(TEXTS, labels, verbose=0)
    assert again.temperature == 1.0
    assert any("calibrate" in line and "temperature" in line for line in caplog.messages)


@pytest.mark.slow
def test_thresholds_of_several_labels(tmp_path):
    several = {"problem_type": "multi_label_classification", "labels": ["down", "up"]}
    task = classifier(**several)
    scores = task.predict_proba(TEXTS)
    found = task.tune_thresholds(TEXTS, MULTI)
    hot = np.array([[name in row for name in ("down", "up")] for row in MULTI])
    for i, name in enumerate(("down", "up")):
        best = max(f1_score(hot[:, i], scores[:, i] >= t) for t in np.unique(scores[:, i]))
        assert f1_score(hot[:, i], scores[:, i] >= found[name]) == pytest.approx(best)
    answers = [{row["label"] for row in of_text} for of_text in task.classify(TEXTS)]
    least = np.array([found["down"], found["up"]])
    assert answers == named(["down", "up"], scores, least)
    # what is asked for counts more
    assert all(len(row) == 2 for row in task.classify(TEXTS, threshold=0.0))
    assert not any(task.classify(TEXTS, threshold={"up": 1.0, "down": 1.0}))
    with pytest.raises(ValueError, match="thresholds.*is 'upp'"):
        task.classify(TEXTS, threshold={"upp": 0.5})
    with pytest.raises(ValueError, match="threshold is {'up': 2}"):
        task.classify(TEXTS, threshold={"up": 2})

    task.save_to_preset(tmp_path)
    assert json.loads((tmp_path / "encoder_zoo.json").read_text())["preprocessor"]["thresholds"]
    assert ez.SequenceClassifier.from_preset(tmp_path).classify(TEXTS) == task.classify(TEXTS)


@pytest.mark.slow
def test_the_threshold_of_two_classes():
    task = classifier(labels=["ham", "spam"])
    labels = ["spam", "ham", "ham", "ham", "spam", "ham", "ham", "ham"]
    scores = task.predict_proba(TEXTS)[:, 1]
    [(name, least)] = task.tune_thresholds(TEXTS, labels).items()
    right = np.array(labels) == "spam"
    best = max(f1_score(right, scores >= t) for t in np.unique(scores))
    found = np.array([row["label"] for row in task.classify(TEXTS)])
    assert name == "spam" and f1_score(right, found == "spam") == pytest.approx(best)
    np.testing.assert_array_equal(found == "spam", scores >= least)


@pytest.mark.slow
def test_where_there_are_no_thresholds():
    with pytest.raises(ValueError, match="problem_type=.* 3 classes"):
        classifier().tune_thresholds(TEXTS, ["O"] * 8)
    numbers = classifier(problem_type="regression", labels=None, num_classes=1)
    for method in (numbers.tune_thresholds, numbers.calibrate):
        with pytest.raises(ValueError, match=f"{method.__name__}.*numbers"):
            method(TEXTS, [0.5] * 8)
    with pytest.raises(ValueError, match="labels are missing"):
        classifier().calibrate(TEXTS)
    with pytest.raises(ValueError, match="7.* 8|8.* 7"):
        classifier().calibrate(TEXTS, ["O"] * 7)
    with pytest.raises(ValueError, match="y.*is 'label'"):
        classifier().calibrate(TEXTS, "label")
    with pytest.raises(ValueError, match="thresholds.*is 'spam'"):
        classifier(thresholds={"spam": 0.5}, problem_type="multi_label_classification")


WORDS = [["a", "bc", "d"], ["e", "f"], ["g", "h", "a", "b"]]
TAGS = [["B-X", "I-X", "O"], ["O", "B-X"], ["O", "O", "B-X", "I-X"]]
SPANS = [[(0, 4, "X")], [(2, 3, "X")], [(4, 7, "X")]]  # the same in "a bc d", "e f", "g h a b"


@pytest.mark.slow
def test_a_tagger_with_temperature_and_thresholds(tmp_path):
    task = tagger()
    loss = task.calibrate(WORDS, TAGS)
    assert loss["loss"] < loss["loss_before"] and task.temperature != 1.0
    true = task._collect_true_entities(WORDS, TAGS)
    assert true == [{("X", start, end) for start, end, _ in row} for row in SPANS]
    assert task._collect_true_entities([" ".join(words) for words in WORDS], SPANS) == true

    found = task.extract_entities(WORDS)
    thresholds = task.tune_thresholds(WORDS, TAGS)
    kept = [[row for row in rows if row["score"] >= thresholds["X"]] for rows in found]
    assert task.extract_entities(WORDS) == kept
    assert task.extract_entities(WORDS, threshold=0.0) == found

    def f1_above(least):
        above = [[row for row in rows if row["score"] >= least] for rows in found]
        return f1_of([{("X", row["start"], row["end"]) for row in rows} for rows in above], true)

    scores = [row["score"] for rows in found for row in rows]
    assert f1_above(thresholds["X"]) == pytest.approx(max(map(f1_above, scores)))

    task.save_to_preset(tmp_path)
    again = ez.TokenClassifier.from_preset(tmp_path)
    assert (again.temperature, again.thresholds) == (task.temperature, task.thresholds)
    assert again.extract_entities(WORDS) == kept


@pytest.mark.slow
def test_an_export_scores_as_the_task_does():
    tf = pytest.importorskip("tensorflow")
    for task in (classifier(temperature=2.5), tagger()):
        task.temperature = 2.5
        if isinstance(task, ez.TokenClassifier):
            task.thresholds = {"X": 0.4}
            expected = [row["score"] for rows in task.extract_entities(TEXTS) for row in rows]
            answer = tf.function(task.signatures()["serving_default"])(tf.constant(TEXTS))
            given = answer["score"].numpy()
            counts = answer["count"].numpy()
            found = np.concatenate([row[:n] for row, n in zip(given, counts, strict=True)])
        else:
            expected = [row["score"] for row in task.classify(TEXTS)]
            answer = tf.function(task.signatures()["serving_default"])(tf.constant(TEXTS))
            found = answer["score"].numpy()[:, 0]
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_few_shot_and_zero_shot(tmp_path):
    few = ez.FewShotClassifier.from_preset(
        "bert_nano_en_uncased_embedder", problem_type="multi_label_classification"
    )
    texts = ["Good!", "It is late.", "Good, but late.", "Hello."]
    labels = [["good"], ["late"], ["good", "late"], []]
    few.fit(texts, labels, epochs=0)
    few.tune_thresholds(texts, labels)
    assert [sorted(row["label"] for row in rows) for rows in few.classify(texts)] == labels
    few.save_to_preset(tmp_path)
    assert ez.FewShotClassifier.from_preset(tmp_path).classify(texts) == few.classify(texts)
    few.fit(texts, labels, epochs=0)
    assert few.thresholds is None

    nli = ez.SequenceClassifier.from_preset(
        "bert_nano_en_uncased", labels=["contradiction", "neutral", "entailment"]
    )
    zero = ez.ZeroShotClassifier(nli)
    names = ["good", "late"]
    thresholds = zero.tune_thresholds(texts, labels, names)
    scores = zero.predict_proba(texts, names, multi_label=True)
    answers = zero.classify(texts, names, multi_label=True, threshold=thresholds)
    least = [thresholds[name] for name in names]
    expected = named(names, scores, least)
    assert [{row["label"] for row in rows} for rows in answers] == expected
    with pytest.raises(ValueError, match="is 3.* 4"):
        zero.tune_thresholds(texts, labels[:3], names)
