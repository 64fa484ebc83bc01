"""The same names of TensorFlow's variables in all models of a class."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import keras

from encoder_zoo.common.lazy import array_ops, tf

# A model's own name, and those of its random generators, which Keras counts over the process.
_COUNTED = re.compile(r"(^[^/]+|/seed_generator)_\d+(?=/)")


class NamesVariablesAlike(type(keras.Model)):
    """Metaclass of models that gives TensorFlow's variables the same names in every instance.

    TensorFlow compiles the creation of a variable for each name and keeps what it compiled until
    the process ends, 35 kB for each variable. Keras calls the models of a class "bert_backbone",
    "bert_backbone_1" and so on, so that every model would add its number of variables. The names
    that Keras shows, of models, layers and weights, are not changed.
    """

    def __call__(cls, *args, **kwargs):
        with variables_named_alike():
            return super().__call__(*args, **kwargs)


@contextlib.contextmanager
def variables_named_alike() -> Iterator[None]:
    """Remove the numbers that Keras counts over the process from TensorFlow's names of new
    variables.

    Example:
        >>> import tensorflow as tf
        >>> with variables_named_alike(), tf.name_scope("bert_backbone_7"):
        ...     tf.Variable(0.0, name="bias").name
        'bert_backbone/bias:0'
    """
    if keras.config.backend() != "tensorflow":
        yield
        return
    with tf.variable_creator_scope(_create_named_alike):
        yield


def _create_named_alike(next_creator: Callable, **kwargs) -> tf.Variable:
    if not array_ops.executing_eagerly():  # a graph takes variables of one name for one variable
        return next_creator(**kwargs)
    with tf.name_scope(kwargs.get("name") or "Variable") as path:
        name = _COUNTED.sub(r"\1", path)  # its last character, a slash, says that it is complete
    return next_creator(**{**kwargs, "name": name})
