"""Batches that are packed on JAX train, and are answered, as padded ones."""

import functools
import json

import numpy as np
import processes
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from encoder_zoo.encoders import list_families
from encoder_zoo.encoders.packed_batch import encode_packed
from encoder_zoo.tasks.preprocessing.batch_shapes import (
    PACKED_TOKENS,
    add_packed_tokens,
    choose_sequence_counts,
)
from encoder_zoo.tasks.preprocessing.batching import distribute_round_robin, shuffle_by_length
from encoder_zoo.testing import tiny

LENGTHS = (3, 9, 2, 5, 1)


@functools.cache
def batch(tokens=30, width=9):
    """Texts of `LENGTHS`, padded, of which the last only fills the batch."""
    mask = np.arange(width) < np.array(LENGTHS)[:, None]
    ids = np.random.default_rng(0).integers(5, tokens, mask.shape) * mask
    return {"token_ids": ids, "padding_mask": mask, "real_rows": np.arange(5) < 4}


def test_sequences_hold_each_real_token_once_and_texts_whole():
    x = batch()
    tokens = add_packed_tokens(x, (2, 3, 5))[PACKED_TOKENS]
    assert tokens.shape == (3, 9)  # two would not hold 19 tokens
    expected = np.flatnonzero(x["padding_mask"] & x["real_rows"][:, None])
    assert sorted(tokens[tokens < 45]) == expected.tolist()
    for row in tokens:
        for text in set(row[row < 45] // 9):
            positions = np.flatnonzero(row // 9 == text)
            assert np.ptp(positions) == len(positions) - 1 == LENGTHS[text] - 1


@given(st.lists(st.integers(1, 16), min_size=1, max_size=40))
def test_the_last_count_holds_any_texts(lengths):
    lengths = np.array(lengths)
    counts = choose_sequence_counts(lengths, 16, len(lengths)) or (len(lengths),)
    assert list(counts) == sorted(set(counts)) and counts[-1] == len(lengths)
    assert len(counts) <= 3
    mask = np.arange(16) < lengths[:, None]
    x = add_packed_tokens({"token_ids": mask * 7, "padding_mask": mask}, counts)
    tokens = x[PACKED_TOKENS]
    assert np.count_nonzero(tokens < mask.size) == lengths.sum()


def test_texts_of_one_length_are_not_packed():
    assert choose_sequence_counts(np.full(48, 20), 32, 32) is None
    assert choose_sequence_counts(np.full(48, 8), 32, 32) == (9, 18, 32)


@pytest.mark.slow(except_for="^modernbert")
@pytest.mark.parametrize("family", list_families(), ids=lambda family: family.name)
def test_outputs_and_gradients_are_those_of_padded_batches(family):
    backbone = tiny.backbone(family, dropout=0.0)
    own = {name: v for name, v in batch(backbone.vocabulary_size).items() if name != "real_rows"}
    width = min(9, backbone.max_sequence_length)
    own = {name: v[:, :width] for name, v in own.items()}
    if family.uses_segments:
        own["segment_ids"] = (np.arange(width) > 1) * own["padding_mask"].astype("int32")
    tokens = add_packed_tokens(own, (len(LENGTHS),))[PACKED_TOKENS]
    real = own["padding_mask"]
    found = []
    for run in (backbone, functools.partial(encode_packed, backbone, packed_tokens=tokens)):
        with tf.GradientTape() as tape:
            outputs = run(own)
            x = outputs["sequence_output"]
            weights = ops.sin(ops.cast(ops.arange(ops.size(x)), "float32"))
            weights = ops.reshape(weights, ops.shape(x)) * real[:, :, None]
            loss = ops.sum(weights * x)
            if backbone.pooler:
                loss += ops.sum(ops.square(outputs["pooled_output"]))
        variables = [v.value for v in backbone.trainable_variables]
        gradients = tape.gradient(loss, variables)
        gradients = [np.zeros(1) if g is None else tf.convert_to_tensor(g) for g in gradients]
        found.append([ops.convert_to_numpy(x)[real], *map(np.asarray, gradients)])
    for plain, packed in zip(*found, strict=True):
        np.testing.assert_allclose(packed, plain, atol=2e-5 * max(1, np.abs(plain).max()))


def test_batches_of_mixed_lengths_are_complete_and_alike():
    lengths = np.random.default_rng(0).integers(2, 60, 3 * 32 * 50 + 7)  # more than one window
    for order in (
        shuffle_by_length(lengths, 32, tf.constant([3, 0]), mixed=True).numpy(),
        distribute_round_robin(np.argsort(-lengths, kind="stable"), 32),
    ):
        assert sorted(order) == list(range(len(lengths)))
        sums = [lengths[order[i : i + 32]].sum() for i in range(0, len(order) - 32, 32)]
        assert np.ptp(sums) < 0.12 * np.mean(sums)  # 0.6 where they are drawn at random
    orders = [
        shuffle_by_length(lengths, 32, tf.constant([s, 0]), mixed=True).numpy() for s in (1, 1, 2)
    ]
    assert orders[0].tolist() == orders[1].tolist() != orders[2].tolist()


JAX = """
import json, sys
from dataclasses import replace
import keras
import numpy as np
import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers
from encoder_zoo.encoders import get_family
from encoder_zoo.encoders.layers import Dropout
from encoder_zoo.tasks.preprocessing.batching import Plan
from encoder_zoo.tasks.training.sources import TextData
from encoder_zoo.testing import tiny

WORDS = "a b c d ab cd".split()


def sentences(count, seed=0, most=9):
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random(count) < 0.8, rng.integers(1, 5, count), most)
    return [" ".join(rng.choice(WORDS, size)) for size in sizes]


def made(cls, packs):
    keras.utils.set_random_seed(0)
    kind = type("Task", (cls,), {"record": replace(cls.record, packs_batches=packs)})
    task = tiny.task(get_family("bert"), kind)
    for layer in list_layers(task):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    task.compile(learning_rate=1e-3, metrics=["accuracy"] if cls is ez.Classifier else None)
    task.traces = {"train": 0, "predict": 0}
    for name in task.traces:
        def counted(*args, name=name, step=getattr(task, name + "_step")):
            task.traces[name] += 1
            return step(*args)
        setattr(task, name + "_step", counted)
    return task


def answers(cls, packs, texts, y):
    task, weights = made(cls, packs), np.random.default_rng(1).random(len(y))
    keras.utils.set_random_seed(0)
    options = {"batch_size": 8, "verbose": 0}
    training = {**options, "epochs": 2, "shuffle": False}
    held_out = {"sample_weight": weights, "validation_data": (texts, y)}
    history = task.fit(texts, y, **training, **held_out).history
    longer = task.fit(texts, y, **training, steps_per_epoch=8).history
    found = [value for name in sorted(history) for value in history[name]] + longer["loss"]
    for output in keras.tree.flatten(task.predict(texts, **options)):
        found += np.ravel(output).tolist()
    return task, found


def result(name, *values):
    print("RESULT", json.dumps([name, *values]), flush=True)


texts = sentences(45)
labels = np.random.default_rng(2).integers(0, 2, 45).tolist()
cases = {"SequenceClassifier": texts, "Reranker": (texts, ["a"] * 45)}
for name, x in cases.items():
    cls = getattr(ez, name)
    (packed, found), (plain, expected) = (
        answers(cls, packs, x, labels) for packs in (True, False)
    )
    result(name, found, expected, bool(packed.graphs.packings), bool(plain.graphs.packings))

task = made(ez.SequenceClassifier, True)
uneven = [0] * 35 + [1] * 10
balanced = task.fit(texts, uneven, class_weight="balanced", batch_size=8, verbose=0).history
weights = [45 / 70] * 35 + [45 / 20] * 10
task = made(ez.SequenceClassifier, True)
weighted = task.fit(texts, uneven, sample_weight=weights, batch_size=8, verbose=0).history
result("balanced", balanced["loss"], weighted["loss"])

task = made(ez.SequenceClassifier, True)
keras.utils.set_random_seed(0)
for seed in range(4):
    other = sentences(60 + seed, seed)
    task.fit(other, [0, 1] * 30 + [0] * seed, batch_size=8, epochs=2, verbose=0)
    task.predict(other, batch_size=8, verbose=0)
    result("programs", seed, task.traces)

fresh = made(ez.SequenceClassifier, True)
orders = []
for each in (task, fresh):  # whatever a process has trained on before
    data = TextData(texts, labels).make_source(Plan(8), each.batch_maker)
    x, y = next(iter(data.make_batches(seed=5).take(1)))
    orders.append(np.asarray(x["token_ids"]).tolist())
result("order", *orders)

layer, x = Dropout(0.1, seed=3), np.ones((400, 1000), "float32")
first, second = (keras.ops.convert_to_numpy(layer(x, training=True)) for _ in range(2))
kept, most = np.stack([first > 0, second > 0]).astype(float), float(first.max())
spread = [kept[0].mean(axis).std() * np.sqrt(400 if axis == 0 else 1000) for axis in (0, 1)]
first, second = kept.reshape(2, -1)
likeness = [np.corrcoef(*pair)[0, 1] for pair in ((first, second), (first[1:], first[:-1]))]
result("dropout", [first.mean(), second.mean()], most, likeness, spread)
"""


@pytest.fixture(scope="module")
def on_jax():
    """{name: the values of each result} of the script above."""
    output = processes.run(JAX, KERAS_BACKEND="jax")
    lines = [line for line in output.split("\n") if line.startswith("RESULT ")]
    results = {}
    for name, *values in (json.loads(line.removeprefix("RESULT ")) for line in lines):
        results.setdefault(name, []).append(values)
    return results


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("task", ["SequenceClassifier", "Reranker"])
def test_losses_and_answers_are_those_of_the_padded_step(on_jax, task):
    [(found, expected, packed, plain)] = on_jax[task]
    assert packed and not plain
    history = slice(0, 10 if task == "SequenceClassifier" else 6)  # losses, and accuracies
    np.testing.assert_allclose(found[history], expected[history], rtol=1e-5)
    np.testing.assert_allclose(found[10:], expected[10:], rtol=1e-3, atol=1e-3)  # after 28 steps


@pytest.mark.matrix
@pytest.mark.slow
def test_class_weights_are_those_of_the_examples(on_jax):
    [(balanced, weighted)] = on_jax["balanced"]
    np.testing.assert_allclose(balanced, weighted, rtol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_other_texts_need_no_other_programs(on_jax):
    traces = [traces for _, traces in on_jax["programs"]]
    assert max(traces[0].values()) <= 3
    assert traces[1:] == traces[:-1]


@pytest.mark.matrix
@pytest.mark.slow
def test_the_order_of_examples_depends_on_them_alone(on_jax):
    [(after_others, fresh)] = on_jax["order"]
    assert after_others == fresh


@pytest.mark.matrix
@pytest.mark.slow
def test_dropout_of_jax_drops_at_random(on_jax):
    [(kept, most, likeness, spread)] = on_jax["dropout"]
    np.testing.assert_allclose(kept, 0.9, atol=0.003)  # six standard errors
    assert most == pytest.approx(1 / 0.9)
    np.testing.assert_allclose(likeness, 0.0, atol=0.01)  # of two draws, and of neighbours
    np.testing.assert_allclose(spread, 0.3, atol=0.05)  # of columns and rows: binomial
