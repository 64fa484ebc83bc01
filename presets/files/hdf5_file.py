"""Read arrays from Keras `.weights.h5` files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO

import h5py
import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import quote
from encoder_zoo.presets.files.file_bytes import check_file_size, check_is_float
from encoder_zoo.presets.files.folder_files import get_size

# Groups that contain the model layers. Early versions of Keras 3 use the second name.
_ROOTS = ("layers", "_layer_checkpoint_dependencies")


class Hdf5File:
    """Read arrays from a `.weights.h5` file.

    In HDF5, a file can contain links, arrays that are stored in other files, and arrays without
    values. For safety, such links and arrays are rejected.

    Args:
        file: A binary file object, which must stay open until all arrays are read. Error messages
            contain the `name` attribute.

    Raises:
        ValueError: If `file` is not a valid HDF5 file, or if an array is missing, a link, or stored
            in another file. See also `check_file_size` and `check_is_float`.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/model.weights.h5"
        >>> with h5py.File(path, "w") as file:
        ...     file["layers/dense/vars/0"] = np.zeros((2, 3))
        >>> with open(path, "rb") as file:
        ...     Hdf5File(file).list_shapes("dense")
        [(2, 3)]
    """

    def __init__(self, file: BinaryIO):
        self.file, self.path = file, file.name
        self._declared: dict[str, int] = {}  # size in bytes for each array
        with self._open() as opened:
            roots = (root for root in _ROOTS if opened.get(root, getlink=True))
            self._root = next(roots, _ROOTS[0])
            self._names = list(self._find(opened, self._root))

    def count(self, layer: str) -> int:
        """Return the number of layers named `layer`, `layer_1`, and so on."""
        names = {layer, *(f"{layer}_{i}" for i in range(1, len(self._names) + 1))}
        return len(names.intersection(self._names))

    def list_shapes(self, group: str) -> list[tuple[int, ...]]:
        """Return the shapes of all arrays of a layer, in order."""
        with self._open() as file:
            path = f"{self._root}/{group}/vars"
            count = len(self._find(file, path))
            return [self._find_array(file, f"{path}/{i}").shape for i in range(count)]

    def read(self, name: str) -> np.ndarray:
        """Read an array by name."""
        with self._open() as file:
            array = self._find_array(file, f"{self._root}/{name}")
            return array[()].view(ml_dtypes.bfloat16) if _is_bfloat16(array) else array[()]

    @contextlib.contextmanager
    def _open(self) -> Iterator[h5py.File]:
        try:
            with h5py.File(self.file, "r") as file:
                yield file
        except Exception as error:  # h5py raises many types of errors
            if self.path in str(error) and isinstance(error, ValueError):  # raised here
                raise
            size = get_size(self.file)
            reason = str(error).splitlines()[0][:200]
            raise ValueError(f"{self.path} ({size} bytes) cannot be read. {reason}.") from None

    def _find(self, file: h5py.File, name: str) -> h5py.Group | h5py.Dataset:
        """Return the group or dataset at a path. Links are rejected."""
        node = file
        for part in name.split("/"):
            link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
            if link is None:
                raise ValueError(f"{self.path}: {quote(name)} is missing. Download the file again.")
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"{self.path}: {quote(name)} is a link. Expected an array.")
            node = node[part]
        return node

    def _find_array(self, file: h5py.File, name: str) -> h5py.Dataset:
        node = self._find(file, name)
        if not isinstance(node, h5py.Dataset):
            raise ValueError(
                f"{self.path}: {quote(name)} is not an array. Download the file again."
            )
        if not _is_bfloat16(node):
            check_is_float(node.dtype, self.path, name)
        if node.external or node.is_virtual:
            raise ValueError(
                f"{self.path}: {quote(name)} is stored in another file. Expected an array in this "
                "file."
            )
        check_file_size(self.path, node.nbytes, node.id.get_storage_size())
        self._declared[name] = node.nbytes
        check_file_size(self.path, sum(self._declared.values()), get_size(self.file))
        return node


def _is_bfloat16(array: h5py.Dataset) -> bool:
    """Return whether an array is bfloat16, which Keras stores as two opaque bytes."""
    return array.dtype == np.dtype("V2") and array.attrs.get("dtype") == "bfloat16"
