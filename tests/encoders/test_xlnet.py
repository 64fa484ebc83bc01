"""XLNet: special tokens behind the texts, padding on either side, and the query stream."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import encoder_zoo as ez
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import rank_selected_tokens

FAMILY = ez.XLNetBackbone.family


def numbers(model, inputs) -> np.ndarray:
    return ops.convert_to_numpy(model(inputs))


def predicted(backbone, inputs) -> np.ndarray:
    return ops.convert_to_numpy(backbone.compute_query_stream(inputs))


# -- special tokens behind the texts -----------------------------------------------------------


@pytest.mark.eager
def test_texts_and_pairs_end_with_the_classifiers_token(tiny):
    tokenizer = tiny.tokenizer(FAMILY)
    sep, cls, pad = map(tokenizer.token_to_id, ("<sep>", "<cls>", "<pad>"))
    long, short = (ids.numpy().tolist() for ids in tokenizer.tokenize(["a b", "p"]))
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    single = preprocessor(["a b", "p"])
    missing = len(long) - len(short)
    assert single["token_ids"].numpy().tolist() == [
        [*long, sep, cls],
        [*short, sep, cls, *[pad] * missing],
    ]
    assert single["segment_ids"].numpy().tolist() == [
        [*[0] * len(long), 0, 2],
        [*[0] * len(short), 0, 2, *[0] * missing],
    ]
    pairs = preprocessor((["p"], ["a b"]))
    assert pairs["token_ids"].numpy().tolist() == [[*short, sep, *long, sep, cls]]
    first, second = [0] * (len(short) + 1), [1] * (len(long) + 1)
    assert pairs["segment_ids"].numpy().tolist() == [[*first, *second, 2]]
    cut = ez.SequenceClassifierPreprocessor(tokenizer, sequence_length=4)
    assert cut(["a b a b"])["token_ids"].numpy().tolist() == [[*long[:2], sep, cls]]


@pytest.mark.slow
def test_padding_on_the_left_changes_nothing(tiny):
    classifier, rows = tiny.task(FAMILY, "SequenceClassifier"), tiny.rows(FAMILY)
    lengths = rows["padding_mask"].sum(axis=1)
    left = {
        name: np.stack([np.roll(row, 16 - n) for row, n in zip(values, lengths, strict=True)])
        for name, values in rows.items()
    }
    np.testing.assert_allclose(numbers(classifier, left), numbers(classifier, rows), atol=1e-5)


@pytest.mark.slow
@pytest.mark.eager
def test_entities_and_answers_are_at_their_characters(tiny):
    """The text begins in the first column, where other families have their start token."""
    tagger = tiny.task(FAMILY, "TokenClassifier")
    ids, starts, ends = (
        v[0].numpy() for v in tagger.preprocessor.tokenizer.tokenize_with_offsets(["a b"])
    )
    x, y, weights = tagger.preprocessor(["a b"], [[(2, 3, "X")]])
    inside = (ends > 2).astype(int).tolist()
    assert (y.numpy()[0, : len(ids)] > 0).astype(int).tolist() == inside
    assert weights.numpy()[0, len(ids) :].tolist() == [0, 0]
    logits = numbers(tagger, x)[0, : len(ids)]
    found = tagger.extract_entities("a b", strategy="none")
    tags = [tagger.labels[i] for i in logits.argmax(axis=1)]
    expected = [(s, e, tag) for s, e, tag in zip(starts, ends, tags, strict=True) if tag != "O"]
    assert [(e["start"], e["end"], e["label"]) for e in found] == expected
    answerer = tiny.task(FAMILY, "SpanQA")
    answers = [{"text": "b", "answer_start": 2}, None]
    x, y = answerer.preprocessor((["p", "p"], ["a b", "a b"]), answers)
    tokenizer = answerer.preprocessor.tokenizer
    sep, cls = tokenizer.end_token_id, tokenizer.start_token_id
    question = tokenizer.tokenize("p").numpy().tolist()
    # The context comes first, as in XLNet's code and in transformers'.
    row = [*ids.tolist(), sep, *question, sep, cls]
    assert x["token_ids"].numpy().tolist() == [row, row]
    assert y.numpy()[0, 1] == len(ids) - 1
    assert y.numpy()[1].tolist() == [len(row) - 1] * 2  # no answer: <cls>
    answer = answerer.answer(question="p", context="a b")
    assert answer["text"] == "a b"[answer["start"] : answer["end"]]


# -- the query stream --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_token_is_predicted_from_those_before_it_in_the_order(tiny):
    backbone = tiny.backbone(FAMILY)
    ids = np.array([[7, 8, 9, 10, 11, 4, 3]])
    order = np.array([[0, 2, 0, 1, 3, 0, 0]])
    before = predicted(backbone, {"token_ids": ids, "prediction_order": order})[0]
    for changed, reads_it in ((1, [4]), (3, [1, 4]), (4, [])):
        other = ids.copy()
        other[0, changed] = 12
        after = predicted(backbone, {"token_ids": other, "prediction_order": order})[0]
        differs = np.abs(after - before).max(axis=1) > 1e-4
        assert np.flatnonzero(differs).tolist() == reads_it
    other = ids.copy()
    other[0, 2] = 12  # all read it but its own query
    after = predicted(backbone, {"token_ids": other, "prediction_order": order})[0]
    assert (np.abs(after - before).max(axis=1) > 1e-4)[[0, 1, 3, 4, 5, 6]].all()


def test_without_an_order_no_query_reads_its_own_token_directly(tiny):
    backbone = tiny.backbone(FAMILY, num_layers=1)
    ids = np.array([[7, 8, 9, 4, 3]])
    other = np.array([[7, 12, 9, 4, 3]])
    found = [predicted(backbone, {"token_ids": each})[0] for each in (ids, other)]
    same = np.abs(found[0] - found[1]).max(axis=1) < 1e-6
    assert same.tolist() == [False, True, False, False, False]


@pytest.mark.slow
@pytest.mark.eager
def test_masks_are_filled_all_at_once_whatever_stands_beside(tiny):
    task = tiny.task(FAMILY, "MaskedLM")
    alone = task.fill_mask("a <mask> b", top_k=3)
    [together, several] = task.fill_mask(["a <mask> b", "<mask> a <mask> b c d"], top_k=3)
    for one, two in zip(alone, together, strict=True):
        assert one["token"] == two["token"] and abs(one["score"] - two["score"]) < 1e-5
    assert [len(fills) for fills in several] == [3, 3]


@pytest.mark.slow
def test_training_predicts_the_true_tokens_in_a_random_order(tiny):
    task = tiny.task(FAMILY, "MaskedLM", dropout=0.0)
    x, y, weights = task.preprocessor(["a b c d e f g h a b c d"] * 8)
    order, ids = x["prediction_order"].numpy(), x["token_ids"].numpy()
    assert (np.take_along_axis(ids, x["mask_positions"].numpy(), axis=1) == y.numpy()).all()
    counts = weights.numpy().sum(axis=1)
    for row, count in zip(order, counts, strict=True):
        assert sorted(row[row > 0]) == list(range(1, int(count) + 1))
    assert len({tuple(row) for row in order}) > 1
    variables = [v.path for v in task.trainable_variables if "mask_embedding" in v.path]
    assert len(variables) == 1
    texts = ["a b c d e f"] * 4
    loss = task.fit(texts, epochs=2, batch_size=4, verbose=0).history["loss"]
    assert np.isfinite(loss).all()


def test_orders_are_uniform():
    selected = tf.constant([[True, True, True, False]] * 3000)
    order = tf.constant([[3, 0, 2, 1]] * 3000)
    draws = tf.constant(np.random.default_rng(0).random((3000, 4), "float32"))
    found = rank_selected_tokens(order, selected, draws).numpy()
    assert (found[:, 1] == 0).all()
    kinds, counts = np.unique(found, axis=0, return_counts=True)
    assert len(kinds) == 6 and counts.min() > 400


@pytest.mark.matrix
@pytest.mark.slow
def test_distillation_does_not_run_the_query_stream(tiny):
    student = tiny.task(FAMILY, "MaskedLM")
    distillation = ez.Distillation(tiny.task(FAMILY, "MaskedLM"), student)
    with pytest.raises(ValueError, match="XLNet"):
        distillation.fit(["a b", "c d"], epochs=1, verbose=0)
