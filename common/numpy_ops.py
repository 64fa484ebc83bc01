"""NumPy implementation of TensorFlow operations for preprocessing.

All names are the same as in TensorFlow, so the same code can be used for all backends. On JAX and
PyTorch, `common.lazy.array_ops` uses this module. Arrays have the type `Array`, ragged tensors have
the type `RaggedArray`, and strings are encoded to UTF-8 in object arrays.

See TensorFlow for the documentation. Only differences are documented here.
"""

from __future__ import annotations

import builtins
import contextlib
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from encoder_zoo.common.numpy_numbers import (  # noqa: F401 -- part of this module's API
    TensorArray,
    argsort,
    bincount,
    clip_by_value,
    cond,
    count_nonzero,
    cumsum,
    equal,
    exp,
    flatten,
    frame,
    logical_not,
    make_sizes,
    map_structure,
    maximum,
    minimum,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_min,
    reduce_segments,
    reduce_sum,
    round,
    scan,
    segment_mean,
    sigmoid,
    softmax,
    stack,
    stateless_shuffle,
    stateless_uniform,
    top_k,
    unsorted_segment_max,
    unsorted_segment_sum,
    while_loop,
    wrap_numpy,
    zeros,
)
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
    """Convert to a dtype with the same attributes as in TensorFlow."""
    kind = np.dtype(dtype).kind
    answers = {"is_floating": kind == "f", "is_integer": kind in "iu", "is_bool": kind == "b"}
    return SimpleNamespace(name=np.dtype(dtype).name, **answers)


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
    return make_array(make_array(value).reshape(make_sizes(shape)))


def broadcast_to(value, shape) -> Array:
    return make_array(np.broadcast_to(make_array(value), make_sizes(shape)))


def fill(dims, value) -> Array:
    value = make_array(value)
    return np.full(make_sizes(dims), value, value.dtype).view(Array)


def ones(shape, dtype=float32) -> Array:
    return np.ones(make_sizes(shape), dtype).view(Array)


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
    """Concatenate ragged and dense arrays along axis 0."""
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
    values = np.zeros(make_sizes(shape), updates.dtype)
    np.add.at(values, tuple(np.moveaxis(np.asarray(indices, np.int64), -1, 0)), updates)
    return values.view(Array)


def boolean_mask(values, mask) -> Array:
    return make_array(values)[np.asarray(mask)]


def searchsorted(values, found, side: Literal["left", "right"] = "left", out_type=int32) -> Array:
    return np.searchsorted(values, found, side).astype(out_type).view(Array)


def argmax(values, axis: int = 0, output_type=int64) -> Array:
    return make_array(np.argmax(make_array(values), axis).astype(output_type))


def unique(values) -> SimpleNamespace:
    """Find unique values, in the order of first occurrence. Return `y` and the indices `idx`."""
    found, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    idx = np.argsort(order)[inverse].astype(np.int32)
    return SimpleNamespace(y=found[order].view(Array), idx=idx.view(Array))


def sequence_mask(lengths, maxlen=None, dtype=bool) -> Array:
    lengths = np.asarray(lengths)
    longest = int(lengths.max(initial=0)) if maxlen is None else int(maxlen)
    return make_array((np.arange(longest) < lengths[..., None]).astype(dtype))


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
    """Find unique rows, in the order of first occurrence. Return the rows and the indices."""
    found, first, inverse = np.unique(x, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    idx = np.argsort(order)[inverse.reshape(-1)]
    return make_array(found[order]), make_array(idx.astype(np.int32))


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
