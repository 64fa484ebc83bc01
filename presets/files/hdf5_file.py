"""Reading arrays from an h5 file that Keras wrote, and from nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO

import h5py
import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.arrays import check_floats, check_held
from encoder_zoo.presets.files.folder_files import size_of

# Where Keras keeps a model's layers; the second is what early versions of Keras 3 wrote.
_ROOTS = ("layers", "_layer_checkpoint_dependencies")


class Hdf5File:
    """The arrays of one `.weights.h5` file.

    HDF5 can point to other files, in links and in arrays that are stored elsewhere, and can name
    arrays of any size of which it holds nothing; such a file is refused.

    Args:
        file: open for reading, whose `name` is its path; it must stay open while arrays are read.

    Raises:
        ValueError: "...: not readable ...", "...: 'layers/dense' is a link ...", "... is stored in
            another file.", and see `check_held`, `check_floats`.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/model.weights.h5"
        >>> with h5py.File(path, "w") as file:
        ...     file["layers/dense/vars/0"] = np.zeros((2, 3))
        >>> with open(path, "rb") as file:
        ...     Hdf5File(file).shapes("dense")
        [(2, 3)]
    """

    def __init__(self, file: BinaryIO):
        self.file, self.path = file, file.name
        self._promised: dict[str, int] = {}  # bytes of the arrays that were looked at
        with self._open() as file:
            self._root = next((root for root in _ROOTS if file.get(root, getlink=True)), _ROOTS[0])
            self._names = list(self._find(file, self._root))

    def count(self, layer: str) -> int:
        """How many layers are called `layer`, `layer_1`, ..."""
        names = {layer, *(f"{layer}_{i}" for i in range(1, len(self._names) + 1))}
        return len(names.intersection(self._names))

    def shapes(self, group: str) -> list[tuple[int, ...]]:
        """Shapes of a layer's arrays, in order."""
        with self._open() as file:
            place = f"{self._root}/{group}/vars"
            count = len(self._find(file, place))
            return [self._find_array(file, f"{place}/{i}").shape for i in range(count)]

    def read(self, name: str) -> np.ndarray:
        """Return one array."""
        with self._open() as file:
            array = self._find_array(file, f"{self._root}/{name}")
            return array[()].view(ml_dtypes.bfloat16) if _is_bfloat16(array) else array[()]

    @contextlib.contextmanager
    def _open(self) -> Iterator[h5py.File]:
        try:
            with h5py.File(self.file, "r") as file:
                yield file
        except Exception as error:  # h5py makes many of Python's errors of the library's
            if self.path in str(error) and isinstance(error, ValueError):  # our own
                raise
            size = size_of(self.file)
            reason = str(error).splitlines()[0][:200]
            raise ValueError(f"{self.path}: not readable, it has {size} bytes. {reason}.") from None

    def _find(self, file: h5py.File, name: str) -> h5py.Group | h5py.Dataset:
        """Return the object behind a path, every step of which lies in this file."""
        node = file
        for part in name.split("/"):
            link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
            if link is None:
                raise ValueError(f"{self.path}: {shown(name)} is missing.")
            if not isinstance(link, h5py.HardLink):
                raise ValueError(
                    f"{self.path}: {shown(name)} is a link. Expected the array itself."
                )
            node = node[part]
        return node

    def _find_array(self, file: h5py.File, name: str) -> h5py.Dataset:
        node = self._find(file, name)
        if not isinstance(node, h5py.Dataset):
            raise ValueError(f"{self.path}: {shown(name)} is not an array.")
        if not _is_bfloat16(node):
            check_floats(node.dtype, self.path, name)
        if node.external or node.is_virtual:
            raise ValueError(f"{self.path}: {shown(name)} is stored in another file.")
        check_held(self.path, node.nbytes, node.id.get_storage_size())
        self._promised[name] = node.nbytes
        check_held(self.path, sum(self._promised.values()), size_of(self.file))
        return node


def _is_bfloat16(array: h5py.Dataset) -> bool:
    """Whether these are what Keras writes of bfloat16, which h5 does not know: two bytes each."""
    return array.dtype == np.dtype("V2") and array.attrs.get("dtype") == "bfloat16"
