"""What would train or measure something else than the caller means, without an error: none does."""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez

WORDS = "good fine nice bad poor awful the a film was it very".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine", "poor film"]
HALF = [1, 0, 1, 1, 0, 1]


@functools.cache
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


def backbone(pooler=True):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "max_sequence_length": 32}
    return ez.BertBackbone(tokenizer().vocabulary_size, **sizes, **plain, pooler=pooler)


def classifier(**arguments):
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer())
    return ez.SequenceClassifier(backbone(), preprocessor, **arguments)


def tagger(**arguments):
    return ez.TokenClassifier(
        backbone(pooler=False), ez.TokenClassifierPreprocessor(tokenizer()), **arguments
    )


def encoded(model, y):
    return model.preprocessor.encode(TEXTS[: len(y)], y)["labels"].numpy().tolist()


class TestNamesThatAreNumbers:
    @pytest.mark.parametrize("labels", [list("12345"), [1, 2, 3, 4, 5], np.arange(1, 6)])
    def test_whole_numbers_are_the_names(self, labels):
        stars = classifier(labels=labels)
        assert stars.labels == ["1", "2", "3", "4", "5"]
        assert encoded(stars, [1, 4, 5]) == encoded(stars, ["1", "4", "5"]) == [0, 3, 4]
        assert encoded(stars, np.array([1, 4], object)) == encoded(stars, tf.constant([1, 4]))
        with pytest.raises(ValueError, match="Row 1 has the unknown label '0'. Expected one of"):
            stars.fit(TEXTS, [1, 0, 1, 2, 3, 4])

    def test_also_in_a_dataset(self):
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS[:2], [5, 1])).batch(2)
        prepare = classifier(labels=[1, 5]).preprocessor
        assert [y.numpy().tolist() for _, y in dataset.map(prepare)] == [[1, 0]]

    def test_other_names_leave_them_class_numbers(self):
        assert encoded(classifier(labels=["1 star", "2 stars"]), [1, 0]) == [1, 0]

    def test_tags_of_words(self):
        model = tagger(labels=["1", "2"])
        words, tags = [["good", "film"]], [[2, 1]]
        assert model.preprocessor(words, tags)[1].numpy().tolist() == [[0, 1, 0, 0]]
        dataset = tf.data.Dataset.from_tensors((tf.ragged.constant(words), tf.constant(tags)))
        assert next(iter(dataset.map(model.preprocessor)))[1].numpy().tolist() == [[0, 1, 0, 0]]
        with pytest.raises(ValueError, match="Example 0, word 1: unknown tag '0'"):
            model.fit(words, [[1, 0]])

    def test_what_is_no_list_of_names_is_refused(self):
        for wrong in ("ab", {"a", "b"}, {"a": 0, "b": 1}):
            with pytest.raises(ValueError, match="Expected a list of names in the order"):
                classifier(labels=wrong)
        for wrong in ([0.5, 1.0], [True, False], [None]):
            with pytest.raises(ValueError, match=r"labels\[0\] is .* Expected a name"):
                classifier(labels=wrong)
        with pytest.raises(ValueError, match="must differ"):
            classifier(labels=[1, "1"])


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def measured(metric, y, scores):
    """What Keras says without a model, of labels and scores as its documentation wants them."""
    metric.update_state(np.asarray(y, "float32"), scores)
    return np.asarray(metric.result())


@functools.cache
def moved(classes, problem_type="single_label_classification"):
    """A classifier whose logits differ from text to text and whose classes are not balanced."""
    keras.utils.set_random_seed(classes)
    model = classifier(num_classes=classes, problem_type=problem_type)
    for weight in model.weights:
        weight.assign(weight + keras.random.normal(weight.shape, stddev=0.5))
    return model


def report(model, y, **arguments):
    model.compile("adam", **arguments)
    return model.evaluate(TEXTS, y, verbose=0, return_dict=True)


class TestLossesAndMetricsOfKeras:
    def test_the_line_that_everyone_types(self):
        model = moved(2)
        usual = report(model, HALF)
        model.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
        assert model.metrics_names == ["loss", "compile_metrics"]
        found = model.evaluate(TEXTS, HALF, verbose=0)
        np.testing.assert_allclose(found, [usual["loss"], usual["accuracy"]], rtol=1e-6)

    @pytest.mark.parametrize(
        "loss",
        [
            "crossentropy",
            keras.losses.sparse_categorical_crossentropy,
            keras.losses.SparseCategoricalCrossentropy(),
            "categorical_crossentropy",
            keras.losses.CategoricalCrossentropy(from_logits=True),
        ],
    )
    def test_cross_entropies_are_taken_of_logits(self, loss):
        expected = report(moved(3), [2, 0, 1, 1, 0, 2])["loss"]
        found = report(moved(3), [2, 0, 1, 1, 0, 2], loss=loss)["loss"]
        assert found == pytest.approx(expected, rel=1e-5)

    def test_a_loss_of_rows_gets_class_numbers_as_rows(self):
        loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.2)
        found = report(moved(3), [2, 0, 1, 1, 0, 2], loss=loss)["loss"]
        smooth = 0.8 * np.eye(3)[[2, 0, 1, 1, 0, 2]] + 0.2 / 3
        logs = np.log(softmax(moved(3).predict(TEXTS, verbose=0)))
        assert found == pytest.approx(-(smooth * logs).sum(axis=-1).mean(), rel=1e-5)

    def test_two_classes(self):
        scores = softmax(moved(2).predict(TEXTS, verbose=0))
        one_hot, second = np.eye(2)[HALF], np.array(HALF)[:, None]
        makers = {
            "precision": (lambda: keras.metrics.Precision(0.6, name="precision"), second),
            "recall": (lambda: keras.metrics.Recall(0.6, name="recall"), second),
            "auc": (lambda: keras.metrics.AUC(name="auc"), second),
            "f1": (lambda: keras.metrics.F1Score(threshold=0.5, name="f1"), second),
            "f1s": (lambda: keras.metrics.F1Score(name="f1s"), one_hot),
            "first": (lambda: keras.metrics.Precision(class_id=0, name="first"), one_hot),
            "crossentropy": (lambda: keras.metrics.CategoricalCrossentropy(), one_hot),
            "binary_accuracy": (lambda: keras.metrics.BinaryAccuracy(), second),
        }
        metrics = [make() for make, _ in makers.values()]
        found = report(moved(2), HALF, metrics=metrics)
        for (make, y), metric in zip(makers.values(), metrics, strict=True):
            expected = measured(make(), y, scores if y is one_hot else scores[:, 1:])
            np.testing.assert_allclose(found[metric.name], expected, rtol=1e-5, err_msg=metric.name)

    def test_three_classes(self):
        y = [2, 0, 1, 1, 0, 2]
        scores, one_hot = softmax(moved(3).predict(TEXTS, verbose=0)), np.eye(3)[y]
        makers = [
            lambda: keras.metrics.F1Score(average="macro"),
            lambda: keras.metrics.AUC(multi_label=True, name="auc"),
            lambda: keras.metrics.TopKCategoricalAccuracy(2, name="top_2"),
        ]
        found = report(moved(3), y, metrics=[*(m() for m in makers), "acc", "Accuracy"])
        for make in makers:
            expected = measured(make(), one_hot, scores)
            np.testing.assert_allclose(found[make().name], expected, rtol=1e-5)
        right = (scores.argmax(axis=-1) == y).mean()
        assert found["acc"] == found["Accuracy"] == pytest.approx(right)

    def test_several_labels(self):
        model = moved(3, "multi_label_classification")
        y = [[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]]
        scores = 1 / (1 + np.exp(-model.predict(TEXTS, verbose=0)))
        usual = report(model, y)
        f1 = keras.metrics.F1Score(threshold=0.5, average="macro")
        found = report(model, y, loss="binary_crossentropy", metrics=["accuracy", f1])
        assert found["loss"] == pytest.approx(usual["loss"])
        assert found["accuracy"] == pytest.approx(((scores > 0.5) == np.array(y)).mean())
        expected = measured(keras.metrics.F1Score(threshold=0.5, average="macro"), y, scores)
        assert found["f1_score"] == pytest.approx(expected)
        with pytest.raises(ValueError, match=r"Expected F1Score\(threshold=0.5\)"):
            model.compile("adam", metrics=[keras.metrics.F1Score()])
        with pytest.raises(ValueError, match="a loss of one class for each text"):
            model.compile("adam", "sparse_categorical_crossentropy")

    def test_regression(self):
        model = moved(1, "regression")
        stars = [4.5, 1.0, 5.0, 0.0, 4.0, 1.0]
        guesses = model.predict(TEXTS, verbose=0)[:, 0]
        found = report(model, stars, metrics=["mae", keras.metrics.PearsonCorrelation(axis=0)])
        assert found["mae"] == pytest.approx(np.abs(guesses - stars).mean(), rel=1e-5)
        correlation = np.corrcoef(guesses, stars)[0, 1]
        assert found["pearson_correlation"] == pytest.approx(correlation, rel=1e-4)
        for metric in ("accuracy", keras.metrics.PearsonCorrelation()):
            with pytest.raises(ValueError, match="Expected "):
                model.compile("adam", metrics=[metric])

    def test_tokens_that_have_a_label_are_the_examples(self):
        model = tagger(labels=["O", "B-X", "I-X"])
        words = [text.split() for text in TEXTS]
        y = [[i % 3 for i in range(len(sentence))] for sentence in words]
        model.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
        found = model.evaluate(words, y, verbose=0, return_dict=True)
        chosen = np.concatenate([row.argmax(axis=-1) for row in model.predict(words)])
        assert found["accuracy"] == pytest.approx((chosen == np.concatenate(y)).mean())
        model.compile("adam", metrics=[keras.metrics.F1Score(average="macro")])
        found = model.evaluate(words, y, verbose=0, return_dict=True)
        expected = measured(
            keras.metrics.F1Score(average="macro"), np.eye(3)[np.concatenate(y)], np.eye(3)[chosen]
        )
        assert found["f1_score"] == pytest.approx(expected)

    def test_they_are_in_a_saved_model(self, tmp_path):
        model = classifier(num_classes=2)
        model.compile(loss="sparse_categorical_crossentropy", metrics=["acc", "AUC"])
        model.fit(TEXTS, HALF, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        expected = model.evaluate(TEXTS, HALF, verbose=0, return_dict=True)
        assert set(expected) == {"loss", "acc", "AUC"}
        assert loaded.evaluate(TEXTS, HALF, verbose=0, return_dict=True) == expected

    def test_metrics_of_others_get_the_logits(self):
        def largest(y_true, y_pred):
            return keras.ops.max(y_pred, axis=-1)

        found = report(moved(2), HALF, metrics=[largest])["largest"]
        expected = moved(2).predict(TEXTS, verbose=0).max(axis=-1).mean()
        assert found == pytest.approx(expected, rel=1e-5)


class TestValidationSplit:
    def test_classes_that_training_never_sees_are_named(self, caplog):
        model = classifier(labels=["bad", "good", "poor"])
        sorted_y = ["bad", "bad", "bad", "good", "good", "poor"]
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            model.fit(TEXTS, sorted_y, validation_split=0.5, verbose=0)
        (message,) = caplog.messages
        assert "the last 3 of 6 texts, and with them every text of 'good', 'poor'," in message

    def test_nothing_is_said_where_training_sees_all(self, caplog):
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            moved(2).fit(TEXTS, HALF, validation_split=0.5, verbose=0)
        assert caplog.messages == []

    def test_several_labels(self, caplog):
        model = moved(3, "multi_label_classification")
        y = [[1, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            model.fit(TEXTS, y, validation_split=0.5, verbose=0)
        assert "every text of 2, which training never sees" in caplog.text
