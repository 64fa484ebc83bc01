"""SequenceClassifier: transformers' numbers, every kind of problem and input, learning."""

import logging

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import encoder_zoo as ez

WORDS = "good fine nice bad poor awful the a film was it very".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine", "poor film"]
LABELS = ["up", "down", "up", "down", "up", "down"]
NUMBERS = [1, 0, 1, 0, 1, 0]


@pytest.fixture(scope="module")  # traced once
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(sequence_length=None, **arguments):
        backbone = ez.BertBackbone(
            tokenizer.vocabulary_size,
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=32,
            dropout=0.0,
            attention_dropout=0.0,
            max_sequence_length=32,
        )
        preprocessor = ez.SequenceClassifierPreprocessor(tokenizer, sequence_length)
        return ez.SequenceClassifier(backbone, preprocessor, **arguments)

    return build


@pytest.fixture
def classifier(build):
    return build(labels=["down", "up"])


@pytest.fixture(scope="module")
def shared(build):
    """For tests that do not ask how it was trained: its graphs are traced once."""
    keras.utils.set_random_seed(0)
    return build(labels=["down", "up"])


def test_a_head_with_other_labels_is_not_taken_over_and_that_is_said(golden, caplog):
    checkpoint = golden("Bert_ForSequenceClassification")
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        classifier = ez.SequenceClassifier.from_preset(checkpoint.folder, labels=["x", "y"])
    assert classifier.labels == ["x", "y"]
    assert "head of SequenceClassifier" in caplog.text


def test_a_missing_head_and_pooler_are_said_in_one_line(golden, caplog):
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        ez.SequenceClassifier.from_preset(golden("Bert_ForMaskedLM").folder, num_classes=2)
    [line] = [record.getMessage() for record in caplog.records]
    assert "head of SequenceClassifier" in line
    assert "The pooler" in line
    assert "Fine-tune before use" in line and "cls." not in line


def test_an_unknown_argument_of_from_preset_is_refused(golden):
    with pytest.raises(TypeError, match="unknown argument 'label'"):
        ez.SequenceClassifier.from_preset(golden("Bert_Model").folder, label=["a", "b"])


@pytest.mark.slow
def test_arguments_of_from_preset_reach_backbone_and_preprocessor(golden):
    classifier = ez.SequenceClassifier.from_preset(
        golden("Bert_Model").folder, num_classes=2, sequence_length=12, attention_dropout=0.4
    )
    assert classifier.backbone.attention_dropout == 0.4
    assert classifier.preprocessor(["a cat"])["token_ids"].shape == (1, 12)


@pytest.mark.slow
def test_it_learns_from_raw_text(classifier):
    classifier.compile(learning_rate=3e-3)
    history = classifier.fit(TEXTS * 20, LABELS * 20, epochs=20, batch_size=8, verbose=0)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
    assert classifier.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)["accuracy"] == 1.0
    assert [answer["label"] for answer in classifier.classify(TEXTS)] == LABELS


def as_tensors(texts, labels):
    return tf.data.Dataset.from_tensor_slices((texts, labels))


@pytest.mark.slow(except_for="^x1")
@pytest.mark.parametrize(
    "x, y",
    [
        (TEXTS, LABELS),
        (TEXTS, NUMBERS),
        (np.array(TEXTS), np.array(NUMBERS)),
        (np.array(TEXTS, dtype=object), np.array(LABELS, dtype=object)),
        (pd.Series(TEXTS), pd.Series(LABELS)),
        (tf.constant(TEXTS), tf.constant(NUMBERS)),
        pytest.param(as_tensors(TEXTS, NUMBERS), None, marks=pytest.mark.slow),
        (as_tensors(TEXTS, LABELS), None),
        pytest.param(as_tensors(TEXTS, LABELS).batch(4), None, marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_input_gives_the_same_evaluation(shared, x, y):
    expected = shared.evaluate(TEXTS, LABELS, verbose=0)
    np.testing.assert_allclose(shared.evaluate(x, y, verbose=0), expected, atol=1e-6)
    assert shared.fit(x, y, epochs=1, verbose=0).epoch == [0]


@pytest.mark.slow
def test_a_dataset_of_unknown_size_is_counted_for_the_schedule(classifier):
    dataset = as_tensors(TEXTS, LABELS).filter(lambda x, y: y == "up").batch(2)
    classifier.fit(dataset, epochs=3, verbose=0)
    assert int(classifier.optimizer.iterations) == 6
    assert classifier.optimizer._learning_rate.total_steps == 6


@pytest.mark.slow
def test_sample_weights_reach_the_loss(shared):
    weights = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    weighted = shared.evaluate(TEXTS, LABELS, sample_weight=weights, verbose=0)[0]
    alone = shared.evaluate(TEXTS[:1], LABELS[:1], verbose=0)[0]
    np.testing.assert_allclose(weighted, alone / 6, rtol=1e-5)


@pytest.mark.slow
def test_predictions_come_in_the_order_of_the_texts(shared):
    texts = [" ".join(WORDS[: 1 + i % 9]) for i in range(50)]
    one_by_one = np.concatenate([shared.predict([t], verbose=0) for t in texts])
    together = shared.predict(texts, batch_size=8, verbose=0)
    np.testing.assert_allclose(together, one_by_one, atol=1e-6)


def test_no_texts_give_no_rows(shared):
    assert shared.predict([], verbose=0).shape == (0, 2)
    assert shared.classify([]) == []


def test_a_fit_with_wrong_texts_learns_no_labels(build):
    classifier = build()
    with pytest.raises(ValueError, match="None"):
        classifier.fit([TEXTS[0], None], ["x", "y"], verbose=0)
    assert classifier.labels is None and classifier.head is None


def test_outputs_in_a_dict(shared):
    class TwoOutputs(ez.SequenceClassifier):
        def logits_of(self, encoded, inputs, training=None):
            logits = super().logits_of(encoded, inputs, training)
            return {"first": logits, "second": logits[:, :1]}

    task = TwoOutputs(shared.backbone, shared.preprocessor, labels=shared.labels)
    assert {n: v.shape for n, v in task.predict([]).items()} == {"first": (0, 2), "second": (0, 1)}
    found = task.predict(TEXTS, batch_size=2, steps=1, verbose=0)
    assert {n: v.shape for n, v in found.items()} == {"first": (2, 2), "second": (2, 1)}


def test_validation_split_keeps_the_last_texts(shared):
    with_split = shared.fit(TEXTS, LABELS, validation_split=0.5, verbose=0)
    after = shared.evaluate(TEXTS[3:], LABELS[3:], verbose=0)
    np.testing.assert_allclose(with_split.history["val_loss"][0], after[0], rtol=1e-5)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_training(build):
    losses = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        classifier = build(labels=["down", "up"])
        losses.append(classifier.fit(TEXTS * 5, LABELS * 5, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


@pytest.mark.slow
def test_the_default_recipe_spans_the_steps_of_fit(classifier):
    classifier.fit(TEXTS, LABELS, epochs=4, batch_size=4, verbose=0)
    schedule = classifier.optimizer._learning_rate
    assert (schedule.total_steps, schedule.peak) == (8, 5e-5)
    assert float(schedule(8)) == 0.0
    assert classifier.optimizer.global_clipnorm == 1.0
    decayed = {
        v.path.split("/")[-1]
        for v in classifier.trainable_variables
        if classifier.optimizer._use_weight_decay(v)
    }
    assert decayed == {"kernel", "embeddings"}


@pytest.mark.slow
def test_the_recipe_can_be_replaced_the_keras_way(classifier):
    classifier.compile(optimizer=keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy")
    classifier.fit(TEXTS, LABELS, verbose=0)
    assert isinstance(classifier.optimizer, keras.optimizers.SGD)
    assert isinstance(classifier.loss, keras.losses.SparseCategoricalCrossentropy)


class TestPairs:
    def test_segments_and_separators(self, shared):
        x = shared.preprocessor((["good film"], ["bad"]))
        ids = [shared.preprocessor.tokenizer.id_to_token(i) for i in x["token_ids"][0]]
        assert ids == ["[CLS]", "good", "film", "[SEP]", "bad", "[SEP]"]
        assert x["segment_ids"].numpy().tolist() == [[0, 0, 0, 0, 1, 1]]

    def test_a_pair_is_not_text_and_label(self, shared):
        pair = (["good film", "bad"], ["bad film", "good"])
        history = shared.fit(pair, ["up", "down"], verbose=0)
        assert len(history.history["loss"]) == 1
        both = shared.predict(pair, verbose=0)
        assert both.shape == (2, 2)
        assert np.abs(both - shared.predict(pair[0], verbose=0)).max() > 1e-6

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_a_dataset_yields_pairs_as_x(self, shared):
        first, second, y = ["good film", "bad"], ["bad film", "good"], [1, 0]
        dataset = tf.data.Dataset.from_tensor_slices(((first, second), y)).batch(2)
        np.testing.assert_allclose(
            shared.evaluate(dataset, verbose=0),
            shared.evaluate((first, second), y, verbose=0),
            rtol=1e-5,
        )

    def test_unequal_pairs_are_refused_with_both_lengths(self, shared):
        with pytest.raises(ValueError, match="3 texts.*2 second texts"):
            shared.predict((["a", "b", "c"], ["d", "e"]))


class TestProblems:
    @pytest.mark.slow
    def test_several_labels(self, build):
        classifier = build(
            labels=["film", "praise", "blame"], problem_type="multi_label_classification"
        )
        names = [
            ["film", "praise"],
            ["film", "blame"],
            ["praise"],
            ["blame"],
            [],
            ["film", "blame"],
        ]
        classifier.compile(optimizer=keras.optimizers.Adam(5e-3))
        classifier.fit(TEXTS * 20, names * 20, epochs=20, batch_size=8, verbose=0)
        found = [sorted(a["label"] for a in row) for row in classifier.classify(TEXTS)]
        assert found == [sorted(n) for n in names]

    @pytest.mark.slow
    def test_regression(self, build):
        classifier = build(problem_type="regression")
        stars = [4.5, 1.0, 5.0, 0.0, 4.0, 1.0]
        classifier.compile(learning_rate=3e-3)
        classifier.fit(TEXTS * 30, stars * 30, epochs=15, batch_size=8, verbose=0)
        guesses = [answer["score"] for answer in classifier.classify(TEXTS)]
        np.testing.assert_allclose(guesses, stars, atol=0.7)

    @pytest.mark.slow
    def test_scores_are_probabilities_and_ranked(self, build):
        ranked = build(num_classes=3).classify(TEXTS[:1], top_k=3)[0]
        assert sorted(r["label"] for r in ranked) == [0, 1, 2]
        scores = [r["score"] for r in ranked]
        assert scores == sorted(scores, reverse=True)
        assert sum(scores) == pytest.approx(1.0)


class TestRefusals:
    @pytest.mark.parametrize(
        "arguments, message",
        [
            ({"labels": ["a", "b"], "num_classes": 3}, "num_classes is 3.* 2,"),
            ({"labels": ["a", "a"]}, "labels.*contains 'a' twice"),
            ({"num_classes": 2, "problem_type": "ranking"}, "problem_type is 'ranking'"),
        ],
    )
    def test_constructor(self, build, arguments, message):
        with pytest.raises(ValueError, match=message):
            build(**arguments)

    @pytest.mark.parametrize(
        "x, y, message",
        [
            (TEXTS, LABELS[:5], "6 texts.*5 labels"),
            (TEXTS, ["up"] * 5 + ["sideways"], "Row 5.*'sideways'"),
            (TEXTS, [0, 1, 2, 0, 1, 0], "Row 2.*label 2"),
            (TEXTS, [0.5] * 6, "Row 0.*0.5"),
            (TEXTS, [[0, 1, 0]] * 6, "class index"),
            (TEXTS, [[0.5, 0.6]] * 6, "Row 0.*sum.* 1"),
            ([None, *TEXTS[1:]], NUMBERS, "None"),
        ],
    )
    def test_fit(self, shared, x, y, message):
        with pytest.raises(ValueError, match=message):
            shared.fit(x, y)

    def test_a_tokenizer_of_another_preset(self, tokenizer):
        backbone = ez.BertBackbone(
            tokenizer.vocabulary_size - 1,
            num_layers=1,
            num_heads=1,
            hidden_dim=4,
            intermediate_dim=4,
        )
        with pytest.raises(ValueError, match="tokenizer has 17.*16"):
            ez.SequenceClassifier(
                backbone, ez.SequenceClassifierPreprocessor(tokenizer), num_classes=2
            )

    def test_a_sequence_length_beyond_the_positions(self, build):
        with pytest.raises(ValueError, match="sequence_length.*40.*32"):
            build(sequence_length=40, num_classes=2)

    @pytest.mark.parametrize(
        "beside", [{"y": NUMBERS}, {"sample_weight": [1.0] * 6}, {"validation_split": 0.5}]
    )
    def test_what_belongs_into_a_dataset(self, shared, beside):
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS, NUMBERS))
        with pytest.raises(ValueError, match=f"{next(iter(beside))} with a dataset"):
            shared.fit(dataset, **beside)
        if "validation_split" not in beside:
            with pytest.raises(ValueError, match=f"{next(iter(beside))} with a dataset"):
                shared.evaluate(dataset, **beside)

    def test_a_dataset_of_texts_without_a_preprocessor(self, build):
        task = ez.SequenceClassifier(build(num_classes=2).backbone, num_classes=2)
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS, NUMBERS))
        for method in (task.fit, task.evaluate, task.predict):
            with pytest.raises(ValueError, match="has no preprocessor"):
                method(dataset)

    def test_raw_text_without_a_preprocessor(self, build):
        classifier = ez.SequenceClassifier(build(num_classes=2).backbone, num_classes=2)
        with pytest.raises(ValueError, match="has no preprocessor"):
            classifier.predict(["text"])
        for method in (classifier.fit, classifier.evaluate):
            with pytest.raises(ValueError, match="has no preprocessor"):
                method([], [])


@pytest.mark.slow
def test_a_saved_model_with_everything_gives_the_same_answers(shared, tmp_path):
    shared.fit(TEXTS, LABELS, verbose=0)
    shared.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.classify(TEXTS) == shared.classify(TEXTS)
    loaded.fit(TEXTS, LABELS, verbose=0)


def test_labels_that_are_no_names_are_refused(build):
    with pytest.raises(ValueError, match=r"labels\[0\] is 1\.5"):
        build(labels=[1.5, 0])


def test_the_classes_of_a_preset_are_kept_when_the_caller_repeats_them(build, tmp_path):
    names = ["kind", "funny"]
    build(labels=names, problem_type="multi_label_classification").save_to_preset(tmp_path)
    for arguments in ({}, {"labels": names}, {"num_classes": 2}):
        again = ez.SequenceClassifier.from_preset(tmp_path, **arguments)
        assert again.labels == names
        assert again.problem_type == "multi_label_classification"


def test_the_head_of_another_task_is_not_taken_over(golden, caplog):
    checkpoint = golden("Bert_ForTokenClassification")
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        ez.SequenceClassifier.from_preset(checkpoint.folder, num_classes=3)
    assert "the checkpoint has the head of BertForTokenClassification" in caplog.text
    assert "The pooler" in caplog.text


def test_several_labels_as_a_table(build):
    classifier = build(labels=["kind", "funny"], problem_type="multi_label_classification")
    table = pd.DataFrame({"kind": [1, 0], "funny": [1, 1]}, index=[7, 3])
    encoded = classifier.preprocessor.encode(TEXTS[:2], table)["labels"]
    assert encoded.numpy().tolist() == [[1, 1], [0, 1]]


OF_SEVERAL = {"problem_type": "multi_label_classification"}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, OF_SEVERAL])
@pytest.mark.parametrize("make", [pd.DataFrame, dict])
def test_columns_of_labels_are_found_by_their_names(build, make, arguments):
    classifier = build(labels=["a", "b", "c"], **arguments)
    rows = np.eye(3, dtype=int)[[2, 1, 0]]
    columns = {name: rows[:, "abc".index(name)].tolist() for name in "cab"}
    expected = classifier.evaluate(TEXTS[:3], rows, verbose=0)
    assert classifier.evaluate(TEXTS[:3], make(columns), verbose=0) == expected
    assert classifier.evaluate(TEXTS[:3], pd.DataFrame(rows), verbose=0) == expected
    columns["x"] = columns.pop("a")  # was taken for the next class by its place
    with pytest.raises(ValueError, match=r"columns.*\['c', 'b', 'x'\].*\['a', 'b'"):
        classifier.evaluate(TEXTS[:3], make(columns), verbose=0)
    learned = build(**arguments)
    learned.fit(TEXTS[:3], make(columns), verbose=0)
    assert learned.labels == ["c", "b", "x"]


@pytest.mark.parametrize("arguments", [{}, {"labels": ["down", "up"]}])
@pytest.mark.parametrize("problem", [{}, OF_SEVERAL])
def test_rows_that_are_dicts_are_no_labels(build, arguments, problem):
    """Their keys were labels, whatever the values: {"up": 0, "down": 1} was both."""
    with pytest.raises(ValueError, match="^Row 0.*{'up': 0, 'down': 1}"):
        build(**arguments, **problem).fit(TEXTS, [{"up": 0, "down": 1}] * 6, verbose=0)


def test_two_classifiers_can_be_built_with_one_preprocessor(build):
    first = build(labels=["down", "up"])
    second = ez.SequenceClassifier(first.backbone, first.preprocessor, labels=["up", "down"])
    assert first.preprocessor.encode_labels(["up"]).numpy().tolist() == [1]
    assert second.preprocessor.encode_labels(["up"]).numpy().tolist() == [0]


@pytest.mark.slow
def test_the_schedule_ends_with_the_last_epoch_also_after_a_late_start(classifier):
    classifier.fit(TEXTS, NUMBERS, batch_size=2, epochs=3, initial_epoch=2, verbose=0)
    assert int(classifier.optimizer.iterations) == 3
    assert float(classifier.optimizer.learning_rate) == pytest.approx(0, abs=1e-9)
