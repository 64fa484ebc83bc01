"""Encoded examples of a stream in a folder, so that its texts are tokenized once."""

from __future__ import annotations

import os
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.lazy import array_ops, in_numpy
from encoder_zoo.common.version import __version__
from encoder_zoo.presets.files.atomic import checked_folder, replacing_file, write_signed
from encoder_zoo.presets.files.json_data import SETTINGS, parse_object
from encoder_zoo.presets.files.manifest import digest
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.backup import plain_settings
from encoder_zoo.tasks.training.data import BatchMaker

NAME, FORMAT = "tokens.json", 2
LABELS = ("labels", "problem_type")  # attributes that decide how labels are encoded
CHECKSUM = "checksum"  # an array beside the others of a file


class TokenCache:
    """A stream whose texts are tokenized once: later epochs read their tokens from a folder.

        cache = ez.TokenCache(stream, "tokens")
        classifier.fit(cache, epochs=3)

    `fit` and `evaluate` take it in place of the stream, and make the same batches of it. The first
    pass writes a file for each batch, or for each 50 of single rows, of some four bytes a token;
    killed, it goes on with those that are absent. Later passes, also of later processes, read
    neither the stream, but for its first element, nor its texts. Batches of another `batch_size`
    have files of their own.

    Args:
        source: a stream that `fit` takes and can read again, the same each time.
        folder: for the files; made if there is none.

    Raises:
        ValueError: In `fit`, if the source cannot be read again, the folder holds tokens of another
            task, tokenizer or stream, or a file is damaged.

    Example:
        >>> import tempfile
        >>> import keras
        >>> from encoder_zoo import SequenceClassifier, TokenCache
        >>> class Reviews(keras.utils.PyDataset):
        ...     def __len__(self):
        ...         return 2
        ...     def __getitem__(self, number):
        ...         return ["Good.", "Bad."], ["good", "bad"]
        >>> classifier = SequenceClassifier.from_preset(
        ...     "bert_nano_en_uncased", labels=["bad", "good"]
        ... )
        >>> cache = TokenCache(Reviews(), tempfile.mkdtemp())
        >>> len(classifier.fit(cache, epochs=2, verbose=0).history["loss"])
        2
    """

    def __init__(self, source: object, folder: str | os.PathLike[str]):
        self.source, self.folder = source, checked_folder(folder)


class TokenFiles:
    """The encoded examples of the chunks of a stream, a file for each.

    Args:
        folder: for the files.
        settings: plain data that decides the examples.

    Attributes:
        sizes: the number of raw inputs of each chunk; None until all are written.
    """

    def __init__(self, folder: pathlib.Path, settings: Mapping):
        self._folder = folder
        self._manifest = {"format": FORMAT, "encoder_zoo": __version__, "made_of": digest(settings)}
        path = folder / NAME
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_signed(path, {**self._manifest, "sizes": None, "checksums": None})
        with open(path, "rb") as file:
            found = parse_object(file.read(SETTINGS.content + 1), path)
        if found.get("sha256") != digest(found):
            raise _damaged(path)
        if {name: found.get(name) for name in self._manifest} != self._manifest:
            raise ValueError(
                f"{folder} holds tokens of another task, tokenizer, stream, order or version of "
                "encoder_zoo. Name another folder, or delete it."
            )
        self.sizes: list[int] | None = found["sizes"]
        self._checksums: list[int] | None = found["checksums"]

    def examples(self, number: int, encode: Callable[[], dict] | None = None) -> dict:
        """Return the examples of a chunk, written before or now.

        Args:
            number: of the chunk.
            encode: makes them, if there is no file.
        """
        path = self._path(number)
        if encode is not None and not path.exists():
            examples = encode()
            arrays = dict(_parts(examples))
            with replacing_file(path) as new:
                save_file({**arrays, CHECKSUM: self._checksum(number, arrays)}, new)
            return examples
        if not path.exists():
            raise _damaged(path)
        with open(path, "rb") as file:
            tensors = SafetensorsFile(file)
            arrays = {name: tensors.read(name) for name in tensors.shapes}
        found = arrays.pop(CHECKSUM, None)
        known = self._checksums is None or np.array_equal(found, [self._checksums[number]])
        if not (known and np.array_equal(found, self._checksum(number, arrays))):
            raise _damaged(path)
        with in_numpy():
            return {name: _joined(name, arrays) for name in arrays if "/" not in name}

    def finish(self, sizes: list[int]) -> None:
        """Note that all chunks are written; of a pass that left some out nothing."""
        paths = [self._path(number) for number in range(len(sizes))]
        if all(path.exists() for path in paths):
            checksums = [_kept_checksum(path) for path in paths]
            whole = {**self._manifest, "sizes": sizes, "checksums": checksums}
            write_signed(self._folder / NAME, whole)
            self.sizes, self._checksums = sizes, checksums

    def _checksum(self, number: int, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the checksum of a chunk, which another place or another cache does not have."""
        return _checksum(arrays, f"{self._manifest['made_of']} {number}")

    def _path(self, number: int) -> pathlib.Path:
        return self._folder / f"tokens-{number:06d}.safetensors"


def _damaged(path: pathlib.Path) -> ValueError:
    return ValueError(
        f"{path} is damaged, changed or gone. Delete {path.parent}: its texts are then tokenized "
        "anew."
    )


def settings_of(maker: BatchMaker, first: str) -> dict:
    """Return plain data that decides the examples that a task makes of a stream.

    Args:
        maker: `BatchMaker` of the task.
        first: Checksum of the first element of the stream.
    """
    read = maker.preprocessor
    learner = getattr(read, "student", read)  # of a Distillation, with two preprocessors
    return {
        "task": [maker.task, *(getattr(learner, name, None) for name in LABELS)],
        "preprocessors": [
            _settings_of(one)
            for one in (read, *vars(read).values())
            if isinstance(one, Preprocessor)
        ],
        "first": first,
    }


def _settings_of(preprocessor: Preprocessor) -> list:
    kept = {n: v for n, v in preprocessor.get_config().items() if n != "tokenizer"}
    tokenizer = plain_settings(preprocessor.tokenizer.get_config())
    return [plain_settings(kept), preprocessor.max_sequence_length, tokenizer]


def _parts(examples: dict) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of examples: values by their name, the splits of rows as "name/0", ..."""
    for name, values in examples.items():
        depth = 0
        while hasattr(values, "row_splits"):
            yield f"{name}/{depth}", np.ascontiguousarray(values.row_splits)
            values, depth = values.values, depth + 1
        yield name, np.ascontiguousarray(values)


def _kept_checksum(path: pathlib.Path) -> int:
    """Return the checksum that a file holds."""
    with open(path, "rb") as file:
        tensors = SafetensorsFile(file)
        if CHECKSUM not in tensors.shapes:
            raise _damaged(path)
        return int(tensors.read(CHECKSUM)[0])


def _checksum(arrays: Mapping[str, np.ndarray], place: str) -> np.ndarray:
    """Return the CRC-32 of arrays with their place, names, types and shapes, (1,)."""
    found = zlib.crc32(place.encode())
    for name in sorted(arrays):
        values = arrays[name]
        found = zlib.crc32(f"{name} {values.dtype} {values.shape}".encode(), found)
        found = zlib.crc32(values.tobytes(), found)
    return np.array([found], "uint32")


def _joined(name: str, arrays: Mapping[str, np.ndarray]) -> array_ops.Tensor:
    """Return the tensor, or ragged tensor, of some of the arrays of `_parts`."""
    values = array_ops.constant(arrays[name])
    for depth in reversed(range(sum(part.startswith(f"{name}/") for part in arrays))):
        values = array_ops.RaggedTensor.from_row_splits(values, arrays[f"{name}/{depth}"])
    return values
