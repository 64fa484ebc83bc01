"""The loss of a batch: the one place where the losses of examples are weighed and averaged.

Keras averages in the loss, by its `reduction`, without knowing which tokens are padding, which rows
only fill the batch, or which part of the batch other replicas have. Here a loss of any kind gives
the values of examples or tokens, and `BatchLoss` the loss of the whole batch, on one device or in a
replica.

Comment letters: B batch, L length, C classes.
"""

from __future__ import annotations

import math

import keras
from keras import ops

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.losses.replicas import loss_values, replica_context
from encoder_zoo.tasks.training.loss_inputs import (
    REDUCTIONS,
    function_of,
    inputs_of_function,
    name_of,
    takes_probabilities,
    with_axis_of_outputs,
)


class BatchLoss:
    """Computes the loss of a batch with any loss of Keras's, of this package or of a user.

    Args:
        loss: `keras.losses.Loss` instance, or function of labels and outputs that returns a value
            for each example, or for each token.
        activation: Function that makes probabilities of the outputs, "softmax" or "sigmoid", for
            losses of Keras's that take those. None passes outputs as they are.
        of_tokens: Boolean. Whether a mean is over the tokens with a sample weight, as
            `reduction="mean_with_sample_weight"`, whatever the reduction of the loss.
        of_examples: Boolean. Whether a loss must have a value for each example, where values of its
            parts would include padding.

    Call arguments:
        y_true: Labels.
        y_pred: Outputs of shape (B, ...).
        sample_weight: Weights of shape (B,), (B, L) or None.
        rows: Boolean tensor of shape (B,), the rows that do not only fill the batch. Defaults to
            None, all rows.

    Returns:
        The loss, and what the sum of the values was divided by, or None for a sum. In a replica the
        loss is the whole batch's, divided by the number of replicas, and the gradients of all
        replicas add up to the gradient of the whole batch. The size is the whole batch's.

    Raises:
        ValueError: If the loss has fewer values than there are weights, or a single one that
            cannot be weighed.

    Example:
        >>> tokens = BatchLoss(keras.losses.MeanSquaredError(), of_tokens=True)
        >>> weights = ops.array([[1.0, 1.0], [1.0, 0.0]])
        >>> loss, size = tokens(ops.ones((2, 2, 5)), ops.zeros((2, 2, 5)), weights)
        >>> float(loss), float(size)
        (1.0, 3.0)
    """

    def __init__(
        self,
        loss,
        activation: str | None = None,
        of_tokens: bool = False,
        of_examples: bool = False,
    ):
        self.loss = loss
        self.activation = activation
        self.of_examples = of_examples
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        self.is_sum = reduction == "sum"
        self.is_weighted_mean = of_tokens or reduction == "mean_with_sample_weight"

    @property
    def reduces_itself(self) -> bool:
        """Return whether the loss has a `__call__` of its own, which weighs and averages."""
        is_loss = isinstance(self.loss, keras.losses.Loss)
        return is_loss and type(self.loss).__call__ not in REDUCTIONS

    def check_adds_up(self) -> None:
        """Raise a ValueError for a loss that cannot be added up over replicas.

        Raises:
            ValueError: If the loss has a `__call__` of its own.
        """
        if self.reduces_itself:
            raise invalid(
                "loss",
                name_of(self.loss),
                "a loss without a `__call__` of its own under tf.distribute: move the formula to "
                "`call(y_true, y_pred)`, which returns a value for each example",
            )

    def __call__(self, y_true, y_pred, sample_weight=None, rows=None) -> tuple:
        weights = [w for w in (sample_weight, rows) if w is not None]
        if self.reduces_itself:
            return self._reduced_by_loss(y_true, y_pred, sample_weight)
        values = self.values(y_true, y_pred, rows, sample_weight)
        if len(values.shape) == 0:
            return self._of_single_value(values, y_pred, weights)
        if self.of_examples and len(values.shape) > 1:
            raise invalid(
                f"The shape of {name_of(self.loss)}'s values",
                tuple(values.shape),
                "a value for each example, as some of these are padding",
            )
        weights = [self.weights_like(values, weight) for weight in weights]
        total = ops.sum(math.prod(weights, start=values))
        size = None
        if not self.is_sum:
            counted = weights if self.is_weighted_mean or sample_weight is None else weights[1:]
            size = self._count(values, counted)
        return _of_whole_batch(total, size)

    def values(self, y_true, y_pred, rows=None, tokens=None):
        """Return the values of the loss, of shape (B, ...): of examples, tokens or labels.

        Args:
            y_true: Labels.
            y_pred: Outputs of shape (B, ...).
            rows, tokens: As for `loss_values`.
        """
        dtype = getattr(self.loss, "dtype", None) or keras.config.floatx()
        y_true, y_pred = (ops.convert_to_tensor(y, dtype=dtype) for y in (y_true, y_pred))
        function = function_of(self.loss)
        if function is not None:
            logits = not takes_probabilities(self.loss)
            y_true, y_pred = inputs_of_function(function, logits, y_true, y_pred, self.activation)
        y_true = with_axis_of_outputs(y_true, y_pred)
        if isinstance(self.loss, keras.losses.Loss):
            values = loss_values(self.loss, y_true, y_pred, rows, tokens)
        else:
            values = self.loss(y_true, y_pred)
        return ops.convert_to_tensor(values, dtype=dtype)

    def weights_like(self, values, weights):
        """Return weights of examples or tokens in the shape of values of a loss, to be broadcast.

        Raises:
            ValueError: If the weights have more axes than the values.
        """
        weights = ops.cast(weights, values.dtype)
        rank = len(values.shape)
        while len(weights.shape) > rank and weights.shape[-1] == 1:
            weights = ops.squeeze(weights, -1)
        if len(weights.shape) > rank:
            raise invalid(
                f"The shape of {name_of(self.loss)}'s values",
                tuple(values.shape),
                "a value for each token or label, as padding and weights have the shape "
                f"{tuple(weights.shape)}",
            )
        missing = rank - len(weights.shape)
        return ops.reshape(weights, (*ops.shape(weights), *[1] * missing))

    def _count(self, values, weights):
        """Return the number of values, or the sum of the weights of each."""
        if not weights:
            shape = ops.convert_to_tensor(ops.shape(values), dtype="int32")
            return ops.cast(ops.prod(shape), "float32")
        return ops.sum(
            ops.broadcast_to(math.prod(weights[1:], start=weights[0]), ops.shape(values))
        )

    def _of_single_value(self, value, y_pred, weights) -> tuple:
        """Return a loss that is one number for the batch already, and the number of rows."""
        self.check_single_value(bool(weights))
        return value, None if self.is_sum else _rows_of(y_pred)

    def check_single_value(self, is_weighted: bool) -> None:
        """Raise a ValueError where a loss that is one number for the batch cannot be right."""
        if is_weighted or replica_context():
            reason = "weights and padding" if is_weighted else "the parts of replicas"
            raise ValueError(
                f"{name_of(self.loss)} returns a single number for the batch, so {reason} cannot "
                "be taken into account. Return a value for each example or token, such as "
                "ops.mean(..., axis=-1)."
            )

    def _reduced_by_loss(self, y_true, y_pred, sample_weight) -> tuple:
        """Return the loss as its own `__call__` computes it, and the size that it seems to have."""
        y_true = with_axis_of_outputs(ops.convert_to_tensor(y_true), y_pred)
        loss = ops.mean(self.loss(y_true, y_pred, sample_weight))
        if self.is_sum:
            return loss, None
        if self.is_weighted_mean and sample_weight is not None:
            return loss, ops.sum(ops.cast(sample_weight, "float32"))
        return loss, _rows_of(y_pred)


def _rows_of(y_pred):
    return ops.cast(ops.shape(y_pred)[0], "float32")


def _of_whole_batch(total, size) -> tuple:
    """Return the loss of the whole batch from the sum and the size of a replica's part, and its
    size."""
    context = replica_context()
    if size is not None:
        size = ops.cast(size, total.dtype)
        size = size if context is None else context.all_reduce("SUM", size)
        total = ops.divide_no_nan(total, size)
    return total if context is None else shared_by_replicas(total), size


def shared_by_replicas(part):
    """Return a sum over the replicas, divided by their number, whose gradient is that of a part.

    Keras multiplies a loss by the number of replicas before it is reported.

    Args:
        part: What this replica adds to the sum.
    """
    context = replica_context()
    if context is None:
        return part
    whole = context.all_reduce("SUM", ops.stop_gradient(part)) / context.num_replicas_in_sync
    return part + ops.stop_gradient(whole - part)


def mean_over_replicas(penalty, rows):
    """Return a penalty of a batch: of a replica's part, weighed by its rows.

    Penalties on weights are the same in all replicas, and those on outputs are means over rows.

    Args:
        penalty: Scalar tensor.
        rows: Number of rows of this replica's part.
    """
    context = replica_context()
    if context is None:
        return penalty
    rows = array_ops.cast(rows, penalty.dtype)
    share = ops.divide_no_nan(rows, context.all_reduce("SUM", rows))
    penalty = ops.where(rows > 0, penalty, 0.0)  # the mean of no rows is NaN
    return shared_by_replicas(penalty * share)
