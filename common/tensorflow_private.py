"""Private names of TensorFlow that this package uses, each with the reason why."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Iterator

import keras

from encoder_zoo.common.lazy import tf

_TRAINED: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_GONE: list[None] = []  # one entry for each trained model that is gone; threads may append
GONE_AT_ONCE = 6


def drop_kernels_of_models_gone(model: keras.Model) -> None:
    """Have TensorFlow drop the kernels of trained models that are gone, some models at a time.

    It keeps those of each graph that has run, 3 MB of a small model, as long as the process lives,
    and can drop only all of them; those that are in use are made again when they run next.

    Args:
        model: that is trained next.
    """
    if keras.config.backend() != "tensorflow":
        return
    if len(_GONE) >= GONE_AT_ONCE:
        _GONE.clear()
        # As in `keras.utils.clear_session`, which forgets more.
        from tensorflow.python.eager import context

        context.context().clear_kernel_cache()
    if model not in _TRAINED:
        _TRAINED.add(model)
        weakref.finalize(model, _GONE.append, None).atexit = False


@contextlib.contextmanager
def graphs_as_traced(applies: bool) -> Iterator[None]:
    """Have TensorFlow run the graphs that are called inside as they are, not rewritten before.

    Rewriting (Grappler) takes half a second of a small model. A graph must be called alike each
    time, else TensorFlow prepares it again; the public option is that of the whole process.

    Args:
        applies: whether to do so.
    """
    if not applies:
        yield
        return
    from tensorflow.python.eager import context

    now = context.context()
    before = now.function_call_options
    config = _not_rewriting(before.config_proto_serialized)
    now.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        now.function_call_options = before


@functools.lru_cache(maxsize=8)
def _not_rewriting(config: bytes) -> tf.compat.v1.ConfigProto:
    changed = tf.compat.v1.ConfigProto.FromString(config)
    changed.graph_options.rewrite_options.disable_meta_optimizer = True
    return changed


def separate_collectives(strategy: tf.distribute.MirroredStrategy) -> None:
    """Give a strategy group keys of its own for TensorFlow's collectives.

    TensorFlow numbers the collectives of every strategy from the same start and remembers the shape
    of each number, so that a second strategy on the same devices fails with "Shape mismatch in the
    collective instance" as soon as its gradients have other shapes. Plain Keras fails in that way.

    Args:
        strategy: in whose scope a model is built.
    """
    extended = strategy.extended
    if strategy in _SEPARATED or not hasattr(extended, "_make_collective_ops_with_fallbacks"):
        return
    _SEPARATED.add(strategy)
    extended._collective_key_base = next(_KEY_BASES)
    collectives = extended._make_collective_ops_with_fallbacks()
    if extended._cross_device_ops is extended._collective_ops:
        extended._cross_device_ops = collectives
    extended._collective_ops = collectives


_SEPARATED: weakref.WeakSet = weakref.WeakSet()  # strategies
_KEY_BASES = itertools.count(1_000, 100)
