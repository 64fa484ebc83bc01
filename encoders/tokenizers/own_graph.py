"""Compiles methods of an object to graphs that only the object holds."""

import functools
import weakref
from collections.abc import Callable, Sequence

import tensorflow as tf


def _call(method: weakref.WeakMethod, *args):
    return method()(*args)


def graph_of_method(method: Callable, signature: Sequence[tf.TypeSpec] | None = None) -> Callable:
    """Compile a method to a `tf.function` of its own object.

    A partial function avoids TensorFlow's warning of repeated tracing, which counts the methods of
    all objects of a class as one function. The graph holds a weak reference to the object, so that
    the object's tables are freed with it.
    """
    partial = functools.partial(_call, weakref.WeakMethod(method))
    return tf.function(
        partial, input_signature=signature, autograph=False, reduce_retracing=signature is None
    )
