"""One file of a corpus: token ids, and where sentences and documents begin.

It is a `.safetensors` file of three arrays: "tokens" (T,), of uint16 or, for more than 65,536
different tokens, uint32; "sentences" (S + 1,) uint32, the offsets of sentences in the tokens;
"documents" (D + 1,) uint32, the offsets of documents in the sentences.

Comment letters: T tokens, S sentences, D documents.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import BinaryIO

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.presets.files.safetensors_file import SafetensorsFile


@dataclasses.dataclass(frozen=True)
class Shard:
    """Some documents of a corpus.

    Attributes:
        tokens: (T,) unsigned ids; those of a file are read when they are used.
        sentences: (S + 1,) int64, offsets in `tokens`.
        documents: (D + 1,) int64, offsets in `sentences`.

    Example:
        >>> shard = Shard.of([[[5, 6], [7]], [[8]]])
        >>> shard.tokens.tolist(), shard.sentences.tolist(), shard.documents.tolist()
        ([5, 6, 7, 8], [0, 2, 3, 4], [0, 2, 3])
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    @classmethod
    def of(cls, documents: list[list[list[int]]]) -> Shard:
        """Return a shard of documents in memory, lists of sentences, which are lists of ids."""
        sentences = [sentence for document in documents for sentence in document]
        return cls(
            np.array([token for sentence in sentences for token in sentence], "uint32"),
            splits([len(sentence) for sentence in sentences]),
            splits([len(document) for document in documents]),
        )

    @classmethod
    def open(cls, file: BinaryIO, vocabulary_size: int) -> Shard:
        """Read the shard in a file, checked but for the ids; its tokens are mapped into memory.

        Raises:
            ValueError: "... is no shard of a corpus: ...", and see `SafetensorsFile`.
        """
        path, file = file.name, SafetensorsFile(file)
        offsets = dict.fromkeys(("sentences", "documents"), "uint32")
        expected = {"tokens": id_type(vocabulary_size), **offsets}
        found = {n: file.dtype(n).name for n, shape in file.shapes.items() if len(shape) == 1}
        if found != expected:
            raise ValueError(f"{path} is no shard of a corpus: it holds {found}, not {expected}.")
        sentences, documents = (file.read(n).astype("int64") for n in ("sentences", "documents"))
        tokens = np.asarray(file.mapped("tokens"))  # slices of a plain view are quicker
        shard = cls(tokens, sentences, documents)
        for name, size in (("sentences", len(shard.tokens)), ("documents", len(sentences) - 1)):
            if not _are_splits(getattr(shard, name), size):
                raise ValueError(
                    f"{path} is no shard of a corpus: its {name} do not rise from 0 to {size}."
                )
        return shard

    def part(self, first: int, behind: int) -> Shard:
        """Return the documents from one to before another.

        Example:
            >>> Shard.of([[[5, 6], [7]], [[8]]]).part(1, 2).tokens.tolist()
            [8]
        """
        documents = self.documents[first : behind + 1]
        sentences = self.sentences[documents[0] : documents[-1] + 1]
        tokens = self.tokens[sentences[0] : sentences[-1]]
        return Shard(tokens, sentences - sentences[0], documents - documents[0])

    def write(self, path: pathlib.Path, vocabulary_size: int) -> None:
        """Write the shard as a file."""
        arrays = {
            "tokens": self.tokens.astype(id_type(vocabulary_size)),
            "sentences": self.sentences.astype("uint32"),
            "documents": self.documents.astype("uint32"),
        }
        save_file(arrays, path)


def id_type(vocabulary_size: int) -> str:
    """Return the smallest type that holds the ids.

    Example:
        >>> id_type(30_522), id_type(2**16 + 1)
        ('uint16', 'uint32')
    """
    return "uint16" if vocabulary_size <= 2**16 else "uint32"


def splits(lengths: list[int] | np.ndarray) -> np.ndarray:
    """Return the offsets of consecutive parts of some lengths, and the end of the last.

    Example:
        >>> splits([2, 1]).tolist()
        [0, 2, 3]
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype("int64")


def _are_splits(offsets: np.ndarray, size: int) -> bool:
    """Return whether these are the offsets of parts that are not empty."""
    return bool(
        len(offsets) > 1
        and offsets[0] == 0
        and offsets[-1] == size
        and (np.diff(offsets) > 0).all()
    )
