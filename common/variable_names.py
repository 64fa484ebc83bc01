"""Use the same TensorFlow variable names in all instances of a model class."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import keras

from encoder_zoo.common.lazy import array_ops, tf

# Model and random generator names end with a number that Keras counts in each process.
_COUNTED = re.compile(r"(^[^/]+|/seed_generator)_\d+(?=/)")


class NamesVariablesAlike(type(keras.Model)):  # type: ignore[misc]
    """Metaclass that gives TensorFlow variables the same names in every instance of a model.

    For each new variable name, TensorFlow compiles code that creates the variable and keeps 35 kB
    until the process ends. Because Keras names models "bert_backbone", "bert_backbone_1" and so on,
    the memory would grow with every new model. The names that Keras shows for models, layers and
    weights do not change.
    """

    def __call__(cls, *args, **kwargs):
        with name_variables_alike():
            return super().__call__(*args, **kwargs)


@contextlib.contextmanager
def name_variables_alike() -> Iterator[None]:
    """Return a context manager that removes counters from the TensorFlow names of new variables.

    Example:
        >>> import tensorflow as tf
        >>> with name_variables_alike(), tf.name_scope("bert_backbone_7"):
        ...     tf.Variable(0.0, name="bias").name
        'bert_backbone/bias:0'
    """
    if keras.config.backend() != "tensorflow":
        yield
        return
    with tf.variable_creator_scope(_create_named_alike):
        yield


def _create_named_alike(next_creator: Callable, **kwargs) -> tf.Variable:
    if not array_ops.executing_eagerly():  # in a graph, equal names refer to the same variable
        return next_creator(**kwargs)
    with tf.name_scope(kwargs.get("name") or "Variable") as path:
        name = _COUNTED.sub(r"\1", path)  # TensorFlow does not change a name that ends with a slash
    return next_creator(**{**kwargs, "name": name})
