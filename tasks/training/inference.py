"""Outputs of a task for texts in memory and for encoded examples, batch by batch.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.preprocessor import as_texts
from encoder_zoo.tasks.training.distribution import data_parallel_devices, pad_indices
from encoder_zoo.tasks.training.sources import size_or_default


def predict_texts(task, predict: Callable, x, batch_size: int, few: bool):
    """Return the outputs for texts in memory, in their order.

    Args:
        task: a `Trainer` with a preprocessor.
        predict: Keras's `predict`, called with a dataset.
        x: texts or pairs of texts.
        batch_size: B.
        few: whether texts of a single batch may do without Keras's loop.
    """
    texts = tuple(as_texts(x))
    if few and 0 < texts[0].shape[0] <= batch_size:
        return task.graphs.predict_few(texts)
    examples = task.preprocess(texts)
    count = examples["token_ids"].shape[0]
    if not count:
        return task.graphs.predict_few(tuple(tf.constant([""]) for _ in texts))[:0]
    padded = pad_indices(count, data_parallel_devices())
    examples = {name: tf.gather(values, padded) for name, values in examples.items()}
    batches = task.graphs.batcher().ordered(examples, batch_size)
    index = np.argsort(batches.order)[:count]
    return keras.tree.map_structure(lambda output: output[index], predict(batches.dataset))


def example_outputs(
    task, examples: dict, batch_size: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the model's outputs for encoded examples, the longest first.

    Args:
        task: a `Trainer`.
        examples: encoded.
        batch_size: default 32.

    Yields:
        Indices of the batch's examples (B,), and their outputs.
    """
    if not int(examples["token_ids"].nrows()):
        return
    size = size_or_default(batch_size)
    batches = task.graphs.batcher().ordered(examples, size)
    for i, batch in enumerate(batches.dataset):
        inputs = keras.utils.unpack_x_y_sample_weight(batch)[0]
        inputs = {name: values.numpy() for name, values in inputs.items()}
        yield batches.order[i * size : (i + 1) * size], task.predict_on_batch(inputs)


def token_outputs(task, examples: dict, batch_size: int | None = None) -> tf.RaggedTensor:
    """Return the outputs (B, L, ...) for every example without padding, ragged (N, None, ...).

    Args:
        task, examples, batch_size: as for `example_outputs`.
    """
    lengths = examples["token_ids"].row_lengths().numpy()
    outputs = [None] * len(lengths)
    for indices, values in example_outputs(task, examples, batch_size):
        for index, row in zip(indices, values, strict=True):
            outputs[index] = row[: lengths[index]]
    return tf.RaggedTensor.from_row_lengths(np.concatenate(outputs), lengths)


def token_outputs_in_graph(task, token_logits: Callable, examples: dict) -> tf.RaggedTensor:
    """As `token_outputs`, inside `tf.function`.

    Args:
        task: with a head for every token.
        token_logits: from the model's inputs to logits (B, L, C).
        examples: encoded.
    """

    def outputs(examples):
        inputs = task.preprocessor.pad(examples)
        return tf.boolean_mask(token_logits(inputs), inputs["padding_mask"])

    lengths = examples["token_ids"].row_lengths()
    return in_graph_batches(outputs, examples, lengths, task.head.units)


def read_batches(dataset: tf.data.Dataset) -> Iterator:
    """Yield the inputs x of a dataset's batches, without labels and weights."""
    for element in dataset:
        yield keras.utils.unpack_x_y_sample_weight(element)[0]
