"""What a new user types, from README and habit: it works, or one line says what to type instead."""

import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import encoder_zoo as ez

WORDS = "good fine nice bad poor awful the a film was it very anna lives in rome who where".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine", "poor film"]
HALF = [1, 0, 1, 0, 1, 0]


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
    preprocessor = ez.TokenClassifierPreprocessor(tokenizer())
    return ez.TokenClassifier(backbone(pooler=False), preprocessor, **arguments)


@functools.cache
def shared(problem_type="single_label_classification"):
    """For tests that do not ask how it was trained: its graphs are traced once."""
    keras.utils.set_random_seed(0)
    return classifier(labels=["down", "up"], problem_type=problem_type)


def learned(y, **arguments):
    """A classifier that knows the labels of y, without the wait for a training."""
    model = classifier(**arguments)
    model._learn_labels(TEXTS[: len(y)], y)
    return model


def of_library(library, values):
    """A column of another library."""
    if library == "pandas":
        return pd.Series(values)
    module = pytest.importorskip(library)
    if library == "polars":
        return module.Series(values)
    if library == "pyarrow":
        return module.chunked_array([values])
    return module.Dataset.from_dict({"column": values})["column"]


def table_of_library(library, columns):
    if library == "pandas":
        return pd.DataFrame(columns)
    module = pytest.importorskip(library)
    if library == "polars":
        return module.DataFrame(columns)
    return module.table(columns) if library == "pyarrow" else module.Dataset.from_dict(columns)


LIBRARIES = ["pandas", "polars", "pyarrow", "datasets"]


class TestLabelsLearnedFromY:
    @pytest.mark.parametrize(
        "y, labels, numbers",
        [
            (["up", "down", "up"], ["down", "up"], [1, 0, 1]),
            (np.array(["up", "down"], object), ["down", "up"], [1, 0]),
            ([True, False], ["False", "True"], [1, 0]),
            ([1.0, 0.0], 2, [1, 0]),
            ([0, 2, 1], 3, [0, 2, 1]),
            ([1, 5, 3], ["1", "3", "5"], [0, 2, 1]),
            ([-1, 1], ["-1", "1"], [0, 1]),
            (pd.Series(["up", "down"]).astype("category"), ["down", "up"], [1, 0]),
            (pd.Categorical(["b", "c"], categories=["c", "b", "a"]), ["c", "b", "a"], [1, 0]),
            ([[0, 1, 0], [0, 0, 1]], 3, [1, 2]),
            (np.float32([[0.25, 0.75], [1, 0]]), 2, [[0.25, 0.75], [1, 0]]),
            (pd.DataFrame({"up": [1, 0], "down": [0, 1]}), ["up", "down"], [0, 1]),
            (tf.constant(["up", "down"]), ["down", "up"], [1, 0]),
        ],
    )
    def test_one_class(self, y, labels, numbers):
        model = learned(y)
        assert (model.labels or model.num_classes) == labels
        assert model.preprocessor.encode_labels(y).numpy().tolist() == numbers

    @pytest.mark.parametrize(
        "y, labels, hot",
        [
            ([["up"], ["down", "up"]], ["down", "up"], [[0, 1], [1, 1]]),
            ([[0, 1, 1], [0, 0, 0]], 3, [[0, 1, 1], [0, 0, 0]]),
            (pd.DataFrame({"b": [1, 0], "a": [1, 1]}), ["b", "a"], [[1, 1], [0, 1]]),
        ],
    )
    def test_several_classes(self, y, labels, hot):
        model = learned(y, problem_type="multi_label_classification")
        assert (model.labels or model.num_classes) == labels
        assert model.preprocessor.encode_labels(y).numpy().tolist() == hot

    def test_from_a_dataset(self):
        model = classifier()
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS, ["b", "a", "c"] * 2))
        model._learn_labels(dataset, None)
        assert model.labels == ["a", "b", "c"]
        with pytest.raises(ValueError, match="The dataset is endless"):
            classifier().fit(dataset.repeat())

    def test_kept_in_the_preset(self, tmp_path):
        model = classifier()
        model.fit(TEXTS, ["bad", "good"] * 3, verbose=0)
        model.save_to_preset(tmp_path / "preset")
        again = ez.SequenceClassifier.from_preset(tmp_path / "preset")
        assert again.labels == ["bad", "good"]
        assert again.classify(TEXTS) == model.classify(TEXTS)

    def test_of_a_preset_whose_head_is_another(self):
        model = ez.SequenceClassifier.from_preset("bert_nano_en_uncased")
        for call in (model.classify, model.predict, model.predict_proba):
            with pytest.raises(ValueError, match="does not know its labels yet. Pass labels="):
                call(TEXTS)
        with pytest.raises(ValueError, match="does not know its labels yet"):
            model.save_to_preset("unused")

    @pytest.mark.parametrize(
        "y, message",
        [
            (["up"] * 6, "Every label is 'up'. Expected two classes or more"),
            (["up", None, "down", "up", "up", "up"], "Row 1 has no label: it is None"),
            ([0.5, 1, 2, 3, 4, 5], 'learned with problem_type="regression"'),
            ([["up"], ["down"]] * 3, 'are for problem_type="multi_label_classification"'),
            ([["up"], ["down", "up"]] * 3, 'are for problem_type="multi_label_classification"'),
            (None, "^The labels are missing. Expected y: one label for each text.$"),
        ],
    )
    def test_what_is_none(self, y, message):
        with pytest.raises(ValueError, match=message):
            classifier().fit(TEXTS, y)


class TestSoftLabels:
    def test_the_loss_is_the_cross_entropy_with_them(self):
        model, soft = shared(), np.float32([[0.2, 0.8], [0.5, 0.5], [1, 0]])
        found = model.evaluate(TEXTS[:3], soft, verbose=0, return_dict=True)
        probabilities = model.predict_proba(TEXTS[:3])
        expected = -(soft * np.log(probabilities)).sum(axis=1).mean()
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
        right = probabilities.argmax(axis=1) == soft.argmax(axis=1)
        assert found["accuracy"] == pytest.approx(right.mean())

    def test_in_a_dataset_and_in_training(self):
        soft = np.float32([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]] * 2)
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS, soft))
        model = classifier()
        model.fit(dataset, verbose=0)
        assert model.num_classes == 2
        expected = model.evaluate(TEXTS, soft, verbose=0)
        np.testing.assert_allclose(model.evaluate(dataset, verbose=0), expected, rtol=1e-5)

    def test_one_hot_rows_are_class_numbers(self):
        hot = np.eye(2)[HALF]
        expected = shared().evaluate(TEXTS, HALF, verbose=0)
        np.testing.assert_allclose(shared().evaluate(TEXTS, hot, verbose=0), expected, rtol=1e-6)


class TestColumnsOfOtherLibraries:
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_texts_and_labels(self, library):
        texts, y = of_library(library, TEXTS), of_library(library, ["down", "up"] * 3)
        expected = shared().evaluate(TEXTS, ["down", "up"] * 3, verbose=0)
        np.testing.assert_allclose(shared().evaluate(texts, y, verbose=0), expected, rtol=1e-6)
        np.testing.assert_array_equal(
            shared().predict(texts, verbose=0), shared().predict(TEXTS, verbose=0)
        )
        assert learned(y).labels == ["down", "up"]

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_pairs_in_a_table(self, library):
        table = table_of_library(library, {"first": TEXTS, "second": TEXTS[::-1]})
        expected = shared().classify((TEXTS, TEXTS[::-1]))
        assert shared().classify(table) == expected

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_words_and_tags(self, library):
        words, tags = [["anna", "lives"], ["rome"]], [["B-PER", "O"], ["B-LOC"]]
        model = tagger(labels=["O", "B-PER", "B-LOC"])
        expected = model.preprocessor(words, tags)
        found = model.preprocessor(of_library(library, words), of_library(library, tags))
        for ours, theirs in zip(
            keras.tree.flatten(found), keras.tree.flatten(expected), strict=False
        ):
            np.testing.assert_array_equal(ours, theirs)

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_texts_for_a_tokenizer(self, library):
        found = tokenizer()(of_library(library, TEXTS))
        assert found.to_list() == tokenizer().tokenize(TEXTS).to_list()


class TestTextsAndPairs:
    def test_one_text_and_one_pair(self):
        model = shared()
        assert model.classify(TEXTS[0]) == model.classify(TEXTS[:1])[0]
        assert model.classify(("good", "film")) == model.classify((["good"], ["film"]))[0]
        assert len(model.classify(TEXTS[0], top_k=2)) == 2

    def test_a_list_of_pairs(self):
        pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
        expected = shared().classify((TEXTS, TEXTS[::-1]))
        for given in (pairs, list(map(list, pairs)), np.array(pairs)):
            assert shared().classify(given) == expected
        shared().evaluate(pairs, HALF, verbose=0)
        with pytest.raises(ValueError, match="Row 1 is 'good'. Expected a pair of texts"):
            shared().classify([("good", "film"), "good"])

    def test_three_columns_are_no_pair(self):
        with pytest.raises(ValueError, match=r"a pair \(first, second\). Received: 3 texts"):
            shared().classify(pd.DataFrame({"a": TEXTS, "b": TEXTS, "c": TEXTS}))


class TestProbabilities:
    def test_of_one_class_add_up_to_1(self):
        found, logits = shared().predict_proba(TEXTS), shared().predict(TEXTS, verbose=0)
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
        np.testing.assert_allclose(np.log(found[:, 1] / found[:, 0]), logits @ [-1, 1], rtol=1e-4)

    def test_of_several_stand_for_themselves(self):
        model = shared("multi_label_classification")
        logits = model.predict(TEXTS, verbose=0)
        np.testing.assert_allclose(model.predict_proba(TEXTS), 1 / (1 + np.exp(-logits)), rtol=1e-5)

    def test_threshold(self):
        scores = shared().predict_proba(TEXTS)[:, 1]
        middle = float(np.median(scores))
        answers = shared().classify(TEXTS, threshold=middle)
        assert [a["label"] == "up" for a in answers] == (scores >= middle).tolist()
        model = shared("multi_label_classification")
        assert [len(row) for row in model.classify(TEXTS, threshold=0.0)] == [2] * 6
        assert model.classify(TEXTS[0], threshold=1.0) == []
        with pytest.raises(ValueError, match="threshold is of two classes"):
            classifier(num_classes=3).classify(TEXTS, threshold=0.5)


class TestClassWeight:
    def test_by_name_number_and_balanced(self):
        y = ["up", "down", "down", "down", "down", "down"]
        balanced = {"up": 6 / (2 * 1), "down": 6 / (2 * 5)}
        losses = []
        for given in (balanced, {1: 3.0, 0: 0.6}, "balanced"):
            keras.utils.set_random_seed(0)
            model = classifier(labels=["down", "up"])
            model.compile(learning_rate=1e-9)
            losses.append(model.fit(TEXTS, y, class_weight=given, verbose=0).history["loss"][0])
        assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
        weights = [balanced[label] for label in y]
        alone = model.evaluate(TEXTS, y, sample_weight=weights, verbose=0)[0]
        assert losses[0] == pytest.approx(alone, rel=1e-5)

    def test_of_tags(self):
        words, tags = [["anna", "lives", "in", "rome"]], [["B-PER", "O", "O", "B-LOC"]]
        stream = tagger(labels=["O", "B-PER", "B-LOC"])
        rows = stream.preprocess(words, tags)
        batches = stream._rows_stream(rows, 1, range(1), False, None)
        for given, expected in (
            ({"O": 0.5, "B-PER": 2}, [0, 2, 0.5, 0.5, 1, 0]),
            ("balanced", [0, 4 / 3, 2 / 3, 2 / 3, 4 / 3, 0]),
        ):
            [(_, _, weights)] = stream.weighted_stream(batches, given).batches(0, 0)
            np.testing.assert_allclose(weights.numpy(), [expected])

    def test_in_a_dataset_and_with_prepared_inputs(self):
        losses, x = [], shared().preprocessor(TEXTS)
        inputs = {name: values.numpy() for name, values in x.items()}
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS, HALF))
        for data in ((TEXTS, HALF), (dataset,), (inputs, np.array(HALF))):
            keras.utils.set_random_seed(0)
            model = classifier(num_classes=2)
            model.compile(learning_rate=1e-9)
            found = model.fit(*data, class_weight={1: 5}, verbose=0).history["loss"][0]
            losses.append(found)
        assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)

    @pytest.mark.parametrize(
        "given, message",
        [
            ({"upp": 2}, r"unknown class 'upp'. Expected some of \['down', 'up'\]"),
            ({"up": -1}, "gives 'up' the weight -1"),
            ("even", "class_weight is 'even'. Expected"),
        ],
    )
    def test_refusals(self, given, message):
        with pytest.raises(ValueError, match=message):
            shared().fit(TEXTS, HALF, class_weight=given)
