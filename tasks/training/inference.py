"""Outputs of a task for texts in memory and for encoded examples, batch by batch.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import keras
import numpy as np

from encoder_zoo.common.lazy import array_ops, in_numpy
from encoder_zoo.common.weights_lock import weights_lock
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE, Plan, in_graph_batches
from encoder_zoo.tasks.training.distribution import data_parallel_devices, pad_indices
from encoder_zoo.tasks.training.prepared import checked_arrays, inputs_of, is_prepared
from encoder_zoo.tasks.training.sources import (
    check_has_elements,
    check_preprocessor,
    is_dataset,
    training_data,
)
from encoder_zoo.tasks.training.streams import Stream, as_stream, ending_quietly


def predict_inputs(task, x, batch_size: int, predict: functools.partial):
    """Return the outputs for raw or prepared inputs, in their order.

    Args:
        task: a `TextModel`.
        x: see `TextModel.predict`.
        batch_size: B.
        predict: Keras's `predict`, called with a dataset, or with arrays and the batch size.
    """
    x = as_stream(x, task, learns=False)
    in_dataset = is_dataset(x)
    prepared = is_prepared(inputs_of(x.element_spec) if in_dataset else x)
    if in_dataset and (prepared or not task.record.predicts_lists):
        plan = Plan(batch_size, steps_per_epoch=predict.keywords.get("steps"))
        batches = training_data(task, x, plan=plan).in_order(fills=False)
        return _predict_batches(batches, predict)
    if prepared:
        return _predict_arrays(checked_arrays(task, x), batch_size, predict)
    check_preprocessor(task, x)
    if in_dataset:
        check_has_elements(x)
        batched = (
            x.batch if isinstance(x, Stream) else functools.partial(task.preprocessor.batched, x)
        )
        batches = map(inputs_of, batched(batch_size))
        return [row for b in batches for row in task._predict_texts(b, batch_size, predict)]
    return task._predict_texts(x, batch_size, predict)


def _predict_batches(batches, predict: functools.partial):
    """Return the outputs for batches of any sizes, filled so that all devices divide them."""
    devices, sizes = data_parallel_devices(), []
    if devices == 1:
        return predict(batches)

    def filled():
        for batch in batches:
            x = keras.tree.map_structure(np.asarray, inputs_of(batch))
            sizes.append(len(x["token_ids"]))
            rows = pad_indices(sizes[-1], devices)
            yield ({name: values[rows] for name, values in x.items()},)

    filled = filled()
    with ending_quietly(filled):
        outputs = predict(filled)
    kept = [np.arange(-(-size // devices) * devices) < size for size in sizes]  # of each batch
    kept = np.concatenate(kept)
    return keras.tree.map_structure(lambda output: output[kept[: len(output)]], outputs)


def _predict_arrays(x: dict, batch_size: int, predict: functools.partial):
    """Return the outputs for prepared inputs, of batches that divide over all devices."""
    count, devices = len(x["token_ids"]), data_parallel_devices()
    if devices == 1 or not count:
        return predict(x, batch_size)
    rows = pad_indices(count, devices)
    x = {name: keras.ops.convert_to_numpy(values)[rows] for name, values in x.items()}
    outputs = predict(x, -(-batch_size // devices) * devices)
    return keras.tree.map_structure(lambda output: output[:count], outputs)


def predict_texts(task, x, batch_size: int, predict: functools.partial):
    """Return the outputs for texts in memory, in their order.

    Args:
        task: a `TextModel` with a preprocessor.
        x: texts or pairs of texts.
        batch_size: B.
        predict: Keras's `predict`, called with a dataset. Without other options than `verbose=0`,
            texts of a single batch do without Keras's loop.
    """
    given = {name: value for name, value in predict.keywords.items() if value is not None}
    with in_numpy():  # encoding makes tensors of them where it computes in TensorFlow
        texts = tuple(task.preprocessor.texts_of(x))
    if given == {"verbose": 0} and 0 < len(texts[0]) <= batch_size:
        return task.graphs.predict_few(texts)
    examples = task.preprocess(texts)
    count = examples["token_ids"].shape[0]
    if not count:
        return task.graphs.predict_few(tuple(array_ops.constant([""]) for _ in texts))[:0]
    # Rows that fill a batch for the devices are left out behind the last one alone.
    devices = data_parallel_devices()
    batch_size = -(-batch_size // devices) * devices
    batcher = task.graphs.batcher(examples, batch_size, task.graphs.compiles_shapes())
    batches = batcher.ordered(examples, batch_size)
    index = np.argsort(batches.order)[:count]
    with weights_lock(task).shared():
        outputs = predict(batches.dataset)
    return keras.tree.map_structure(lambda output: output[index], outputs)


def example_outputs(
    task, examples: dict, batch_size: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the model's outputs for encoded examples, the longest first.

    Args:
        task: a `TextModel`.
        examples: encoded.
        batch_size: default 32.

    Yields:
        Indices of the batch's examples (B,), and their outputs.
    """
    lengths = examples["token_ids"].row_lengths().numpy()
    order, size = np.argsort(-lengths, kind="stable"), batch_size or BATCH_SIZE
    with weights_lock(task).shared():
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            yield indices, task.graphs.predict_chosen(examples, indices)


def unpadded_outputs(
    task, examples: dict, batch_size: int | None = None, axis: int | None = 0
) -> list[np.ndarray]:
    """Return the outputs for every example without padding.

    Args:
        task, examples, batch_size: as for `example_outputs`.
        axis: the axis of tokens in the output for an example; None: there is none.
    """
    lengths = examples["token_ids"].row_lengths().numpy()
    outputs = {}
    for indices, values in example_outputs(task, examples, batch_size):
        for i, output in zip(indices.tolist(), values, strict=True):
            outputs[i] = output if axis is None else np.split(output, lengths[i : i + 1], axis)[0]
    return [outputs[i] for i in range(len(lengths))]


def token_outputs_in_graph(task, token_logits: Callable, examples: dict) -> array_ops.RaggedTensor:
    """Return the outputs for every example, ragged (N, None, C), inside `tf.function`.

    Args:
        task: with a head for every token.
        token_logits: from the model's inputs to logits (B, L, C).
        examples: encoded.
    """

    def outputs(examples):
        inputs = task.preprocessor.pad(examples)
        return array_ops.boolean_mask(token_logits(inputs), inputs["padding_mask"])

    lengths = examples["token_ids"].row_lengths()
    return in_graph_batches(outputs, examples, lengths, task.head.units)
