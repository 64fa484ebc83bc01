"""What a new user types, from README and habit: it works, or one line says what to type instead."""

import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.tasks.preprocessing.batching import Plan
from encoder_zoo.tasks.tagging.tag_answers import TagAnswers
from encoder_zoo.tasks.training.sources import DatasetData, ExampleBatches, TextData

WORDS = "good fine nice bad poor awful the a film was it very anna lives in rome who where".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine", "poor film"]
HALF = [1, 0, 1, 0, 1, 0]
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
    model._adapt_to_data(TextData(TEXTS[: len(y)], y))
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

    def test_lists_of_nothing(self):
        with pytest.raises(ValueError, match=r"y is \[\[\], \[\]\]"):
            learned([[], []], problem_type="multi_label_classification")

    def test_from_a_dataset(self):
        model = classifier()
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS, ["b", "a", "c"] * 2))
        model._adapt_to_data(DatasetData(dataset))
        assert model.labels == ["a", "b", "c"]
        with pytest.raises(ValueError, match="infinite"):
            classifier().fit(dataset.repeat())

    @pytest.mark.slow
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
            with pytest.raises(ValueError, match="labels="):
                call(TEXTS)
        with pytest.raises(ValueError, match="labels"):
            model.save_to_preset("unused")

    @pytest.mark.parametrize(
        "y, message",
        [
            (["up"] * 6, "'up'.*two classes"),
            (["up", None, "down", "up", "up", "up"], "Row 1.*None"),
            ([0.5, 1, 2, 3, 4, 5], 'problem_type="regression"'),
            ([["up"], ["down"]] * 3, "problem_type="),
            ([["up"], ["down", "up"]] * 3, "problem_type="),
            ([], r"^y is \[\]"),
            (iter(HALF), "y is.*list_iterator"),
            (None, "^The labels are missing"),
        ],
    )
    def test_what_is_none(self, y, message):
        with pytest.raises(ValueError, match=message):
            classifier().fit(TEXTS, y)


class TestSoftLabels:
    @pytest.mark.slow
    def test_the_loss_is_the_cross_entropy_with_them(self):
        model, soft = shared(), np.float32([[0.2, 0.8], [0.5, 0.5], [1, 0]])
        found = model.evaluate(TEXTS[:3], soft, verbose=0, return_dict=True)
        probabilities = model.predict_proba(TEXTS[:3])
        expected = -(soft * np.log(probabilities)).sum(axis=1).mean()
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
        right = probabilities.argmax(axis=1) == soft.argmax(axis=1)
        assert found["accuracy"] == pytest.approx(right.mean())

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_in_a_dataset_and_in_training(self):
        soft = np.float32([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]] * 2)
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS, soft))
        model = classifier()
        model.fit(dataset, verbose=0)
        assert model.num_classes == 2
        expected = model.evaluate(TEXTS, soft, verbose=0)
        np.testing.assert_allclose(model.evaluate(dataset, verbose=0), expected, rtol=1e-5)

    @pytest.mark.slow
    def test_one_hot_rows_are_class_indices(self):
        hot = np.eye(2)[HALF]
        expected = shared().evaluate(TEXTS, HALF, verbose=0)
        np.testing.assert_allclose(shared().evaluate(TEXTS, hot, verbose=0), expected, rtol=1e-6)


class TestColumnsOfOtherLibraries:
    @pytest.mark.slow
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

    @pytest.mark.slow(except_for="^polars")
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

    @pytest.mark.slow
    def test_a_list_of_pairs(self):
        pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
        expected = shared().classify((TEXTS, TEXTS[::-1]))
        for given in (pairs, list(map(list, pairs)), np.array(pairs)):
            assert shared().classify(given) == expected
        shared().evaluate(pairs, HALF, verbose=0)
        with pytest.raises(ValueError, match="Row 1 of x is 'good'"):
            shared().classify([("good", "film"), "good"])

    def test_three_columns_are_no_pair(self):
        with pytest.raises(ValueError, match=r"columns 'a', 'b', 'c'"):
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
        with pytest.raises(ValueError, match="threshold is 0.5.*3 classes"):
            classifier(num_classes=3).classify(TEXTS, threshold=0.5)


class TestClassWeight:
    @pytest.mark.slow
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

    @pytest.mark.slow
    def test_of_tags(self):
        words, tags = [["anna", "lives", "in", "rome"]], [["B-PER", "O", "O", "B-LOC"]]
        stream = tagger(labels=["O", "B-PER", "B-LOC"])
        rows = stream.preprocess(words, tags)
        data = ExampleBatches(Plan(1, shuffle=False), stream.batch_maker, rows)
        for given, expected in (
            ({"O": 0.5, "B-PER": 2}, [0, 2, 0.5, 0.5, 1, 0]),
            ("balanced", [0, 4 / 3, 2 / 3, 2 / 3, 4 / 3, 0]),
        ):
            weighted = stream.objective.add_class_weights(data, given, None)
            [(_, _, weights)] = weighted.make_batches(0)
            np.testing.assert_allclose(weights.numpy(), [expected])

    @pytest.mark.matrix
    @pytest.mark.slow
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

    @pytest.mark.slow(only="^given0")
    @pytest.mark.parametrize(
        "given, message",
        [
            ({"upp": 2}, r"class_weight.*'upp'.*\['down', 'up'\]"),
            ({"up": -1}, r"class_weight\['up'\] is -1"),
            ("even", "class_weight is 'even'"),
        ],
    )
    def test_refusals(self, given, message):
        with pytest.raises(ValueError, match=message):
            shared().fit(TEXTS, HALF, class_weight=given)


class TestSpans:
    TEXT, SPAN = "anna lives in rome", {"start": 0, "end": 4, "label": "PER"}

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "x, y",
        [
            pytest.param([TEXT], [[(0, 4, "PER")]], marks=pytest.mark.slow),
            pytest.param([TEXT], [{"entities": [(0, 4, "PER")]}], marks=pytest.mark.slow),
            pytest.param([(TEXT, {"entities": [(0, 4, "PER")]})], None, marks=pytest.mark.slow),
            pytest.param(
                [{"text": TEXT, "spans": [{**SPAN, "token_start": 0, "token_end": 0}]}],
                None,
                marks=pytest.mark.slow,
            ),
            ([{"text": TEXT, "spans": [SPAN]}, {"text": "no", "answer": "reject"}], None),
        ],
    )
    def test_as_spacy_and_prodigy_write_them(self, x, y):
        model = tagger(labels=["O", "B-PER", "I-PER"])
        expected = model.evaluate([self.TEXT], [[self.SPAN]], verbose=0)
        assert model.evaluate(x, y, verbose=0) == expected
        assert model.evaluate_entities(x, y) == model.evaluate_entities([self.TEXT], [[self.SPAN]])
        learner = tagger()
        learner.fit(x, y, validation_data=x if y is None else (x, y), verbose=0)
        assert learner.labels == ["O", "B-PER", "I-PER"]


class TestWordsInWordsOut:
    """Trained on words, it answers in words: not "ng"/ORG, and not "Rome."."""

    PIECES = "anna ##belle lives in ro ##me . - u n o ' s".split()
    TEXT = "Annabelle-Rome lives in Rome. U.N.O's"

    def tagger(self, **settings):
        words = ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *self.PIECES])
        small = backbone(pooler=False).get_config() | {"vocabulary_size": words.vocabulary_size}
        preprocessor = ez.TokenClassifierPreprocessor(words, **settings)
        return ez.TokenClassifier(ez.BertBackbone(**small), preprocessor, labels=["O", "B-X"])

    @pytest.mark.slow
    @pytest.mark.parametrize("all_pieces, strategy", [(False, "first"), (True, "average")])
    def test_entities_are_whole_words(self, all_pieces, strategy, tmp_path, monkeypatch):
        model = self.tagger(label_all_tokens=all_pieces)
        model.fit([["annabelle", "lives"]], [["B-X", "O"]], verbose=0)
        assert model.strategy == strategy
        model.save_to_preset(tmp_path / "preset")
        again = ez.TokenClassifier.from_preset(tmp_path / "preset")
        with use_numpy():  # as answers prepare texts
            pieces = model.preprocessor.tokenize([self.TEXT], model.split_symbols)
        logits = np.zeros((pieces.ids.flat_values.shape[0], 2), "float32")
        logits[:, 1] = [1, -2, -2, -2, -2, -2, -2, 1, -2, -2, 1, -2, -2, -2, 1, -2, -2]
        if all_pieces:
            logits[[1, 8], 1] = 0.5
        for tagger in (model, again):
            monkeypatch.setattr(TagAnswers, "compute_logits", lambda *_: (pieces, logits))
            found = tagger.extract_entities(self.TEXT)
            assert found == tagger.extract_entities(self.TEXT, strategy)
            texts = [entity["text"] for entity in found]
            assert texts[-1] != "s" and "." not in texts
            if not all_pieces:
                assert texts == ["Annabelle-Rome", "Rome", "U.N.O"]

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_an_export_too(self, tmp_path):
        keras.utils.set_random_seed(3)
        model = self.tagger()
        model.compile(learning_rate=1e-2)
        model.fit([["annabelle", "lives"]] * 8, [["B-X", "O"]] * 8, epochs=5, verbose=0)
        model.export(tmp_path / "served")
        served = tf.saved_model.load(tmp_path / "served").signatures["serving_default"]
        found = served(text=tf.constant([self.TEXT]))["text"].numpy()[0]
        expected = [entity["text"] for entity in model.extract_entities(self.TEXT)]
        assert expected and [text.decode() for text in found] == expected

    @pytest.mark.slow
    def test_one_of_other_origin_is_asked_as_ever(self):
        model = self.tagger()
        assert model.extract_entities(self.TEXT) == model.extract_entities(self.TEXT, "simple")


def reader(**arguments):
    preprocessor = ez.SpanQAPreprocessor(tokenizer(), **arguments)
    return ez.SpanQA(backbone(pooler=False), preprocessor)


class TestQuestions:
    CONTEXT = "anna lives in rome"

    @pytest.mark.slow
    def test_many_on_one_context(self):
        model, questions = reader(), ["who lives", "where"]
        assert model.answer(questions, self.CONTEXT) == model.answer(questions, [self.CONTEXT] * 2)
        assert len(model.answer("who", self.CONTEXT, top_k=3)) == 3

    @pytest.mark.slow
    def test_the_null_threshold_that_was_found_is_kept(self, tmp_path):
        keras.utils.set_random_seed(1)
        model = reader()
        rows = [
            {"question": "who lives", "context": self.CONTEXT, "answers": []},
            {
                "question": "where",
                "context": "rome",
                "answers": [{"text": "rome", "answer_start": 0}],
            },
        ]
        assert model.answer("who", self.CONTEXT)["text"]
        scores = model.evaluate_answers(rows)
        found = model.null_threshold
        assert model.evaluate_answers(rows)["f1"] == scores["best_f1"]
        assert model.null_threshold == found
        answers = model.answer([r["question"] for r in rows], [r["context"] for r in rows])
        assert (
            0.0
            < scores["best_f1"]
            <= 50.0
            * sum(
                (not row["answers"]) == (not answer["text"])
                for row, answer in zip(rows, answers, strict=True)
            )
        )
        assert model.answer("who", self.CONTEXT) == model.answer(
            "who", self.CONTEXT, null_threshold=found
        )
        assert model.answer("who", self.CONTEXT, null_threshold=float("inf"))["text"]
        model.save_to_preset(tmp_path / "preset")
        assert ez.SpanQA.from_preset(tmp_path / "preset").null_threshold == found
        model.fit(rows, verbose=0)
        assert model.null_threshold is None

    def test_without_answers(self):
        with pytest.raises(ValueError, match=r"^The answers are missing[^\n]*$"):
            reader().fit((["who"], [self.CONTEXT]))


@pytest.mark.slow
def test_masked_lm_is_validated_on_texts():
    model = ez.MaskedLM(backbone(pooler=False), ez.MaskedLMPreprocessor(tokenizer()))
    history = model.fit(TEXTS, validation_data=TEXTS, verbose=0).history
    assert np.isfinite(history["val_loss"]).all()


class TestPresets:
    def test_a_preprocessor_and_the_familys_tokenizer(self):
        preprocessor = ez.SequenceClassifierPreprocessor.from_preset(
            "bert_nano_en_uncased", sequence_length=8
        )
        assert preprocessor(TEXTS)["token_ids"].shape == (6, 8)
        assert type(ez.Tokenizer.from_preset("roberta_nano_en")) is ez.RobertaTokenizer
        with pytest.raises(TypeError, match="'max_length'.*'sequence_length'"):
            ez.SequenceClassifierPreprocessor.from_preset("bert_nano_en_uncased", max_length=8)

    def test_a_repository_without_hf(self, monkeypatch):
        from encoder_zoo.presets import hub

        asked = []

        def refuse(name, *_):
            asked.append(name)
            raise ValueError("asked")

        monkeypatch.setattr(hub, "download_from_hugging_face", refuse)
        with pytest.raises(ValueError, match="asked"):
            ez.SequenceClassifier.from_preset("org/name@v1")
        assert asked == ["hf://org/name@v1"]
        for path in ("./org/name", "a/b/c", "no_such_preset"):
            with pytest.raises(ValueError, match="does not exist"):
                ez.SequenceClassifier.from_preset(path)

    @pytest.mark.parametrize(
        "task, wrong, meant",
        [
            (ez.SequenceClassifier, "num_labels", "num_classes"),
            (ez.MaskedLM, "whole_word_mask", "whole_words"),
            (ez.TokenClassifier, "label", "labels"),
        ],
    )
    def test_did_you_mean(self, task, wrong, meant):
        with pytest.raises(TypeError, match=f"'{wrong}'.*'{meant}'"):
            task.from_preset("bert_nano_en_uncased", **{wrong: 2})


class TestLearningRatesOfKeras:
    def rates(self, *callbacks, **arguments):
        model, seen = classifier(num_classes=2), []
        model.compile(learning_rate=1e-2)
        probe = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(float(model.optimizer.learning_rate))
        )
        history = model.fit(
            TEXTS, HALF, 2, epochs=3, callbacks=[*callbacks, probe], verbose=0, **arguments
        )
        return seen, history.history

    @pytest.mark.slow
    def test_a_scheduler_takes_the_recipes_place(self):
        scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-3 * (epoch + 1))
        seen, history = self.rates(scheduler)
        np.testing.assert_allclose(seen, np.repeat([1e-3, 2e-3, 3e-3], 3), rtol=1e-6)
        np.testing.assert_allclose(history["learning_rate"], [1e-3, 2e-3, 3e-3], rtol=1e-6)

    @pytest.mark.slow
    def test_one_that_gives_back_what_it_read_changes_nothing(self):
        expected, _ = self.rates()
        seen, _ = self.rates(keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate))
        assert seen == expected and len(set(seen)) > 3

    @pytest.mark.slow
    def test_a_plateau(self):
        plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=1e9)
        seen, history = self.rates(plateau)
        assert seen[6] == seen[8] == pytest.approx(history["learning_rate"][-2] / 2)


@functools.cache
def moved(classes, problem_type="single_label_classification"):
    """A classifier whose outputs differ from text to text."""
    keras.utils.set_random_seed(classes)
    model = classifier(num_classes=classes, problem_type=problem_type)
    for weight in model.weights:
        weight.assign(weight + keras.random.normal(weight.shape, stddev=0.5))
    return model


class TestMetricsByName:
    """Against scikit-learn, over batches of different sizes."""

    def report(self, model, y, names):
        model.compile(metrics=names)
        return model.evaluate(TEXTS, y, batch_size=4, verbose=0, return_dict=True)

    @pytest.mark.slow
    def test_two_classes(self):
        scores = pytest.importorskip("sklearn.metrics")
        model, names = moved(2), ["f1", "f1_macro", "f1_micro", "f1_weighted", "matthews", "auc"]
        probabilities = model.predict_proba(TEXTS)
        guess, found = probabilities.argmax(axis=1), self.report(model, HALF, names)
        assert found["f1"] == pytest.approx(scores.f1_score(HALF, guess), abs=1e-6)
        for average in ("macro", "micro", "weighted"):
            expected = scores.f1_score(HALF, guess, average=average)
            assert found[f"f1_{average}"] == pytest.approx(expected, abs=1e-6)
        assert found["matthews"] == pytest.approx(scores.matthews_corrcoef(HALF, guess), abs=1e-6)
        expected = scores.roc_auc_score(HALF, probabilities[:, 1])
        assert found["auc"] == pytest.approx(expected, abs=0.02)

    @pytest.mark.slow
    def test_three_classes(self):
        scores = pytest.importorskip("sklearn.metrics")
        y, model = [0, 2, 1, 1, 0, 1], moved(3)
        guess = model.predict(TEXTS, verbose=0).argmax(axis=1)
        found = self.report(model, y, ["f1", "matthews", "auc"])
        expected = scores.f1_score(y, guess, average="macro", labels=[0, 1, 2])
        assert found["f1"] == pytest.approx(expected, abs=1e-6)
        assert found["matthews"] == pytest.approx(scores.matthews_corrcoef(y, guess), abs=1e-6)
        assert 0 <= found["auc"] <= 1

    @pytest.mark.slow
    def test_several_classes(self):
        scores = pytest.importorskip("sklearn.metrics")
        model, y = moved(3, "multi_label_classification"), np.eye(3)[[0, 2, 1, 1, 0, 1]]
        guess = model.predict(TEXTS, verbose=0) > 0
        found = self.report(model, y, ["f1_macro", "f1_micro"])
        for average in ("macro", "micro"):
            expected = scores.f1_score(y, guess, average=average, zero_division=0)
            assert found[f"f1_{average}"] == pytest.approx(expected, abs=1e-6)

    @pytest.mark.slow
    def test_numbers(self):
        stats = pytest.importorskip("scipy.stats")
        model, y = moved(1, "regression"), [3.0, 1.0, 2.0, 2.0, 5.0, -1.0]
        guess = model.predict(TEXTS, verbose=0)[:, 0]
        found = self.report(model, y, ["pearson", "spearman"])
        assert found["pearson"] == pytest.approx(stats.pearsonr(y, guess)[0], abs=1e-4)
        assert found["spearman"] == pytest.approx(stats.spearmanr(y, guess)[0], abs=1e-4)

    @pytest.mark.slow
    def test_perplexity_and_answers(self):
        model = ez.MaskedLM(backbone(pooler=False), ez.MaskedLMPreprocessor(tokenizer()))
        model.compile(metrics=["perplexity"])
        found = model.evaluate(TEXTS, verbose=0, return_dict=True)
        assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-4)
        model = reader()
        model.compile(metrics=["exact_match", "f1"])
        x, y = (["where"], ["rome"]), [{"text": "rome", "answer_start": 0}]
        history = model.fit(x, y, verbose=0).history
        assert 0 <= history["exact_match"][0] <= history["f1"][0] <= 1

    @pytest.mark.slow
    def test_of_a_head_that_is_to_be_learned(self):
        model = classifier()
        model.compile(metrics=["f1"])
        assert "f1" in model.fit(TEXTS, HALF, verbose=0).history

    @pytest.mark.parametrize(
        "name, message",
        [
            ("f1_makro", "'f1_makro'.*'f1_macro'"),
            ("pearson", "metric.*'pearson'"),
        ],
    )
    def test_refusals(self, name, message):
        with pytest.raises(ValueError, match=message):
            classifier(num_classes=2).compile(metrics=[name])


class TestFiles:
    def test_conll(self, tmp_path):
        lines = ["-DOCSTART- -X- O", "", "Anna NNP B-PER", "sings VBZ O", "", "", "# NN O", ""]
        (tmp_path / "2003").write_text("\n".join(lines), encoding="utf-8")
        words, tags = [["Anna", "sings"], ["#"]], [["B-PER", "O"], ["O"]]
        assert ez.read_conll(tmp_path / "2003") == (words, tags)
        assert ez.read_conll(tmp_path / "2003", column=1)[1] == [["NNP", "VBZ"], ["NN"]]
        lines = ["# text = New York", "1\tNew York\tPROPN", "2\tü\x85n\tX", "", ""]
        (tmp_path / "u").write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
        assert ez.read_conll(tmp_path / "u", word_column=1) == (
            [["New York", "ü\x85n"]],
            [["PROPN", "X"]],
        )

    def test_conll_u(self, tmp_path):
        """All comments, and rows that are no words, by the format's own description."""
        rows = [
            "# newdoc id = w01",
            "# newpar",
            "# sent_id = 1",
            "1-2\tvámonos\t_",
            "1\tvamos\tVERB",
            "2\tnos\tPRON",
            "2.1\tya\tADV",
            "3\t1-2\tNUM",
            "4\t#\tSYM",
            "",
        ]
        (tmp_path / "u").write_text("\n".join(rows), encoding="utf-8")
        assert ez.read_conll(tmp_path / "u", word_column=1) == (
            [["vamos", "nos", "1-2", "#"]],
            [["VERB", "PRON", "NUM", "SYM"]],
        )

    @pytest.mark.parametrize(
        "content, words",
        [
            ("# NN O\n", ["#"]),
            ("# NN O\na NN O\n", ["#", "a"]),
            ("# NN O\na\tNN\tO\nb NN O\n", ["#", "a", "b"]),  # not all between tabs
            ("#\tO\n3.1\tO\n1-2\tO\n", ["#", "3.1", "1-2"]),
            (
                "10\u00a0000 O\n  a\u2009b  O  \nc\u3000\tO\n",
                ["10\u00a0000", "a\u2009b", "c\u3000"],
            ),
        ],
    )
    def test_words_of_conll_that_look_like_none(self, tmp_path, content, words):
        (tmp_path / "file").write_text(content, encoding="utf-8")
        assert ez.read_conll(tmp_path / "file") == ([words], [["O"] * len(words)])

    @pytest.mark.parametrize(
        "content, message",
        [
            ("Anna B-PER\nsings\n", r"line 2.*\['sings'\]"),
            ("\n\n", "no words"),
        ],
    )
    def test_what_is_none(self, tmp_path, content, message):
        (tmp_path / "file").write_text(content)
        with pytest.raises(ValueError, match=message):
            ez.read_conll(tmp_path / "file")

    @pytest.mark.parametrize(
        "family, kind",
        [
            ("bert", "BertTokenizer"),
            ("roberta", "RobertaTokenizer"),
            ("xlm-roberta", "XLMRobertaTokenizer"),
            ("albert", "AlbertTokenizer"),
        ],
    )
    def test_a_vocabulary(self, family, kind):
        texts = ["the lowest of the low, lower than new"] * 20
        learned = ez.train_vocabulary(texts, 300 if family == "roberta" else 40, family)
        assert type(learned).__name__ == kind
        with pytest.raises(ValueError, match="'gpt2'.*bert"):
            ez.train_vocabulary(texts, 40, "gpt2")


class TestOptionsOfTheRecipe:
    @pytest.mark.slow
    def test_frozen_layers(self):
        model = classifier(num_classes=2)
        model.compile(frozen_layers=1, learning_rate=1e-2)
        before = [w.numpy() for w in model.weights]
        model.fit(TEXTS, HALF, 2, verbose=0)
        moved = {
            w.path for w, b in zip(model.weights, before, strict=True) if (w.numpy() != b).any()
        }
        lower = {
            w.path for w in (*model.backbone.embeddings.weights, *model.backbone.blocks[0].weights)
        }
        assert moved == {w.path for w in model.weights} - lower
        model.compile(frozen_layers=0)
        assert len(model.trainable_weights) == len(model.weights)
        with pytest.raises(ValueError, match="frozen_layers is 2"):
            model.compile(frozen_layers=2)

    def test_weight_decay_warmup_and_layer_decay(self):
        model, rates = classifier(num_classes=2), []
        options = {"weight_decay": 0.3, "warmup": 0.0, "layer_decay": 0.5}
        model.compile(learning_rate=1.0, **options)
        model._prepare_optimizer(4)
        optimizer = model.optimizer
        assert optimizer.weight_decay == 0.3
        for step in range(4):
            optimizer.iterations.assign(step)
            rates.append(float(optimizer.learning_rate))
        assert rates == [1.0, 0.75, 0.5, 0.25]
        shares = {
            name: optimizer.learning_rate_multiplier(layer.weights[0])
            for name, layer in (
                ("head", model.head),
                ("block", model.backbone.blocks[0]),
                ("embeddings", model.backbone.embeddings),
            )
        }
        assert shares == {"head": 1.0, "block": 0.5, "embeddings": 0.25}
        kept = model.get_compile_config()
        assert {name: kept[name] for name in options} == options
        for name, value in options.items():
            with pytest.raises(ValueError, match=f"^{name} is.*optimizer='auto'"):
                model.compile("adam", **{name: value})


def test_reprs_say_what_they_hold():
    words = tokenizer().vocabulary_size
    assert repr(tokenizer()) == f"BertTokenizer({words} tokens)"
    preprocessor = ez.TokenClassifierPreprocessor(tokenizer(), 16, label_all_tokens=True)
    assert repr(preprocessor) == (
        f"TokenClassifierPreprocessor(BertTokenizer({words} tokens), sequence_length=16, "
        "label_all_tokens=True)"
    )
    model = classifier(labels=["ham", "spam"])
    assert repr(model) == (
        f"<SequenceClassifier: BertBackbone of 1 layers of 8; {model.count_params():,} weights; "
        "labels ham, spam>"
    )


@pytest.mark.slow
def test_a_load_says_one_line_at_most(caplog):
    for task, lines in ((ez.SequenceClassifier, 1), (ez.SpanQA, 1), (ez.MaskedLM, 0)):
        caplog.clear()
        task.from_preset("bert_nano_en_uncased")
        assert len(caplog.records) == lines
        assert all("Fine-tune before use" in record.getMessage() for record in caplog.records)
    caplog.clear()
    ez.Backbone.from_preset("bert_nano_en_uncased")
    assert caplog.records == []


@pytest.mark.parametrize(
    "task, arguments, shape",
    [
        (ez.SequenceClassifier, {"num_classes": 3}, "(None, 3)"),
        (ez.TokenClassifier, {"num_classes": 5}, "(None, None, 5)"),
        (ez.SpanQA, {}, "(None, None, 2)"),
        (ez.MaskedLM, {}, "(None, None, 8)"),
    ],
)
def test_a_summary_shows_shapes(task, arguments, shape, capsys):
    task(backbone(), **arguments).summary()
    shown = capsys.readouterr().out
    assert "(None, None, 8)" in shown and shape in shown and "?" not in shown
