"""Several texts in one row: the plan and the inputs. test_conformance.py compares the outputs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import encoder_zoo as ez
from encoder_zoo.tasks.preprocessing.batch_shapes import make_packed_order, pack_examples
from encoder_zoo.tasks.preprocessing.batching import LengthGroupedBatcher, Plan
from encoder_zoo.tasks.preprocessing.packing import join_texts

TEXTS = ["a good film", "", "the cat sat on the mat and looked at the dog", "bad", "so long"] * 5


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=60))
def test_rows_hold_every_example_once_and_none_too_many_tokens(lengths):
    lengths = np.sort(lengths)[::-1]
    rows = pack_examples(lengths, 40)
    assert sorted(rows.flat_values.numpy()) == list(range(len(lengths)))
    room = [40 - lengths[row].sum() for row in rows.numpy()]
    assert min(room) >= 0
    # Best fit never opens a row for what another one could have taken.
    assert sum(space >= 20 for space in room) <= 1


def test_rows_of_an_epoch_are_drawn_anew_and_repeatably():
    lengths = np.random.default_rng(0).integers(2, 30, 200)
    plan = pack_examples(np.sort(lengths)[::-1], 32)
    first, again, other = (make_packed_order(lengths, plan, tf.constant([s, 0])) for s in (1, 1, 2))
    assert first.to_list() == again.to_list() != other.to_list()
    for rows in (first, other):
        assert sorted(rows.flat_values.numpy()) == list(range(200))
        assert max(lengths[row].sum() for row in rows.numpy()) <= 32


@pytest.fixture(scope="module")
def task():
    return ez.MaskedLM.from_preset("bert_nano_en_uncased", pack_texts=True, sequence_length=32)


@pytest.mark.slow
def test_pairs_keep_their_segments(task):
    task = ez.MaskedLM(task.backbone, ez.MaskedLMPreprocessor(task.preprocessor.tokenizer))
    rows = task.preprocess((["the cat", "bad"], ["a dog", "film"]))
    alone = task.preprocessor.pad(rows)
    grouped = {n: tf.RaggedTensor.from_row_lengths(v, [2]) for n, v in rows.items()}
    joined = join_texts(grouped)["segment_ids"][0].numpy()
    mask = alone["padding_mask"].numpy()
    np.testing.assert_array_equal(joined, alone["segment_ids"].numpy()[mask])


@pytest.mark.slow
def test_an_epoch_of_fit_has_every_text_once(task):
    rows = task.preprocess(TEXTS)
    steps, batches = LengthGroupedBatcher(task.preprocessor.collate).make_training_batches(
        rows, Plan(4), capacity=32
    )
    seen = []
    for x, y, weight in batches(seed=3):
        ids = x["token_ids"].numpy()
        for row, positions, labels, real in zip(ids, x["mask_positions"], y, weight, strict=True):
            row[positions.numpy()[real.numpy() > 0]] = labels.numpy()[real.numpy() > 0]
        for row, starts, mask in zip(ids, x["text_starts"], x["padding_mask"], strict=True):
            tokens = row[mask.numpy()]
            begins = [s for s in starts.numpy() if s < 32]
            seen += [part.tolist() for part in np.split(tokens, begins[1:])]
    assert steps < len(TEXTS) / 4 / 2
    assert sorted(seen) == sorted(rows["token_ids"].to_list())


@pytest.mark.matrix
@pytest.mark.slow
def test_fit_learns_from_packed_sequences_with_weights(task):
    rows = task.preprocess(TEXTS, sample_weight=np.arange(len(TEXTS)) % 2)
    _, batches = LengthGroupedBatcher(task.preprocessor.collate).make_training_batches(
        rows, Plan(2), capacity=32
    )
    weights = np.concatenate([w.numpy().ravel() for _, _, w in batches(seed=0)])
    assert set(weights) == {0.0, 1.0}
    keras.utils.set_random_seed(0)
    task.compile(learning_rate=1e-3)
    losses = task.fit(TEXTS, epochs=6, batch_size=2, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_datasets_are_refused(task):
    with pytest.raises(ValueError, match="pack_texts"):
        task.fit(tf.data.Dataset.from_tensor_slices(TEXTS))
