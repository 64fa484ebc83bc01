"""Batches of examples with several texts, and of random lengths."""

import numpy as np
import pytest
import tensorflow as tf

from encoder_zoo.tasks.preprocessing.batching import (
    LengthGroupedBatcher,
    Plan,
    count_tokens,
    group_batches,
    shuffle_by_length,
)


def pairs(first, second):
    """Examples with two further texts, the second of which has one token."""
    ids = [tf.ragged.constant([[1] * n for n in sizes], tf.int32) for sizes in (first, second)]
    rows = tf.stack([ids[1], tf.ragged.constant([[1]] * len(first), tf.int32)], axis=1)
    return {"token_ids": ids[0], "candidate_token_ids": rows, "number": tf.range(len(first))}


def batches_of(examples, plan):
    _, batches = LengthGroupedBatcher(lambda chosen, seed: chosen["number"]).make_training_batches(
        examples, plan
    )
    return [batch.numpy().tolist() for batch in batches(seed=3)]


def test_the_length_of_an_example_is_that_of_all_its_texts():
    assert count_tokens(pairs([3, 1], [2, 9])).numpy().tolist() == [6, 11]
    assert count_tokens({"token_ids": tf.ragged.constant([[1], [1, 2]])}).numpy().tolist() == [
        1,
        2,
    ]


@pytest.mark.slow
def test_batches_are_of_like_length_by_all_texts():
    second = np.random.default_rng(0).permutation(800) % 100 + 1
    found = batches_of(pairs([5] * 800, second), Plan(16))
    assert np.mean([np.ptp(second[batch]) for batch in found]) < 4
    assert sorted(np.concatenate(found)) == list(range(800))
    batches = LengthGroupedBatcher(lambda chosen, seed: chosen["number"])
    longest = batches.make_ordered_batches(pairs([1, 9, 2], [9, 2, 3]), 2).order
    assert longest.tolist() == [1, 0, 2]


@pytest.mark.slow
def test_each_epoch_has_an_order_of_its_own():
    sizes = np.random.default_rng(0).permutation(800) % 100 + 1
    found = batches_of(pairs([5] * 800, sizes), Plan(16))
    both = batches_of(pairs([5] * 800, sizes), Plan(16, range(2)))
    assert both[:50] == found and both[50:] != found
    kept = batches_of(pairs([5] * 8, sizes[:8]), Plan(4, shuffle=False))
    assert kept == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.slow
def test_examples_of_equal_length_are_drawn_at_random():
    """Of 2,000 orders of 6, each example is first in a sixth; 5 standard errors are 0.042."""
    order = tf.function(lambda seed: shuffle_by_length(tf.ones(6, tf.int32), 4, seed))
    first = [int(order(tf.constant([seed, 0]))[0]) for seed in range(2000)]
    np.testing.assert_allclose(np.bincount(first) / 2000, np.full(6, 1 / 6), atol=0.042)


@pytest.mark.slow
def test_windows_of_a_dataset_are_grouped_by_length_too():
    texts = np.array(["a" * (i % 50 + 1) for i in range(400)])
    windows = tf.data.Dataset.from_tensor_slices(texts).batch(400)
    found = list(group_batches(windows, 8, 0))
    assert np.mean([np.ptp(tf.strings.length(batch)) for batch in found]) < 3
    assert sorted(np.concatenate([batch.numpy() for batch in found])) == sorted(
        text.encode() for text in texts
    )
