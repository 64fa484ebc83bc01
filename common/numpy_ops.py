"""NumPy implementation of TensorFlow operations for preprocessing.

All names are the same as in TensorFlow, so the same code can be used for all backends. On JAX and
PyTorch, `common.lazy.xp` uses this module. Arrays have the type `Array`, ragged tensors have
the type `RaggedArray`, and strings are encoded to UTF-8 in object arrays.

See TensorFlow for the documentation. Only differences are documented here.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from encoder_zoo.common.numpy_strings import strings  # noqa: F401
from encoder_zoo.common.ragged_array import Array, RaggedArray, concatenate_ranges, make_array
from encoder_zoo.common.wording import invalid

Tensor, RaggedTensor = Array, RaggedArray
bool, string = np.dtype("bool"), np.dtype(object)
int32, int64 = np.dtype("int32"), np.dtype("int64")
float32 = np.dtype("float32")
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")


class TensorShape(tuple):
    """Shape of an array, as a tuple with a `rank` attribute. None is used for unknown sizes."""

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    def is_compatible_with(self, other) -> builtins.bool:
        """Return whether all known sizes are equal."""
        pairs = zip(self, other, strict=False)
        return len(self) == len(other) and all(None in (a, b) or a == b for a, b in pairs)


def as_dtype(dtype) -> SimpleNamespace:
    """Return the attributes `name`, `is_floating`, `is_integer` and `is_bool` of a dtype."""
    kind = np.dtype(dtype).kind
    answers = {"is_floating": kind == "f", "is_integer": kind in "iu", "is_bool": kind == "b"}
    return SimpleNamespace(name=np.dtype(dtype).name, **answers)


def wrap_numpy(function: Callable) -> Callable:
    """Wrap a NumPy function so that positional arguments and the result become an `Array`."""

    def operation(*values, **options):
        return make_array(function(*map(make_array, values), **options))

    return operation


def convert_shape(shape) -> tuple[int, ...]:
    return tuple(np.asarray(shape, np.int64).reshape(-1).tolist())


# -- arrays --------------------------------------------------------------------------------------


def constant(value, dtype=None, shape=None) -> Array:
    if isinstance(value, list | tuple) and any(isinstance(v, np.ndarray) for v in value):
        value = np.stack(value)
    array = make_array(value, dtype and np.dtype(dtype))
    return array if shape is None else np.broadcast_to(array, tuple(shape)).view(Array)


def convert_to_tensor(value, dtype=None):
    if isinstance(value, RaggedArray):
        return value
    if hasattr(value, "row_splits"):  # a TensorFlow ragged tensor
        return RaggedArray(convert_to_tensor(value.values), value.row_splits)
    return constant(value, dtype)


def is_tensor(value) -> builtins.bool:
    return isinstance(value, Array | RaggedArray)


def is_symbolic_tensor(value) -> builtins.bool:
    return False


def executing_eagerly() -> builtins.bool:
    return True


def init_scope():
    return contextlib.nullcontext()


def device(name: str):
    return contextlib.nullcontext()


def cast(value, dtype):
    dtype = np.dtype(dtype)
    if isinstance(value, RaggedArray):
        return value.with_flat_values(cast(value.flat_values, dtype))
    return make_array(value).astype(dtype)


def identity(value):
    return value


def ensure_shape(value, shape):
    sizes = zip(value.shape, shape, strict=True)
    if any(wanted not in (None, size) for size, wanted in sizes):
        raise invalid("shape", tuple(value.shape), f"{tuple(shape)}")
    return value


def shape(value, out_type=int32) -> Array:
    if isinstance(value, RaggedArray):
        return np.asarray([len(value), -1], out_type).view(Array)
    return np.asarray(np.shape(value), out_type).view(Array)


def size(value, out_type=int32) -> Array:
    return make_array(np.asarray(np.size(value), out_type))


def reshape(value, shape) -> Array:
    return make_array(make_array(value).reshape(convert_shape(shape)))


def broadcast_to(value, shape) -> Array:
    return make_array(np.broadcast_to(make_array(value), convert_shape(shape)))


def fill(dims, value) -> Array:
    value = make_array(value)
    return np.full(convert_shape(dims), value, value.dtype).view(Array)


def ones(shape, dtype=float32) -> Array:
    return np.ones(convert_shape(shape), dtype).view(Array)


def zeros_like(value, dtype=None) -> Array:
    return make_array(np.zeros_like(make_array(value), dtype))


def ones_like(value, dtype=None) -> Array:
    return make_array(np.ones_like(make_array(value), dtype))


def range(start, limit=None, delta=1, dtype=None) -> Array:
    if limit is None:
        start, limit = 0, start
    values = [value for value in (start, limit) if isinstance(value, np.ndarray | np.generic)]
    kind: Any = dtype or (np.result_type(*values) if values else int32)
    return np.arange(int(start), int(limit), int(delta), dtype=kind).view(Array)


def unstack(value, num: int | None = None, axis: int = 0) -> list[Array]:
    return [make_array(part) for part in np.moveaxis(make_array(value), axis, 0)]


def concat(values, axis: int = 0):
    if axis == 1 and any(isinstance(part, RaggedArray) for part in values):
        return _concat_rows(values)
    if isinstance(values[0], RaggedArray):
        inner = concat([rows.values for rows in values])
        lengths = np.concatenate([rows.row_lengths() for rows in values])
        return RaggedArray.from_row_lengths(inner, lengths)
    values = [value if is_tensor(value) else np.asarray(value) for value in values]
    first = next((value.dtype for value in values if is_tensor(value)), None)
    values = [v if is_tensor(v) or first is None else v.astype(first) for v in values]
    return make_array(np.concatenate(values, axis))


def _concat_rows(parts) -> RaggedArray:
    """Concatenate ragged and dense arrays along axis 1."""
    parts = [p if isinstance(p, RaggedArray) else RaggedArray.from_tensor(p) for p in parts]
    rows = np.concatenate([part.value_rowids() for part in parts])
    flat = np.concatenate([part.values for part in parts])
    lengths = sum(part.row_lengths() for part in parts)
    return RaggedArray.from_row_lengths(flat[np.argsort(rows, kind="stable")], lengths)


def pad(value, paddings, constant_values=0) -> Array:
    return make_array(np.pad(make_array(value), paddings, constant_values=constant_values))


def repeat(value, repeats, axis=None) -> Array:
    return make_array(np.repeat(make_array(value), repeats, axis))


def transpose(value, perm=None) -> Array:
    return make_array(np.transpose(make_array(value), perm))


def where(condition, x=None, y=None) -> Array:
    if x is None:
        return np.stack(np.nonzero(condition), axis=1).astype(np.int64).view(Array)
    x, y = (value if isinstance(value, np.ndarray) else np.asarray(value) for value in (x, y))
    kinds = [value for value in (x, y) if isinstance(value, Array)]
    dtype = kinds[0].dtype if kinds else None
    found = np.where(condition, x, y)
    return make_array(found, dtype) if dtype is not None else make_array(found.tolist())


def stack(values, axis: int = 0) -> Array:
    return make_array(np.stack([make_array(value) for value in values], axis))


def zeros(shape, dtype=np.float32) -> Array:
    return np.zeros(convert_shape(shape), dtype).view(Array)


def argsort(
    values, axis: int = -1, direction: str = "ASCENDING", stable: builtins.bool = False
) -> Array:
    values = make_array(values)
    if direction == "DESCENDING":  # keep the order of equal values
        last = values.shape[axis] - 1
        turned = np.argsort(np.flip(values, axis), axis, kind="stable")
        return make_array((last - np.flip(turned, axis)).astype(np.int32))
    return make_array(np.argsort(values, axis, kind="stable").astype(np.int32))


# -- indices -------------------------------------------------------------------------------------


def gather(values, indices, axis: int | None = None, batch_dims: int = 0):
    if isinstance(indices, RaggedArray):
        return indices.with_flat_values(gather(values, indices.flat_values))
    if isinstance(values, RaggedArray):
        indices = np.asarray(indices)
        return values.rows(indices) if indices.ndim else values[int(indices)]
    values, indices = make_array(values), np.asarray(indices, np.int64)
    if batch_dims:
        rows = np.arange(len(values)).reshape(-1, *[1] * (indices.ndim - 1))
        return values[rows, indices]
    return make_array(np.take(values, indices, axis or 0))


def gather_nd(values, indices) -> Array:
    return make_array(values)[tuple(np.moveaxis(np.asarray(indices, np.int64), -1, 0))]


def tensor_scatter_nd_update(values, indices, updates) -> Array:
    values = make_array(values).copy()
    values[tuple(np.moveaxis(np.asarray(indices, np.int64), -1, 0))] = updates
    return values


def scatter_nd(indices, updates, shape) -> Array:
    updates = make_array(updates)
    values = np.zeros(convert_shape(shape), updates.dtype)
    np.add.at(values, tuple(np.moveaxis(np.asarray(indices, np.int64), -1, 0)), updates)
    return values.view(Array)


def boolean_mask(values, mask) -> Array:
    return make_array(values)[np.asarray(mask)]


def searchsorted(values, found, side: Literal["left", "right"] = "left", out_type=int32) -> Array:
    return np.searchsorted(values, found, side).astype(out_type).view(Array)


def argmax(values, axis: int = 0, output_type=int64) -> Array:
    return make_array(np.argmax(make_array(values), axis).astype(output_type))


def unique(values) -> SimpleNamespace:
    """Return the unique values `y` in the order of first occurrence, and the index of each value.

    The attribute `idx` contains the index in `y` for each input value.
    """
    axis = 0 if np.ndim(values) > 1 else None  # before NumPy 2.4, strings cannot have an axis
    found, first, inverse = np.unique(values, return_index=True, return_inverse=True, axis=axis)
    order = np.argsort(first)
    idx = np.argsort(order)[inverse.reshape(-1)].astype(np.int32)
    return SimpleNamespace(y=make_array(found[order]), idx=make_array(idx))


def sequence_mask(lengths, maxlen=None, dtype=bool) -> Array:
    lengths = np.asarray(lengths)
    longest = int(lengths.max(initial=0)) if maxlen is None else int(maxlen)
    return make_array((np.arange(longest) < lengths[..., None]).astype(dtype))


# -- numbers -------------------------------------------------------------------------------------


def make_reduction(function: Callable, **options) -> Callable:
    """Create a function that reduces an array along an axis without changing its dtype."""

    def reduce(values, axis=None, keepdims: builtins.bool = False) -> Array:
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


def reduce_max(values, axis=None, keepdims: builtins.bool = False) -> Array:
    values = make_array(values)
    least = {"f": -np.inf, "b": False}.get(values.dtype.kind)
    least = np.iinfo(values.dtype).min if least is None else least
    return make_array(np.max(values, axis, keepdims=keepdims, initial=least), values.dtype)


def reduce_min(values, axis=None, keepdims: builtins.bool = False) -> Array:
    values = make_array(values)
    most = np.inf if values.dtype.kind == "f" else np.iinfo(values.dtype).max
    return make_array(np.min(values, axis, keepdims=keepdims, initial=most), values.dtype)


def reduce_logsumexp(values, axis=None, keepdims: builtins.bool = False) -> Array:
    values = make_array(values)
    most = np.max(values, axis=axis, keepdims=True)
    total = np.log(np.sum(np.exp(values - most), axis=axis, keepdims=True)) + most
    return make_array(total if keepdims else np.squeeze(total, axis))


def cumsum(values, axis: int = 0, exclusive: builtins.bool = False) -> Array:
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


def map_structure(function: Callable, first, *others, expand_composites: builtins.bool = False):
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
        return draws.integers(minval, maxval, convert_shape(shape), dtype).view(Array)
    most = 1 if maxval is None else maxval
    return (minval + (most - minval) * draws.random(convert_shape(shape), dtype)).view(Array)


# -- namespaces ----------------------------------------------------------------------------------


def ragged_range(starts, limits=None) -> RaggedArray:
    starts = make_array(starts)
    if limits is None:
        starts, limits = np.zeros_like(starts), starts
    lengths = np.maximum(np.asarray(limits) - np.asarray(starts), 0)
    values = concatenate_ranges(np.asarray(starts), lengths).astype(starts.dtype)
    return RaggedArray.from_row_lengths(values, lengths)


def ragged_boolean_mask(values: RaggedArray, mask: RaggedArray) -> RaggedArray:
    kept = np.asarray(mask.flat_values)
    lengths = np.bincount(values.value_rowids()[kept], minlength=len(values))
    return RaggedArray.from_row_lengths(values.values[kept], lengths)


def unique_rows(x, axis) -> tuple[Array, Array]:
    found = unique(x)
    return found.y, found.idx


ragged = SimpleNamespace(range=ragged_range, boolean_mask=ragged_boolean_mask)
math = SimpleNamespace(
    top_k=top_k,
    segment_max=lambda values, ids: reduce_segments(np.maximum, values, ids),
    segment_min=lambda values, ids: reduce_segments(np.minimum, values, ids),
    segment_sum=lambda values, ids: reduce_segments(np.add, values, ids),
    segment_mean=segment_mean,
    unsorted_segment_max=unsorted_segment_max,
    unsorted_segment_sum=unsorted_segment_sum,
    is_finite=wrap_numpy(np.isfinite),
    count_nonzero=count_nonzero,
    bincount=bincount,
    log=wrap_numpy(np.log),
)
nn = SimpleNamespace(softmax=softmax)
nest = SimpleNamespace(map_structure=map_structure, flatten=flatten)
linalg = SimpleNamespace(matvec=wrap_numpy(np.matmul))
signal = SimpleNamespace(frame=frame)
raw_ops = SimpleNamespace(UniqueV2=unique_rows)
random = SimpleNamespace(
    stateless_uniform=stateless_uniform,
    experimental=SimpleNamespace(stateless_shuffle=stateless_shuffle),
)
