"""`encoder_zoo.sklearn`: scikit-learn's own checks, and its own tools around the estimators."""

import pickle
import random
import warnings

import keras
import numpy as np
import pandas as pd
import pytest
from processes import run

import encoder_zoo as ez

sklearn = pytest.importorskip("sklearn")
import joblib  # noqa: E402
from sklearn.base import clone, is_classifier, is_regressor  # noqa: E402
from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import Pipeline, make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402
from sklearn.utils import get_tags  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402
from sklearn.utils.validation import validate_data  # noqa: E402

from encoder_zoo.sklearn import TextClassifier, TextRegressor, TextVectorizer  # noqa: E402

GOOD, BAD = "good fine nice".split(), "bad poor awful".split()
WORDS = [*GOOD, *BAD, *"the film was it very".split(), *"abcdefghijklmnop"]
TEXTS = [f"the film was {word}" for word in [*GOOD, *BAD] * 4]
LABELS = np.array(["up"] * 3 + ["down"] * 3)[np.arange(24) % 6]
FAST = {"learning_rate": 1e-2, "random_state": 0}


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """The folder of a tiny BERT that learns these words in a few steps."""
    keras.utils.set_random_seed(0)
    tokenizer = ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "max_sequence_length": 32}
    backbone = ez.BertBackbone(tokenizer.vocabulary_size, **sizes, **plain)
    for weight in backbone.trainable_weights:
        weight.assign(weight + 0.1 * keras.random.normal(weight.shape, seed=1))
    folder = tmp_path_factory.mktemp("presets") / "tiny"
    backbone.save_to_preset(folder, tokenizer)
    return str(folder)


@pytest.fixture(scope="module")
def fitted(preset):
    return TextClassifier(preset, epochs=12, batch_size=8, **FAST).fit(TEXTS, LABELS)


class TestClassifier:
    @pytest.mark.slow
    def test_learns(self, fitted):
        assert fitted.classes_.tolist() == ["down", "up"]
        assert fitted.predict(TEXTS).tolist() == LABELS.tolist()
        assert fitted.score(TEXTS, LABELS) == 1.0
        probabilities = fitted.predict_proba(TEXTS)
        assert probabilities.shape == (24, 2)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)

    @pytest.mark.slow
    def test_does_not_ask_to_be_trained_while_it_is(self, preset, caplog):
        TextClassifier(preset, epochs=1).fit(TEXTS[:2], ["up", "down"])
        assert "Fine-tune before use" not in caplog.text
        ez.SequenceClassifier.from_preset(preset, labels=["up", "down"])
        assert "Fine-tune before use" in caplog.text

    @pytest.mark.slow
    def test_holds_the_task_itself(self, fitted, tmp_path):
        assert isinstance(fitted.model_, ez.SequenceClassifier)
        fitted.model_.save_to_preset(tmp_path / "saved")
        loaded = ez.SequenceClassifier.from_preset(tmp_path / "saved")
        assert [answer["label"] for answer in loaded.classify(TEXTS[:6])] == LABELS[:6].tolist()

    @pytest.mark.slow(except_for="^y0")
    @pytest.mark.parametrize(
        "y",
        [
            np.array([7, 3]),
            pd.Series(["b", "a"], dtype="category"),
            pytest.param(np.array([True, False]), marks=pytest.mark.slow),
            pytest.param([2.0, 1.0], marks=pytest.mark.slow),
            pytest.param(np.array(["ü", "é"], object), marks=pytest.mark.slow),
        ],
    )
    @pytest.mark.eager
    def test_answers_with_the_labels_as_given(self, preset, y):
        classifier = TextClassifier(preset, epochs=1, **FAST).fit(TEXTS[:2], y)
        expected = np.unique(y)
        assert classifier.classes_.dtype == expected.dtype
        assert classifier.classes_.tolist() == expected.tolist()
        assert set(classifier.predict(TEXTS).tolist()) <= set(expected.tolist())

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.eager
    def test_takes_columns_and_pairs(self, preset):
        table = pd.DataFrame({"text": TEXTS[:4]}, index=[7, 3, 5, 1])
        texts = [table, np.array(TEXTS[:4]), np.array(TEXTS[:4], object)]
        pairs = table.assign(other=TEXTS[:4]), [(text, text) for text in TEXTS[:4]]
        for columns in ((table["text"], *texts), pairs):
            classifier = TextClassifier(preset, epochs=1, **FAST).fit(columns[0], [0, 1, 0, 1])
            first, *others = map(classifier.predict_proba, columns)
            for other in others:
                np.testing.assert_allclose(other, first, atol=1e-6)

    @pytest.mark.slow
    @pytest.mark.eager
    def test_takes_any_number_of_classes_for_a_text(self, preset):
        y = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1], [1, 1, 1]])
        classifier = TextClassifier(preset, epochs=1, **FAST).fit(TEXTS[:4], y)
        assert classifier.model_.problem_type == "multi_label_classification"
        assert classifier.predict_proba(TEXTS).shape == (24, 3)
        assert set(np.unique(classifier.predict(TEXTS))) <= {0, 1}

    @pytest.mark.eager
    def test_weighs_classes_and_samples_as_scikit_learn_does(self, preset):
        y = np.array([0, 0, 0, 1])

        def weights(class_weight, sample_weight=None):
            seen = []

            class Spy(TextClassifier):
                def _fine_tune(self, X, y, sample_weight, **arguments):
                    seen.append(sample_weight)

            Spy(preset, class_weight=class_weight).fit(TEXTS[:4], y, sample_weight)
            return seen[0]

        assert weights(None) is None
        np.testing.assert_allclose(weights("balanced"), [4 / 6, 4 / 6, 4 / 6, 2])
        np.testing.assert_allclose(weights({1: 5}, [1, 2, 3, 4]), [1, 2, 3, 20])

    @pytest.mark.slow
    @pytest.mark.eager
    def test_weights_of_zero_leave_texts_out(self, preset):
        y, opposite = LABELS[:12], np.where(LABELS[:12] == "up", "down", "up")
        weight = [1.0] * 12 + [0.0] * 12
        settings = {"epochs": 8, "batch_size": 24, **FAST}
        classifier = TextClassifier(preset, **settings)
        classifier.fit(TEXTS[:12] * 2, [*y, *opposite], sample_weight=weight)
        assert classifier.score(TEXTS[:12], y) == 1.0

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_is_repeatable_and_leaves_other_random_numbers_alone(self, preset):
        expected = random.Random(3).random(), np.random.RandomState(3).random()
        random.seed(3)
        np.random.seed(3)
        first, second = (
            TextClassifier(preset, epochs=1, **FAST).fit(TEXTS, LABELS).predict_proba(TEXTS)
            for _ in range(2)
        )
        assert (random.random(), np.random.random()) == expected
        np.testing.assert_array_equal(first, second)
        other = TextClassifier(preset, epochs=1, learning_rate=1e-2, random_state=1)
        assert abs(other.fit(TEXTS, LABELS).predict_proba(TEXTS) - first).max() > 1e-4

    @pytest.mark.parametrize(
        ("arguments", "y", "message"),
        [
            ({}, None, "y is None"),
            ({}, ["up"] * 3, "`y` .*'up'"),
            ({}, [0, 1], "inconsistent numbers of samples"),
            ({}, [0.5, 1.5, 2.5], "Unknown label type: continuous"),
            ({}, [0, 1, np.nan], "Row 2.*nan"),
            ({"epochs": "3"}, [0, 1, 0], "epochs is '3'"),
            ({"learning_rate": -1}, [0, 1, 0], "learning_rate is -1"),
            ({"class_weight": "even"}, [0, 1, 0], "class_weight"),
            ({"preset": "bert_nano"}, [0, 1, 0], "'bert_nano'"),
        ],
    )  # fmt: skip
    def test_refuses_what_cannot_be_meant(self, preset, arguments, y, message):
        with pytest.raises(ValueError, match=message):
            TextClassifier(**{"preset": preset, **arguments}).fit(TEXTS[:3], y)

    @pytest.mark.parametrize(
        ("weight", "message"),
        [([0, 0, 0], "sample_weight"), ([1, 2], "inconsistent"), ([[1]] * 3, "sample_weight")],
    )
    def test_refuses_weights_that_cannot_be_meant(self, preset, weight, message):
        with pytest.raises(ValueError, match=message):
            TextClassifier(preset).fit(TEXTS[:3], [0, 1, 0], weight)

    def test_says_that_it_is_not_fitted(self):
        for estimator in (TextClassifier(), TextRegressor()):
            with pytest.raises(NotFittedError):
                estimator.predict(TEXTS)
        with pytest.raises(NotFittedError):
            TextVectorizer().transform(TEXTS)


class TestRegressor:
    @pytest.mark.slow
    def test_learns_numbers_of_any_size(self, preset):
        y = 30_000 + 500.0 * (LABELS == "up")
        regressor = TextRegressor(preset, epochs=20, batch_size=8, **FAST).fit(TEXTS, y)
        assert regressor.score(TEXTS, y) > 0.9
        assert regressor.predict(TEXTS).shape == (24,)
        expected = regressor.predict(TEXTS)[:3]  # the task itself answers in the same units
        answers = [answer["score"] for answer in regressor.model_.classify(TEXTS[:3])]
        np.testing.assert_allclose(answers, expected, rtol=1e-6)

    @pytest.mark.slow
    @pytest.mark.eager
    def test_takes_several_numbers_and_constants(self, preset):
        y = np.stack([np.arange(24.0), np.full(24, 5.0)], axis=1)
        regressor = TextRegressor(preset, epochs=1, **FAST).fit(TEXTS, y)
        values = regressor.predict(TEXTS)
        assert values.shape == (24, 2)
        np.testing.assert_allclose(values[:, 1], 5.0, atol=2.0)


class TestVectorizer:
    @pytest.mark.slow
    def test_gives_the_vectors_of_the_embedder(self, preset):
        vectorizer = TextVectorizer(preset, batch_size=8).fit()
        expected = ez.TextEmbedder.from_preset(preset).embed(TEXTS)
        np.testing.assert_allclose(vectorizer.transform(TEXTS), expected, atol=1e-6)
        names = vectorizer.get_feature_names_out()
        assert names.shape == (16,) and names[1] == "textvectorizer1"
        table = vectorizer.set_output(transform="pandas").transform(TEXTS)
        assert table.columns.tolist() == names.tolist()

    @pytest.mark.slow
    def test_feeds_other_estimators(self, preset):
        pipeline = make_pipeline(TextVectorizer(preset), LogisticRegression(C=1000))
        assert pipeline.fit(TEXTS, LABELS).score(TEXTS, LABELS) == 1.0
        columns = make_column_transformer((TextVectorizer(preset), "text"), remainder="passthrough")
        table = pd.DataFrame({"text": TEXTS, "stars": np.arange(24)})
        assert columns.fit_transform(table).shape == (24, 17)


class TestToolsOfScikitLearn:
    @pytest.mark.slow
    def test_cross_validation(self, preset):
        classifier = TextClassifier(preset, epochs=12, batch_size=8, **FAST)
        scores = cross_val_score(classifier, TEXTS, LABELS, cv=2)
        assert scores.tolist() == [1.0, 1.0]

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_grid_search_over_a_pipeline(self, preset):
        lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
        pipeline = Pipeline([("lower", lower), ("classify", TextClassifier(preset, **FAST))])
        grid = {"classify__epochs": [1, 8], "classify__batch_size": np.array([8])}
        search = GridSearchCV(pipeline, grid, cv=2).fit([t.upper() for t in TEXTS], LABELS)
        assert search.best_params_ == {"classify__epochs": 8, "classify__batch_size": 8}
        assert search.predict(["THE FILM WAS AWFUL"]).tolist() == ["down"]

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_calibration(self, preset):
        classifier = TextClassifier(preset, epochs=12, batch_size=8, **FAST)
        calibrated = CalibratedClassifierCV(classifier, cv=2, ensemble=False).fit(TEXTS, LABELS)
        probabilities = calibrated.predict_proba(TEXTS)
        assert (probabilities.argmax(axis=1) == (LABELS == "up")).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)

    @pytest.mark.slow
    def test_clones_are_not_fitted_and_have_the_parameters(self, fitted):
        copy = clone(fitted)
        assert copy.get_params() == fitted.get_params() and not hasattr(copy, "model_")
        assert copy.set_params(epochs=2).epochs == 2 and fitted.epochs == 12

    @pytest.mark.slow
    def test_pickles_answer_alike(self, fitted, tmp_path):
        expected = fitted.predict_proba(TEXTS)
        joblib.dump(fitted, tmp_path / "classifier.joblib")
        for loaded in (
            pickle.loads(pickle.dumps(fitted)),
            joblib.load(tmp_path / "classifier.joblib"),
        ):
            assert loaded.get_params() == fitted.get_params()
            np.testing.assert_allclose(loaded.predict_proba(TEXTS), expected, atol=1e-6)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_a_pickle_opens_in_another_process(self, fitted, tmp_path):
        """Open it where nothing of the package was imported before, and its preset is gone."""
        joblib.dump(fitted, tmp_path / "classifier.joblib")
        code = (
            "import joblib, sys; "
            "print(*joblib.load(sys.argv[1]).predict(['it was nice', 'a poor film']))"
        )
        assert run(code, tmp_path / "classifier.joblib").split() == ["up", "down"]

    def test_says_what_it_is(self, preset):
        assert is_classifier(TextClassifier(preset)) and is_regressor(TextRegressor(preset))
        for estimator in (TextClassifier(), TextRegressor(), TextVectorizer()):
            tags = get_tags(estimator)
            assert tags.input_tags.string and not tags.input_tags.two_d_array
        assert repr(TextClassifier(epochs=5)) == "TextClassifier(epochs=5)"


class OfNumbers:
    """Mixin for rows of numbers, which scikit-learn's checks consist of: as texts of letters."""

    def _as_texts(self, X, **options):
        X = validate_data(self, X, **options)
        numbers = np.clip(np.round(2 * X + 8), 0, 15).astype(int)
        return [" ".join("abcdefghijklmnop"[i] for i in row) for row in numbers]

    def fit(self, X, y, sample_weight=None):
        return super().fit(
            self._as_texts(X, y=y if y is None else "no_validation"), y, sample_weight
        )

    def predict(self, X):
        sklearn.utils.validation.check_is_fitted(self)
        return super().predict(self._as_texts(X, reset=False))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        for kind in (tags.classifier_tags, tags.regressor_tags):
            if kind is not None:
                kind.poor_score = True  # a letter for a number loses most of it
        return tags


class ClassifierOfNumbers(OfNumbers, TextClassifier):
    def predict_proba(self, X):
        sklearn.utils.validation.check_is_fitted(self)
        texts = (
            X if isinstance(X, list) and isinstance(X[0], str) else self._as_texts(X, reset=False)
        )
        return super().predict_proba(texts)


class RegressorOfNumbers(OfNumbers, TextRegressor):
    pass


# Those that text, or training by mini-batches, cannot pass.
EXPECTED_TO_FAIL = {
    "check_sample_weight_equivalence_on_dense_data": "a text of weight 0 is in a batch too",
}


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.eager
@pytest.mark.parametrize("cls", [ClassifierOfNumbers, RegressorOfNumbers])
def test_scikit_learns_own_checks(preset, cls):
    """On texts made of numbers: of texts themselves scikit-learn has none."""
    results = check_estimator(
        cls(preset, epochs=1, sequence_length=16, learning_rate=1e-2),
        expected_failed_checks=EXPECTED_TO_FAIL,
        on_skip=None,
        on_fail=None,
    )
    failed = [
        (r["check_name"], str(r["exception"])[:300]) for r in results if r["status"] == "failed"
    ]
    assert not failed
    assert len([r for r in results if r["status"] == "passed"]) > 40


@pytest.mark.parametrize(
    "estimator", [TextClassifier(), TextRegressor(), TextVectorizer()], ids=repr
)
def test_scikit_learn_has_no_complaint_about_estimators_of_texts(estimator):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Can't test estimator .* which requires input  of type")
        check_estimator(estimator)


def test_scikit_learn_is_optional():
    code = """
import sys
sys.modules["sklearn"] = None
import encoder_zoo as ez
print(dir(ez.sklearn))
try:
    ez.sklearn.TextClassifier
except ImportError as error:
    print(error)
"""
    names, error = run(code).splitlines()
    assert names == "['TextClassifier', 'TextRegressor', 'TextVectorizer']"
    assert error.endswith("needs scikit-learn, which is not installed: `pip install scikit-learn`.")
