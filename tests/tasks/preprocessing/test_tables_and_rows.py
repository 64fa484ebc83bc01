"""Tables with other columns than texts, rows that are missing, generators, arrays (n, 1)."""

import re

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.tasks.preprocessing.columns import describe_other_content

TEXTS = ["good film", "bad film", "very good", "very bad"]
LABELS = ["up", "down", "up", "down"]
NAN = float("nan")


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very"])


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(text_columns=None, **arguments):
        preprocessor = ez.SequenceClassifierPreprocessor(tokenizer, text_columns=text_columns)
        backbone = ez.BertBackbone(8, 1, 1, 4, 8)
        return ez.SequenceClassifier(backbone, preprocessor, **arguments)

    return build


@pytest.fixture(scope="module")
def classifier(build):
    return build(labels=["down", "up"])


def table(**columns) -> pd.DataFrame:
    return pd.DataFrame({"id": ["a17", "a18", "a19", "a20"], "text": TEXTS, **columns})


class TestTables:
    def test_an_id_and_a_text_are_no_pair(self, classifier):
        message = (
            r"The column 'id' contains identifiers instead of texts, .*a17.*x\['text'\].*text_"
        )
        for method in (classifier.predict, classifier.classify):
            with pytest.raises(ValueError, match=message):
                method(table())
        with pytest.raises(ValueError, match=message):
            classifier.fit(table(), LABELS)

    @pytest.mark.parametrize(
        ("name", "values", "found"),
        [
            ("id", ["one", "two"], "identifiers"),
            ("doc_id", ["x", "y"], "identifiers"),
            ("file", ["a/17.txt", "b/18.txt"], "identifiers"),
            ("stars", [5, 4], "numbers or other values"),
            ("label", ["ham", "spam"] * 10, "2 repeated values"),
            ("second", ["Yes.", "It is."], None),
            ("word", ["cat", "dog"], None),
            ("zh", ["好", "坏17"], None),
            ("when", ["on 3 May", "in 1917"], None),
            ("empty", ["", None], None),
        ],
    )
    def test_what_a_column_holds(self, name, values, found):
        content = describe_other_content(name, values)
        assert content is None if found is None else content.startswith(found)

    @pytest.mark.slow
    def test_columns_are_chosen_by_name(self, build):
        named, plain = build(text_columns=["text"], num_classes=2), build(num_classes=2)
        named.set_weights(plain.get_weights())
        expected = plain.predict(TEXTS, verbose=0)
        for given in (table(), table(more=TEXTS), table().to_dict("list")):
            np.testing.assert_allclose(named.predict(given, verbose=0), expected, atol=1e-6)
        np.testing.assert_allclose(named.predict(TEXTS, verbose=0), expected, atol=1e-6)
        dataset = tf.data.Dataset.from_tensor_slices(table().to_dict("list")).batch(2)
        np.testing.assert_allclose(named.predict(dataset, verbose=0), expected, atol=1e-6)

    @pytest.mark.slow
    def test_two_of_three_columns_are_a_pair(self, build):
        model = build(text_columns=["more", "text"], labels=["down", "up"])
        assert model.fit(table(more=TEXTS[::-1]), LABELS, verbose=0).epoch == [0]
        examples = model.preprocess(table(more=["bad", "bad", "good", "good"]))
        assert examples["token_ids"][0].numpy().tolist() == [2, 6, 3, 5, 1, 3]

    def test_they_are_kept_with_the_preset(self, build, tmp_path):
        build(text_columns=["text"], num_classes=2).save_to_preset(tmp_path)
        assert ez.Classifier.from_preset(tmp_path).preprocessor.text_columns == ["text"]
        other = ez.Classifier.from_preset(tmp_path, text_columns=["title", "text"])
        assert other.preprocessor.text_columns == ["title", "text"]

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (["txt"], "'txt'.*'id', 'text'"),
            ("text", "text_columns is 'text'. Expected a list of one or two names"),
            (["a", "b", "c"], "text_columns is.* Expected a list of one or two names"),
        ],
    )
    def test_refusals(self, build, columns, message):
        with pytest.raises(ValueError, match=message):
            build(text_columns=columns, num_classes=2).predict(table())

    def test_three_columns_are_named(self, classifier):
        with pytest.raises(ValueError, match="'id', 'text', 'more'.*text_columns="):
            classifier.predict(table(more=TEXTS))

    def test_a_table_of_pairs_is_a_pair(self, classifier):
        pair = pd.DataFrame({"first": TEXTS, "second": TEXTS[::-1]})
        expected = classifier.predict((TEXTS, TEXTS[::-1]), verbose=0)
        np.testing.assert_allclose(classifier.predict(pair, verbose=0), expected, atol=1e-6)


@pytest.mark.slow
def test_validation_data_of_a_list_are_those_of_a_tuple(build):
    model = build(labels=["down", "up"])
    found = model.fit(TEXTS, LABELS, validation_data=[TEXTS, LABELS], verbose=0).history
    expected = model.evaluate(TEXTS, LABELS, return_dict=True, verbose=0)
    assert found["val_loss"] == pytest.approx([expected["loss"]], abs=1e-5)


class TestMissingRows:
    TWO = "2 of 4 rows of {} are missing ({}). The first is row 1. Fill them with"

    @pytest.mark.parametrize(("gap", "kind"), [(None, "None"), (NAN, "NaN"), (pd.NA, "NaN")])
    def test_of_texts(self, classifier, gap, kind):
        expected = re.escape(self.TWO.format("texts", kind))
        for texts in (
            ["good", gap, "bad", gap],
            pd.Series(["good", gap, "bad", gap], dtype=object),
        ):
            for use in (classifier.classify, lambda x: classifier.fit(x, LABELS)):
                with pytest.raises(ValueError, match=expected):
                    use(texts)

    def test_a_column_of_a_pair_is_named(self, classifier):
        with pytest.raises(ValueError, match="1 of 2 rows of second texts"):
            classifier.predict((["a", "b"], ["c", None]))

    @pytest.mark.parametrize(
        "y",
        [["up", None, "down", NAN], pd.Series([1.0, NAN, 0.0, NAN]), np.array([1, NAN, 0, NAN])],
    )
    @pytest.mark.parametrize("labels", [None, ["down", "up"]])
    def test_of_labels(self, build, y, labels):
        with pytest.raises(ValueError, match=r"^Row 1.*2 of 4 rows"):
            build(labels=labels).fit(TEXTS, y)

    @pytest.mark.parametrize("y", [[1.0, NAN, 0.5, NAN], [1.0, None, 0.5, None]])
    def test_of_numbers(self, build, y):
        with pytest.raises(ValueError, match=r"^Row 1.*2 of 4 rows"):
            build(problem_type="regression").fit(TEXTS, y)


def test_a_generator_is_named_with_its_cure(classifier):
    pairs = ((text, label) for text, label in zip(TEXTS, LABELS, strict=True))
    message = "x.*is a generator.*steps_per_epoch.*zip"
    with pytest.raises(ValueError, match=message):
        classifier.fit(pairs)


@pytest.mark.slow
def test_the_cure_for_generators_works(classifier):
    kinds = (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.string))
    pairs = tf.data.Dataset.from_generator(
        lambda: zip(TEXTS, LABELS, strict=True), output_signature=kinds
    )
    assert classifier.fit(pairs, verbose=0).epoch == [0]
    texts, labels = zip(*zip(TEXTS, LABELS, strict=True), strict=True)
    assert classifier.fit(list(texts), labels, verbose=0).epoch == [0]


@pytest.mark.slow
def test_arrays_of_one_column(classifier):
    expected = classifier.predict(TEXTS, verbose=0)
    column = np.array(TEXTS)[:, None]
    for x in (column, column.astype(object), tf.constant(column)):
        np.testing.assert_allclose(classifier.predict(x, verbose=0), expected, atol=1e-6)
    pair = classifier.predict((TEXTS, TEXTS), verbose=0)
    np.testing.assert_allclose(classifier.predict((column, column), verbose=0), pair, atol=1e-6)
    right = classifier.evaluate(TEXTS, LABELS, verbose=0)
    for y in (np.array(LABELS)[:, None], np.array([[1], [0], [1], [0]])):
        np.testing.assert_allclose(classifier.evaluate(column, y, verbose=0), right, atol=1e-6)


def test_columns_of_one_name_are_refused(classifier):
    table = pd.DataFrame([["good", 1, 2], ["bad", 3, 4]], columns=["text", "more", "more"])
    with pytest.raises(ValueError, match="several columns.*'more'"):
        classifier.predict(table)
    with pytest.raises(ValueError, match="several columns.*'more'"):
        ez.BM25Index(table)


def test_a_lazy_table_is_collected():
    class Lazy:  # as polars' LazyFrame
        columns = ("text", "year")
        lazy = None

        def collect(self):
            return pd.DataFrame({"text": ["good"], "year": [1990]})

    index = ez.BM25Index(Lazy())
    assert index.texts == ["good"] and index.metadata == [{"year": 1990}]
