"""Labels chosen with each call: the classes of NLI models, scores, answers, exports."""

import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.classification.zero_shot import (
    compute_label_scores,
    find_nli_classes,
    make_hypotheses,
)

TEXTS = ["a b ab", "", "c d e a b", "p"]
LABELS = ["a", "b c", "p"]
TEMPLATE = "d {} e"


def nli(tiny, labels=("Contradiction", "neutral", "ENTAILMENT"), **arguments):
    family = get_family("bert")
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family), **arguments)
    classifier = ez.SequenceClassifier(tiny.backbone(family), preprocessor, labels=list(labels))
    return tiny.randomize_weights(classifier)


@pytest.fixture(scope="module")
def zero_shot(tiny):
    return ez.ZeroShotClassifier(nli(tiny))


class TestClasses:
    @pytest.mark.parametrize(
        ("labels", "expected"),
        [
            (["contradiction", "neutral", "entailment"], (2, 0)),
            (["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], (0, 2)),
            (["Entailment", "Contradiction", "Neutral"], (0, 1)),
            (["entailment", "not_entailment"], (0, 1)),
            (["not entailment", "entails"], (1, 0)),
        ],
    )
    def test_are_found_in_any_order_and_in_capitals(self, labels, expected):
        assert find_nli_classes(labels, len(labels)) == expected

    @pytest.mark.slow
    def test_without_names_are_an_error_with_its_cure(self, tiny, tmp_path):
        named = nli(tiny)
        classifier = ez.SequenceClassifier(named.backbone, named.preprocessor, 3)
        classifier.save_to_preset(tmp_path / "nli")
        with pytest.raises(ValueError, match=r"LABEL_0, LABEL_1, LABEL_2.*labels=\["):
            ez.ZeroShotClassifier.from_preset(tmp_path / "nli")
        named = ez.ZeroShotClassifier.from_preset(
            tmp_path / "nli", labels=["contradiction", "neutral", "entailment"]
        )
        texts = (TEXTS, TEXTS)
        logits = [model.predict(texts, verbose=0) for model in (named.classifier, classifier)]
        np.testing.assert_array_equal(*logits)  # the head is the checkpoint's

    @pytest.mark.parametrize(
        "labels",
        [["bad", "good"], ["neutral", "entailment", "other"], ["entailment", "entails", "contra"]],
    )
    def test_of_other_tasks_are_refused(self, tiny, labels):
        with pytest.raises(ValueError, match="classes are.*not_entailment"):
            ez.ZeroShotClassifier(nli(tiny, labels))

    def test_are_asked_of_an_encoder_alone(self):
        with pytest.raises(ValueError, match="no classes"):
            ez.ZeroShotClassifier.from_preset("bert_nano_en_uncased")

    def test_are_those_of_a_classifier(self, tiny):
        with pytest.raises(TypeError, match="^classifier is.*Backbone"):
            ez.ZeroShotClassifier(tiny.backbone(get_family("bert")))


class TestScores:
    @pytest.mark.slow
    def test_are_entailment_against_the_other_labels_or_against_contradiction(self, zero_shot):
        pairs = (
            [text for text in TEXTS for _ in LABELS],
            [TEMPLATE.replace("{}", label) for _ in TEXTS for label in LABELS],
        )
        logits = zero_shot.classifier.predict(pairs, verbose=0).reshape(4, 3, 3).astype("float64")
        powers = np.exp(logits)
        alone = powers[..., 2] / powers[..., 2].sum(axis=1, keepdims=True)
        each = powers[..., 2] / (powers[..., 2] + powers[..., 0])
        for multi_label, expected in ((False, alone), (True, each)):
            found = zero_shot.predict_proba(
                TEXTS, LABELS, hypothesis_template=TEMPLATE, multi_label=multi_label
            )
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_do_not_depend_on_the_other_texts(self, zero_shot):
        together = zero_shot.predict_proba(TEXTS, LABELS, hypothesis_template=TEMPLATE)
        alone = [
            zero_shot.predict_proba([t], LABELS, hypothesis_template=TEMPLATE)[0] for t in TEXTS
        ]
        np.testing.assert_allclose(together, alone, atol=1e-5)
        assert zero_shot.predict_proba([], LABELS).shape == (0, 3)

    @pytest.mark.slow
    def test_of_long_texts_are_read_in_windows(self, tiny):
        long = ["a b c d e f g h i j k l m n o p " * 3]
        windows = ez.ZeroShotClassifier(nli(tiny, window_length=16))
        cut = ez.ZeroShotClassifier(nli(tiny))
        found = [z.predict_proba(long, LABELS, hypothesis_template="{}") for z in (windows, cut)]
        assert np.abs(found[0] - found[1]).max() > 1e-4
        assert len(windows.classify(long, LABELS, hypothesis_template="{}")) == 1


class TestAnswers:
    def test_are_the_best_label_or_the_best_ones(self, zero_shot):
        scores = zero_shot.predict_proba(TEXTS, LABELS, hypothesis_template=TEMPLATE)
        found = zero_shot.classify(TEXTS, LABELS, hypothesis_template=TEMPLATE)
        assert [answer["label"] for answer in found] == [LABELS[i] for i in scores.argmax(axis=1)]
        ranked = zero_shot.classify(TEXTS, LABELS, hypothesis_template=TEMPLATE, top_k=3)
        for row, answers in zip(scores, ranked, strict=True):
            assert {a["label"]: a["score"] for a in answers} == dict(
                zip(LABELS, row.tolist(), strict=True)
            )
            assert [a["score"] for a in answers] == sorted(row.tolist(), reverse=True)
        [answer] = zero_shot.classify(TEXTS[:1], LABELS, hypothesis_template=TEMPLATE)
        assert zero_shot.classify(TEXTS[0], LABELS, hypothesis_template=TEMPLATE) == answer
        labels = (label for label in LABELS)
        assert zero_shot.classify(TEXTS[0], labels, hypothesis_template=TEMPLATE) == answer

    def test_of_several_labels_have_the_threshold_at_least(self, zero_shot):
        options = {"hypothesis_template": TEMPLATE, "multi_label": True}
        scores = zero_shot.predict_proba(TEXTS, LABELS, **options)
        for threshold in (None, 0.2):
            found = zero_shot.classify(TEXTS, LABELS, **options, threshold=threshold)
            counts = (scores >= (threshold or 0.5)).sum(axis=1)
            assert [len(row) for row in found] == counts.tolist()
        assert zero_shot.classify("a", ["b"], multi_label=True, top_k=1)[0]["label"] == "b"

    @pytest.mark.parametrize(
        ("labels", "options", "message"),
        [
            ("sports", {}, "labels is 'sports'"),
            ([], {}, r"labels is \[\]"),
            (["a", " "], {}, r"labels is \['a', ' '\]"),
            (["a", "a"], {}, "labels.*contains 'a' twice"),
            (["a"], {}, r"labels is \['a'\].*multi_label=True"),
            (
                LABELS,
                {"hypothesis_template": "About sports."},
                "hypothesis_template is 'About sports.'",
            ),
            (LABELS, {"hypothesis_template": "{} or {}"}, "hypothesis_template is '{} or {}'"),
            (LABELS, {"threshold": 0.3}, "threshold is 0.3.*multi_label"),
            (LABELS, {"multi_label": "yes"}, "multi_label is 'yes'"),
        ],
    )
    def test_of_wrong_questions_are_errors(self, zero_shot, labels, options, message):
        with pytest.raises(ValueError, match=message):
            zero_shot.classify(TEXTS, labels, **options)

    def test_braces_elsewhere_in_a_template_are_text(self):
        assert make_hypotheses(["x", "y"], "{a} {} {0}", False) == ["{a} x {0}", "{a} y {0}"]


def test_scores_of_large_logits_are_numbers():
    logits = np.float32([[1e4, 0, -1e4], [-1e4, 0, 1e4]])
    for multi_label in (False, True):
        scores = np.asarray(
            compute_label_scores(
                logits, find_nli_classes(["contra", "n", "entail"], 3), 2, multi_label
            )
        )
        np.testing.assert_array_equal(scores, [[0, 1]])


@pytest.mark.matrix
@pytest.mark.slow
def test_an_export_answers_alike(zero_shot, tmp_path):
    zero_shot.export(tmp_path / "1", LABELS, hypothesis_template=TEMPLATE, multi_label=True)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    found = served(text=tf.constant(TEXTS))
    expected = zero_shot.classify(
        TEXTS, LABELS, hypothesis_template=TEMPLATE, multi_label=True, top_k=3
    )
    labels = [[label.decode() for label in row] for row in found["label"].numpy()]
    assert labels == [[answer["label"] for answer in row] for row in expected]
    scores = [[answer["score"] for answer in row] for row in expected]
    np.testing.assert_allclose(found["score"], scores, atol=1e-5)
    with pytest.raises(ValueError, match=r"labels is \['a'\]"):
        zero_shot.export(tmp_path / "2", ["a"])
    assert not (tmp_path / "2").exists()
