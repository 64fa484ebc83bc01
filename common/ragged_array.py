"""NumPy arrays with TensorFlow methods.

In comments, N is the number of rows and P is the total number of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Array(np.ndarray):
    """Subclass of `numpy.ndarray` with a `numpy()` method, as in TensorFlow.

    Example:
        >>> make_array([3, 4])[1:].numpy().tolist()
        [4]
    """

    def numpy(self) -> np.ndarray:
        """Convert to a `numpy.ndarray`."""
        return self.view(np.ndarray)


def make_array(values, dtype=None) -> Array:
    """Convert values to an `Array`, using the default dtypes of TensorFlow.

    Example:
        >>> [make_array(values).dtype.name for values in ([1], [0.5], ["é"], np.float64(1))]
        ['int32', 'float32', 'object', 'float64']
    """
    if isinstance(values, Array) and dtype in (None, values.dtype):
        return values
    if hasattr(values, "dtype"):
        array = np.asarray(values) if dtype is None else np.asarray(values).astype(dtype)
    elif isinstance(values, str | bytes):
        array = np.asarray(values, object)
    else:
        array = np.asarray(values, dtype)
        default = {"int64": "int32", "float64": "float32"} if dtype is None else {}
        if array.size or array.dtype.kind != "f":
            array = array.astype(default.get(array.dtype.name, array.dtype))
        else:
            array = array.astype(dtype or "float32")
        if array.dtype.kind in "US":
            array = np.asarray(values, object)
    if array.dtype.kind in "US":
        array = array.astype(object)
    return _encode_strings(array).view(Array)


def _encode_strings(array: np.ndarray) -> np.ndarray:
    """Encode all strings to UTF-8."""
    if array.dtype != object or not any(isinstance(text, str) for text in array.flat):
        return array
    encoded: Any = np.empty(array.shape, object)
    encoded.flat = [t.encode() if isinstance(t, str) else t for t in array.flat]
    return encoded


class RaggedArray:
    """Array with rows of different lengths, similar to `tf.RaggedTensor`.

    Args:
        values: Array with shape (P, ...), or `RaggedArray` with P rows.
        row_splits: Int64 array with shape (N + 1,). Row i contains the values from `row_splits[i]`
            to `row_splits[i + 1]`.

    Example:
        >>> rows = RaggedArray.from_row_lengths(make_array([5, 6, 7]), [2, 1])
        >>> rows.to_list(), rows.row_lengths().tolist(), rows[1].tolist()
        ([[5, 6], [7]], [2, 1], [7])
    """

    def __init__(self, values, row_splits):
        self.values = values
        self.row_splits = np.asarray(row_splits, np.int64).view(Array)

    @classmethod
    def from_row_splits(cls, values, row_splits, validate: bool = True) -> RaggedArray:
        """Create a ragged array from the start and end positions of rows."""
        return cls(_convert_values(values), row_splits)

    @classmethod
    def from_row_lengths(cls, values, row_lengths, validate: bool = True) -> RaggedArray:
        """Create a ragged array from the lengths of rows."""
        return cls(
            _convert_values(values), np.concatenate([[0], np.cumsum(row_lengths, dtype=np.int64)])
        )

    @classmethod
    def from_value_rowids(cls, values, value_rowids, nrows: int | None = None) -> RaggedArray:
        """Create a ragged array from the row index of each value. Indices must be sorted."""
        rowids = np.asarray(value_rowids)
        count = (int(rowids[-1]) + 1 if len(rowids) else 0) if nrows is None else int(nrows)
        return cls.from_row_lengths(values, np.bincount(rowids, minlength=count))

    @classmethod
    def from_tensor(cls, tensor, lengths=None, padding=None) -> RaggedArray:
        """Create a ragged array from an array with shape (N, L, ...).

        If `lengths` or `padding` is passed, the values after each length, or the padding at the end
        of each row, are removed.
        """
        tensor = make_array(tensor)
        if lengths is None:
            lengths = np.full(len(tensor), tensor.shape[1], np.int64)
        if padding is not None:
            padding = make_array(padding, tensor.dtype)
            real = np.arange(1, tensor.shape[1] + 1) * np.asarray(tensor != padding, np.int64)
            lengths = real.max(axis=1, initial=0)
        inside = np.arange(tensor.shape[1]) < np.asarray(lengths)[:, None]
        return cls.from_row_lengths(tensor[inside], lengths)

    @property
    def flat_values(self) -> Array:
        """The values of all rows, as an array with shape (P, ...)."""
        return self.values.flat_values if isinstance(self.values, RaggedArray) else self.values

    @property
    def ragged_rank(self) -> int:
        """The number of ragged axes."""
        return 1 + (self.values.ragged_rank if isinstance(self.values, RaggedArray) else 0)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple:
        """The shape of the array, (N, None, ...)."""
        return (len(self), None, *self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __repr__(self) -> str:
        return f"RaggedArray({self.to_list()})"

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        if isinstance(index, tuple):
            return self._select_columns(*index)
        if isinstance(index, slice):
            return self.rows(np.arange(len(self))[index])
        begin, end = self.row_splits.numpy()[index : (index + 2) or None][:2]
        return self.values[begin:end]

    def _select_columns(self, rows: slice, columns: slice) -> RaggedArray:
        """Select a range of columns in a range of rows."""
        part = self[rows]
        starts, lengths = part.row_starts(), part.row_lengths()
        bounds = [columns.indices(length) for length in lengths.tolist()]
        counts = np.array([len(range(*bound)) for bound in bounds], np.int64)
        begins = starts + np.array([bound[0] for bound in bounds], np.int64)
        chosen = concatenate_ranges(np.minimum(begins, part.row_splits[1:]), counts)
        values = part.values
        values = values.rows(chosen) if isinstance(values, RaggedArray) else values[chosen]
        return RaggedArray.from_row_lengths(values, counts)

    def rows(self, indices) -> RaggedArray:
        """Select rows by index."""
        indices = np.asarray(indices, np.int64)
        splits = self.row_splits.numpy()
        lengths = splits[indices + 1] - splits[indices]
        chosen = concatenate_ranges(splits[indices], lengths)
        values = self.values
        values = values.rows(chosen) if isinstance(values, RaggedArray) else values[chosen]
        return RaggedArray.from_row_lengths(values, lengths)

    def _apply_binary(self, function, other) -> RaggedArray:
        """Apply a function to this array and a scalar, or an array with the same row lengths."""
        other = other.flat_values if isinstance(other, RaggedArray) else other
        return self.with_flat_values(function(self.flat_values, other))

    def __add__(self, other) -> RaggedArray:
        return self._apply_binary(np.add, other)

    def __sub__(self, other) -> RaggedArray:
        return self._apply_binary(np.subtract, other)

    def nrows(self) -> int:
        """Return the number of rows."""
        return len(self)

    def row_starts(self) -> Array:
        """Return the start position of each row, as an int64 array with shape (N,)."""
        return make_array(self.row_splits[:-1])

    def row_lengths(self, axis: int = 1) -> Any:
        """Return the length of each row as an int64 array. For axis 2, the array is ragged."""
        if axis == 2:
            return RaggedArray(self.values.row_lengths(), self.row_splits)
        return np.diff(self.row_splits)

    def value_rowids(self) -> Array:
        """Return the row index of each value, as an int64 array with shape (P,)."""
        return np.repeat(np.arange(len(self)), self.row_lengths()).view(Array)

    def with_values(self, values) -> RaggedArray:
        """Return a ragged array with new values and the same row lengths."""
        return RaggedArray(_convert_values(values), self.row_splits)

    def with_flat_values(self, values) -> RaggedArray:
        """Return a ragged array with new values and the same row lengths on all axes."""
        inner = self.values
        return self.with_values(
            inner.with_flat_values(values) if isinstance(inner, RaggedArray) else values
        )

    def merge_dims(self, outer_axis: int, inner_axis: int):
        """Merge axes 1 and 2, or 0 and 1."""
        if (outer_axis, inner_axis) == (0, 1):
            return self.values
        return RaggedArray(self.values.values, self.values.row_splits[self.row_splits])

    def to_list(self) -> list:
        """Convert to nested lists."""
        return [row.to_list() if isinstance(row, RaggedArray) else row.tolist() for row in self]

    def to_tensor(self, default_value=None, shape: Sequence | None = None) -> Array:
        """Convert to an array, by padding or truncating all rows to the same length.

        Args:
            default_value: Value to use for padding. If None, 0 or b"" will be used.
            shape: Optional shape of the result, (N, L, ...). If a size is None, the maximum length
                of all rows will be used.
        """
        shape = [None] * 2 if shape is None else [None if s is None else int(s) for s in shape]
        lengths, inner = self.row_lengths().numpy(), self.values
        if isinstance(inner, RaggedArray):
            inner = inner.to_tensor(default_value, [None, *shape[2:]])
        length = shape[1] if shape[1] is not None else int(lengths.max(initial=0))
        if default_value is None:
            default_value = b"" if inner.dtype == object else 0
        padded = np.full((len(self), length, *inner.shape[1:]), default_value, inner.dtype)
        kept = np.minimum(lengths, length)
        chosen = concatenate_ranges(self.row_splits.numpy()[:-1], kept)
        padded[np.arange(length) < kept[:, None]] = inner[chosen]
        return padded.view(Array)

    def numpy(self) -> np.ndarray:
        """Convert to an object array, with one array per row."""
        rows = np.empty(len(self), object)
        rows[:] = [row.numpy() for row in self]
        return rows


def _convert_values(values):
    return values if isinstance(values, RaggedArray) else make_array(values)


def concatenate_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenate integer ranges to an int64 array with shape (P,).

    Example:
        >>> concatenate_ranges(np.array([7, 1]), np.array([2, 1])).tolist()
        [7, 8, 1]
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    shifts = np.asarray(starts, np.int64) - (ends - lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(shifts, lengths)
