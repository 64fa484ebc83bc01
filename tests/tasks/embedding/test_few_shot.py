"""Classification from few examples: pairs, the logistic head, training, presets, exports."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.base.classes import compute_sigmoid, compute_softmax
from encoder_zoo.tasks.embedding.few_shot import fit_logistic, sample_contrastive_pairs

TEXTS = ["a b", "a b a", "b a", "c d", "d c d", "d", "p o", "o p p"]
LABELS = ["x", "x", "x", "y", "y", "y", "z", "z"]


def classifier_of(tiny, **arguments):
    family = get_family("bert")
    preprocessor = ez.TextEmbedderPreprocessor(tiny.tokenizer(family))
    backbone = tiny.backbone(family, pooler=False, dropout=0.0, attention_dropout=0.0)
    return ez.FewShotClassifier(tiny.randomize_weights(backbone), preprocessor, **arguments)


@pytest.fixture(scope="module")
def fitted(tiny):
    """With a head alone, of the encoder as it is."""
    classifier = classifier_of(tiny)
    classifier.fit(TEXTS, LABELS, epochs=0, verbose=0)
    return classifier


@pytest.fixture(scope="module")
def served(fitted, tmp_path_factory):
    pytest.importorskip("tf2onnx")
    folder = tmp_path_factory.mktemp("export") / "served"
    fitted.export(folder, format="onnx")
    return folder


class TestPairs:
    def test_are_of_one_class_and_of_two_as_often_for_every_text(self):
        classes = np.array([0, 0, 0, 1, 1, 2])
        pairs = sample_contrastive_pairs(np.eye(3)[classes], 4, np.random.default_rng(0))
        alike = classes[pairs.first] == classes[pairs.second]
        np.testing.assert_array_equal(alike, pairs.score == 1)
        assert (pairs.first != pairs.second).all()
        for i in range(6):
            scores = pairs.score[pairs.first == i]
            # The only text of its class has none of one class.
            assert (scores == 1).sum() == (0 if i == 5 else 4) and (scores == 0).sum() == 4

    def test_do_not_repeat_while_there_are_others(self):
        pairs = sample_contrastive_pairs(
            np.eye(2)[np.repeat([0, 1], 9)], 8, np.random.default_rng(0)
        )
        assert len(set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))) == 18 * 16


class TestLogisticHead:
    @pytest.mark.parametrize("seed", [0, 1])
    def test_is_at_the_optimum(self, seed):
        """The gradient of its convex objective is zero."""
        rng = np.random.default_rng(seed)
        x, classes = rng.normal(size=(60, 7)), rng.integers(0, 4, 60)
        kernel, bias = fit_logistic(x, np.eye(4)[classes])
        errors = compute_softmax(x @ kernel + bias) - np.eye(4)[classes]
        assert np.abs(x.T @ errors + kernel).max() < 2e-4 * 60
        assert np.abs(errors.sum(axis=0)).max() < 2e-4 * 60

    def test_is_that_of_scikit_learn(self):
        linear_model = pytest.importorskip("sklearn.linear_model")
        rng = np.random.default_rng(0)
        x, classes = rng.normal(size=(60, 7)), rng.integers(0, 4, 60)
        theirs = linear_model.LogisticRegression(tol=1e-8, max_iter=10_000).fit(x, classes)
        kernel, bias = fit_logistic(x, np.eye(4)[classes])
        np.testing.assert_allclose(
            compute_softmax(x @ kernel + bias), theirs.predict_proba(x), atol=2e-3
        )

    def test_warns_where_it_does_not_reach_the_optimum(self, caplog):
        rng = np.random.default_rng(0)
        x, classes = rng.normal(size=(60, 7)), rng.integers(0, 4, 60)
        fit_logistic(x, np.eye(4)[classes])
        assert caplog.records == []
        fit_logistic(x * np.float64([1e3, 1e2, 10, 1, 1, 1, 0.1]), np.eye(4)[classes])
        assert "head did not converge in 2000 steps. The largest value of its mean" in caplog.text


class TestFit:
    @pytest.mark.slow
    @pytest.mark.matrix
    def test_trains_the_encoder_on_pairs_and_then_the_head(self, tiny):
        classifier = classifier_of(tiny)
        classifier.compile(learning_rate=0.02)
        before = classifier.similarity(TEXTS, TEXTS)
        history = classifier.fit(TEXTS, LABELS, epochs=8, pairs_per_text=4, verbose=0)
        assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
        after = classifier.similarity(TEXTS, TEXTS)
        alike = np.equal.outer(LABELS, LABELS)
        gap = [s[alike].mean() - s[~alike].mean() for s in (before, after)]
        assert gap[1] > gap[0] + 0.3
        assert classifier.evaluate(TEXTS, LABELS) == {"accuracy": 1.0}
        assert classifier.evaluate(TEXTS, LABELS, return_dict=False, verbose=0) == [1.0]
        assert (classifier.predict(TEXTS, verbose=0) == classifier.predict(TEXTS)).all()
        assert classifier.labels == ["x", "y", "z"]

    @pytest.mark.slow
    def test_without_epochs_leaves_the_encoder_as_it_is(self, tiny):
        classifier = classifier_of(tiny)
        before = classifier.embed(TEXTS)
        classifier.fit(TEXTS, LABELS, epochs=0, verbose=0)
        np.testing.assert_array_equal(classifier.embed(TEXTS), before)
        kernel, bias = fit_logistic(before, np.eye(3)[[0, 0, 0, 1, 1, 1, 2, 2]])
        np.testing.assert_allclose(classifier.predict(TEXTS), before @ kernel + bias, atol=1e-5)

    def test_is_of_the_vectors_that_predictions_use(self, fitted):
        """Also in a subclass with another `embed`."""

        class Negative(ez.FewShotClassifier):
            def embed(self, texts, *args, **kwargs):
                return -super().embed(texts, *args, **kwargs)

        classifier = Negative(fitted.backbone, fitted.preprocessor)
        classifier.fit(TEXTS, LABELS, epochs=0, verbose=0)
        np.testing.assert_allclose(classifier.predict(TEXTS), fitted.predict(TEXTS), atol=1e-5)

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.parametrize("backend", ["jax", "torch"])
    def test_is_trained_on_all_backends(self, backend):
        code = """
            import encoder_zoo as ez

            classifier = ez.FewShotClassifier.from_preset("bert_nano_en_uncased_embedder")
            texts = ["a good film", "a fine film", "a bad film", "an awful film"]
            before = classifier.embed(texts)
            losses = classifier.fit(texts, [*"xxyy"], epochs=1, verbose=0).history["loss"]
            changed = abs(classifier.embed(texts) - before).max() > 1e-4
            print(len(losses), changed, classifier.classify(texts)[0]["label"])
        """
        assert run(code, KERAS_BACKEND=backend).split() == ["1", "True", "x"]

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.parametrize("backend", ["jax", "torch"])
    def test_without_epochs_works_on_all_backends(self, backend):
        code = """
            import encoder_zoo as ez

            several = {"problem_type": "multi_label_classification"}
            for arguments, labels in (({}, [*"xyxy"]), (several, [["x"], ["y"], ["x", "y"], []])):
                classifier = ez.FewShotClassifier.from_preset(
                    "bert_nano_en_uncased_embedder", **arguments
                )
                history = classifier.fit([*"abcd"], labels, epochs=0).history
                print(history, classifier.evaluate([*"abcd"], labels)["accuracy"] > 0.4)
        """
        assert run(code, KERAS_BACKEND=backend).splitlines() == ["{} True"] * 2

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (["x"] * 8, "Every label is 'x'"),
            (LABELS[:7], "8 texts"),
            ([*LABELS[:7], None], "Row 7 has no label"),
        ],
    )
    def test_of_wrong_labels_is_an_error(self, tiny, labels, message):
        classifier = classifier_of(tiny)
        with pytest.raises(ValueError, match=message):
            classifier.fit(TEXTS, labels)
        classifier.fit(TEXTS, LABELS, epochs=0, verbose=0)  # forgets the wrong ones

    @pytest.mark.parametrize(
        ("texts", "labels", "received"),
        [
            (TEXTS[:3], ["x"] * 3, "3 texts.*class 'x'"),
            (TEXTS[:1], ["y"], "1 texts.*class 'y'"),
            ([], [], "0"),
        ],
    )
    def test_of_one_class_is_an_error_also_where_labels_are_given(
        self, tiny, texts, labels, received
    ):
        classifier = classifier_of(tiny, labels=["x", "y"])
        with pytest.raises(ValueError, match=f"Received {received}"):
            classifier.fit(texts, labels)

    def test_comes_before_answers(self, tiny):
        with pytest.raises(ValueError, match="classes.*fit"):
            classifier_of(tiny).classify("a")


class TestAnswers:
    @pytest.mark.slow
    def test_are_labels_and_probabilities(self, fitted):
        scores = fitted.predict_proba(TEXTS)
        np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-6)
        found = fitted.classify(TEXTS)
        assert [a["label"] for a in found] == [fitted.labels[i] for i in scores.argmax(axis=1)]
        assert fitted.classify(TEXTS[0]) == found[0]
        best = fitted.classify(TEXTS, top_k=3)
        assert [row[0] for row in best] == found
        assert all(sorted(a["label"] for a in row) == ["x", "y", "z"] for row in best)

    @pytest.mark.slow
    def test_of_numbered_classes_are_numbers(self, tiny):
        classifier = classifier_of(tiny)
        classifier.fit(TEXTS, [0, 0, 0, 1, 1, 1, 2, 2], epochs=0, verbose=0)
        assert classifier.labels is None and classifier.classify("a b")["label"] in (0, 1, 2)

    @pytest.mark.slow
    def test_wrong_ones_are_drawn(self, fitted):
        wrong = [*LABELS[:7], "x"]
        expected = [a["label"] for a in fitted.classify(TEXTS)]
        count = sum(a != b for a, b in zip(expected, wrong, strict=True))
        assert f"{count} of 8 texts" in str(ez.display.errors(fitted, TEXTS, wrong))


class TestFiles:
    @pytest.mark.slow
    def test_a_preset_has_the_head_and_opens_as_an_embedder_too(self, fitted, tmp_path, caplog):
        fitted.save_to_preset(tmp_path / "mine")
        again = ez.FewShotClassifier.from_preset(tmp_path / "mine")
        assert again.labels == ["x", "y", "z"]
        np.testing.assert_array_equal(again.predict(TEXTS), fitted.predict(TEXTS))
        embedder = ez.TextEmbedder.from_preset(tmp_path / "mine")
        np.testing.assert_array_equal(embedder.embed(TEXTS), fitted.embed(TEXTS))
        embedder.save_to_preset(tmp_path / "mine")
        assert ez.FewShotClassifier.from_preset(tmp_path / "mine").head is None
        assert "FewShotClassifier" not in (tmp_path / "mine" / "README.md").read_text()

    @pytest.mark.slow
    @pytest.mark.parametrize("names", [["LABEL_0", "LABEL_1"], [0, 1]])
    def test_labels_come_back_as_they_were(self, tiny, tmp_path, names):
        classifier = classifier_of(tiny)
        classifier.fit(TEXTS[:6], [names[0]] * 3 + [names[1]] * 3, epochs=0, verbose=0)
        classifier.save_to_preset(tmp_path)
        again = ez.FewShotClassifier.from_preset(tmp_path)
        assert again.classify(["a b", "c d"]) == classifier.classify(["a b", "c d"])
        assert again.classify("c d")["label"] in names

    @pytest.mark.slow(except_for="own labels|other order|generator")
    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ({"labels": ["x", "y", "z"]}, True),
            ({"labels": (name for name in "xyz")}, True),
            ({"num_classes": 3}, True),
            ({"labels": ["x", "y", "z"], "num_classes": 3}, True),
            ({"labels": None, "num_classes": None}, True),
            ({"problem_type": "single_label_classification"}, True),
            ({"labels": ["z", "y", "x"]}, False),
            ({"labels": ["x", "y"]}, False),
            ({"num_classes": 4}, False),
        ],
        ids=[
            *("own labels", "generator", "number", "both", "None", "problem"),
            *("other order", "fewer", "more"),
        ],
    )
    def test_the_head_is_kept_for_its_own_labels(self, fitted, tmp_path, caplog, given, kept):
        fitted.save_to_preset(tmp_path)
        again = ez.FewShotClassifier.from_preset(tmp_path, **given)
        scores = again.predict(TEXTS)
        assert ("random weights" in caplog.text) is not kept
        assert (scores.shape == (8, 3) and np.allclose(scores, fitted.predict(TEXTS))) is kept
        caplog.clear()
        again.fit(TEXTS, [list(again.class_names)[i % 2] for i in range(8)], epochs=0)
        assert "random weights" not in caplog.text

    def test_the_head_is_only_read_to_classify(self, fitted, tmp_path, caplog, monkeypatch):
        fitted.save_to_preset(tmp_path)
        again = ez.FewShotClassifier.from_preset(tmp_path, num_classes=4)
        with monkeypatch.context() as patched:
            patched.setattr(keras.layers.Layer, "get_weights", None)
            again.embed(TEXTS)
            again.index(TEXTS)
        assert "random weights" not in caplog.text
        again.predict(TEXTS)
        assert "random weights" in caplog.text
        caplog.clear()
        again.classify(TEXTS)
        assert caplog.text == ""

    @pytest.mark.slow
    def test_a_head_of_other_labels_is_refused(self, fitted, tmp_path):
        fitted.save_to_preset(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        config |= {"id2label": {"0": "x", "1": "y"}, "label2id": {"x": 0, "y": 1}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"linear.weight is \(3, 8\), expected \(2, 8\)"):
            ez.FewShotClassifier.from_preset(tmp_path, verify=False)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_a_keras_file_round_trip(self, fitted, tmp_path):
        fitted.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert again.labels == fitted.labels
        np.testing.assert_array_equal(again.predict(TEXTS), fitted.predict(TEXTS))

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_an_export_answers_alike(self, fitted, tmp_path):
        fitted.export(tmp_path / "1")
        served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
        found = served(text=tf.constant(TEXTS))
        expected = fitted.classify(TEXTS, top_k=3)
        labels = [[label.decode() for label in row] for row in found["label"].numpy()]
        assert labels == [[answer["label"] for answer in row] for row in expected]
        scores = [[answer["score"] for answer in row] for row in expected]
        np.testing.assert_allclose(found["score"], scores, atol=1e-5)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_an_opened_folder_answers_alike(self, fitted, served):
        opened = ez.open_export(served)
        assert "few_shot_classifier" in repr(opened)
        assert opened._answers.head is opened._answers.head  # converted once
        logits = fitted.predict(TEXTS)
        np.testing.assert_allclose(opened.predict(TEXTS), logits, atol=1e-5)
        examples = {n: np.asarray(v) for n, v in fitted.preprocessor(TEXTS).items()}
        np.testing.assert_allclose(opened.predict(examples), logits, atol=1e-5)
        scores = fitted.predict_proba(TEXTS)
        np.testing.assert_allclose(opened.predict_proba(TEXTS), scores, atol=1e-5)
        np.testing.assert_allclose(opened.embed(TEXTS), fitted.embed(TEXTS), atol=1e-5)
        found, expected = opened.classify(TEXTS), fitted.classify(TEXTS)
        assert [a["label"] for a in found] == [a["label"] for a in expected]
        assert opened.index(TEXTS).search("d c d", top_k=1)[0]["index"] == 4

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.slow
    def test_an_opened_folder_has_thresholds_and_the_head_of_short_vectors(self, tiny, tmp_path):
        pytest.importorskip("tf2onnx")
        classifier = classifier_of(tiny, dim=5, **SEVERAL)
        classifier.fit(TEXTS, LISTS, epochs=0, verbose=0)
        best = classifier.predict_proba(TEXTS).max(axis=0) - 0.01
        classifier.thresholds = dict(zip("xyz", best.tolist(), strict=True))
        classifier.export(tmp_path / "served", format="onnx")
        opened = ez.open_export(tmp_path / "served")
        scores = classifier.predict_proba(TEXTS)
        np.testing.assert_allclose(opened.predict_proba(TEXTS), scores, atol=1e-5)
        found, expected = (
            [[answer["label"] for answer in row] for row in model.classify(TEXTS)]
            for model in (opened, classifier)
        )
        assert found == expected and 3 <= sum(map(len, found)) < 24
        examples = {n: np.asarray(v) for n, v in classifier.preprocessor(TEXTS).items()}
        logits = classifier.predict(TEXTS)
        np.testing.assert_allclose(opened.predict(examples), logits, atol=1e-5)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            ({"class_names": [*"wxyz"]}, r"\[\(8, 3\), \(3,\)\]. Expected \[\(8, 4\)"),
            ({"dim": 5}, r"\[\(8, 3\), \(3,\)\]. Expected \[\(5, 3\)"),
            ({"head_weights": None}, "None"),
        ],
    )
    def test_an_altered_folder_is_refused(self, served, tmp_path, changes, found):
        shutil.copytree(served, tmp_path / "served")
        path = tmp_path / "served" / "encoder_zoo.json"
        manifest = json.loads(path.read_text())
        manifest["export"]["settings"] |= changes
        path.write_text(json.dumps(manifest))
        message = f"encoder_zoo.json: export.settings: The shape of head_weights is {found}"
        with pytest.raises(ValueError, match=message):
            ez.open_export(tmp_path / "served", verify=False)

    @pytest.mark.parametrize("target", ["served", "1"])
    def test_without_a_head_nothing_is_exported(self, tiny, tmp_path, target):
        format = "onnx" if target == "served" else None
        with pytest.raises(ValueError, match="no classes yet. Call fit"):
            classifier_of(tiny).export(tmp_path / target, format=format)
        assert not (tmp_path / target).exists()


SEVERAL = {"problem_type": "multi_label_classification"}
LISTS = [["x"], ["x"], ["x", "y"], ["y"], ["y"], [], ["z", "x"], ["z"]]
MATRIX = np.array([[label in row for label in "xyz"] for row in LISTS], float)


@pytest.fixture(scope="module")
def several(tiny):
    """With heads alone, of the encoder as it is."""
    classifier = classifier_of(tiny, **SEVERAL)
    classifier.fit(TEXTS, LISTS, epochs=0, verbose=0)
    return classifier


class TestSeveralLabels:
    def test_pairs_share_a_label_or_none(self):
        pairs = sample_contrastive_pairs(MATRIX, 3, np.random.default_rng(0))
        shared = MATRIX @ MATRIX.T > 0
        np.testing.assert_array_equal(shared[pairs.first, pairs.second], pairs.score == 1)
        assert (pairs.first != pairs.second).all()
        of_none = pairs.score[pairs.first == 5]  # a text without labels shares none
        assert of_none.tolist() == [0, 0, 0]
        counts = [(pairs.score[pairs.first == i] == 1).sum() for i in range(8)]
        assert counts == [3, 3, 3, 3, 3, 0, 3, 3]

    @pytest.mark.slow
    def test_heads_are_those_of_scikit_learn(self, several):
        linear_model = pytest.importorskip("sklearn.linear_model")
        multiclass = pytest.importorskip("sklearn.multiclass")
        theirs = multiclass.OneVsRestClassifier(
            linear_model.LogisticRegression(tol=1e-8, max_iter=10_000)
        )
        rng = np.random.default_rng(0)
        x, hot = rng.normal(size=(60, 7)), rng.integers(0, 2, (60, 4))
        kernel, bias = fit_logistic(x, hot, compute_sigmoid)
        expected = theirs.fit(x, hot).predict_proba(x)
        np.testing.assert_allclose(compute_sigmoid(x @ kernel + bias), expected, atol=2e-3)
        vectors = several.embed(TEXTS)
        expected = theirs.fit(vectors, MATRIX).predict_proba(vectors)
        np.testing.assert_allclose(several.predict_proba(TEXTS), expected, atol=2e-3)

    @pytest.mark.slow
    def test_answers_are_all_labels_above_a_half(self, several):
        scores = several.predict_proba(TEXTS)
        found = several.classify(TEXTS)
        for row, probabilities in zip(found, scores, strict=True):
            expected = [i for i in np.argsort(-probabilities) if probabilities[i] >= 0.5]
            assert [answer["label"] for answer in row] == ["xyz"[i] for i in expected]
            got = [answer["score"] for answer in row]
            np.testing.assert_allclose(got, probabilities[expected])
        assert several.classify(TEXTS[0]) == found[0]
        assert [len(row) for row in several.classify(TEXTS, top_k=2)] == [2] * 8

    @pytest.mark.slow
    def test_training_learns_them(self, tiny):
        classifier = classifier_of(tiny, **SEVERAL)
        classifier.compile(learning_rate=0.02)
        texts = ["a b", "a b a", "b a", "c d", "d c d", "d", "a c d b", "b d c a"]
        lists = [["x"]] * 3 + [["y"]] * 3 + [["x", "y"]] * 2
        history = classifier.fit(texts, lists, epochs=8, pairs_per_text=4, verbose=0)
        assert history.history["loss"][-1] < history.history["loss"][0]
        assert classifier.evaluate(texts, lists) == {"accuracy": 1.0, "f1": 1.0}
        found = [sorted(a["label"] for a in row) for row in classifier.classify(texts)]
        assert found == lists

    @pytest.mark.slow
    def test_evaluation_is_that_of_scikit_learn(self, several):
        metrics = pytest.importorskip("sklearn.metrics")
        found = several.evaluate(TEXTS, LISTS)
        given = several.predict_proba(TEXTS) >= 0.5
        f1 = metrics.f1_score(MATRIX, given, average="macro", zero_division=0)
        assert found == pytest.approx({"accuracy": (given == MATRIX).mean(), "f1": f1})

    @pytest.mark.slow(except_for="^table")
    @pytest.mark.parametrize(
        "labels", [MATRIX, MATRIX.astype(int).tolist(), MATRIX.astype(bool), "table", "array"]
    )
    def test_labels_come_as_rows_of_0_and_1_too(self, tiny, several, labels):
        pandas = pytest.importorskip("pandas")
        if isinstance(labels, str):
            arrays = np.array(LISTS, object)
            labels = pandas.DataFrame(MATRIX, columns=[*"xyz"]) if labels == "table" else arrays
        classifier = classifier_of(tiny, **SEVERAL)
        classifier.set_weights(several.get_weights()[: len(classifier.get_weights())])
        classifier.fit(TEXTS, labels, epochs=0, verbose=0)
        expected = several.predict_proba(TEXTS)
        np.testing.assert_allclose(classifier.predict_proba(TEXTS), expected, atol=1e-5)

    @pytest.mark.slow(except_for="^labels2")
    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (LABELS, "Row 0 is 'x'.*list"),
            (LISTS[:7], r"8 texts"),
            ([*LISTS[:7], None], "Row 7 has no label: it is None"),
            ([*LISTS[:7], ["x", None]], r"Row 7 has no label: it is None, at y\[7\]\[1\]"),
            ([*LISTS[:7], ["x", ""]], "Row 7 has no label: it is ''"),
            ([["x", "y"]] * 8, "8 texts.*classes 'x', 'y'"),
            ([["x"], ["x", "y"]] * 4, "share a label.*epochs=0"),
            ([[0.5, 1.0], [1, 0]] * 4, r"Row 0 is \[0.5, 1.0\]. Expected 0 or 1 for each class"),
        ],
    )
    def test_of_wrong_labels_is_an_error(self, tiny, labels, message):
        classifier = classifier_of(tiny, **SEVERAL)
        with pytest.raises(ValueError, match=message):
            classifier.fit(TEXTS, labels)
        classifier.fit(TEXTS, LISTS, epochs=0, verbose=0)  # forgets the wrong ones
        with pytest.raises(ValueError, match="Row 0 has.*'w'"):
            classifier.evaluate(TEXTS, [["w"], *LISTS[1:]])

    @pytest.mark.slow
    def test_the_error_for_lists_gives_advice_that_works(self, tiny):
        with pytest.raises(ValueError, match='problem_type="multi_label_classification"'):
            classifier_of(tiny).fit(TEXTS, LISTS)
        classifier_of(tiny, **SEVERAL).fit(TEXTS, LISTS, epochs=0, verbose=0)

    @pytest.mark.slow
    def test_a_class_that_all_texts_share_is_learned_by_the_head_alone(self, tiny, caplog):
        classifier = classifier_of(tiny, **SEVERAL)
        classifier.fit(TEXTS, [["x"], ["x", "y"]] * 4, epochs=0, verbose=0)
        assert (classifier.predict_proba(TEXTS)[:, 0] > 0.9).all()
        assert "did not converge" not in caplog.text

    @pytest.mark.slow
    def test_a_preset_says_that_texts_have_several(self, several, tmp_path):
        several.save_to_preset(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["problem_type"] == "multi_label_classification"
        again = ez.FewShotClassifier.from_preset(tmp_path)
        assert again.problem_type == several.problem_type
        assert again.classify(TEXTS) == several.classify(TEXTS)
        same = ez.FewShotClassifier.from_preset(tmp_path, **SEVERAL)
        assert same.classify(TEXTS) == several.classify(TEXTS)
        other = ez.FewShotClassifier.from_preset(
            tmp_path, problem_type="single_label_classification"
        )
        assert other.head is None  # of another kind

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_files_and_exports_answer_alike(self, several, tmp_path):
        several.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert again.classify(TEXTS) == several.classify(TEXTS)
        several.export(tmp_path / "1")
        served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
        found = served(text=tf.constant(TEXTS))
        scores = -np.sort(-several.predict_proba(TEXTS))
        np.testing.assert_allclose(found["score"], scores, atol=1e-5)
