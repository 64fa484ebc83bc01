"""What would train or measure something else than the caller means, without an error: none does."""

import functools
import logging

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.tasks import list_tasks
from encoder_zoo.tasks.base.classes import compute_class_weights

WORDS = "good fine nice bad poor awful the a film was it very".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine", "poor film"]
HALF = [1, 0, 1, 1, 0, 1]
pytestmark = pytest.mark.eager


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
        with pytest.raises(ValueError, match="Row 1.*'0'"):
            stars.fit(TEXTS, [1, 0, 1, 2, 3, 4])

    @pytest.mark.slow
    def test_also_in_a_dataset(self):
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS[:2], [5, 1])).batch(2)
        prepare = classifier(labels=[1, 5]).preprocessor
        assert [y.numpy().tolist() for _, y in dataset.map(prepare)] == [[1, 0]]

    def test_other_names_leave_them_class_indices(self):
        assert encoded(classifier(labels=["1 star", "2 stars"]), [1, 0]) == [1, 0]

    @pytest.mark.slow
    def test_tags_of_words(self):
        model = tagger(labels=["1", "2"])
        words, tags = [["good", "film"]], [[2, 1]]
        assert model.preprocessor(words, tags)[1].numpy().tolist() == [[0, 1, 0, 0]]
        dataset = tf.data.Dataset.from_tensors((tf.ragged.constant(words), tf.constant(tags)))
        assert next(iter(dataset.map(model.preprocessor)))[1].numpy().tolist() == [[0, 1, 0, 0]]
        with pytest.raises(ValueError, match="Example 0, word 1: .*'0'"):
            model.fit(words, [[1, 0]])

    def test_what_is_no_list_of_names_is_refused(self):
        for wrong in ("ab", {"a", "b"}, {"a": 0, "b": 1}):
            with pytest.raises(ValueError, match="labels is.*list"):
                classifier(labels=wrong)
        for wrong in ([0.5, 1.0], [True, False], [None]):
            with pytest.raises(ValueError, match=r"labels\[0\] is"):
                classifier(labels=wrong)
        with pytest.raises(ValueError, match="labels.*'1'"):
            classifier(labels=[1, "1"])


class TestNamesThatAreBooleans:
    """True is the class "True", wherever this class stands."""

    @pytest.mark.parametrize("labels", [["True", "False"], ["False", "True"], ["true", "false"]])
    @pytest.mark.parametrize(
        "container",
        [list, np.array, tf.constant, pd.Series, functools.partial(np.array, dtype=object)],
    )
    def test_booleans_are_the_names(self, labels, container):
        first = labels[0].lower() == "true"
        expected = [0, 1, 1] if first else [1, 0, 0]
        assert encoded(classifier(labels=labels), container([True, False, False])) == expected

    def test_among_other_names(self):
        assert encoded(classifier(labels=["True", "unsure", "False"]), [True, "unsure", False]) == [
            0,
            1,
            2,
        ]

    def test_also_in_a_dataset(self):
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS[:2], [True, False])).batch(2)
        prepare = classifier(labels=["True", "False"]).preprocessor
        assert [y.numpy().tolist() for _, y in dataset.map(prepare)] == [[0, 1]]

    @pytest.mark.parametrize("container", [list, np.array])
    def test_a_missing_class_is_unknown(self, container):
        with pytest.raises(ValueError, match="Row 1.*False"):
            encoded(classifier(labels=["True", "unsure"]), container([True, False]))

    def test_other_names_leave_them_class_indices(self):
        assert encoded(classifier(labels=["down", "up"]), [True, False]) == [1, 0]

    @pytest.mark.parametrize("container", [list, np.array])
    def test_a_single_class_at_its_usual_index(self, container):
        assert encoded(classifier(labels=["fake", "true"]), container([True, False])) == [1, 0]

    def test_the_name_with_the_same_case_comes_first(self):
        found = encoded(classifier(labels=["TRUE", "FALSE", "True"]), [True, False])
        assert found == [2, 1]

    @pytest.mark.parametrize("kind", [bool, np.bool_])
    def test_keys_of_class_weight(self, kind):
        given = {kind(True): 3.0}
        assert compute_class_weights(given, ["True", "False"], 2, None).tolist() == [3.0, 1.0]
        assert compute_class_weights(given, ["fake", "true"], 2, None).tolist() == [1.0, 3.0]


def test_a_class_has_one_weight():
    with pytest.raises(ValueError, match="'up' and 1.*same class"):
        compute_class_weights({"up": 2.0, 1: 5.0}, ["down", "up"], 2, None)


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
    @pytest.mark.slow
    def test_the_line_that_everyone_types(self):
        model = moved(2)
        usual = report(model, HALF)
        model.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
        assert model.metrics_names == ["loss", "compile_metrics"]
        found = model.evaluate(TEXTS, HALF, verbose=0)
        np.testing.assert_allclose(found, [usual["loss"], usual["accuracy"]], rtol=1e-6)

    @pytest.mark.slow(except_for="^loss4")
    @pytest.mark.parametrize(
        "loss",
        [
            "crossentropy",
            pytest.param(keras.losses.sparse_categorical_crossentropy, marks=pytest.mark.slow),
            pytest.param(keras.losses.SparseCategoricalCrossentropy(), marks=pytest.mark.slow),
            pytest.param("categorical_crossentropy", marks=pytest.mark.slow),
            keras.losses.CategoricalCrossentropy(from_logits=True),
        ],
    )
    def test_cross_entropies_are_taken_of_logits(self, loss):
        expected = report(moved(3), [2, 0, 1, 1, 0, 2])["loss"]
        found = report(moved(3), [2, 0, 1, 1, 0, 2], loss=loss)["loss"]
        assert found == pytest.approx(expected, rel=1e-5)

    def test_a_loss_of_rows_gets_class_indices_as_rows(self):
        loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.2)
        found = report(moved(3), [2, 0, 1, 1, 0, 2], loss=loss)["loss"]
        smooth = 0.8 * np.eye(3)[[2, 0, 1, 1, 0, 2]] + 0.2 / 3
        logs = np.log(softmax(moved(3).predict(TEXTS, verbose=0)))
        assert found == pytest.approx(-(smooth * logs).sum(axis=-1).mean(), rel=1e-5)

    @pytest.mark.slow
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

    @pytest.mark.slow
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

    @pytest.mark.slow
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
        with pytest.raises(ValueError, match=r"F1Score\(threshold=0.5\)"):
            model.compile("adam", metrics=[keras.metrics.F1Score()])
        with pytest.raises(ValueError, match="SparseCategoricalCrossentropy"):
            model.compile("adam", "sparse_categorical_crossentropy")

    @pytest.mark.slow
    def test_regression(self):
        model = moved(1, "regression")
        stars = [4.5, 1.0, 5.0, 0.0, 4.0, 1.0]
        guesses = model.predict(TEXTS, verbose=0)[:, 0]
        found = report(model, stars, metrics=["mae", keras.metrics.PearsonCorrelation(axis=0)])
        assert found["mae"] == pytest.approx(np.abs(guesses - stars).mean(), rel=1e-5)
        correlation = np.corrcoef(guesses, stars)[0, 1]
        assert found["pearson_correlation"] == pytest.approx(correlation, rel=1e-4)
        for metric in ("accuracy", keras.metrics.PearsonCorrelation()):
            with pytest.raises(ValueError, match=r"accuracy|axis=0"):
                model.compile("adam", metrics=[metric])

    @pytest.mark.slow
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

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_they_are_in_a_saved_model(self, tmp_path):
        model = classifier(num_classes=2)
        model.compile(loss="sparse_categorical_crossentropy", metrics=["acc", "AUC"])
        model.fit(TEXTS, HALF, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        expected = model.evaluate(TEXTS, HALF, verbose=0, return_dict=True)
        assert set(expected) == {"loss", "acc", "AUC"}
        assert loaded.evaluate(TEXTS, HALF, verbose=0, return_dict=True) == expected

    @pytest.mark.slow
    def test_metrics_of_others_get_the_logits(self):
        def largest(y_true, y_pred):
            return keras.ops.max(y_pred, axis=-1)

        found = report(moved(2), HALF, metrics=[largest])["largest"]
        expected = moved(2).predict(TEXTS, verbose=0).max(axis=-1).mean()
        assert found == pytest.approx(expected, rel=1e-5)


class TestValidationSplit:
    @pytest.mark.slow
    def test_classes_that_training_never_sees_are_named(self, caplog):
        model = classifier(labels=["bad", "good", "poor"])
        sorted_y = ["bad", "bad", "bad", "good", "good", "poor"]
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            model.fit(TEXTS, sorted_y, validation_split=0.5, verbose=0)
        (message,) = (line for line in caplog.messages if "random weights" not in line)
        assert "'good', 'poor'" in message

    @pytest.mark.slow
    def test_nothing_is_said_where_training_sees_all(self, caplog):
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            moved(2).fit(TEXTS, HALF, validation_split=0.5, verbose=0)
        assert not [line for line in caplog.messages if "random weights" not in line]

    @pytest.mark.slow
    def test_several_labels(self, caplog):
        model = moved(3, "multi_label_classification")
        y = [[1, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            model.fit(TEXTS, y, validation_split=0.5, verbose=0)
        assert "labels 2" in caplog.text


class TestLabelsAndWeights:
    @pytest.mark.parametrize(
        "y, message",
        [
            ([[1, 2], [0, 1]], r"Row 0 is \[1, 2\].* 2 "),
            (np.array([[1, 0], [0, -1]]), "Row 1 is.* 2 "),
            (tf.constant([[1.0, 0.0], [0.0, 1.5]]), "Row 1 is.* 2 "),
            ([[1], [0]], r"Row 0 is \[1\].* 2 "),
            ([1, 0], "Row 0 is 1[.] .*list"),
            ([0.5, 1], "Row 0 is 0.5.*list"),
            (["ab", "b"], "Row 0 is 'ab'.*list"),
            (np.array(["a", "b"]), "Row 0 is.*'a'.*list"),
            ([["ab"], ["b"]], "Row 0 has.*'ab'"),
        ],
    )
    def test_several_labels(self, y, message):
        model = classifier(labels=["a", "b"], problem_type="multi_label_classification")
        with pytest.raises(ValueError, match=message):
            model.fit(TEXTS[:2], y)

    def test_several_labels_as_they_should_be(self):
        model = classifier(labels=["a", "b"], problem_type="multi_label_classification")
        for y in ([["a"], ["b", "a"]], [[1, 0], [True, 1.0]], tf.constant([[1, 0], [1, 1]])):
            assert encoded(model, y) == [[1, 0], [1, 1]]
        assert encoded(model, [[], []]) == [[0, 0], [0, 0]]
        assert encoded(model, [[0.25, 1]]) == [[0.25, 1]]  # a probability is a label, too

    @pytest.mark.slow
    def test_several_labels_in_a_dataset(self):
        model = classifier(labels=["a", "b"], problem_type="multi_label_classification")
        dataset = tf.data.Dataset.from_tensors((TEXTS[:2], [[1, 0], [2, 0]]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Row 1 of the batch"):
            list(dataset.map(model.preprocessor))

    @pytest.mark.parametrize("y", [np.ones((2, 6)), np.ones(12), np.ones(6), [["1", "2"]] * 6])
    def test_two_numbers_to_predict(self, y):
        model = classifier(num_classes=2, problem_type="regression")
        with pytest.raises(ValueError, match=r"`y` has.*\((2, )?(6|12)(, 2)?,?\)"):
            model.fit(TEXTS, y)
        assert encoded(model, [[1, 2], [3, 4]]) == [[1, 2], [3, 4]]

    def test_one_number_to_predict(self):
        model = classifier(problem_type="regression")
        assert encoded(model, [1, 2.5]) == encoded(model, [[1], [2.5]]) == [[1], [2.5]]
        for wrong, message in (
            ([[1, 2, 3]], r"`y` has.*\(1, 3\).* 1 number"),
            ([1.0, None], "Row 1 has no label: it is None"),
            ([1.0, np.nan], "Row 1 has no label: it is nan"),
        ):
            with pytest.raises(ValueError, match=message):
                encoded(model, wrong)

    def test_generators_are_refused(self):
        with pytest.raises(ValueError, match="y is.*generator"):
            moved(2).fit(TEXTS, (label for label in HALF))
        with pytest.raises(ValueError, match="sample_weight is.*map"):
            moved(2).fit(TEXTS, HALF, sample_weight=map(float, HALF))

    @pytest.mark.slow(except_for=r"^weights2-sample_weight\.\*complex128$")
    @pytest.mark.parametrize(
        "weights, message",
        [
            ([1, 1, -1, 1, 1, 1], r"Row 2.*weight -1.0"),
            ([1, np.nan, 1, 1, 1, 1], "Row 1.*weight nan"),
            ([1j] * 6, "sample_weight.*complex128"),
            (2.0, r"sample_weight.*\(\)"),
            (np.ones((6, 6)), r"sample_weight.*\(6, 6\)"),
            (np.ones((6, 1, 1)), r"sample_weight.*\(6, 1, 1\)"),
        ],
    )
    def test_weights(self, weights, message):
        for method in (moved(2).fit, moved(2).evaluate):
            with pytest.raises(ValueError, match=message):
                method(TEXTS, HALF, sample_weight=weights)
        words = [text.split() for text in TEXTS]
        with pytest.raises(ValueError, match=message):
            tagger(num_classes=2).fit(words, [[0] * len(w) for w in words], sample_weight=weights)

    @pytest.mark.slow
    def test_weights_in_a_dataset(self):
        dataset = tf.data.Dataset.from_tensors((TEXTS[:2], [0, 1], [1.0, -1.0]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Row 1.*-1"):
            list(dataset.map(moved(2).preprocessor))

    @pytest.mark.parametrize("size", [0, -1, 2.5, True])
    def test_sizes_of_batches(self, size):
        for method in (moved(2).fit, moved(2).evaluate):
            with pytest.raises(ValueError, match=f"batch_size is {size}"):
                method(TEXTS, HALF, batch_size=size)
        with pytest.raises(ValueError, match="batch_size is"):
            moved(2).fit(TEXTS, HALF, validation_data=(TEXTS, HALF), validation_batch_size=size)

    def test_no_texts(self):
        for method in (moved(2).fit, moved(2).evaluate):
            for x in ([], ([], []), np.array([], str)):
                with pytest.raises(ValueError, match="x is.*at least one text"):
                    method(x, [])

    @pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, 0.99])
    def test_shares_that_leave_nothing(self, share):
        with pytest.raises(ValueError, match=f"validation_split( is |=){share}"):
            moved(2).fit(TEXTS, HALF, validation_split=share)


class TestSpansThatCutWords:
    def told(self, caplog, text, start, end):
        caplog.clear()
        spans = [[{"start": start, "end": end, "label": "X"}], []]
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            tagger(labels=["O", "B-X", "I-X"]).preprocessor([text, "a film"], spans)
        return caplog.text

    def test_the_first_is_shown(self, caplog):
        told = self.told(caplog, "a good film", 2, 5)
        assert "1 of the spans begin or end inside a word" in told
        assert "example 0, 'goo' of 'good', from 2 to 5" in told
        assert "'d film' of 'good film'" in self.told(caplog, "a good film", 5, 11)
        assert "'198' of '1984'" in self.told(caplog, "in 1984", 3, 6)

    @pytest.mark.slow(except_for="^a")
    @pytest.mark.parametrize(
        "text, start, end",
        [
            ("a good film", 2, 6),
            ("film.", 0, 4),
            ("U.S.-based", 0, 4),
            ("10km", 0, 2),
            ("\u5317\u4eac\u5e02\u6c11", 0, 2),  # Chinese: a city's name and "people"
            ("\uc11c\uc6b8\uc5d0\uc11c", 0, 2),  # Korean: Seoul, with its particle
        ],
    )
    def test_others_are_not_told_of(self, text, start, end, caplog):
        assert "inside a word" not in self.told(caplog, text, start, end)


class TestPartsThatDoNotBelongTogether:
    @pytest.mark.slow
    @pytest.mark.parametrize("task", list_tasks(), ids=lambda task: task.__name__)
    def test_another_tasks_preprocessor(self, task):
        own = task.record.preprocessor_class.__name__
        for other in set(list_tasks()) - {task}:
            preprocessor = other.record.preprocessor_class(tokenizer())
            theirs = other.record.preprocessor_class.__name__
            with pytest.raises(TypeError, match=f"preprocessor is {theirs}.*{own}"):
                task(backbone(), preprocessor)
        for wrong in (tokenizer(), "bert", 5):
            with pytest.raises(TypeError, match=f"preprocessor is.*{own}"):
                task(backbone(), wrong)

    def test_what_is_no_backbone(self):
        with pytest.raises(TypeError, match="backbone is <SequenceClassifier"):
            ez.TokenClassifier(classifier(num_classes=2))

    def test_a_subclass_is_a_preprocessor_of_its_task(self):
        class Own(ez.SequenceClassifierPreprocessor):
            pass

        task = ez.SequenceClassifier(backbone(), Own(tokenizer()), num_classes=2)
        assert type(task.preprocessor) is Own

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "load", [pytest.param(ez.Backbone.from_preset, marks=pytest.mark.slow), None]
    )
    def test_another_checkpoints_tokenizer(self, load):
        bert, roberta = "bert_nano_en_uncased", "roberta_nano_en"

        def loaded(name):
            if load:
                return load(name)
            return ez.TokenClassifier.from_preset(name, num_classes=2).backbone

        own = ez.BertTokenizer.from_preset(bert)
        words = own.get_vocabulary()
        for right in (
            own,
            ez.BertTokenizer(words),
            ez.BertTokenizer(words, lowercase=False),
        ):
            preprocessor = ez.TokenClassifierPreprocessor(right)
            task = ez.TokenClassifier(loaded(bert), preprocessor, num_classes=2)
            assert len(task.predict(["Good."])) == 1
        swapped = [*words[:-2], words[-1], words[-2]]
        others = [ez.RobertaTokenizer.from_preset(roberta)]
        if load is None:  # the task's tokenizer was read, so that its tokens are known too
            cut, small = ez.BertTokenizer(words[:-1]), tokenizer()
            others += [ez.BertTokenizer(swapped), cut, small]
        for wrong in others:
            preprocessor = ez.TokenClassifierPreprocessor(wrong)
            what = f"{type(wrong).__name__}.*{wrong.vocabulary_size} tokens"
            with pytest.raises(ValueError, match=f"{what}.*BertTokenizer"):
                ez.TokenClassifier(loaded(bert), preprocessor, num_classes=2)

    @pytest.mark.slow
    def test_tokens_may_be_added(self, tmp_path):
        loaded = functools.partial(ez.SequenceClassifier.from_preset, num_classes=2)
        task = loaded("bert_nano_en_uncased", added_tokens=["[E1]"])
        again = ez.TokenClassifierPreprocessor(task.preprocessor.tokenizer)
        assert ez.TokenClassifier(task.backbone, again, num_classes=2).preprocessor
        task.save_to_preset(tmp_path / "preset")
        enlarged = ez.BertTokenizer.from_preset(tmp_path / "preset")
        again = ez.SequenceClassifierPreprocessor(enlarged)
        for backbone in (
            ez.Backbone.from_preset(tmp_path / "preset"),
            loaded(tmp_path / "preset").backbone,
        ):
            assert ez.SequenceClassifier(backbone, again, num_classes=2).preprocessor

    def test_new_weights_are_of_any_tokenizer(self, tmp_path):
        classifier(num_classes=2).save(tmp_path / "model.keras")
        task = keras.saving.load_model(tmp_path / "model.keras")
        other = ez.BertTokenizer(tokenizer().get_vocabulary()[::-1])
        preprocessor = ez.SequenceClassifierPreprocessor(other)
        for backbone in (task.backbone, moved(2).backbone):
            assert ez.SequenceClassifier(backbone, preprocessor, num_classes=2).preprocessor

    def test_a_checkpoint_without_a_tokenizer_takes_any(self, tmp_path):
        backbone().save_to_preset(tmp_path / "preset")
        preprocessor = ez.SequenceClassifierPreprocessor(tokenizer())
        loaded = ez.Backbone.from_preset(tmp_path / "preset")
        assert ez.SequenceClassifier(loaded, preprocessor, num_classes=2).preprocessor
