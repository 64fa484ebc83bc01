"""Run a task on texts in memory or on encoded examples, batch by batch.

Comments use these letters for shapes: B (batch size), L (sequence length).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from encoder_zoo.common.lazy import use_backend, use_numpy, xp
from encoder_zoo.common.ragged_array import make_array
from encoder_zoo.common.validation import Verbosity
from encoder_zoo.common.weights_lock import get_weights_lock
from encoder_zoo.encoders.arrays import gather_array
from encoder_zoo.tasks.preprocessing import batch_shapes
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE, Plan, map_graph_batches
from encoder_zoo.tasks.preprocessing.prepared import check_arrays, get_inputs
from encoder_zoo.tasks.preprocessing.tracing import ShapePolymorphicFunction
from encoder_zoo.tasks.training import distribution, sources
from encoder_zoo.tasks.training.callbacks import Callbacks
from encoder_zoo.tasks.training.data import BatchMaker, raise_original_errors
from encoder_zoo.tasks.training.streams import TokenCache, suppress_end_warning

logger = logging.getLogger("encoder_zoo")


class KerasRunner:
    """Compute the outputs of a task with its Keras model. See `Runner` in `tasks.base.answers`.

    Args:
        task: `Task`.
        verbose, steps, callbacks: Options for `keras.Model.predict`. See `Task.predict`.
    """

    def __init__(
        self,
        task,
        verbose: Verbosity = 0,
        steps: int | None = None,
        callbacks: Callbacks | None = None,
    ):
        self.task = task
        self._options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}

    def predict(self, x: Any, batch_size: int | None = None) -> Any:
        """Compute the outputs for raw or preprocessed inputs, in the input order.

        Args:
            x: Inputs. See `Task.predict`.
            batch_size: Optional integer. Number of examples per batch. If None, 32 is used.
        """
        with use_backend(), suppress_end_warning(x):
            return self.predict_data(self.read(x), batch_size)

    def predict_data(self, given: sources.InputData, batch_size: int | None = None) -> Any:
        """Compute the outputs for the inputs from `read`, in the input order."""
        size = batch_size or BATCH_SIZE
        with use_backend():
            if given.is_read_in_batches:
                return self._predict_source(given, size)
            if given.is_prepared:
                return self._predict_arrays(check_arrays(self.task, given.x), size)
            return self._predict_texts(given.x, size)

    def read(self, x: Any) -> sources.InputData:
        """Convert the inputs of `predict` to an `InputData`."""
        if isinstance(x, TokenCache):  # its files contain labels
            x = x.source
        return sources.make_input_data(self._batch_maker, x)

    def read_batches(self, given: sources.InputData, batch_size: int | None = None) -> Iterator:
        """Yield the raw inputs of a dataset or stream, batch by batch."""
        size = batch_size or BATCH_SIZE
        if isinstance(given, sources.StreamData):
            return (x for x, _, _ in given.x.chunks(size))
        sources.check_has_elements(given.x)
        sources.check_is_finite(given.x, self._options["steps"])
        return map(get_inputs, self.task.preprocessor.batch_examples(given.x, size))

    @property
    def _batch_maker(self) -> BatchMaker:
        """Return the task's `BatchMaker`, without labels and weights, which can be missing."""
        task = self.task
        return dataclasses.replace(
            task.batch_maker,
            separate=lambda x, y: (x, None),
            encode=lambda x, y=None, sample_weight=None: task.preprocess(x),
            fills=False,
            reads_labels=False,
        )

    def _warn_if_head_new(self) -> None:
        if self.task.record.head != "Model":  # otherwise, the model runs without a head
            warn_if_head_new(self.task)

    def _run_keras_predict(self, x, batch_size: int | None = None):
        """Call `keras.Model.predict`. Every JAX process computes whole batches."""
        self._warn_if_head_new()
        predict = functools.partial(keras.Model.predict, self.task)
        if distribution.get_process_shard()[1] == 1:
            return self.task._run(predict, x, batch_size, **self._options)
        with self.task.distribution.running(), distribution.compute_whole_batches():
            return predict(x, batch_size, **self._options)

    def _is_single_batch(self, count: int, batch_size: int) -> bool:
        """Return whether the inputs fit in one batch, and no option requires a Keras loop."""
        is_silent = self._options == {"verbose": 0, "steps": None, "callbacks": None}
        return is_silent and 0 < count <= batch_size

    def _predict_source(self, given: sources.InputData, batch_size: int):
        """Compute the outputs for a dataset or stream. Each batch is padded to fill all devices."""
        plan = Plan(batch_size, steps_per_epoch=self._options["steps"])
        source = given.make_source(plan, self._batch_maker)
        devices, sizes = distribution.count_data_parallel_devices(), []

        def fill_batches(batches) -> Iterator[tuple[dict]]:
            for batch in batches:
                x = keras.tree.map_structure(np.asarray, get_inputs(batch))
                sizes.append(len(x["token_ids"]))
                rows = distribution.pad_indices(sizes[-1], devices)
                yield ({name: values[rows] for name, values in x.items()},)

        with raise_original_errors(source):
            batches = source.read_in_order()
            if devices == 1:
                return self._run_keras_predict(batches)
            batches = fill_batches(batches)
            with suppress_end_warning(batches):
                outputs = self._run_keras_predict(batches)
        kept = [np.arange(distribution.round_up(size, devices)) < size for size in sizes]
        kept = np.concatenate(kept)
        return keras.tree.map_structure(lambda output: output[kept[: len(output)]], outputs)

    def _predict_arrays(self, x: dict, batch_size: int):
        """Compute the outputs for preprocessed inputs. Each batch is divided over all devices."""
        count, devices = len(x["token_ids"]), distribution.count_data_parallel_devices()
        if self._is_single_batch(count, batch_size):
            return self._compute_outputs(x)
        if devices == 1 or not count:
            return self._run_keras_predict(x, batch_size)
        rows = distribution.pad_indices(count, devices)
        x = {name: keras.ops.convert_to_numpy(values)[rows] for name, values in x.items()}
        outputs = self._run_keras_predict(x, distribution.round_up(batch_size, devices))
        return keras.tree.map_structure(lambda output: output[:count], outputs)

    def _predict_texts(self, x: Any, batch_size: int):
        """Compute the outputs for texts or pairs of texts in memory."""
        task = self.task
        sources.check_preprocessor(task, x)
        with use_numpy():  # TensorFlow would convert the texts to tensors
            texts = tuple(task.preprocessor.read_texts(x))
        if steps := self._options["steps"]:
            # The batches will be sorted by length, so the first texts are selected before.
            texts = tuple(column[: steps * batch_size] for column in texts)
        if self._is_single_batch(len(texts[0]), batch_size):
            return self.run_texts(texts, batch_size, task.preprocessor.encode)
        examples = task.preprocess(texts)
        count = examples["token_ids"].shape[0]
        if not count:
            empty = tuple(xp.constant(["a"]) for _ in texts)
            outputs = self.run_texts(empty, batch_size, task.preprocessor.encode)
            return keras.tree.map_structure(lambda output: output[:0], outputs)
        # Only the last batch is padded to divide it over the devices, so padding rows are at the
        # end.
        batch_size = distribution.round_up(batch_size, distribution.count_data_parallel_devices())
        maker = task.batch_maker
        batcher = maker.make_batcher(examples, batch_size, maker.compiles)
        batches = batcher.make_ordered_batches(examples, batch_size)
        index = np.argsort(batches.order)[:count]
        with get_weights_lock(task).shared():
            outputs = self._run_keras_predict(batches.dataset)
        return keras.tree.map_structure(lambda output: output[index], outputs)

    def _compute_outputs(self, inputs: dict) -> np.ndarray:
        """Compute the outputs for one batch of inputs."""
        task = self.task
        self._warn_if_head_new()
        with use_backend(), get_weights_lock(task).shared():
            if not task.has_one_graph:
                return task.predict_on_batch(
                    {name: np.asarray(values) for name, values in inputs.items()}
                )
            task.make_predict_function()
            outputs = task.compute_batch_outputs(inputs)
            return keras.tree.map_structure(lambda output: output.numpy(), outputs)

    def run_examples(
        self, examples: dict, batch_size: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the example indices (B,) and outputs of each batch, longest examples first."""
        maker = self.task.batch_maker

        def collate_inputs(arguments):
            return get_inputs(maker.collate()(batch_shapes.take_examples(*arguments)))

        make = maker.get_graph("chosen", lambda: ShapePolymorphicFunction(collate_inputs))
        with get_weights_lock(self.task).shared():
            for indices in batch_shapes.iterate_by_length(examples, batch_size or BATCH_SIZE):
                yield indices, self._compute_outputs(make((examples, indices)))

    def run_texts(self, texts: tuple, batch_size: int, encode: Callable) -> np.ndarray:
        """Compute the outputs for columns of texts, which `encode` converts to examples.

        Args:
            texts: Tuple of columns with at least one text each.
            batch_size: Integer. Number of examples per batch.
            encode: Function that converts texts to examples.
        """
        if texts[0].shape[0] > batch_size:
            return batch_shapes.join_batches(self.run_examples(encode(texts), batch_size))
        # For a single batch, `keras.Model.predict` would take longer to set up its loop than to run
        # the model, and TensorFlow would be slower than NumPy.
        collate = self.task.batch_maker.collate()
        with use_numpy():
            batch = collate(encode(tuple(make_array(np.asarray(column)) for column in texts)))
        return self._compute_outputs(get_inputs(batch))


def warn_if_head_new(task) -> None:
    """Log a warning if the head has random weights. Later calls do not log again."""
    first, task.new_head = task.new_head, None
    if first is None or len(first) != len(task.head.weights):
        return
    pairs = zip(first, task.head.weights, strict=True)
    if all(np.array_equal(value, gather_array(weight)) for value, weight in pairs):
        logger.warning(
            "The head of this %s has random weights, because the checkpoint contains no head. "
            "Call `fit` before you use its predictions.",
            type(task).__name__,
        )


def compute_text_outputs_in_graph(
    task, examples: dict, width: int, run: Callable | None = None
) -> xp.Tensor:
    """Compute the outputs (N, C) for all examples inside a `tf.function`.

    Args:
        task: Task with one output vector per example.
        examples: Dict. Encoded examples.
        width: Positive integer. Output dimension C.
        run: Optional function from model inputs to outputs. Defaults to the task.
    """
    run = run or functools.partial(task, training=False)

    def compute_outputs(examples):
        return run(task.preprocessor.pad(examples))

    ones = xp.ones_like(examples["token_ids"].row_lengths())
    return map_graph_batches(compute_outputs, examples, ones, width).flat_values


def compute_token_outputs_in_graph(task, token_logits: Callable, examples: dict) -> xp.RaggedTensor:
    """Compute ragged token outputs (N, None, C) for all examples inside a `tf.function`.

    Args:
        task: Task with a token-level head.
        token_logits: Function from model inputs to logits (B, L, C).
        examples: Dict. Encoded examples.
    """

    def compute_outputs(examples):
        inputs = task.preprocessor.pad(examples)
        return xp.boolean_mask(token_logits(inputs), inputs["padding_mask"])

    lengths = examples["token_ids"].row_lengths()
    return map_graph_batches(compute_outputs, examples, lengths, task.head.units)
