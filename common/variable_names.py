"""Use the same TensorFlow variable names for all instances of a model class."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import keras

from encoder_zoo.common.lazy import tf, xp

# Keras adds a number to the names of models and random generators, e.g. "bert_backbone_1".
_COUNTED = re.compile(r"(^[^/]+|/seed_generator)_\d+(?=/)")


class SharedVariableNames(type(keras.Model)):  # type: ignore[misc]
    """Metaclass that gives the TensorFlow variables of all instances of a model the same names.

    Equal names save memory and time. For each variable name, TensorFlow compiles code that creates
    the variable, and allocates 35 kB until the process ends. By default, the names are different
    for each model, because Keras uses model names such as "bert_backbone" and "bert_backbone_1".
    This class does not change the Keras names of models, layers and weights.
    """

    def __call__(cls, *args, **kwargs):
        with share_variable_names():
            return super().__call__(*args, **kwargs)


@contextlib.contextmanager
def share_variable_names() -> Iterator[None]:
    """Context manager that removes numbers from the TensorFlow names of new variables.

    Example:
        >>> import tensorflow as tf
        >>> with share_variable_names(), tf.name_scope("bert_backbone_7"):
        ...     tf.Variable(0.0, name="bias").name
        'bert_backbone/bias:0'
    """
    if keras.config.backend() != "tensorflow":
        yield
        return
    with tf.variable_creator_scope(_create_without_number):
        yield


def _create_without_number(next_creator: Callable, **kwargs) -> tf.Variable:
    if not xp.executing_eagerly():  # in a graph, the same name refers to the same variable
        return next_creator(**kwargs)
    with tf.name_scope(kwargs.get("name") or "Variable") as path:
        name = _COUNTED.sub(r"\1", path)  # TensorFlow does not change a name that ends with a slash
    return next_creator(**{**kwargs, "name": name})
