"""The methods of a task that Keras's own `fit`, `evaluate` and `predict` call in each step."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable

from keras import ops

from encoder_zoo.common.keras_private import count_rows_of_loss, update_compiled_metrics
from encoder_zoo.common.weights_lock import weights_lock
from encoder_zoo.encoders.inputs import check_inputs
from encoder_zoo.tasks.preprocessing.filling import PACKED_TOKENS, REAL_ROWS
from encoder_zoo.tasks.training.filled_rows import (
    real_rows,
    weights_of_loss,
    weights_of_metrics,
    without,
)
from encoder_zoo.tasks.training.last_evaluation import RemembersEvaluation
from encoder_zoo.tasks.training.logit_metrics import labels_for_loss
from encoder_zoo.tasks.training.prepared import checked_arrays


class KerasSteps(RemembersEvaluation):
    """Base of `Trainer`: the methods of `keras.Model` that work on prepared batches."""

    _counted = types.SimpleNamespace(steps=None, done=0)

    def __call__(self, inputs, *args, **kwargs):
        inputs = without(inputs, REAL_ROWS)
        own = without(inputs, PACKED_TOKENS)
        check_inputs(own, tuple(self.input_ranges(0)), type(self).__name__)
        return super().__call__(inputs, *args, **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Compute the loss as in Keras, but of the whole batch, with `labels_for_loss`; rows that
        only fill the batch do not count."""
        real = real_rows(x)
        count_rows_of_loss(self, None if real is None else ops.sum(ops.cast(real, "float32")))
        if real is not None:
            sample_weight = weights_of_loss(self.loss, real, y_pred, sample_weight)
        y = labels_for_loss(self.loss, y, y_pred, self.output_activation)
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if training:
            self.recipe.weigh_batch(y_pred, sample_weight, real)
        added = self.losses if self.distribution.in_replica() else []
        return self.distribution.loss_of_batch(self.loss, loss, y_pred, sample_weight, added)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics as in Keras, without rows that only fill the batch."""
        real = real_rows(x)
        if real is None:
            return super().compute_metrics(x, y, y_pred, sample_weight)
        y = ops.convert_to_tensor(y)
        weights = (weights_of_metrics(real, y_pred, given) for given in (sample_weight, None))
        update_compiled_metrics(self, y, y_pred, *weights)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict:
        """Return results as in Keras, but in a replica those for the whole batch."""
        result = super().get_metrics_result
        return self.distribution.metrics_of_batch(self.metrics_variables, result)

    def step_function(self, step: Callable) -> Callable | None:
        """Return the function of an iterator that runs a step; None is Keras's own."""
        return self.graphs.step_function(step)

    @contextlib.contextmanager
    def _counting(self, steps: int | None, done: int = 0):
        """Count the batches that Keras reads, so that no execution reads beyond an epoch.

        Args:
            steps: batches of an epoch; None: the data end with it.
            done: batches of the first epoch that are done.
        """
        outer, self._counted = self._counted, types.SimpleNamespace(steps=steps, done=done)
        try:
            yield
        finally:
            self._counted = outer

    def _next_execution(self) -> int:
        """Return how many batches the next execution of several takes."""
        counted = self._counted
        if counted.steps is None:
            return self.steps_per_execution
        count = min(self.steps_per_execution, counted.steps - counted.done % counted.steps)
        counted.done += count
        return count

    def make_predict_function(self, force: bool = False) -> None:
        """Make the function as in Keras, but on TensorFlow one graph for all sizes of batches."""
        if not self.graphs.has_one_graph():
            super().make_predict_function(force)
        elif force or self.predict_function is None:
            self.graphs.renew_weights()
            self.predict_function = self._holding(False, self.graphs.predict_function())

    def predict_on_batch(self, x):
        """Return the outputs for one batch of prepared inputs."""
        predict = super().predict_on_batch
        return self.distribution.predict_on_batch(predict, checked_arrays(self, x))

    def train_on_batch(self, x, *args, **kwargs):
        """Train on one batch of prepared inputs, as `keras.Model.train_on_batch`.

        The number of steps is not known: the optimizer of the recipe holds the peak of its rate.
        """
        with weights_lock(self).fitting():
            self.recipe.hold_rate()
            return super().train_on_batch(checked_arrays(self, x), *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        """Evaluate one batch of prepared inputs, as `keras.Model.test_on_batch`."""
        with weights_lock(self).of_metrics:
            return super().test_on_batch(checked_arrays(self, x), *args, **kwargs)
