"""NumPy versions of TensorFlow operations for arithmetic and loops. See `numpy_ops`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from encoder_zoo.common.ragged_array import Array, RaggedArray, make_array


def wrap_numpy(function: Callable) -> Callable:
    """Wrap a NumPy function so that positional arguments have the same order as in TensorFlow."""

    def operation(*values, **options):
        return make_array(function(*map(make_array, values), **options))

    return operation


def make_sizes(shape) -> tuple[int, ...]:
    return tuple(np.asarray(shape, np.int64).reshape(-1).tolist())


def stack(values, axis: int = 0) -> Array:
    return make_array(np.stack([make_array(value) for value in values], axis))


def zeros(shape, dtype=np.float32) -> Array:
    return np.zeros(make_sizes(shape), dtype).view(Array)


def argsort(values, axis: int = -1, direction: str = "ASCENDING", stable: bool = False) -> Array:
    values = make_array(values)
    if direction == "DESCENDING":  # keep the order of equal values
        last = values.shape[axis] - 1
        turned = np.argsort(np.flip(values, axis), axis, kind="stable")
        return make_array((last - np.flip(turned, axis)).astype(np.int32))
    return make_array(np.argsort(values, axis, kind="stable").astype(np.int32))


# -- numbers -------------------------------------------------------------------------------------


def make_reduction(function: Callable, **options) -> Callable:
    """Create a function that reduces an array along an axis without changing its dtype."""

    def reduce(values, axis=None, keepdims: bool = False) -> Array:
        if isinstance(values, RaggedArray):
            rows = [function(row, **options) for row in values]
            return make_array(np.asarray(rows, values.dtype))
        values, axis = make_array(values), tuple(axis) if isinstance(axis, list) else axis
        found = function(values, axis=axis, keepdims=keepdims, **options)
        return make_array(found, values.dtype)

    return reduce


reduce_sum, reduce_all, reduce_any = (
    make_reduction(np.sum),
    make_reduction(np.all),
    make_reduction(np.any),
)


def reduce_max(values, axis=None, keepdims: bool = False) -> Array:
    values = make_array(values)
    least = {"f": -np.inf, "b": False}.get(values.dtype.kind)
    least = np.iinfo(values.dtype).min if least is None else least
    return make_array(np.max(values, axis, keepdims=keepdims, initial=least), values.dtype)


def reduce_min(values, axis=None, keepdims: bool = False) -> Array:
    values = make_array(values)
    most = np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).max
    return make_array(np.min(values, axis, keepdims=keepdims, initial=most), values.dtype)


def reduce_logsumexp(values, axis=None, keepdims: bool = False) -> Array:
    values = make_array(values)
    most = np.max(values, axis=axis, keepdims=True)
    total = np.log(np.sum(np.exp(values - most), axis=axis, keepdims=True)) + most
    return make_array(total if keepdims else np.squeeze(total, axis))


def cumsum(values, axis: int = 0, exclusive: bool = False) -> Array:
    values = make_array(values)
    total = np.cumsum(values, axis, dtype=values.dtype)
    return make_array(total - values if exclusive else total)


def reduce_segments(function: np.ufunc, values, segment_ids) -> Array:
    """Reduce the values of each segment. The ids must be sorted, and no id may be skipped."""
    values, ids = make_array(values), np.asarray(segment_ids)
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    return make_array(function.reduceat(values, starts)) if len(values) else values


def segment_mean(values, segment_ids) -> Array:
    values = make_array(values)
    counts = np.bincount(np.asarray(segment_ids)).reshape(-1, *[1] * (values.ndim - 1))
    total = reduce_segments(np.add, values, segment_ids)
    return make_array((total / counts).astype(values.dtype)) if len(values) else values


def unsorted_segment_sum(values, segment_ids, num_segments) -> Array:
    values = make_array(values)
    found = np.zeros((int(num_segments), *values.shape[1:]), values.dtype)
    np.add.at(found, np.asarray(segment_ids), values)
    return make_array(found)


def unsorted_segment_max(values, segment_ids, num_segments) -> Array:
    values = make_array(values)
    limits = np.finfo if values.dtype.kind == "f" else np.iinfo
    found = np.full((int(num_segments), *values.shape[1:]), limits(values.dtype).min, values.dtype)
    np.maximum.at(found, np.asarray(segment_ids), values)
    return make_array(found)


def bincount(values, minlength: int = 0, maxlength: int = 0, axis=None, **options) -> Array:
    rows = [np.bincount(row, minlength=int(minlength)) for row in np.asarray(values)]
    return np.asarray(rows, np.int32).view(Array)


def top_k(values, k: int) -> tuple[Array, Array]:
    order = argsort(values, direction="DESCENDING")[..., : int(k)]
    return make_array(np.take_along_axis(make_array(values), order, -1)), make_array(order)


def count_nonzero(values, axis=None, dtype=np.int64) -> Array:
    return make_array(np.asarray(np.count_nonzero(make_array(values), axis), dtype))


def softmax(values, axis: int = -1) -> Array:
    values = make_array(values)
    powers = np.exp(values - values.max(axis, keepdims=True, initial=-np.inf))
    return make_array(powers / powers.sum(axis, keepdims=True))


def sigmoid(values) -> Array:
    values = make_array(values)
    powers = np.exp(-np.abs(values))
    return make_array((np.where(values >= 0, 1, powers) / (1 + powers)).astype(values.dtype))


def frame(values, frame_length: int, frame_step: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(make_array(values), int(frame_length), -1)
    return make_array(windows[..., :: int(frame_step), :].copy())


maximum, minimum = wrap_numpy(np.maximum), wrap_numpy(np.minimum)
equal, logical_not = wrap_numpy(np.equal), wrap_numpy(np.logical_not)
exp, round = wrap_numpy(np.exp), wrap_numpy(np.round)
clip_by_value = wrap_numpy(np.clip)


# -- loops ---------------------------------------------------------------------------------------


class TensorArray:
    """A list of arrays. See `tf.TensorArray`."""

    def __init__(self, dtype=None, size=0, **options):
        self._values: list[Any] = [None] * int(size)

    def write(self, index, value) -> TensorArray:
        self._values[int(index)] = value
        return self

    def read(self, index):
        return self._values[int(index)]

    def stack(self) -> Array:
        return make_array(np.stack(self._values)) if self._values else zeros([0])

    def concat(self) -> Array:
        return make_array(np.concatenate(self._values)) if self._values else zeros([0])


def while_loop(cond: Callable, body: Callable, loop_vars, **options):
    while cond(*loop_vars):
        loop_vars = body(*loop_vars)
    return loop_vars


def cond(predicate, true_fn: Callable, false_fn: Callable):
    return true_fn() if predicate else false_fn()


def scan(function: Callable, elements, initializer):
    """Apply a function to the previous result and each element. Return all results in an array."""
    found = list(itertools.accumulate(elements, function, initial=initializer))[1:]
    return map_structure(lambda *parts: stack(parts), *found)


def map_structure(function: Callable, first, *others, expand_composites: bool = False):
    """Apply a function to the values of nested dicts, tuples and lists with the same structure."""
    if isinstance(first, Mapping):
        rows = ((name, [values[name] for values in (first, *others)]) for name in first)
        return {name: map_structure(function, *row) for name, row in rows}
    if isinstance(first, tuple | list):
        parts = [map_structure(function, *row) for row in zip(first, *others, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return function(first, *others)


def flatten(values) -> list:
    """Return all values of nested dicts, tuples and lists. Dict keys are sorted."""
    if isinstance(values, Mapping):
        values = [values[name] for name in sorted(values)]
    if not isinstance(values, tuple | list):
        return [values]
    return [value for part in values for value in flatten(part)]


# -- random numbers ------------------------------------------------------------------------------


def make_generator(seed) -> np.random.Generator:
    """Create a random generator from a seed, an integer array of shape (2,)."""
    return np.random.default_rng([int(number) % 2**63 for number in seed])


def stateless_shuffle(values, seed) -> Array:
    return make_array(make_generator(seed).permutation(make_array(values)))


def stateless_uniform(shape, seed, minval=0, maxval=None, dtype=np.float32) -> Array:
    draws, dtype = make_generator(seed), np.dtype(dtype)
    if dtype.kind == "i":
        return draws.integers(minval, maxval, make_sizes(shape), dtype).view(Array)
    most = 1 if maxval is None else maxval
    return (minval + (most - minval) * draws.random(make_sizes(shape), dtype)).view(Array)
