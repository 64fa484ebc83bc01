"""Questions with choices of unequal number: inputs, training, answers, windows, exports."""

import logging

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import ops

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.ranking.multiple_choice import pool_choice_logits
from encoder_zoo.tasks.ranking.multiple_choice_preprocessor import MultipleChoicePreprocessor

QUESTIONS = ["a b ab", "c", "c d e a b"]
CHOICES = [["a", "b"], ["c d", "a b ab", "e", "p p"], ["d e f g h i j k l m n o p"]]
CONTEXTS = ["p o n", "a b c d e f g h i j k l m n o p " * 2, "c"]
Y = [1, 3, 0]


def model_of(tiny, pooling="mean", **arguments):
    family = get_family("bert")
    preprocessor = ez.MultipleChoicePreprocessor(tiny.tokenizer(family), **arguments)
    backbone = tiny.backbone(family, dropout=0.0, attention_dropout=0.0)
    return tiny.randomize_weights(ez.MultipleChoice(backbone, preprocessor, window_pooling=pooling))


@pytest.fixture(scope="module")
def model(tiny):
    return model_of(tiny)


@pytest.fixture(scope="module")
def in_windows(tiny):
    return model_of(tiny, window_length=12, doc_stride=2)


def logits_of_pairs(model, first, second):
    """Of a classifier with the same weights, whose pairs are not grouped."""
    classifier = ez.SequenceClassifier(
        model.backbone,
        ez.SequenceClassifierPreprocessor(model.preprocessor.tokenizer),
        num_classes=1,
        problem_type="regression",
    )
    classifier.head.set_weights(model.head.get_weights())
    inputs = classifier.preprocessor((first, second))
    return ops.convert_to_numpy(classifier(inputs))[:, 0]


def read(x, names=None) -> tuple:
    return MultipleChoicePreprocessor.inputs.convert(x, names)


def assert_equal(found, expected) -> None:
    def lists(columns):
        return [c.numpy().tolist() if c.shape.rank == 1 else c.to_list() for c in columns]

    assert lists(found) == lists(expected)


class TestInputs:
    @pytest.mark.slow
    def test_are_a_pair_for_each_choice_in_its_order(self, model):
        found = model.predict((QUESTIONS, CHOICES), verbose=0)
        assert [len(row) for row in found] == [2, 4, 1]
        for question, choices, logits in zip(QUESTIONS, CHOICES, found, strict=True):
            expected = logits_of_pairs(model, [question] * len(choices), choices)
            np.testing.assert_allclose(logits, expected, atol=1e-5)

    @pytest.mark.slow
    def test_with_contexts_are_context_and_question_with_choice(self, model):
        contexts = ["p o n", "a", "c"]
        found = model.predict((QUESTIONS, CHOICES, contexts), verbose=0)
        for i, logits in enumerate(found):
            second = [f"{QUESTIONS[i]} {choice}" for choice in CHOICES[i]]
            expected = logits_of_pairs(model, [contexts[i]] * len(second), second)
            np.testing.assert_allclose(logits, expected, atol=1e-5)

    @pytest.mark.slow
    def test_of_a_batch_have_the_logits_of_each_question_alone(self, model, in_windows):
        for each in (model, in_windows):
            x = (QUESTIONS, CHOICES, CONTEXTS)
            together = ops.convert_to_numpy(each(each.preprocessor(x)))
            for row, expected in zip(together, each.predict(x, verbose=0), strict=True):
                np.testing.assert_allclose(row[: len(expected)], expected, atol=1e-5)
                assert (row[len(expected) :] == np.float32(MASKED_LOGIT)).all()

    def test_may_be_tables_of_named_columns(self):
        columns = {"contexts": CONTEXTS, "questions": QUESTIONS, "choices": CHOICES}
        expected = read((QUESTIONS, CHOICES, CONTEXTS))
        assert_equal(read(columns), expected)
        assert_equal(read(pd.DataFrame(columns)), expected)
        one = {"questions": "question", "choices": "choice", "contexts": "context"}
        assert_equal(read({one[name]: values for name, values in columns.items()}), expected)

    def test_may_be_rows(self):
        expected = read((QUESTIONS, CHOICES, CONTEXTS))
        rows = list(zip(QUESTIONS, CHOICES, CONTEXTS, strict=True))
        assert_equal(read(rows), expected)
        names = ("question", "choices", "context")
        assert_equal(read([dict(zip(names, row, strict=True)) for row in rows]), expected)

    def test_of_unknown_names_stand_in_order(self):
        table = {"stem": QUESTIONS, "options": CHOICES, "passage": CONTEXTS}
        expected = read((QUESTIONS, CHOICES, CONTEXTS))
        assert_equal(read(table), expected)

    @pytest.mark.parametrize(
        "table",
        [
            {"question": QUESTIONS, "choices": CHOICES, "answer": ["a", "b", "a"]},
            {"questions": QUESTIONS, "choices": CHOICES, "answer": [0, 1, 0]},
            {"context": CONTEXTS, "stem": QUESTIONS, "choices": CHOICES},
        ],
    )
    def test_are_not_taken_by_order_where_a_name_is_known(self, table):
        with pytest.raises(ValueError, match=r"has the columns '.*text_columns="):
            read(table)

    def test_by_order_are_no_labels(self):
        table = {"question": QUESTIONS, "options": CHOICES, "label": [0, 1, 0]}
        with pytest.raises(ValueError, match="'label'.*text_columns="):
            read(table)

    def test_are_found_in_tables_with_other_columns(self):
        table = {"id": ["x1", "x2", "x3"], "options": CHOICES, "article": CONTEXTS, "q": QUESTIONS}
        found = read(table, ["q", "options", "article"])
        expected = read((QUESTIONS, CHOICES, CONTEXTS))
        assert_equal(found, expected)
        with pytest.raises(ValueError, match="text_columns"):
            read(table)
        with pytest.raises(ValueError, match="no column 'choices'"):
            read(table, ["q", "choices"])

    @pytest.mark.slow
    def test_prepared_without_an_index_are_all_choices(self, model):
        inputs = dict(model.preprocessor((QUESTIONS[:2], [row[:2] for row in CHOICES[:2]])))
        expected = ops.convert_to_numpy(model(inputs))
        inputs.pop("choice_index")
        arrays = {name: value.numpy() for name, value in inputs.items()}
        found = model.predict(arrays, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert found.shape == (2, 2)

    def test_a_prepared_index_is_an_int32(self, model):
        inputs = model.preprocessor((QUESTIONS[:1], [CHOICES[0][:2]]))
        arrays = {name: value.numpy() for name, value in inputs.items()}
        arrays["choice_index"] = np.array([[0, 2**31]])
        with pytest.raises(ValueError, match="choice_index"):
            model.predict(arrays, verbose=0)


class TestErrors:
    @pytest.mark.parametrize(
        ("x", "message"),
        [
            ((["a"], ["b"]), "Row 0 of choices is 'b'"),
            ((["a"], "b"), "choices is 'b'.*Expected a list of texts for each question"),
            ((["a", "b"], [["c"], []]), "Row 1 of choices has no text"),
            ((["a"], [["c", " "]]), "Row 0 of choices has an empty text"),
            ((["a"], [["c", None]]), "Row 0 of choices.*None"),
            ((["a"], [["c"], ["d"]]), "1 questions, 2 lists of choices"),
            ((["a"], [["c"]], ["d", "e"]), "1 questions, 1 lists of choices, 2 contexts"),
            (["a"], r"Expected \(questions, lists of choices\) or"),
        ],
    )
    def test_name_the_row_and_what_is_expected(self, model, x, message):
        with pytest.raises(ValueError, match=message):
            model.predict(x, verbose=0)

    @pytest.mark.parametrize(
        ("y", "message"),
        [
            ([1, 4, 0], "Row 1 has the label 4"),
            ([1, -1, 0], "Row 1 has the label -1"),
            (["b", "a", "a"], "type of.*y.*is 'string'"),
            ([1, 3], "2 labels for 3 questions"),
            (None, "The labels are missing"),
        ],
    )
    def test_of_labels(self, model, y, message):
        with pytest.raises(ValueError, match=message):
            model.fit((QUESTIONS, CHOICES), y, verbose=0)

    def test_of_a_backbone_without_the_pooler_that_the_head_reads(self, tiny):
        with pytest.raises(ValueError, match="pooler"):
            ez.MultipleChoice(tiny.backbone(get_family("bert"), pooler=False))


class TestTraining:
    @pytest.mark.slow
    @pytest.mark.parametrize("as_dataset", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_learns_which_choice_is_right(self, tiny, as_dataset):
        model, x = model_of(tiny), (QUESTIONS, CHOICES, ["a", "b", "c"])
        model.compile(learning_rate=0.02)
        before = model.evaluate(x, Y, verbose=0, return_dict=True)
        y = Y
        if as_dataset:
            lists = tf.ragged.constant(CHOICES)
            x = tf.data.Dataset.from_tensor_slices(((QUESTIONS, lists, ["a", "b", "c"]), Y))
            y = None
        history = model.fit(x, y, epochs=30, batch_size=2, verbose=0).history
        after = model.evaluate(x, y, verbose=0, return_dict=True)
        assert after["accuracy"] == 1.0 and after["loss"] < 0.1 < before["loss"]
        assert set(history) == {"loss", "accuracy"}

    @pytest.mark.slow
    def test_loss_is_the_cross_entropy_of_the_choices_alone(self, model):
        logits = model.predict((QUESTIONS, CHOICES), verbose=0)
        losses = [np.log(np.exp(z).sum()) - z[i] for z, i in zip(logits, Y, strict=True)]
        found = model.evaluate((QUESTIONS, CHOICES), Y, verbose=0, return_dict=True)
        assert found["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
        right = [z.argmax() == i for z, i in zip(logits, Y, strict=True)]
        assert found["accuracy"] == pytest.approx(np.mean(right))


class TestWindows:
    def test_logits_are_the_mean_or_the_max_over_those_of_a_choice(self):
        logits = np.float32([[1, 3, 7, 5], [2, 4, 0, 0]])
        index = np.array([[0, 0, 1, 2], [0, 1, -1, -1]])
        expected = {"mean": [[2, 7, 5], [2, 4]], "max": [[3, 7, 5], [2, 4]]}
        for pooling, rows in expected.items():
            found = ops.convert_to_numpy(pool_choice_logits(logits, index, pooling))
            for row, values in zip(found, rows, strict=True):
                assert row.tolist() == [*values, *[MASKED_LOGIT] * (4 - len(values))]

    @pytest.mark.slow
    def test_read_all_of_a_long_context(self, model, in_windows):
        changed = [*CONTEXTS]
        changed[1] = changed[1].rstrip()[:-1] + "a"  # its last word
        found = [
            each.predict((QUESTIONS, CHOICES, contexts), verbose=0)[1]
            for each in (model, in_windows)
            for contexts in (CONTEXTS, changed)
        ]
        np.testing.assert_array_equal(found[0], found[1])
        assert np.abs(found[2] - found[3]).max() > 1e-4

    def test_the_truncation_is_told(self, model, caplog):
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            model.predict((QUESTIONS, CHOICES, CONTEXTS), verbose=0)
        assert "window_length=16) to read the whole text" in caplog.text

    @pytest.mark.slow
    @pytest.mark.parametrize("pooling", ["mean", pytest.param("max", marks=pytest.mark.slow)])
    def test_are_trained_on_as_they_answer(self, tiny, pooling):
        model = model_of(tiny, pooling, window_length=12)
        x = QUESTIONS, CHOICES, CONTEXTS
        logits = model.predict(x, verbose=0)
        losses = [np.log(np.exp(z).sum()) - z[i] for z, i in zip(logits, Y, strict=True)]
        found = model.evaluate(x, Y, verbose=0, return_dict=True)["loss"]
        assert found == pytest.approx(np.mean(losses), abs=1e-5)

    @pytest.mark.slow
    def test_are_kept_in_a_preset(self, tiny, tmp_path):
        model = model_of(tiny, "max", window_length=12, doc_stride=2)
        model.save_to_preset(tmp_path / "mine")
        again = ez.MultipleChoice.from_preset(tmp_path / "mine")
        assert again.window_pooling == "max"
        assert again.preprocessor.window_length == 12 and again.preprocessor.doc_stride == 2
        x = QUESTIONS, CHOICES, CONTEXTS
        for a, b in zip(again.predict(x, verbose=0), model.predict(x, verbose=0), strict=True):
            np.testing.assert_array_equal(a, b)


class TestAnswers:
    def test_are_the_best_choice_or_the_best_ones(self, model):
        logits = model.predict((QUESTIONS, CHOICES), verbose=0)
        found = model.choose(QUESTIONS, CHOICES, top_k=9)
        for z, choices, row in zip(logits, CHOICES, found, strict=True):
            assert sorted(answer["index"] for answer in row) == list(range(len(choices)))
            assert all(choices[answer["index"]] == answer["text"] for answer in row)
            scores = np.exp(z) / np.exp(z).sum()
            for answer in row:
                assert answer["score"] == pytest.approx(scores[answer["index"]], abs=1e-6)
            assert row[0]["index"] == z.argmax()
        assert model.choose(QUESTIONS, CHOICES) == [row[0] for row in found]
        assert model.choose([], []) == []

    def test_of_a_single_question_are_one(self, model):
        one = model.choose(QUESTIONS[1], CHOICES[1], CONTEXTS[0])
        [same] = model.choose(QUESTIONS[1:2], CHOICES[1:2], CONTEXTS[:1])
        assert one == same
        assert len(model.choose(QUESTIONS[1], CHOICES[1], top_k=2)) == 2

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_of_an_export_are_the_same(self, model, in_windows, tmp_path):
        padded = [[*row, *[""] * (4 - len(row))] for row in CHOICES]
        for number, each in enumerate((model, in_windows), 1):
            each.export(tmp_path / str(number))
            served = tf.saved_model.load(str(tmp_path / str(number))).signatures
            question, choices = tf.constant(QUESTIONS), tf.constant(padded)
            cases = {"serving_default": {}, "with_context": {"context": tf.constant(CONTEXTS)}}
            for name, more in cases.items():
                found = served[name](question=question, choices=choices, **more)
                contexts = CONTEXTS if more else None
                expected = each.choose(QUESTIONS, CHOICES, contexts, top_k=4)
                assert found["index"].numpy().tolist() == [row[0]["index"] for row in expected]
                for scores, row in zip(found["score"].numpy(), expected, strict=True):
                    for answer in row:
                        assert scores[answer["index"]] == pytest.approx(answer["score"], abs=1e-5)
                    assert not scores[len(row) :].any()


@pytest.mark.slow
def test_gradients_are_those_of_the_choices_one_by_one(model):
    """Also with a question of fewer choices, whose empty places add none."""
    x, y = model.preprocessor((QUESTIONS, CHOICES), Y)
    assert x[CANDIDATE + "token_ids"].shape[1] == 3

    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def gradients(loss):
        with tf.GradientTape() as tape:
            value = loss()
        return tape.gradient(value, [w.value for w in model.trainable_weights])

    def one_by_one():
        total = 0.0
        for question, choices, label in zip(QUESTIONS[:2], CHOICES, Y, strict=False):
            inputs = model.preprocessor(([question], [choices]))
            inputs.pop("choice_index")
            total += crossentropy(np.array([label]), model(inputs, training=True))
        return total / len(QUESTIONS)  # that of a single choice is 0

    together = gradients(lambda: crossentropy(y, model(x, training=True)))
    for a, b in zip(together, gradients(one_by_one), strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(a), tf.convert_to_tensor(b), atol=1e-5)
