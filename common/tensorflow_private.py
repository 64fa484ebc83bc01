"""Private TensorFlow names used in this package. Each function explains why it needs them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Iterator

import keras

from encoder_zoo.common.lazy import tf

_TRAINED: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_GONE: list[None] = []  # one entry per deleted model, appended from any thread
GONE_AT_ONCE = 6


def drop_unused_kernels(model: keras.Model) -> None:
    """Make TensorFlow free the kernels of deleted models, after several models were deleted.

    TensorFlow keeps the kernels of every graph until the process ends, about 3 MB for a small
    model. It can only free all kernels together. Kernels that are still needed are created again on
    the next run.

    Args:
        model: The model that will be trained next.
    """
    if keras.config.backend() != "tensorflow":
        return
    if len(_GONE) >= GONE_AT_ONCE:
        _GONE.clear()
        # This is part of `keras.utils.clear_session`, which resets more.
        from tensorflow.python.eager import context

        context.context().clear_kernel_cache()
    if model not in _TRAINED:
        _TRAINED.add(model)
        weakref.finalize(model, _GONE.append, None).atexit = False


@contextlib.contextmanager
def disable_graph_rewriting(applies: bool) -> Iterator[None]:
    """Make TensorFlow run the graphs in a `with` block as traced, without rewriting them.

    Grappler, which rewrites graphs, takes half a second for a small model. Each graph must always
    be called with the same setting. Otherwise, TensorFlow prepares the graph again. The public
    option of TensorFlow would affect the whole process.

    Args:
        applies: Boolean. If False, graphs are rewritten as usual.
    """
    if not applies:
        yield
        return
    from tensorflow.python.eager import context

    now = context.context()
    before = now.function_call_options
    config = _disable_rewriting(before.config_proto_serialized)
    now.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        now.function_call_options = before


@functools.lru_cache(maxsize=8)
def _disable_rewriting(config: bytes) -> tf.compat.v1.ConfigProto:
    changed = tf.compat.v1.ConfigProto.FromString(config)
    changed.graph_options.rewrite_options.disable_meta_optimizer = True
    return changed


def separate_collectives(strategy: tf.distribute.MirroredStrategy) -> None:
    """Give a distribution strategy its own TensorFlow collective group keys.

    In every strategy, TensorFlow numbers collectives from the same start, and it remembers the
    shape for each number. For this reason, a second strategy on the same devices fails with "Shape
    mismatch in the collective instance" if its gradients have different shapes. This also happens
    in plain Keras.

    Args:
        strategy: The strategy whose scope will be used to build a model.
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
