"""Read documents and sentences from text files or iterables."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from encoder_zoo.common.validation import check_path
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.files.open_folder import InputFiles

# Longer documents are split, to limit memory usage for files without blank lines.
MAX_CHARACTERS = 2**24


class Document(NamedTuple):
    """A document of a corpus, and the position in the source after the document.

    Attributes:
        sentences: Non-empty list of non-empty strings.
        position: List. The position from which `read_documents` can continue: integers, or an
            integer and a checksum.
        share: Optional float between 0 and 1. Fraction of text read so far. None if unknown.
    """

    sentences: list[str]
    position: list[int]
    share: float | None


class TextFiles:
    """Documents in text files with one sentence per line and blank lines between documents.

    A document also ends at the end of a file. Files with the suffix `.gz` are decompressed.

    Args:
        paths: List of paths. UTF-8 text files.
        part: Optional tuple (i, n). Only read part i of n, starting from 0. The parts have a
            similar length. Each part starts after a blank line or at the start of a file.

    Raises:
        FileNotFoundError: If one of the `paths` does not exist.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "text.txt"
        >>> _ = path.write_text("A cat sat.\\nIt ate.\\n\\nA dog.\\n")
        >>> [document.sentences for document in TextFiles([path]).read_documents([0, 0])]
        [['A cat sat.', 'It ate.'], ['A dog.']]
    """

    def __init__(self, paths: Sequence[str | os.PathLike], part: tuple[int, int] | None = None):
        if not isinstance(paths, Sequence) or isinstance(paths, str | bytes):
            raise invalid("paths", paths, "a list of paths")
        self.paths = [check_path(path, f"paths[{i}]") for i, path in enumerate(paths)]
        for path in self.paths:
            if not path.is_file():
                raise FileNotFoundError(f"{path} is not a file. Expected the path of a text file.")
        self._files = InputFiles(self.paths)
        self.sizes = self._files.sizes
        i, n = part or (0, 1)
        # File index and byte position.
        self.start, self._end = (
            self._find_part_start(sum(self.sizes) * k // n) for k in (i, i + 1)
        )

    def describe(self) -> dict:
        """Return the file names and sizes. To continue a corpus, they must not have changed."""
        return {"files": [[p.name, n] for p, n in zip(self.paths, self.sizes, strict=True)]}

    @property
    def modified(self) -> list[int]:
        """Modification times of all files. To continue a corpus, they must not have changed."""
        return self._files.modified

    def check_unchanged(self) -> None:
        """Raise a ValueError if a file was changed."""
        self._files.check_unchanged()

    def read_documents(self, position: Sequence[int]) -> Iterator[Document]:
        """Yield all documents after a position.

        Raises:
            ValueError: If a file is not UTF-8 text.
        """
        self._check_position(position)
        if tuple(position) >= self._end:
            return
        (first, offset), (last, limit) = position, self._end
        begin, end = (sum(self.sizes[:number]) + byte for number, byte in (self.start, self._end))
        for number in range(first, last + (limit > 0)):
            path = self.paths[number]
            with open(path, "rb") as raw, _open_text(path, raw) as text:
                text.seek(offset)
                stop = limit if number == last else None
                for sentences, behind in _read_lines(path, text, offset, stop):
                    read = sum(self.sizes[:number]) + raw.tell()
                    share = min(1.0, (read - begin) / max(1, end - begin))
                    yield Document(sentences, [number, behind], share)
            offset = 0

    def _check_position(self, position: Sequence[int]) -> None:
        """Raise a ValueError if no file contains a position."""
        right = len(position) == 2 and all(type(number) is int for number in position)
        if right and position[0] < len(self.paths):
            number, byte = position
            right = byte <= self.sizes[number] or _is_compressed(self.paths[number])
        elif right:
            right = list(position) == [len(self.paths), 0]
        if not right:
            raise ValueError(
                f"corpus.json is damaged: no file contains the position {list(position)} (file "
                "index, byte) to continue from. Delete the corpus folder and start again."
            )

    def _find_part_start(self, byte: int) -> tuple[int, int]:
        """Return the first (file index, offset), at or after a byte, at which a part can start."""
        number = 0
        while number < len(self.sizes) and byte >= self.sizes[number]:
            byte -= self.sizes[number]
            number += 1
        if not byte or number == len(self.sizes):
            return number, 0
        if _is_compressed(self.paths[number]):
            return number + 1, 0
        with open(self.paths[number], "rb") as file:
            file.seek(byte)
            file.readline()  # the rest of a line
            if any(not line.strip() for line in iter(file.readline, b"")):
                return number, file.tell()
        return number + 1, 0


class CorpusDocuments:
    """Documents from an iterable, such as a generator or a `tf.data.Dataset`.

    Args:
        documents: Iterable of documents. Each document is a string with one sentence per line,
            or a list or tensor of sentences. To continue a corpus, pass the same documents in the
            same order.

    Example:
        >>> documents = CorpusDocuments(["One.\\nTwo.", ["Three."]])
        >>> [document.sentences for document in documents.read_documents([1])]
        [['Three.']]
    """

    start = (0,)  # number of previous documents
    modified = None  # unknown

    def __init__(self, documents: Iterable):
        if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Iterable):
            raise invalid("documents", documents, "an iterable of documents, such as a list")
        self._documents = documents

    def check_unchanged(self) -> None:
        """Do nothing, because `read_documents` compares finished documents."""

    def describe(self) -> dict:
        """Return {}, because the documents are unknown before reading."""
        return {}

    def read_documents(self, position: Sequence[int]) -> Iterator[Document]:
        """Yield all documents after a position.

        Args:
            position: List with the number of finished documents and a checksum, or [0] at the
                start.

        Raises:
            ValueError: If a document is not text, or if finished documents were changed.
        """
        done, found, number = position[0], hashlib.sha256(), -1
        for number, document in enumerate(self._documents):
            if number == done:
                _check_same_documents(position, found)
            sentences = split_sentences(document, number)
            found.update(repr(sentences).encode("utf-8", "surrogatepass"))
            if sentences and number >= done:
                yield Document(sentences, [number + 1, found.hexdigest()], None)
        if number + 1 < done:
            raise ValueError(
                f"`documents` contains {number + 1} documents, but the corpus already contains "
                f"{done}. Pass the same documents in the same order, or delete the corpus folder."
            )


def _check_same_documents(position: Sequence, found) -> None:
    done, known = position[0], position[1:]
    if known and list(known) != [found.hexdigest()]:
        raise ValueError(
            f"The first {done} documents differ from the documents in the corpus. Pass the same "
            "documents in the same order, write to a different folder, or delete the corpus folder."
        )


def split_sentences(document: object, number: int = 0) -> list[str]:
    """Split a document into sentences.

    Args:
        document: See `CorpusDocuments`.
        number: Integer. Document index for error messages.

    Example:
        >>> split_sentences("One. \\n\\nTwo.")
        ['One.', 'Two.']
    """
    if hasattr(document, "numpy"):  # a tensor from a dataset
        document = document.numpy()
    if isinstance(document, str | bytes):
        document = _check_text(document, number).split("\n")
    elif isinstance(document, Mapping) or not isinstance(document, Iterable):
        raise _make_document_error(document, number)
    stripped = (_check_text(sentence, number).strip() for sentence in document)
    return [sentence for sentence in stripped if sentence]


def _check_text(text: object, number: int) -> str:
    if isinstance(text, bytes):
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"Document {number} is not encoded as UTF-8: {error}.") from None
    if not isinstance(text, str):
        raise _make_document_error(text, number)
    return text


def _make_document_error(found: object, number: int) -> ValueError:
    return ValueError(
        f"Document {number} is or contains {quote(found)}. Expected a string with one sentence per "
        "line, or a list of strings."
    )


def _is_compressed(path: pathlib.Path) -> bool:
    return path.suffix.lower() == ".gz"


def _open_text(path: pathlib.Path, file: BinaryIO) -> contextlib.AbstractContextManager:
    """Open a plain or gzip-compressed text file."""
    return gzip.GzipFile(fileobj=file) if _is_compressed(path) else contextlib.nullcontext(file)


def _read_complete_lines(path: pathlib.Path, text: BinaryIO) -> Iterator[bytes]:
    """Yield all lines. Raise a ValueError if a compressed file is damaged or truncated."""
    try:
        yield from text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or truncated: {error}.") from None


def _read_lines(
    path: pathlib.Path, text: BinaryIO, offset: int, limit: int | None
) -> Iterator[tuple[list[str], int]]:
    """Yield (sentences, end offset) of each document up to a byte position."""
    sentences, size = [], 0
    for line in _read_complete_lines(path, text):
        offset += len(line)
        try:
            sentence = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not encoded as UTF-8: {error}. The unreadable line ends at byte "
                f"{offset}."
            ) from None
        if sentence:
            sentences.append(sentence)
            size += len(sentence)
        if sentences and (not sentence or size >= MAX_CHARACTERS):
            yield sentences, offset
            sentences, size = [], 0
        if offset == limit:
            return
    if sentences:
        yield sentences, offset
