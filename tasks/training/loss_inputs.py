"""Convert a task's logits and labels to the inputs expected by Keras losses.

A loss is identified by its function. The loss can be passed to `compile` as a name, a function, a
`functools.partial` of the function, a class, or an instance. Metrics that average such a function
receive the same inputs, see `logit_metrics`.

Dimensions in comments: B is the batch size and C the number of classes.
"""

from __future__ import annotations

import functools
import inspect

from keras import losses, metrics, ops

from encoder_zoo.common.wording import close_names, did_you_mean, invalid

ACTIVATIONS = {"softmax": ops.softmax, "sigmoid": ops.sigmoid}
FUNCTIONS = {
    function
    for name, function in vars(losses).items()
    if inspect.isfunction(function) and name not in ("get", "serialize", "deserialize")
}
WITH_LOGITS = {f for f in FUNCTIONS if "from_logits" in inspect.signature(f).parameters}
# Losses to compute with margins. They receive logits, because probabilities cannot reach the
# margin.
OF_MARGINS = {losses.hinge, losses.squared_hinge, losses.categorical_hinge}
# Losses for a single class. Names can also identify losses that will be added in later versions of
# Keras.
OF_ONE_CLASS = {f for f in FUNCTIONS if "categorical" in f.__name__}
OF_INDICES = {f for f in OF_ONE_CLASS if f.__name__.startswith("sparse_")}
OF_INDICES |= {losses.categorical_generalized_cross_entropy}
# Losses for values between 0 and 1, which cannot be used for regression.
OF_PROBABILITIES = {
    *WITH_LOGITS,
    *OF_ONE_CLASS,
    losses.kl_divergence,
    losses.poisson,
    losses.dice,
    losses.tversky,
}
# Losses that do not change when a class with label 0 and probability 0 is added.
OF_TRUE_CLASS = {*OF_ONE_CLASS, losses.kl_divergence, losses.cosine_similarity}
OF_TRUE_CLASS -= {losses.categorical_hinge}
OF_OTHER_THINGS = {
    losses.ctc: "sequences of symbols",
    losses.circle: "embeddings of unit length",
}
# Cross-entropies by the activation to include. They are computed from logits.
OF_ACTIVATION = {f: "softmax" if f in OF_ONE_CLASS else "sigmoid" for f in WITH_LOGITS}
# Keras base classes used to wrap a function as a loss or metric.
WRAPPERS = (*losses.MeanSquaredError.__bases__, metrics.MeanMetricWrapper)


def wrapped_function(wrapper):
    """Return the function wrapped by a Keras loss or metric.

    Args:
        wrapper: Loss, metric or any other object. When no function is wrapped, None will be
            returned.

    Example:
        >>> wrapped_function(losses.Huber()) is losses.huber
        True
    """
    held = vars(wrapper).values() if isinstance(wrapper, WRAPPERS) else ()
    return next(
        (f for f in held if inspect.isfunction(f) or isinstance(f, functools.partial)), None
    )


def keywords_of(wrapper) -> dict:
    """Return the keyword arguments passed by a Keras loss or metric to its function."""
    held = vars(wrapper).values() if isinstance(wrapper, WRAPPERS) else ()
    return {
        name: value for found in held if isinstance(found, dict) for name, value in found.items()
    }


CLASSES = {
    wrapped_function(cls()): cls
    for cls in vars(losses).values()
    if inspect.isclass(cls) and cls is not losses.Loss
}
# Keras's `call` methods for losses. Losses with a different method are custom losses.
CALLS = {cls.call for cls in CLASSES.values()}
REDUCTIONS = {cls.__call__ for cls in (losses.Loss, *CLASSES.values())}


def function_of(loss):
    """Return the Keras function computed by a loss, or None for a custom loss.

    Args:
        loss: A loss instance, function, `functools.partial`, or metric used to average a loss.

    Example:
        >>> function_of(losses.KLDivergence()) is losses.kl_divergence
        True
    """
    while not isinstance(loss, type):
        if isinstance(loss, functools.partial):
            loss = loss.func
        elif wrapped_function(loss):
            loss = wrapped_function(loss)
        else:
            break
    return loss if inspect.isfunction(loss) and loss in FUNCTIONS else None


def argument_of(loss, name: str):
    """Return an argument passed by a loss to its function, or None.

    Example:
        >>> argument_of(functools.partial(losses.categorical_crossentropy, from_logits=True),
        ...             "from_logits")
        True
    """
    if isinstance(loss, functools.partial):
        inner, keywords = loss.func, loss.keywords
    elif wrapped_function(loss):
        inner, keywords = wrapped_function(loss), keywords_of(loss)
    else:
        return None
    return keywords[name] if name in keywords else argument_of(inner, name)


def name_of(loss) -> str:
    """Return a name to use for a loss or metric in messages, such as "KLDivergence"."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


def resolve_loss(
    loss,
    default: losses.Loss,
    activation: str | None,
    pads_classes: bool = False,
):
    """Convert the `loss` argument from `compile` to the loss to be computed by a task.

    Args:
        loss: Name, function, class or instance, or a list or dict with one loss.
        default: The task's loss, to be used for names such as "crossentropy".
        activation: "softmax" or "sigmoid" for logits, "linear" for regression, or None for any
            other outputs.
        pads_classes: Boolean. Whether the classes for an example are padded to the number of
            classes in the longest example. Defaults to False.

    Returns:
        A `keras.losses.Loss` or a function of labels and outputs. Cross-entropies that include the
        task's activation will be computed from logits.

    Raises:
        ValueError: If the loss is unknown, does not fit this task, or is not reduced to a scalar.

    Example:
        >>> default = losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> resolve_loss("sparse_categorical_crossentropy", default, "softmax") is default
        True
        >>> resolve_loss(losses.SparseCategoricalCrossentropy(), default, "softmax").from_logits
        True
    """
    found = find_loss(loss)
    if found is None:
        return default
    if isinstance(found, losses.Loss) and found.reduction in (None, "none"):
        raise invalid(
            f"The reduction of {name_of(found)}",
            found.reduction,
            "'sum_over_batch_size', 'mean_with_sample_weight' or 'sum'",
        )
    function = function_of(found)
    if function is None or activation is None:
        return found
    check_meaning(found, activation, pads_classes, f"loss='auto', here {type(default).__name__}")
    if function is function_of(default) and not isinstance(_only_one(loss), losses.Loss):
        return default
    if OF_ACTIVATION.get(function) == activation and type(found) is CLASSES[function]:
        return type(found).from_config({**found.get_config(), "from_logits": True})
    return found


def find_loss(loss):
    """Return the loss to use for an argument of `compile`, or None for "crossentropy".

    Keras losses are converted to instances when they are passed as a name, a function or a
    `functools.partial`.

    Raises:
        ValueError: If the name is unknown, or if several losses are passed.
    """
    loss = _only_one(loss)
    if isinstance(loss, str) and loss.lower() in ("auto", "crossentropy", "ce"):
        return None
    found = _by_name(loss) if isinstance(loss, str) else loss
    found = found() if inspect.isclass(found) else found
    if not callable(found):
        raise invalid("loss", loss, "a name, a function or a keras.losses.Loss")
    keywords = {}
    if isinstance(found, functools.partial) and not found.args:
        found, keywords = found.func, found.keywords
    is_function = inspect.isfunction(found) and found in CLASSES
    return CLASSES[found](**keywords) if is_function else loss if keywords else found


def _only_one(loss):
    """Return the only loss in a list or dict."""
    if not isinstance(loss, list | tuple | dict):
        return loss
    values = list(loss.values() if isinstance(loss, dict) else loss)
    if len(values) != 1 or isinstance(values[0], list | tuple | dict):
        raise invalid(
            "loss", loss, "a single loss. To sum losses, pass a function of labels and outputs"
        )
    return values[0]


def _by_name(name: str):
    try:
        return losses.get(name)
    except ValueError:
        known = ["auto", "crossentropy", *sorted(f.__name__ for f in FUNCTIONS)]
        close = close_names(name.lower(), known, most=2)
        raise ValueError(
            f"Unknown loss {name!r}.{did_you_mean(close)} Expected a name in keras.losses, a "
            "function or a loss instance."
        ) from None


def check_meaning(loss, activation: str, pads_classes: bool, expected: str) -> None:
    """Raise a ValueError if a Keras loss does not fit the task outputs.

    Args:
        loss: A loss instance, function or metric.
        activation: String, see `resolve_loss`.
        pads_classes: Boolean, see `resolve_loss`.
        expected: String. Suggestion to add to the error message.
    """
    name, function = name_of(loss), function_of(loss)
    if function in OF_OTHER_THINGS:
        raise ValueError(
            f"{name} needs {OF_OTHER_THINGS[function]}, which this task does not predict. "
            f"Expected {expected}."
        )
    if function in OF_INDICES and activation != "softmax":
        raise ValueError(
            f"{name} needs one class for each text, which this task does not learn. "
            f"Expected {expected}."
        )
    of_logits = OF_ACTIVATION.get(function) == "sigmoid" and argument_of(loss, "from_logits")
    if activation == "linear" and function in OF_PROBABILITIES and not of_logits:
        raise ValueError(
            f"{name} needs probabilities, but this task predicts numbers. Expected {expected}, or "
            "a regression loss such as 'mae' or 'huber'."
        )
    smooths = argument_of(loss, "label_smoothing")
    if pads_classes and (function not in OF_TRUE_CLASS or smooths):
        what = "smooths labels over" if smooths else "is a mean over"
        raise ValueError(
            f"{name} {what} all classes, but some classes of this task are padding. Expected "
            f"{expected}, or a cross-entropy without label smoothing."
        )


def takes_probabilities(loss) -> bool:
    """Return whether a Keras loss or metric receives probabilities instead of logits."""
    function = function_of(loss)
    return (
        function is not None and function not in OF_MARGINS and not argument_of(loss, "from_logits")
    )


def inputs_of_function(function, logits: bool, y_true, y_pred, activation: str | None) -> tuple:
    """Convert labels and outputs to the inputs expected by a Keras function.

    Args:
        function: A function from `FUNCTIONS`.
        logits: Boolean. Whether to pass logits to this function.
        y_true: Class indices with shape (B, ...), or labels with shape (B, ..., C).
        y_pred: The logits with shape (B, ..., C).
        activation: Optional string, see `resolve_loss`.

    Example:
        >>> y_true, y_pred = inputs_of_function(
        ...     losses.poisson, False, ops.convert_to_tensor([1]), ops.zeros((1, 2)), "softmax"
        ... )
        >>> y_true.numpy().tolist(), y_pred.numpy().tolist()
        ([[0.0, 1.0]], [[0.5, 0.5]])
    """
    if activation in ACTIVATIONS and not logits:
        y_pred = ACTIVATIONS[activation](y_pred)
        if OF_ACTIVATION.get(function) != activation:
            # On TensorFlow, Keras attaches the logits to probabilities and would use them instead.
            y_pred = y_pred * 1.0
    if activation == "softmax" and function not in OF_INDICES and are_indices(y_true, y_pred):
        y_true = ops.one_hot(ops.cast(y_true, "int32"), y_pred.shape[-1], dtype=y_pred.dtype)
    return y_true, y_pred


def are_indices(y_true, scores) -> bool:
    """Return whether labels are class indices, with a single value for each row of C scores."""
    return len(y_true.shape) == len(scores.shape) - 1


def with_axis_of_outputs(y_true, y_pred):
    """Add an axis with size 1 to labels when the outputs have this axis.

    Without this axis, labels with shape (B,) and outputs with shape (B, 1) would be broadcast to
    (B, B).
    """
    if len(y_pred.shape) and y_pred.shape[-1] == 1 and are_indices(y_true, y_pred):
        return y_true[..., None]
    return y_true


def computes_rows(loss) -> bool:
    """Return whether a loss computes a value for each row independently from the rest.

    This is known for Keras losses and for losses with the attribute `leaves_out_rows`.
    """
    if isinstance(loss, losses.Loss) and type(loss).call not in CALLS:
        return getattr(type(loss).call, "leaves_out_rows", False)
    whole = (losses.dice, losses.tversky, *OF_OTHER_THINGS)
    function = function_of(loss)
    return function is not None and function not in whole
