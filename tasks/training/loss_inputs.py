"""Inputs that the losses of Keras expect, made of a task's logits.

A loss is known by its function, whether `compile` gets a name, the function, `functools.partial` of
it, a class, an instance, or an instance of a subclass. The metrics that compute the mean of such a
function have the same inputs, see `logit_metrics`.

Comment letters: B batch, C classes.
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
# Of margins, which logits are: a probability cannot reach the margin.
OF_MARGINS = {losses.hinge, losses.squared_hinge, losses.categorical_hinge}
# Keras's names tell what a loss is of, also of those that a later Keras adds.
OF_ONE_CLASS = {f for f in FUNCTIONS if "categorical" in f.__name__}
OF_INDICES = {f for f in OF_ONE_CLASS if f.__name__.startswith("sparse_")}
OF_INDICES |= {losses.categorical_generalized_cross_entropy}
# Without a meaning for numbers, which may be below 0 and above 1.
OF_PROBABILITIES = {
    *WITH_LOGITS,
    *OF_ONE_CLASS,
    losses.kl_divergence,
    losses.poisson,
    losses.dice,
    losses.tversky,
}
# The losses to which a class with label 0 and probability 0 adds nothing.
OF_TRUE_CLASS = {*OF_ONE_CLASS, losses.kl_divergence, losses.cosine_similarity}
OF_TRUE_CLASS -= {losses.categorical_hinge}
OF_OTHER_THINGS = {
    losses.ctc: "sequences of symbols",
    losses.circle: "embeddings of unit length",
}
# The cross-entropies of a task's own activation, which are computed from the logits.
OF_ACTIVATION = {f: "softmax" if f in OF_ONE_CLASS else "sigmoid" for f in WITH_LOGITS}
# The base of Keras's losses that compute a function, and that of its metrics.
WRAPPERS = (*losses.MeanSquaredError.__bases__, metrics.MeanMetricWrapper)


def wrapped_function(wrapper):
    """Return the function of a loss or metric of Keras's, whatever the attribute's name is.

    Args:
        wrapper: anything; None is returned for what wraps no function.

    Example:
        >>> wrapped_function(losses.Huber()) is losses.huber
        True
    """
    held = vars(wrapper).values() if isinstance(wrapper, WRAPPERS) else ()
    return next(
        (f for f in held if inspect.isfunction(f) or isinstance(f, functools.partial)), None
    )


def keywords_of(wrapper) -> dict:
    """Return the keyword arguments that a loss or metric of Keras's passes to its function."""
    held = vars(wrapper).values() if isinstance(wrapper, WRAPPERS) else ()
    return {
        name: value for found in held if isinstance(found, dict) for name, value in found.items()
    }


CLASSES = {
    wrapped_function(cls()): cls
    for cls in vars(losses).values()
    if inspect.isclass(cls) and cls is not losses.Loss
}
# The methods of Keras's losses: a loss with others computes or reduces in its own way.
CALLS = {cls.call for cls in CLASSES.values()}
REDUCTIONS = {cls.__call__ for cls in (losses.Loss, *CLASSES.values())}


def function_of(loss):
    """Return the function of Keras's that a loss computes; None for any other loss.

    Args:
        loss: Loss instance, function or `functools.partial`, or a metric that is the mean of one.

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
    """Return an argument that a loss passes to its function, or None.

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
    """Return the name of a loss or metric for a message, such as "KLDivergence"."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


def resolve_loss(
    loss,
    default: losses.Loss,
    activation: str | None,
    pads_classes: bool = False,
):
    """Return the loss that a task computes for the one that `compile` gets.

    Args:
        loss: Name, function, class or instance, or a list or dict that holds only one of these.
        default: Loss of the task, which names such as "crossentropy" mean.
        activation: Function that makes probabilities of the outputs: "softmax" or "sigmoid".
            "linear" for numbers, None for outputs of an unknown kind.
        pads_classes: Whether the classes of an example are padded to those of other examples.

    Returns:
        A `keras.losses.Loss` or a function of labels and outputs. The cross-entropies of the task's
        activation are computed from logits.

    Raises:
        ValueError: If the loss is unknown, has no meaning for this task's outputs, or has no
            reduction to a number.

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
    """Return the loss that an argument of `compile` means; None for "crossentropy".

    Names, functions and `functools.partial` of Keras's become instances of its classes.

    Raises:
        ValueError: If the name is unknown, or there are several losses.
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
    """Return the loss in a list or dict of one."""
    if not isinstance(loss, list | tuple | dict):
        return loss
    values = list(loss.values() if isinstance(loss, dict) else loss)
    if len(values) != 1 or isinstance(values[0], list | tuple | dict):
        raise invalid(
            "loss", loss, "a single loss; a sum of losses is a function of labels and outputs"
        )
    return values[0]


def _by_name(name: str):
    try:
        return losses.get(name)
    except ValueError:
        known = ["auto", "crossentropy", *sorted(f.__name__ for f in FUNCTIONS)]
        close = close_names(name.lower(), known, most=2)
        raise ValueError(
            f"Unknown loss {name!r}.{did_you_mean(close)} Names are those of keras.losses; other "
            "losses are passed as objects."
        ) from None


def check_meaning(loss, activation: str, pads_classes: bool, expected: str) -> None:
    """Raise a ValueError if a loss of Keras's has no meaning for a task's outputs.

    Args:
        loss: Loss instance or function, or a metric, for messages and arguments.
        activation, pads_classes: As for `resolve_loss`.
        expected: What the message proposes.
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
            f"{name} needs probabilities, and this task predicts numbers. Expected {expected}, or "
            "a loss of numbers, such as 'mae' or 'huber'."
        )
    smooths = argument_of(loss, "label_smoothing")
    if pads_classes and (function not in OF_TRUE_CLASS or smooths):
        what = "smooths labels over" if smooths else "is a mean over"
        raise ValueError(
            f"{name} {what} all classes, and here some are padding. Expected {expected}, or a "
            "cross-entropy without label smoothing."
        )


def takes_probabilities(loss) -> bool:
    """Return whether a loss of Keras's, or a metric, gets probabilities and not logits."""
    function = function_of(loss)
    return (
        function is not None and function not in OF_MARGINS and not argument_of(loss, "from_logits")
    )


def inputs_of_function(function, logits: bool, y_true, y_pred, activation: str | None) -> tuple:
    """Return labels and outputs as a function of Keras's expects them.

    Args:
        function: One of `FUNCTIONS`.
        logits: Whether the function takes logits.
        y_true: Class indices of shape (B, ...), or labels of shape (B, ..., C).
        y_pred: Logits of shape (B, ..., C).
        activation: As for `resolve_loss`.

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
            # Keras on TensorFlow remembers the logits of probabilities, and takes them for those of
            # its own activation.
            y_pred = y_pred * 1.0
    if activation == "softmax" and function not in OF_INDICES and are_indices(y_true, y_pred):
        y_true = ops.one_hot(ops.cast(y_true, "int32"), y_pred.shape[-1], dtype=y_pred.dtype)
    return y_true, y_pred


def are_indices(y_true, scores) -> bool:
    """Return whether labels are one number for each row of C scores."""
    return len(y_true.shape) == len(scores.shape) - 1


def with_axis_of_outputs(y_true, y_pred):
    """Return labels with the last axis of size 1 that outputs have.

    Labels (B,) and outputs (B, 1) of numbers would be compared each with each otherwise.
    """
    if len(y_pred.shape) and y_pred.shape[-1] == 1 and are_indices(y_true, y_pred):
        return y_true[..., None]
    return y_true


def computes_rows(loss) -> bool:
    """Return whether a loss is known to have a value for each row that other rows do not change.

    It is one of Keras's, or says so by `leaves_out_rows`.
    """
    if isinstance(loss, losses.Loss) and type(loss).call not in CALLS:
        return getattr(type(loss).call, "leaves_out_rows", False)
    whole = (losses.dice, losses.tversky, *OF_OTHER_THINGS)
    function = function_of(loss)
    return function is not None and function not in whole
