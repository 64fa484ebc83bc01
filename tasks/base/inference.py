"""Run a task on texts in memory or on encoded examples, batch by batch.

Comments use these letters for shapes: B (batch size), L (sequence length).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import keras
import numpy as np

from encoder_zoo.common.lazy import array_ops, use_backend, use_numpy
from encoder_zoo.common.ragged_array import make_array
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import get_weights_lock
from encoder_zoo.tasks.preprocessing.batch_shapes import iterate_by_length, take_examples
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE, Plan, map_graph_batches
from encoder_zoo.tasks.preprocessing.prepared import check_arrays, get_inputs
from encoder_zoo.tasks.preprocessing.tracing import ShapePolymorphicFunction
from encoder_zoo.tasks.training.data import raise_own_errors
from encoder_zoo.tasks.training.distribution import (
    count_data_parallel_devices,
    pad_indices,
    round_up,
)
from encoder_zoo.tasks.training.sources import (
    Given,
    check_has_elements,
    check_preprocessor,
    make_source,
)
from encoder_zoo.tasks.training.streams import make_stream, suppress_end_warning


def predict_inputs(task, x, batch_size: int, predict: functools.partial):
    """Compute the outputs for raw or preprocessed inputs, in the input order.

    Args:
        task: `TextModel`.
        x: Inputs. See `Task.predict`.
        batch_size: Integer. Number of examples per batch.
        predict: Method `keras.Model.predict`. It is called with a dataset, or with arrays and the
            batch size.
    """
    maker = dataclasses.replace(task.batch_maker, separate=lambda x, y: (x, y), fills=False)
    given = Given.of(make_stream(x, maker))
    x = given.x
    if given.is_read_in_batches and (given.is_prepared or not task.record.predicts_lists):
        plan = Plan(batch_size, steps_per_epoch=predict.keywords.get("steps"))
        source = make_source(given, plan=plan, maker=maker)
        with raise_own_errors(source):
            return _predict_batches(source.read_in_order(), predict)
    if given.kind == "arrays":
        x = check_arrays(task, x)
        if _is_quiet(predict) and 0 < len(x["token_ids"]) <= batch_size:
            return _compute_outputs(task, x)
        return _predict_arrays(x, batch_size, predict)
    check_preprocessor(task, x)
    if given.is_read_in_batches:
        check_has_elements(x)
        is_stream = given.kind == "stream"
        batches = (
            x.batch(batch_size) if is_stream else task.preprocessor.batch_examples(x, batch_size)
        )
        batches = map(get_inputs, batches)
        return [row for b in batches for row in task._predict_texts(b, batch_size, predict)]
    return task._predict_texts(x, batch_size, predict)


def _predict_batches(batches, predict: functools.partial):
    """Compute the outputs for batches of any size. Each batch is padded to fill all devices."""
    devices, sizes = count_data_parallel_devices(), []
    if devices == 1:
        return predict(batches)

    def filled():
        for batch in batches:
            x = keras.tree.map_structure(np.asarray, get_inputs(batch))
            sizes.append(len(x["token_ids"]))
            rows = pad_indices(sizes[-1], devices)
            yield ({name: values[rows] for name, values in x.items()},)

    filled = filled()
    with suppress_end_warning(filled):
        outputs = predict(filled)
    kept = [np.arange(round_up(size, devices)) < size for size in sizes]
    kept = np.concatenate(kept)
    return keras.tree.map_structure(lambda output: output[kept[: len(output)]], outputs)


def _predict_arrays(x: dict, batch_size: int, predict: functools.partial):
    """Compute the outputs for preprocessed inputs. Each batch is divided over all devices."""
    count, devices = len(x["token_ids"]), count_data_parallel_devices()
    if devices == 1 or not count:
        return predict(x, batch_size)
    rows = pad_indices(count, devices)
    x = {name: keras.ops.convert_to_numpy(values)[rows] for name, values in x.items()}
    outputs = predict(x, round_up(batch_size, devices))
    return keras.tree.map_structure(lambda output: output[:count], outputs)


def predict_texts(task, x, batch_size: int, predict: functools.partial):
    """Compute the outputs for texts in memory, in the input order.

    Args:
        task: `TextModel` with a preprocessor.
        x: Texts or pairs of texts.
        batch_size: Integer. Number of examples per batch.
        predict: Method `keras.Model.predict`. It is called with a dataset. For a single batch with
            `verbose=0` as the only option, it is not called.
    """
    with use_numpy():  # TensorFlow would convert the texts to tensors
        texts = tuple(task.preprocessor.read_texts(x))
    if _is_quiet(predict) and 0 < len(texts[0]) <= batch_size:
        return predict_few(task, texts)
    examples = task.preprocess(texts)
    count = examples["token_ids"].shape[0]
    if not count:
        return predict_few(task, tuple(array_ops.constant([""]) for _ in texts))[:0]
    # Only the last batch is padded to divide it over the devices, so padding rows are at the end.
    batch_size = round_up(batch_size, count_data_parallel_devices())
    maker = task.batch_maker
    batcher = maker.make_batcher(examples, batch_size, maker.compiles)
    batches = batcher.make_ordered_batches(examples, batch_size)
    index = np.argsort(batches.order)[:count]
    with get_weights_lock(task).shared():
        outputs = predict(batches.dataset)
    return keras.tree.map_structure(lambda output: output[index], outputs)


def _is_quiet(predict: functools.partial) -> bool:
    """Return whether `verbose=0` is the only option. In this case, no Keras loop is needed."""
    given = {name: value for name, value in predict.keywords.items() if value is not None}
    return given == {"verbose": 0}


def predict_few(task, texts: tuple, encode: Callable | None = None) -> np.ndarray:
    """Compute the outputs for one batch of texts.

    The model is called directly. For a single batch, `keras.Model.predict` would take longer to set
    up its loop than to run the model.

    Args:
        task: `TextModel` with a preprocessor.
        texts: Tuple of one or two string tensors of shape (B,).
        encode: Optional function that converts texts to examples. Defaults to `encode` of the
            preprocessor.
    """
    preprocessor, collate = task.preprocessor, task.batch_maker.collate()
    with use_numpy():
        texts = tuple(make_array(np.asarray(part)) for part in texts)
        batch = collate((encode or preprocessor.encode)(texts))
    return _compute_outputs(task, get_inputs(batch))


def predict_chosen(task, examples: dict, indices: np.ndarray) -> np.ndarray:
    """Compute the outputs for the encoded examples at the given indices, as one batch.

    Args:
        task: `TextModel` with a preprocessor.
        examples: Dict. Encoded examples.
        indices: Integer array of shape (B,). Example indices.
    """
    maker = task.batch_maker

    def inputs(arguments):
        return get_inputs(maker.collate()(take_examples(*arguments)))

    make = maker.get_graph("chosen", lambda: ShapePolymorphicFunction(inputs))
    return _compute_outputs(task, make((examples, indices)))


def _compute_outputs(task, inputs: dict) -> np.ndarray:
    """Compute the outputs for one batch of inputs."""
    task._warn_new_head()
    with use_backend(), get_weights_lock(task).shared():
        if not task.has_one_graph:
            return task.predict_on_batch(
                {name: np.asarray(values) for name, values in inputs.items()}
            )
        task.make_predict_function()
        outputs = task.compute_batch_outputs(inputs)
        return keras.tree.map_structure(lambda output: output.numpy(), outputs)


@validate_arguments
def compute_example_outputs(
    task, examples: dict, batch_size: PositiveInt | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the outputs for encoded examples, batch by batch, starting with the longest examples.

    Args:
        task: `TextModel`.
        examples: Dict. Encoded examples.
        batch_size: Positive integer. Number of examples per batch. Defaults to 32.

    Yields:
        Tuple of the indices of the examples in a batch (B,), and the outputs for this batch.
    """
    with get_weights_lock(task).shared():
        for indices in iterate_by_length(examples, batch_size or BATCH_SIZE):
            yield indices, predict_chosen(task, examples, indices)


@validate_arguments
def compute_text_outputs(
    task, texts: tuple, batch_size: PositiveInt, encode: Callable
) -> np.ndarray:
    """Compute the outputs for texts in memory, in the input order.

    Args:
        task: `TextModel`.
        texts: Tuple of one or two columns of texts, each of shape (N,) with N >= 1.
        batch_size: Positive integer. Number of examples per batch.
        encode: Function that converts a tuple of columns to examples.
    """
    if texts[0].shape[0] <= batch_size:
        return predict_few(task, texts, encode)
    indices, outputs = zip(*compute_example_outputs(task, encode(texts), batch_size), strict=True)
    return np.concatenate(outputs)[np.argsort(np.concatenate(indices))]


def compute_text_outputs_in_graph(
    task, examples: dict, width: int, run: Callable | None = None
) -> array_ops.Tensor:
    """Compute the outputs (N, C) for all examples inside a `tf.function`.

    Args:
        task: Task with one output vector per example.
        examples: Dict. Encoded examples.
        width: Positive integer. Output dimension C.
        run: Optional function from model inputs to outputs. Defaults to the task.
    """
    run = run or functools.partial(task, training=False)

    def outputs(examples):
        return run(task.preprocessor.pad(examples))

    ones = array_ops.ones_like(examples["token_ids"].row_lengths())
    return map_graph_batches(outputs, examples, ones, width).flat_values


def compute_token_outputs_in_graph(
    task, token_logits: Callable, examples: dict
) -> array_ops.RaggedTensor:
    """Compute ragged token outputs (N, None, C) for all examples inside a `tf.function`.

    Args:
        task: Task with a token-level head.
        token_logits: Function from model inputs to logits (B, L, C).
        examples: Dict. Encoded examples.
    """

    def outputs(examples):
        inputs = task.preprocessor.pad(examples)
        return array_ops.boolean_mask(token_logits(inputs), inputs["padding_mask"])

    lengths = examples["token_ids"].row_lengths()
    return map_graph_batches(outputs, examples, lengths, task.head.units)
