"""Reports class by class as scikit-learn computes them, abstention and coverage."""

import keras
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import classification_report, confusion_matrix

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.classification.class_scores import compute_class_report, compute_coverage
from encoder_zoo.testing import tiny

TEXTS = ["a b c", "d e", "f g h", "a d", "b e h", "c", "g a b", "h d e"]
LABELS = ["x", "y", "z", "x", "x", "y", "z", "x"]
MULTI = [["x"], ["x", "y"], [], ["y"], ["x", "z"], ["y"], [], ["x"]]
SEVERAL = "multi_label_classification"
PERCENT = {"macro": "macro avg", "weighted": "weighted avg", "micro": "micro avg"}


def spread(task):
    """Return the task with logits that are far apart, and differ between texts."""
    keras.utils.set_random_seed(1)
    for weight in task.head.weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape) * 2)
    return task


def classifier(**options):
    keras.utils.set_random_seed(3)
    family = get_family("bert")
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
    options = {"labels": ["x", "y", "z"], **options}
    return spread(
        ez.SequenceClassifier(tiny.backbone(family, dropout=0.0), preprocessor, **options)
    )


def few_shot(**options):
    keras.utils.set_random_seed(3)
    family = get_family("bert")
    preprocessor = ez.TextEmbedderPreprocessor(tiny.tokenizer(family))
    options = {"labels": ["x", "y", "z"], **options}
    backbone = tiny.backbone(family, dropout=0.0, pooler=False)
    return spread(ez.FewShotClassifier(backbone, preprocessor, **options))


def assert_equal_to_sklearn(found, true, predicted, names):
    expected = classification_report(
        true,
        predicted,
        labels=list(range(len(names))),
        target_names=names,
        output_dict=True,
        zero_division=0,
    )
    rows = {**found["per_class"], **{n: found[n] for n in PERCENT if n in found}}
    for name, row in rows.items():
        theirs = expected[PERCENT.get(name, name)]
        for ours, other in (("precision",) * 2, ("recall",) * 2, ("f1", "f1-score")):
            assert row[ours] == pytest.approx(theirs[other], abs=1e-12), (name, ours)
        assert row["support"] == theirs["support"]
    if "accuracy" in expected:
        assert found["accuracy"] == pytest.approx(expected["accuracy"])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_report_is_that_of_scikit_learn(several, seed):
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c", "d"]
    if several:
        true, found = (rng.uniform(size=(30, 4)) < 0.3 for _ in range(2))
        found[:, 2] = False  # never answered
        true[:, 3] = False  # never right
        assert_equal_to_sklearn(compute_class_report(names, found, true, True), true, found, names)
    else:
        true, found = rng.integers(0, 3, 30), rng.integers(0, 4, 30)
        report = compute_class_report(names, np.eye(4)[found] > 0, np.eye(4)[true] > 0, False)
        # With all classes, of which one is never right, "accuracy" is that of scikit-learn too.
        assert_equal_to_sklearn(report, true, found, names)


@pytest.mark.slow
@pytest.mark.parametrize("build", [classifier, few_shot])
def test_the_report_of_a_classifier(build):
    task = build()
    answers = [row["label"] for row in task.classify(TEXTS)]
    names = ["x", "y", "z"]
    true, found = (np.array([names.index(label) for label in rows]) for rows in (LABELS, answers))
    for y in (LABELS, pd.Series(LABELS), true):
        assert_equal_to_sklearn(task.evaluate_classes(TEXTS, y), true, found, names)
    several = build(problem_type=SEVERAL)
    hot, given = (
        np.array([[name in row for name in names] for row in rows])
        for rows in (MULTI, [[r["label"] for r in row] for row in several.classify(TEXTS)])
    )
    assert_equal_to_sklearn(several.evaluate_classes(TEXTS, MULTI), hot, given, names)
    # Thresholds of the model are those of the answers.
    several.tune_thresholds(TEXTS, MULTI)
    given = [[r["label"] for r in row] for row in several.classify(TEXTS)]
    given = np.array([[name in row for name in names] for row in given])
    assert_equal_to_sklearn(several.evaluate_classes(TEXTS, MULTI), hot, given, names)


@pytest.mark.slow
def test_thresholds_of_two_classes_count():
    task = classifier(labels=["ham", "spam"], thresholds={"spam": 0.97})
    labels = ["ham", "spam"] * 4
    found = [row["label"] for row in task.classify(TEXTS)]
    report = task.evaluate_classes(TEXTS, labels)
    right = np.mean([a == b for a, b in zip(found, labels, strict=True)])
    assert report["accuracy"] == pytest.approx(right)


@pytest.mark.slow
def test_what_has_no_report():
    numbers = classifier(problem_type="regression", labels=None)
    with pytest.raises(ValueError, match="evaluate_classes.*numbers"):
        numbers.evaluate_classes(TEXTS, [0.5] * 8)
    for task in (classifier(), few_shot()):
        with pytest.raises(AttributeError, match=r"Use evaluate_classes\(x, y\)"):
            _ = task.classification_report
    tagger = tiny.task(get_family("bert"), ez.TokenClassifier)
    with pytest.raises(AttributeError, match=r"Use evaluate_entities\(x, y\)"):
        _ = tagger.classification_report
    with pytest.raises(ValueError, match="one class"):
        classifier(problem_type=SEVERAL).evaluate_coverage(TEXTS, MULTI)
    with pytest.raises(ValueError, match="evaluate_coverage.*numbers"):
        numbers.evaluate_coverage(TEXTS, [0.5] * 8)
    with pytest.raises(ValueError, match="thresholds is"):
        classifier().evaluate_coverage(TEXTS, LABELS, [2.0])


@pytest.mark.slow
def test_the_table_has_the_numbers():
    report = classifier().evaluate_classes(TEXTS, LABELS)
    picture = ez.display.class_report(report)
    for name, row in report["per_class"].items():
        line = next(line for line in picture.text.splitlines() if line.split()[0] == name)
        numbers = [*(f"{row[key]:.3f}" for key in ("precision", "recall", "f1")), row["support"]]
        assert line.split()[1:] == [*numbers[:3], str(numbers[3])]
        assert all(f">{number}<" in picture.html for number in numbers)
    assert f"{report['accuracy']:.3f}" in picture.text.splitlines()[-1]
    assert (
        "<script>"
        not in ez.display.class_report({**report, "per_class": {"<script>": report["macro"]}}).html
    )
    with pytest.raises(ValueError, match="result of evaluate_classes"):
        ez.display.class_report(0.5)


@pytest.mark.eager
def test_a_callback_reports_the_classes_after_each_epoch():
    """While `fit` holds validation data of its own."""
    model, reports = classifier(), []

    class Report(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            reports.append(model.evaluate_classes(TEXTS, LABELS))

    data = {"validation_data": (TEXTS, LABELS), "callbacks": [Report()]}
    history = model.fit(TEXTS, LABELS, 4, verbose=0, **data).history
    assert [found["accuracy"] for found in reports] == pytest.approx(history["val_accuracy"])


class TestAbstention:
    @pytest.mark.slow
    @pytest.mark.parametrize("build", [classifier, few_shot])
    def test_answers_below_have_no_label(self, build):
        task = build()
        scores = task.predict_proba(TEXTS).max(axis=1)
        least = float(np.sort(scores)[3])  # four answers are kept, or five with an equal score
        plain = task.classify(TEXTS)
        found = task.classify(TEXTS, abstain_below=least)
        assert [row["score"] for row in found] == [row["score"] for row in plain]
        kept = scores >= np.float32(least)
        assert 0 < kept.sum() < 8
        assert [row["label"] for row in found] == [
            row["label"] if keep else None for row, keep in zip(plain, kept, strict=True)
        ]
        worst = int(scores.argmin())
        assert task.classify(TEXTS[worst], abstain_below=least)["label"] is None

    @pytest.mark.slow
    @pytest.mark.parametrize("build", [classifier, few_shot])
    def test_the_setting_of_the_model_is_saved(self, build, tmp_path):
        task = build(abstain_below=0.9)
        expected = build().classify(TEXTS, abstain_below=0.9)
        assert task.classify(TEXTS) == expected
        assert any(row["label"] is None for row in expected)
        assert task.classify(TEXTS, abstain_below=0.0) == build().classify(TEXTS)
        assert task.classify(TEXTS, top_k=2)[0][0]["label"] is not None
        task.save_to_preset(tmp_path / "preset")
        again = type(task).from_preset(tmp_path / "preset")
        assert again.abstain_below == 0.9
        assert [r["label"] for r in again.classify(TEXTS)] == [r["label"] for r in expected]
        assert type(task).from_config(task.get_config()).abstain_below == 0.9
        other = type(task).from_preset(tmp_path / "preset", labels=["p", "q"])
        assert other.abstain_below is None  # of other classes

    @pytest.mark.slow
    @pytest.mark.parametrize("build", [classifier, few_shot])
    def test_the_setting_of_the_model_is_exported(self, build, tmp_path):
        import tensorflow as tf

        task = build(abstain_below=0.9)
        task.export(str(tmp_path / "1"))
        served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
        found = served(text=tf.constant(TEXTS))
        expected = [row["label"] is None for row in task.classify(TEXTS)]
        assert found["abstains"].numpy().tolist() == expected
        build().export(str(tmp_path / "2"))
        served = tf.saved_model.load(str(tmp_path / "2")).signatures["serving_default"]
        assert "abstains" not in served(text=tf.constant(TEXTS))

    @pytest.mark.slow
    @pytest.mark.parametrize("build", [classifier, few_shot])
    def test_thresholds_are_exported(self, build):
        """The first of two labels, or the marked labels, are the labels that `classify` returns."""
        import tensorflow as tf

        task = build(labels=["ham", "spam"])
        scores = task.predict_proba(TEXTS)[:, 1]
        for least in (0.0, float(np.median(scores)), 1.0):
            task.thresholds = {"spam": least}
            found = task.signatures()["serving_default"](text=tf.constant(TEXTS))
            expected = task.classify(TEXTS)
            first = [label.decode() for label in found["label"].numpy()[:, 0]]
            assert first == [row["label"] for row in expected]
            expected = [row["score"] for row in expected]
            np.testing.assert_allclose(found["score"][:, 0], expected, rtol=1e-5)
            assert "answered" not in found
        task = build(problem_type="multi_label_classification")
        scores = task.predict_proba(TEXTS)
        task.thresholds = dict(zip(task.labels, np.median(scores, axis=0).tolist(), strict=True))
        found = task.signatures()["serving_default"](text=tf.constant(TEXTS))
        rows = zip(found["label"].numpy(), found["answered"].numpy(), strict=True)
        marked = [[label.decode() for label in labels[chosen]] for labels, chosen in rows]
        assert marked == [[row["label"] for row in rows] for rows in task.classify(TEXTS)]
        assert 0 < sum(map(len, marked)) < scores.size

    @pytest.mark.slow
    def test_of_two_classes_and_without_training(self):
        two = classifier(labels=["ham", "spam"])
        scores = two.predict_proba(TEXTS).max(axis=1)
        found = two.classify(TEXTS, abstain_below=0.9)
        np.testing.assert_array_equal([r["label"] is None for r in found], scores < 0.9)
        zero = ez.ZeroShotClassifier(classifier(labels=["entailment", "neutral", "contradiction"]))
        plain = zero.classify(TEXTS, ["u", "v", "w"])
        found = zero.classify(TEXTS, ["u", "v", "w"], abstain_below=0.6)
        assert [row["label"] for row in found] == [
            row["label"] if row["score"] >= 0.6 else None for row in plain
        ]

    @pytest.mark.slow
    @pytest.mark.parametrize("build", [classifier, few_shot])
    def test_what_cannot_abstain(self, build):
        with pytest.raises(ValueError, match="abstain_below is 0.5.*several labels"):
            build(problem_type=SEVERAL, abstain_below=0.5)
        with pytest.raises(ValueError, match="abstain_below is 0.5.*several labels"):
            build(problem_type=SEVERAL).classify(TEXTS, abstain_below=0.5)
        with pytest.raises(ValueError, match="abstain_below is 0.5.*top_k=2"):
            build().classify(TEXTS, abstain_below=0.5, top_k=2)
        with pytest.raises(ValueError, match="threshold.*abstain_below"):
            build().classify(TEXTS, threshold=0.9)
        with pytest.raises(ValueError, match="abstain_below is 2"):
            build().classify(TEXTS, abstain_below=2)

    def test_numbers_are_refused(self):
        with pytest.raises(ValueError, match="abstain_below is 0.5.*numbers"):
            classifier(problem_type="regression", labels=None, abstain_below=0.5)

    @pytest.mark.slow
    def test_few_shot_with_a_threshold(self):
        task = few_shot(problem_type=SEVERAL)
        scores = task.predict_proba(TEXTS)
        for row, of_text in zip(task.classify(TEXTS, threshold=0.3), scores, strict=True):
            expected = {task.labels[i] for i in np.flatnonzero(of_text >= 0.3)}
            assert {answer["label"] for answer in row} == expected
        found = task.classify(TEXTS, threshold={"x": 1.0, "y": 1.0, "z": 1.0})
        assert not any(found)


class TestCoverage:
    def test_by_hand(self):
        scores = np.float32([0.9, 0.8, 0.7, 0.6])
        right = np.array([True, True, False, True])
        found = compute_coverage(scores, right, [0.0, 0.7, 0.9, 0.95])
        assert [row["answered"] for row in found] == [4, 3, 1, 0]
        assert [row["coverage"] for row in found] == [1.0, 0.75, 0.25, 0.0]
        assert [row["accuracy"] for row in found[:3]] == pytest.approx([3 / 4, 2 / 3, 1.0])
        assert np.isnan(found[3]["accuracy"])

    @pytest.mark.slow
    @pytest.mark.parametrize("build", [classifier, few_shot])
    def test_is_what_classify_answers(self, build):
        task = build()
        for row in task.evaluate_coverage(TEXTS, LABELS):
            answers = task.classify(TEXTS, abstain_below=row["threshold"])
            given = [
                answer["label"] == label
                for answer, label in zip(answers, LABELS, strict=True)
                if answer["label"] is not None
            ]
            assert row["answered"] == len(given)
            assert row["coverage"] == len(given) / 8
            if given:
                assert row["accuracy"] == pytest.approx(np.mean(given))

    @pytest.mark.slow
    def test_the_picture_has_the_same_numbers(self):
        task = classifier(abstain_below=0.75)
        axes = ez.display.coverage(task, TEXTS, LABELS)
        levels, shares = axes.lines[0].get_data()
        table = task.evaluate_coverage(TEXTS, LABELS, [float(level) for level in levels])
        np.testing.assert_allclose(shares, [row["coverage"] for row in table])
        np.testing.assert_allclose(
            axes.lines[1].get_ydata(), [row["accuracy"] for row in table], rtol=1e-6
        )
        assert axes.lines[2].get_label() == "now 0.75"


class TestConfusion:
    @pytest.mark.parametrize("normalize", [None, "true", "predicted", "all"])
    def test_as_scikit_learn_normalizes(self, normalize):
        found = ["x", "y", "y", "x", "x", "x", "y", "x"]
        names = ["w", "x", "y", "z"]  # one that does not occur
        axes = ez.display.confusion_matrix(LABELS, found, names, normalize=normalize)
        expected = confusion_matrix(
            LABELS, found, labels=names, normalize={"predicted": "pred"}.get(normalize, normalize)
        )
        np.testing.assert_allclose(axes.images[0].get_array(), expected)
        if normalize:
            assert axes.texts[5].get_text() == f"{expected[1, 1]:.2f}"

    @pytest.mark.slow
    def test_of_tags(self):
        tagger = tiny.task(get_family("bert"), ez.TokenClassifier)
        words, tags = [["a", "b"], ["c"]], [["O", "B-X"], ["O"]]
        found = tagger.predict_tags(words)
        names = ["B-X", "I-X", "O"]
        axes = ez.display.confusion_matrix(tags, found, names)
        expected = confusion_matrix(*map(np.concatenate, (tags, found)), labels=names)
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.get_title() == "3 words"
        for wrong in (tagger.extract_entities(words), [["O"], ["O"]], ["O", "O"], [["O", "O"]]):
            with pytest.raises(ValueError, match=r"evaluate_entities|tags"):
                ez.display.confusion_matrix(tags, wrong)
        with pytest.raises(ValueError, match="normalize is 'rows'"):
            ez.display.confusion_matrix(tags, found, normalize="rows")
        with pytest.raises(ValueError, match="evaluate_entities"):
            ez.display.errors(tagger, words, tags)

    def test_abstentions_have_a_column(self):
        found = [{"label": "x", "score": 0.9}, {"label": None, "score": 0.4}, None]
        axes = ez.display.confusion_matrix(["x", "x", "y"], found)
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["no answer", "x", "y"]
        np.testing.assert_array_equal(axes.images[0].get_array(), [[0, 0, 0], [1, 1, 0], [1, 0, 0]])

    @pytest.mark.slow
    def test_models_in_place_of_answers(self):
        tagger = tiny.task(get_family("bert"), ez.TokenClassifier)
        with pytest.raises(TypeError, match=r"entities\(texts, model.extract_entities\(texts\)\)"):
            ez.display.entities(tagger, "a b")
        with pytest.raises(TypeError, match="BertBackbone.*no tokenizer"):
            ez.display.attention(tagger.backbone, "a b")
        picture = ez.display.attention(tagger, "a b", layer=0, head=None)
        assert [f"Layer 0, head {i}" in picture.text for i in range(2)] == [True, True]
        assert picture.html.count("<svg") == tagger.backbone.num_heads
