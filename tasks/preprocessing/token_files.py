"""Store encoded examples in a folder, so that a stream's texts are only tokenized once."""

from __future__ import annotations

import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.lazy import use_numpy, xp
from encoder_zoo.common.version import __version__
from encoder_zoo.presets.files.atomic import replace_file, write_with_checksum
from encoder_zoo.presets.files.json_data import SETTINGS, parse_object
from encoder_zoo.presets.files.manifest import compute_manifest_digest
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile

NAME, FORMAT = "tokens.json", 2
CHECKSUM = "checksum"  # name of the array with the checksum in each file


class TokenFiles:
    """Folder of files with the encoded examples of a stream. Every chunk has its own file.

    Args:
        folder: Folder path. It is created if it does not exist.
        settings: Dict of plain values that identify how the examples are encoded.

    Attributes:
        sizes: List with the number of raw inputs per chunk, or None until all chunks are written.
    """

    def __init__(self, folder: pathlib.Path, settings: Mapping):
        self._folder = folder
        self._manifest = {
            "format": FORMAT,
            "encoder_zoo": __version__,
            "made_of": compute_manifest_digest(settings),
        }
        path = folder / NAME
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_with_checksum(path, {**self._manifest, "sizes": None, "checksums": None})
        with open(path, "rb") as file:
            found = parse_object(file.read(SETTINGS.content + 1), path)
        if found.get("sha256") != compute_manifest_digest(found):
            raise _make_damage_error(path)
        if {name: found.get(name) for name in self._manifest} != self._manifest:
            raise ValueError(
                f"{folder} holds tokens of another task, tokenizer, stream, order or version of "
                "encoder_zoo. Use a different folder, or delete this folder."
            )
        self.sizes: list[int] | None = found["sizes"]
        self._checksums: list[int] | None = found["checksums"]

    def read_examples(self, number: int, encode: Callable[[], dict] | None = None) -> dict:
        """Read a chunk's examples. If the file is missing, encode the examples and write it.

        Args:
            number: Integer. Chunk index.
            encode: Optional function without arguments that encodes the examples. If None, a
                missing file is an error.
        """
        path = self._get_path(number)
        if encode is not None and not path.exists():
            examples = encode()
            arrays = dict(_list_parts(examples))
            with replace_file(path) as new:
                save_file({**arrays, CHECKSUM: self._compute_chunk_checksum(number, arrays)}, new)
            return examples
        if not path.exists():
            raise _make_damage_error(path)
        with open(path, "rb") as file:
            tensors = SafetensorsFile(file)
            arrays = {name: tensors.read(name) for name in tensors.shapes}
        found = arrays.pop(CHECKSUM, None)
        known = self._checksums is None or np.array_equal(found, [self._checksums[number]])
        if not (known and np.array_equal(found, self._compute_chunk_checksum(number, arrays))):
            raise _make_damage_error(path)
        with use_numpy():
            return {name: _join_arrays(name, arrays) for name in arrays if "/" not in name}

    def finish(self, sizes: list[int]) -> None:
        """Store the sizes and checksums of all chunks, unless a file is missing."""
        paths = [self._get_path(number) for number in range(len(sizes))]
        if all(path.exists() for path in paths):
            checksums = [_read_checksum(path) for path in paths]
            whole = {**self._manifest, "sizes": sizes, "checksums": checksums}
            write_with_checksum(self._folder / NAME, whole)
            self.sizes, self._checksums = sizes, checksums

    def _compute_chunk_checksum(self, number: int, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the checksum of a chunk, which also depends on its index and the settings."""
        return _compute_checksum(arrays, f"{self._manifest['made_of']} {number}")

    def _get_path(self, number: int) -> pathlib.Path:
        return self._folder / f"tokens-{number:06d}.safetensors"


def _make_damage_error(path: pathlib.Path) -> ValueError:
    return ValueError(
        f"{path} is missing, damaged or changed. Delete {path.parent} to tokenize the texts again."
    )


def _list_parts(examples: dict) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and arrays of encoded examples. Row splits have names such as "name/0"."""
    for name, values in examples.items():
        depth = 0
        while hasattr(values, "row_splits"):
            yield f"{name}/{depth}", np.ascontiguousarray(values.row_splits)
            values, depth = values.values, depth + 1
        yield name, np.ascontiguousarray(values)


def _read_checksum(path: pathlib.Path) -> int:
    """Read the checksum that is stored in a file."""
    with open(path, "rb") as file:
        tensors = SafetensorsFile(file)
        if CHECKSUM not in tensors.shapes:
            raise _make_damage_error(path)
        return int(tensors.read(CHECKSUM)[0])


def _compute_checksum(arrays: Mapping[str, np.ndarray], place: str) -> np.ndarray:
    """Compute the CRC-32 (1,) of arrays, including their place, names, dtypes and shapes."""
    found = zlib.crc32(place.encode())
    for name in sorted(arrays):
        values = arrays[name]
        found = zlib.crc32(f"{name} {values.dtype} {values.shape}".encode(), found)
        found = zlib.crc32(values.tobytes(), found)
    return np.array([found], "uint32")


def _join_arrays(name: str, arrays: Mapping[str, np.ndarray]) -> xp.Tensor:
    """Restore the tensor or ragged tensor `name` from the arrays of `_list_parts`."""
    values = xp.constant(arrays[name])
    for depth in reversed(range(sum(part.startswith(f"{name}/") for part in arrays))):
        values = xp.RaggedTensor.from_row_splits(values, arrays[f"{name}/{depth}"])
    return values
