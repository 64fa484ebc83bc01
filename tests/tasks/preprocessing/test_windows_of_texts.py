"""Classifiers and regressors that read long texts in windows, in training and in answers."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import encoder_zoo as ez
from encoder_zoo.tasks.classification.window_pooling import pool_logits

LETTERS = list("abcdefghijklmnop")
TEXTS = ["a b c", "a b c d e f g h i j k", "", "p o n m l k j", "d " * 30]
ROOM = 6  # tokens of a window of 8 without the special ones


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(window_length=8, doc_stride=0, window_pooling="mean", **arguments):
        keras.utils.set_random_seed(3)
        sizes = {"hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 32}
        backbone = ez.BertBackbone(21, 1, 2, dropout=0.0, attention_dropout=0.0, **sizes)
        preprocessor = ez.SequenceClassifierPreprocessor(
            tokenizer, window_length=window_length, doc_stride=doc_stride
        )
        task = ez.SequenceClassifier(
            backbone, preprocessor, window_pooling=window_pooling, **arguments
        )
        for weight in task.weights:  # outputs that differ from text to text
            weight.assign(weight + keras.random.normal(weight.shape, stddev=0.5, seed=1))
        return task

    return build


@pytest.fixture(scope="module")
def classifier(build):
    return build(labels=["down", "up"])


def parts_of(text: str) -> list[str]:
    """The words of each window: full ones, the last as late as possible."""
    words = text.split()
    starts = [*range(0, max(len(words) - ROOM, 1), ROOM), max(len(words) - ROOM, 0)]
    return [" ".join(words[start : start + ROOM]) for start in sorted(set(starts))]


def expected_logits(task, texts, pool=np.mean) -> np.ndarray:
    """Of each window by itself, by a task that truncates."""
    plain = ez.SequenceClassifier(
        task.backbone,
        ez.SequenceClassifierPreprocessor(task.preprocessor.tokenizer),
        num_classes=task.num_classes,
        problem_type=task.problem_type,
    )
    plain.head.set_weights(task.head.get_weights())
    return np.stack([pool(plain.predict(parts_of(text), verbose=0), axis=0) for text in texts])


def test_the_parts_are_as_worked_out_by_hand():
    assert parts_of("a b c") == ["a b c"]
    assert parts_of("a b c d e f g h") == ["a b c d e f", "c d e f g h"]
    assert parts_of("d " * 12) == ["d d d d d d"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "pool"),
    [("mean", np.mean), pytest.param("max", np.max, marks=pytest.mark.slow)],
)
def test_logits_of_a_text_are_pooled_from_its_windows(build, pooling, pool):
    task = build(window_pooling=pooling, num_classes=3)
    expected = expected_logits(task, TEXTS, pool)
    np.testing.assert_allclose(task.predict(TEXTS, verbose=0), expected, atol=1e-5)
    # The model itself, as in training, from all windows of a text in one example.
    inputs = task.preprocessor(TEXTS)
    assert inputs["candidate_token_ids"].shape == (5, 4, 8)
    np.testing.assert_allclose(ops.convert_to_numpy(task(inputs)), expected, atol=1e-5)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(2)
    np.testing.assert_allclose(task.predict(dataset, verbose=0), expected, atol=1e-5)


@pytest.mark.slow
def test_what_is_at_the_end_counts(classifier):
    first, second = classifier.predict(["a " * 40 + "b", "a " * 40 + "p"], verbose=0)
    assert np.abs(first - second).max() > 1e-6


@pytest.mark.slow
def test_overlap(build, tokenizer):
    windows = build(doc_stride=2, num_classes=2).preprocessor.encode_windows(["a b c d e f g h i"])
    found = [tokenizer.detokenize(row) for row in windows["token_ids"]]
    assert found == ["a b c d e f", "d e f g h i"]
    assert windows["text_index"].numpy().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a b", "c d e f g", ["a b [SEP] c d e", "a b [SEP] e f g"]),
        ("c d e f g", "a b", ["c d e [SEP] a b", "e f g [SEP] a b"]),
        ("a b c d", "e f g h", ["a b [SEP] e f g", "a b [SEP] f g h"]),
        ("a", "b", ["a [SEP] b"]),
    ],
)
def test_the_longer_text_of_a_pair_is_divided(build, tokenizer, first, second, expected):
    windows = build(num_classes=2).preprocessor.encode_windows(([first], [second]))
    ids = windows["token_ids"].to_list()
    assert [" ".join(map(tokenizer.id_to_token, row[1:-1])) for row in ids] == expected


def test_a_shorter_text_that_is_cut_is_counted(build, caplog):
    build(num_classes=2).predict((["a b c d", "a b"], ["e f g h", "e f g h i"]), verbose=0)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("1 of 2 pairs")


def loss_after_a_step(task, texts, y) -> float:
    task.compile(optimizer=keras.optimizers.SGD(0.5))
    task.fit(texts, y, batch_size=2, shuffle=False, verbose=0)
    return task.evaluate(texts, y, verbose=0)[0]


@pytest.mark.slow
def test_it_learns_what_only_a_later_window_shows(build):
    rng = np.random.default_rng(0)
    beginnings = [" ".join(rng.choice(LETTERS[:8], 12)) for _ in range(60)]
    y = [i % 2 for i in range(60)]
    texts = [f"{text} {'op'[label]}" for text, label in zip(beginnings, y, strict=True)]
    task = build(window_pooling="max", num_classes=2)
    task.compile(learning_rate=2e-2)
    task.fit(texts, y, epochs=20, batch_size=10, verbose=0)
    assert task.evaluate(texts, y, verbose=0)[1] == 1.0
    shown = [answer["label"] for answer in task.classify(texts)]
    assert shown == y


@pytest.mark.matrix
@pytest.mark.slow
def test_texts_of_one_window_train_as_without_windows(build):
    texts, y = ["a b c", "d e", "f g h", "i"], [0, 1, 0, 1]
    losses = [
        loss_after_a_step(build(window_length=length, num_classes=2), texts, y)
        for length in (8, None)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_memory_and_dataset_train_alike(build):
    y = [0, 1, 1, 0, 1]
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, y)).batch(2)
    both = (TEXTS, y), (dataset, None)
    losses = [loss_after_a_step(build(num_classes=2), *data) for data in both]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_numbers(build):
    task = build(problem_type="regression")
    assert task.fit(TEXTS, [1.0, 2.0, 0.5, 3.0, 1.5], verbose=0).epoch == [0]
    expected = expected_logits(task, TEXTS)[:, 0]
    found = [answer["score"] for answer in task.classify(TEXTS)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_a_preset_keeps_how_texts_are_read(build, tmp_path):
    task = build(doc_stride=2, window_pooling="max", labels=["down", "up"])
    task.save_to_preset(tmp_path / "preset")
    again = ez.SequenceClassifier.from_preset(tmp_path / "preset")
    assert again.window_pooling == "max"
    assert (again.preprocessor.window_length, again.preprocessor.doc_stride) == (8, 2)
    np.testing.assert_allclose(
        again.predict(TEXTS, verbose=0), task.predict(TEXTS, verbose=0), atol=1e-5
    )
    task.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.classify(TEXTS) == task.classify(TEXTS)


@pytest.mark.matrix
@pytest.mark.slow
def test_an_export_reads_windows(classifier, tmp_path):
    classifier.export(tmp_path / "1")
    served = tf.saved_model.load(tmp_path / "1").signatures
    found = served["serving_default"](text=tf.constant(TEXTS))
    for answer, label, score in zip(
        classifier.classify(TEXTS), found["label"].numpy(), found["score"].numpy(), strict=True
    ):
        assert answer["label"] == label[0].decode()
        assert answer["score"] == pytest.approx(score[0], abs=1e-5)
    pairs = served["pairs"](first=tf.constant(TEXTS), second=tf.constant(TEXTS[::-1]))
    expected = classifier.predict_proba((TEXTS, TEXTS[::-1])).max(axis=1)
    np.testing.assert_allclose(pairs["score"][:, 0], expected, atol=1e-5)


@pytest.mark.slow
def test_served_graph_equals_memory(classifier):
    texts = tf.constant(TEXTS)
    found = tf.function(classifier.signatures()["serving_default"])(texts)["score"]
    expected = np.sort(classifier.predict_proba(TEXTS), axis=1)[:, ::-1]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_no_texts(classifier):
    assert classifier.predict([], verbose=0).shape == (0, 2)
    assert classifier.classify([]) == []


def test_pooling_ignores_windows_that_are_not_there():
    rng = np.random.default_rng(1)
    counts = [1, 3, 2]
    logits = rng.normal(size=(9, 2)).astype("float32")
    mask = np.zeros((9, 4), int)
    for text, count in enumerate(counts):
        mask[3 * text : 3 * text + count] = 1
        mask[3 * text : 3 * text + 3, 0] = 1
    groups = [logits[3 * text : 3 * text + count] for text, count in enumerate(counts)]
    for pooling, pool in (("mean", np.mean), ("max", np.max)):
        found = ops.convert_to_numpy(pool_logits(logits, mask, 3, pooling))
        np.testing.assert_allclose(found, [pool(g, axis=0) for g in groups], rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_length": 40}, "window_length.*40.* 32"),
        ({"window_pooling": "sum"}, "window_pooling is 'sum'"),
        ({"doc_stride": -1}, "doc_stride is -1"),
    ],
)
def test_refusals(build, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(num_classes=2, **arguments)


def test_every_token_is_in_a_window():
    from encoder_zoo.tasks.preprocessing.windows import make_full_windows

    for length, capacity, stride in itertools.product((0, 1, 5, 6, 7, 20), (3, 6), (0, 1)):
        windows = make_full_windows(tf.constant([length], tf.int64), capacity, stride)
        covered = set()
        for begin, size in zip(windows.begin.numpy(), windows.length.numpy(), strict=True):
            assert size == min(length, capacity)
            covered |= set(range(begin, begin + size))
        assert covered == set(range(length))


def test_distillation_of_windows_is_refused(build):
    student = build(num_classes=2)
    with pytest.raises(ValueError, match="Distillation"):
        ez.Distillation(build(window_length=None, num_classes=2), student)
