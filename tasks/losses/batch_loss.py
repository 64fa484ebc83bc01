"""Compute a batch's loss from the losses of its examples.

In Keras, each loss averages its own values, according to its `reduction`. But a loss does not know
which tokens are padding, which rows only pad the batch, or which part of the batch is on other
replicas. In this package, a loss therefore returns a value for each example or token, and
`BatchLoss` computes the loss of the whole batch, on one device or in a replica.

Keras losses are recognized by the function that they wrap. Logits and labels are converted to the
inputs that this function expects. Metrics that average the same function receive the same inputs.

Comments use these letters for shapes: B (batch size), L (sequence length), C (classes).
"""

from __future__ import annotations

import functools
import inspect
import math

import keras
from keras import losses, ops

from encoder_zoo.common.keras_private import get_wrapped_function, get_wrapped_keywords
from encoder_zoo.common.lazy import xp
from encoder_zoo.tasks.losses.replicas import compute_loss_values, get_replica_context

LOSS_ACTIVATIONS = {"softmax": ops.softmax, "sigmoid": ops.sigmoid}
FUNCTIONS = {
    function
    for name, function in vars(losses).items()
    if inspect.isfunction(function) and name not in ("get", "serialize", "deserialize")
}
LOGITS_LOSSES = {f for f in FUNCTIONS if "from_logits" in inspect.signature(f).parameters}
# Hinge losses receive logits, because probabilities cannot reach their margin.
MARGIN_LOSSES = {losses.hinge, losses.squared_hinge, losses.categorical_hinge}
# Losses for a single class. They are found by name, because some only exist in new Keras versions.
CATEGORICAL_LOSSES = {f for f in FUNCTIONS if "categorical" in f.__name__}
CLASS_INDEX_LOSSES = {f for f in CATEGORICAL_LOSSES if f.__name__.startswith("sparse_")}
CLASS_INDEX_LOSSES |= {losses.categorical_generalized_cross_entropy}
# Losses for values between 0 and 1. They cannot be used for regression.
PROBABILITY_LOSSES = {
    *LOGITS_LOSSES,
    *CATEGORICAL_LOSSES,
    losses.kl_divergence,
    losses.poisson,
    losses.dice,
    losses.tversky,
}
# Losses that do not change if a class with label 0 and probability 0 is added.
TRUE_CLASS_LOSSES = {*CATEGORICAL_LOSSES, losses.kl_divergence, losses.cosine_similarity}
TRUE_CLASS_LOSSES -= {losses.categorical_hinge}
UNPREDICTED_OUTPUTS = {
    losses.ctc: "sequences of symbols",
    losses.circle: "embeddings of unit length",
}
# Maps a cross-entropy to the activation that it includes if it is computed from logits.
INCLUDED_ACTIVATIONS = {
    f: "softmax" if f in CATEGORICAL_LOSSES else "sigmoid" for f in LOGITS_LOSSES
}
LOSS_CLASSES = {
    get_wrapped_function(cls()): cls
    for cls in vars(losses).values()
    if inspect.isclass(cls) and cls is not losses.Loss
}
# The `call` methods of Keras losses. A loss with another method is a custom loss.
CALLS = {cls.call for cls in LOSS_CLASSES.values()}
REDUCTIONS = {cls.__call__ for cls in (losses.Loss, *LOSS_CLASSES.values())}


def get_keras_function(loss):
    """Return the Keras function that a loss computes, or None for a custom loss.

    Args:
        loss: Loss instance, function, `functools.partial`, or metric that averages a loss.

    Example:
        >>> get_keras_function(losses.KLDivergence()) is losses.kl_divergence
        True
    """
    while not isinstance(loss, type):
        if isinstance(loss, functools.partial):
            loss = loss.func
        elif get_wrapped_function(loss):
            loss = get_wrapped_function(loss)
        else:
            break
    return loss if inspect.isfunction(loss) and loss in FUNCTIONS else None


def get_argument(loss, name: str):
    """Return an argument that a loss passes to its function, or None for a missing argument.

    Example:
        >>> get_argument(functools.partial(losses.categorical_crossentropy, from_logits=True),
        ...             "from_logits")
        True
    """
    if isinstance(loss, functools.partial):
        inner, keywords = loss.func, loss.keywords
    elif get_wrapped_function(loss):
        inner, keywords = get_wrapped_function(loss), get_wrapped_keywords(loss)
    else:
        return None
    return keywords[name] if name in keywords else get_argument(inner, name)


def get_name(loss) -> str:
    """Return a loss or metric name for error messages, such as "KLDivergence"."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


def takes_probabilities(loss) -> bool:
    """Return whether a Keras loss or metric expects probabilities instead of logits."""
    function = get_keras_function(loss)
    return (
        function is not None
        and function not in MARGIN_LOSSES
        and not get_argument(loss, "from_logits")
    )


def prepare_function_inputs(
    function, logits: bool, y_true, y_pred, activation: str | None
) -> tuple:
    """Convert labels and outputs to the inputs that a Keras function expects.

    Args:
        function: Function from `FUNCTIONS`.
        logits: Boolean. Whether this function expects logits.
        y_true: Integer tensor of shape (B, ...) with class indices, or tensor of shape (B, ..., C)
            with labels.
        y_pred: Float tensor of shape (B, ..., C). Logits.
        activation: Optional string. The task's activation, "softmax" or "sigmoid".

    Example:
        >>> y_true, y_pred = prepare_function_inputs(
        ...     losses.poisson, False, ops.convert_to_tensor([1]), ops.zeros((1, 2)), "softmax"
        ... )
        >>> y_true.numpy().tolist(), y_pred.numpy().tolist()
        ([[0.0, 1.0]], [[0.5, 0.5]])
    """
    if activation in LOSS_ACTIVATIONS and not logits:
        y_pred = LOSS_ACTIVATIONS[activation](y_pred)
        if INCLUDED_ACTIVATIONS.get(function) != activation:
            # On TensorFlow, Keras stores the logits in the probabilities, and would use them
            # instead.
            y_pred = y_pred * 1.0
    if (
        activation == "softmax"
        and function not in CLASS_INDEX_LOSSES
        and has_indices(y_true, y_pred)
    ):
        y_true = ops.one_hot(ops.cast(y_true, "int32"), y_pred.shape[-1], dtype=y_pred.dtype)
    return y_true, y_pred


def mark_counted_labels(loss, y_true):
    """Return a mask of the labels that are not `ignore_class`, or None without `ignore_class`.

    Example:
        >>> loss = losses.SparseCategoricalCrossentropy(ignore_class=0)
        >>> mark_counted_labels(loss, [0, 2]).numpy()
        array([False,  True])
    """
    ignored = get_argument(loss, "ignore_class")
    return None if ignored is None else ops.not_equal(y_true, ignored)


def has_indices(y_true, scores) -> bool:
    """Return whether labels are class indices, which have no axis for the C classes."""
    return len(y_true.shape) == len(scores.shape) - 1


def add_output_axis(y_true, y_pred):
    """Add an axis of size 1 to the labels if the outputs have such an axis.

    Without this axis, labels with shape (B,) and outputs with shape (B, 1) would be broadcast to
    (B, B).
    """
    if len(y_pred.shape) and y_pred.shape[-1] == 1 and has_indices(y_true, y_pred):
        return y_true[..., None]
    return y_true


def is_computed_by_row(loss) -> bool:
    """Return whether the value of each row does not depend on the other rows.

    This is the case for losses with the attribute `ignores_padding_rows`, and for all Keras losses
    except `Dice`, `Tversky`, `CTC` and `Circle`.
    """
    if isinstance(loss, losses.Loss) and type(loss).call not in CALLS:
        return getattr(type(loss).call, "ignores_padding_rows", False)
    whole = (losses.dice, losses.tversky, *UNPREDICTED_OUTPUTS)
    function = get_keras_function(loss)
    return function is not None and function not in whole


class BatchLoss:
    """Compute a batch's loss with a Keras loss, a loss from this package or a custom loss.

    Args:
        loss: `keras.losses.Loss` instance, or a function `loss(y_true, y_pred)` that returns a
            value for each example or token.
        activation: Optional string, "softmax" or "sigmoid". It converts the outputs to
            probabilities for Keras losses that expect probabilities. If None, the outputs are
            passed unchanged.
        of_tokens: Boolean. If True, the mean over the tokens is computed, weighted by the sample
            weights, unless the `reduction` of the loss is "sum". Defaults to False.
        of_examples: Boolean. Whether the loss must return one value per example. Values for parts
            of an example would include padding. Defaults to False.

    Call arguments:
        y_true: Tensor. Labels.
        y_pred: Tensor of shape (B, ...). Model outputs.
        sample_weight: Optional tensor of shape (B,) or (B, L). Weights of examples or tokens.
        rows: Boolean tensor of shape (B,). False for rows that only pad the batch. If None, all
            rows are used.

    Returns:
        Tuple of the loss and the size. The loss is the sum of the values, divided by the size. The
        size is the number of values or the sum of their weights, in the whole batch. If the
        `reduction` is "sum", the loss is not divided and the size is None. In a replica, the
        gradient only contains the replica's part of the loss, so that the sum of the gradients over
        all replicas is the gradient of the whole batch.

    Raises:
        ValueError: If `loss` returns fewer values than there are weights, a single value that
            cannot be weighted or, with `of_examples`, several values per example.

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
        """Return whether the loss weights and averages its own values by overriding `__call__`."""
        is_loss = isinstance(self.loss, keras.losses.Loss)
        return is_loss and type(self.loss).__call__ not in REDUCTIONS

    def check_is_summable(self) -> None:
        """Check that the loss can be summed over replicas.

        Raises:
            ValueError: If `loss` overrides `__call__`.
        """
        if self.reduces_itself:
            raise ValueError(
                f"{get_name(self.loss)} overrides `__call__`, which is not supported under "
                "tf.distribute. Override `call(y_true, y_pred)` instead, and return a value for "
                "each example."
            )

    def __call__(self, y_true, y_pred, sample_weight=None, rows=None) -> tuple:
        if self.reduces_itself:
            return self._reduce_by_loss(y_true, y_pred, sample_weight)
        weights = [] if sample_weight is None else [sample_weight]
        masks = [m for m in (rows, mark_counted_labels(self.loss, y_true)) if m is not None]
        values = self.compute_values(y_true, y_pred, rows, sample_weight)
        if len(values.shape) == 0:
            self.check_single_value(bool(weights + masks))
            return values, None if self.is_sum else _count_rows(y_pred)
        if self.of_examples and len(values.shape) > 1:
            raise ValueError(
                f"The output shape of {get_name(self.loss)} is {tuple(values.shape)}, so some "
                "values belong to padding. Return a single value for each example."
            )
        weights, masks = (
            [self.broadcast_weights(values, weight) for weight in given]
            for given in (weights, masks)
        )
        total = ops.sum(math.prod(weights + masks, start=values))
        size = None
        if not self.is_sum:
            size = self._count(values, weights + masks if self.is_weighted_mean else masks)
        return _scale_to_batch(total, size)

    def compute_values(self, y_true, y_pred, rows=None, tokens=None):
        """Compute the loss of each example, token or label, shape (B, ...).

        Args:
            y_true: Tensor. Labels.
            y_pred: Tensor of shape (B, ...). Model outputs.
            rows: Optional boolean tensor. See `compute_loss_values`.
            tokens: Optional tensor. See `compute_loss_values`.
        """
        dtype = getattr(self.loss, "dtype", None) or keras.config.floatx()
        y_true, y_pred = (ops.convert_to_tensor(y, dtype=dtype) for y in (y_true, y_pred))
        function = get_keras_function(self.loss)
        if function is not None:
            logits = not takes_probabilities(self.loss)
            y_true, y_pred = prepare_function_inputs(
                function, logits, y_true, y_pred, self.activation
            )
        y_true = add_output_axis(y_true, y_pred)
        if isinstance(self.loss, keras.losses.Loss):
            values = compute_loss_values(self.loss, y_true, y_pred, rows, tokens)
        else:
            values = self.loss(y_true, y_pred)
        return ops.convert_to_tensor(values, dtype=dtype)

    def broadcast_weights(self, values, weights):
        """Reshape the weights of examples or tokens, so that they broadcast to the loss values.

        Raises:
            ValueError: If `weights` has more axes than `values`, not counting trailing axes of
                size 1.
        """
        weights = ops.cast(weights, values.dtype)
        rank = len(values.shape)
        while len(weights.shape) > rank and weights.shape[-1] == 1:
            weights = ops.squeeze(weights, -1)
        if len(weights.shape) > rank:
            raise ValueError(
                f"The output shape of {get_name(self.loss)} is {tuple(values.shape)}, but the "
                f"weights have the shape {tuple(weights.shape)}. Return a value for each token or "
                "label."
            )
        missing = rank - len(weights.shape)
        return ops.reshape(weights, (*ops.shape(weights), *[1] * missing))

    def _count(self, values, weights):
        """Return the number of values, or the sum of the weights if there are weights."""
        if not weights:
            shape = ops.convert_to_tensor(ops.shape(values), dtype="int32")
            return ops.cast(ops.prod(shape), "float32")
        return ops.sum(
            ops.broadcast_to(math.prod(weights[1:], start=weights[0]), ops.shape(values))
        )

    def check_single_value(self, is_weighted: bool) -> None:
        """Raise a ValueError if the loss is a single value, but there are weights or replicas.

        Args:
            is_weighted: Boolean. Whether there are sample weights or padding.
        """
        if is_weighted or get_replica_context():
            reason = "weights and padding" if is_weighted else "the division into replicas"
            raise ValueError(
                f"{get_name(self.loss)} returns a single value for the whole batch, which does "
                f"not take {reason} into account. Return a value for each example or token, such "
                "as ops.mean(..., axis=-1)."
            )

    def _reduce_by_loss(self, y_true, y_pred, sample_weight) -> tuple:
        """Compute a loss that overrides `__call__`. Return the loss and the size of the batch.

        The size is the number of rows, or the sum of the sample weights for a weighted mean.
        """
        y_true = add_output_axis(ops.convert_to_tensor(y_true), y_pred)
        loss = ops.mean(self.loss(y_true, y_pred, sample_weight))
        if self.is_sum:
            return loss, None
        if self.is_weighted_mean and sample_weight is not None:
            return loss, ops.sum(ops.cast(sample_weight, "float32"))
        return loss, _count_rows(y_pred)


def _count_rows(y_pred):
    return ops.cast(ops.shape(y_pred)[0], "float32")


def _scale_to_batch(total, size) -> tuple:
    """Compute the loss and the size of the whole batch from the sum and the size of a replica."""
    context = get_replica_context()
    if size is not None:
        size = ops.cast(size, total.dtype)
        size = size if context is None else context.all_reduce("SUM", size)
        total = ops.divide_no_nan(total, size)
    return total if context is None else share_between_replicas(total), size


def share_between_replicas(part):
    """Compute the mean over the replicas. The gradient only contains the part of this replica.

    The result is a mean, because Keras multiplies the reported loss by the number of replicas.

    Args:
        part: Tensor. Part of the loss in this replica.
    """
    context = get_replica_context()
    if context is None:
        return part
    whole = context.all_reduce("SUM", ops.stop_gradient(part)) / context.num_replicas_in_sync
    return part + ops.stop_gradient(whole - part)


def average_over_replicas(penalty, rows):
    """Average a penalty over the replicas, weighted by the number of rows per replica.

    Penalties on weights are equal on all replicas, so the average does not change them. Penalties
    on outputs are means over rows, so they are weighted by the number of rows.

    Args:
        penalty: Scalar tensor. Penalty on this replica.
        rows: Integer. Number of rows on this replica.
    """
    context = get_replica_context()
    if context is None:
        return penalty
    rows = xp.cast(rows, penalty.dtype)
    share = ops.divide_no_nan(rows, context.all_reduce("SUM", rows))
    penalty = ops.where(rows > 0, penalty, 0.0)  # the mean over zero rows is NaN
    return share_between_replicas(penalty * share)
