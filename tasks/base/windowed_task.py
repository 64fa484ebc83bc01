"""Base of tasks with outputs for tokens, whose long texts become several examples."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.training.data import size_or_default


class WindowedTask(Task):
    """Base of the tasks that look at long texts through overlapping windows.

    Their preprocessors make one example for each window, with its text's number as "text_index".
    """

    @validate_arguments
    def example_outputs(
        self, examples: dict, batch_size: PositiveInt | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the model's outputs, batch by batch, the longest examples first.

        Args:
            examples: encoded.
            batch_size: default 32.

        Yields:
            Numbers of the batch's examples (B,), and their outputs.
        """
        if not int(examples["token_ids"].nrows()):
            return
        size = size_or_default(batch_size)
        batches = self._ordered(examples, size)
        for i, batch in enumerate(batches.dataset):
            inputs = keras.utils.unpack_x_y_sample_weight(batch)[0]
            inputs = {name: values.numpy() for name, values in inputs.items()}
            yield batches.order[i * size : (i + 1) * size], self.predict_on_batch(inputs)

    @validate_arguments
    def token_outputs(
        self, examples: dict, batch_size: PositiveInt | None = None
    ) -> tf.RaggedTensor:
        """Return the outputs of every example without padding, ragged (examples, None, ...)."""
        lengths = examples["token_ids"].row_lengths().numpy()
        outputs = [None] * len(lengths)
        for numbers, values in self.example_outputs(examples, batch_size):
            for number, row in zip(numbers, values, strict=True):
                outputs[number] = row[: lengths[number]]
        return tf.RaggedTensor.from_row_lengths(np.concatenate(outputs), lengths)

    def outputs_in_graph(self, examples: dict) -> tf.RaggedTensor:
        """As `token_outputs`, inside `tf.function`."""

        def outputs(examples):
            inputs = self.preprocessor.pad(examples)
            return tf.boolean_mask(self.token_logits(inputs), inputs["padding_mask"])

        return in_graph_batches(
            outputs, examples, examples["token_ids"].row_lengths(), self.head.units
        )

    def token_logits(self, inputs: dict) -> tf.Tensor:
        """Return the model's outputs as (B, L, C)."""
        return self(inputs, training=False)


def read_batches(dataset: tf.data.Dataset) -> Iterator:
    """Yield the inputs x of a dataset's batches, without labels and weights."""
    for element in dataset:
        yield keras.utils.unpack_x_y_sample_weight(element)[0]
