"""Private names of TensorFlow that this package uses. Each function explains the reason."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Iterator

import keras

from encoder_zoo.common.lazy import tf

_TRAINED: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_GONE: list[None] = []  # one item per deleted model, which any thread can append
MIN_DELETED_MODELS = 6


def drop_unused_kernels(model: keras.Model) -> None:
    """Free the memory of TensorFlow kernels if several models have been deleted.

    By default, TensorFlow keeps all kernels until the process ends. The kernels of a small model
    need about 3 MB. To free the memory, all kernels are deleted. If a kernel is still in use,
    TensorFlow will create it again.

    Args:
        model: The model that is trained next.
    """
    if keras.config.backend() != "tensorflow":
        return
    if len(_GONE) >= MIN_DELETED_MODELS:
        _GONE.clear()
        # Part of the implementation of `keras.utils.clear_session`.
        from tensorflow.python.eager import context

        context.context().clear_kernel_cache()
    if model not in _TRAINED:
        _TRAINED.add(model)
        weakref.finalize(model, _GONE.append, None).atexit = False


@contextlib.contextmanager
def disable_graph_rewriting(applies: bool) -> Iterator[None]:
    """Context manager that disables graph optimization (Grappler) in TensorFlow.

    Grappler takes half a second for a small model. Each graph should always be called with the same
    setting, because otherwise TensorFlow would prepare the graph again. The public TensorFlow
    option is not used, because it would change the setting for all graphs in the process.

    Args:
        applies: Boolean. Whether to disable graph optimization. If False, nothing is changed.
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


def set_unique_group_keys(strategy: tf.distribute.MirroredStrategy) -> None:
    """Set unique group keys for the collective operations of a distribution strategy.

    By default, TensorFlow uses the same keys for all strategies, and checks that the shapes for
    each key are the same. If a second strategy on the same devices has gradients with different
    shapes, TensorFlow would raise the error "Shape mismatch in the collective instance". The same
    error occurs for other Keras models.

    Args:
        strategy: The strategy with which a model is built.
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
