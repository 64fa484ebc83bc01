"""Tokenize documents and write corpus files. An interrupted corpus can be continued.

A file ends with the document that reaches `shard_tokens`. Joined parts are divided into files
again, so the files are the same as from a single process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.progress import Progress
from encoder_zoo.common.version import __version__
from encoder_zoo.common.wording import invalid
from encoder_zoo.extras.corpora.documents import CorpusDocuments, Document, TextFiles
from encoder_zoo.presets.files.atomic import check_folder, replace_file, write_with_checksum
from encoder_zoo.presets.files.manifest import compute_checksum, compute_manifest_digest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Shard:
    """Documents in a corpus file.

    Attributes:
        tokens: Array of unsigned integers of shape (T,). Token ids, which are read from disk when
            they are used.
        sentences: Int64 array of shape (S + 1,). Sentence offsets in `tokens`.
        documents: Int64 array of shape (D + 1,). Document offsets in `sentences`.

    Example:
        >>> shard = Shard.create([[[5, 6], [7]], [[8]]])
        >>> shard.tokens.tolist(), shard.sentences.tolist(), shard.documents.tolist()
        ([5, 6, 7, 8], [0, 2, 3, 4], [0, 2, 3])
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    @classmethod
    def create(cls, documents: list[list[list[int]]]) -> Shard:
        """Create a shard from documents. A document is a list of sentences (lists of token ids)."""
        sentences = [sentence for document in documents for sentence in document]
        return cls(
            np.array([token for sentence in sentences for token in sentence], "uint32"),
            compute_splits([len(sentence) for sentence in sentences]),
            compute_splits([len(document) for document in documents]),
        )

    @classmethod
    def open(cls, file: BinaryIO, vocabulary_size: int) -> Shard:
        """Open a shard file. Offsets are validated, and tokens are memory-mapped.

        Raises:
            ValueError: If `file` is damaged or is not a corpus file.
        """
        path, file = file.name, SafetensorsFile(file)
        offsets = dict.fromkeys(("sentences", "documents"), "uint32")
        expected = {"tokens": choose_id_type(vocabulary_size), **offsets}
        found = {n: file.get_dtype(n).name for n, shape in file.shapes.items() if len(shape) == 1}
        if found != expected:
            raise ValueError(
                f"{path} is not a corpus file. The tensors are {found}. Expected {expected}."
            )
        sentences, documents = (file.read(n).astype("int64") for n in ("sentences", "documents"))
        tokens = np.asarray(file.map_tensor("tokens"))  # slices of a plain view are faster
        shard = cls(tokens, sentences, documents)
        for name, size in (("sentences", len(shard.tokens)), ("documents", len(sentences) - 1)):
            if not _are_valid_splits(getattr(shard, name), size):
                raise ValueError(
                    f"{path} is not a corpus file. Expected values in {name} that increase from 0 "
                    f"to {size}."
                )
        return shard

    def select_documents(self, first: int, last: int) -> Shard:
        """Return a shard with the documents from index `first` to index `last` (exclusive).

        Example:
            >>> Shard.create([[[5, 6], [7]], [[8]]]).select_documents(1, 2).tokens.tolist()
            [8]
        """
        documents = self.documents[first : last + 1]
        sentences = self.sentences[documents[0] : documents[-1] + 1]
        tokens = self.tokens[sentences[0] : sentences[-1]]
        return Shard(tokens, sentences - sentences[0], documents - documents[0])

    def write(self, path: pathlib.Path, vocabulary_size: int) -> None:
        """Write the shard to a file."""
        arrays = {
            "tokens": self.tokens.astype(choose_id_type(vocabulary_size)),
            "sentences": self.sentences.astype("uint32"),
            "documents": self.documents.astype("uint32"),
        }
        save_file(arrays, path)


def choose_id_type(vocabulary_size: int) -> str:
    """Return the smallest unsigned integer type for the token ids of a vocabulary.

    Example:
        >>> choose_id_type(30_522), choose_id_type(2**16 + 1)
        ('uint16', 'uint32')
    """
    return "uint16" if vocabulary_size <= 2**16 else "uint32"


def compute_splits(lengths: list[int] | np.ndarray) -> np.ndarray:
    """Convert lengths of consecutive parts to offsets, which start with 0 and end with the sum.

    Example:
        >>> compute_splits([2, 1]).tolist()
        [0, 2, 3]
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype("int64")


def _are_valid_splits(offsets: np.ndarray, size: int) -> bool:
    """Return whether offsets increase from 0 to `size`, as returned by `compute_splits`."""
    return bool(
        len(offsets) > 1
        and offsets[0] == 0
        and offsets[-1] == size
        and (np.diff(offsets) > 0).all()
    )


CORPUS_NAME = "corpus.json"
CORPUS_FORMAT = 1
COUNT_FIELDS = ("tokens", "sentences", "documents")
PART = "part"  # (i, n) for part i of n, or None for a whole corpus
MODIFIED = "modified"  # modification times of text files, or None if unknown


def describe_tokenizer(tokenizer: Tokenizer) -> dict:
    """Describe a tokenizer by its class, its vocabulary size, and a checksum over all settings.

    Raises:
        ValueError: If the tokenizer has a `post_processor`. Examples in a corpus only have a start
            token, and an end token after each text.
    """
    config = tokenizer.get_config()
    if found := config.pop("post_processor", None):
        raise invalid("post_processor", found, "None, to create examples of a corpus")
    config = json.dumps(config, sort_keys=True).encode()
    return {
        "class": type(tokenizer).__name__,
        "vocabulary_size": tokenizer.vocabulary_size,
        "sha256": hashlib.sha256(config).hexdigest(),
    }


def read_manifest(folder: pathlib.Path) -> dict:
    """Read and validate `corpus.json`. Return {} for a missing file.

    Raises:
        ValueError: If the manifest in `folder` is damaged or was changed.
    """
    if not folder.is_dir():
        return {}
    with OpenFolder(folder, [CORPUS_NAME]) as files:
        return load_manifest(files)


def load_manifest(files: OpenFolder) -> dict:
    """Read and validate `corpus.json` in an open folder. Return {} for a missing file."""
    if CORPUS_NAME not in files:
        return {}
    path = files.path / CORPUS_NAME
    manifest = files.read_json(CORPUS_NAME)
    if manifest.get("format") != CORPUS_FORMAT:
        found = manifest.get("format")
        raise invalid(f"{path}: format", found, f"{CORPUS_FORMAT}")
    if manifest.get("sha256") != compute_manifest_digest(manifest) or not _is_valid_manifest(
        manifest
    ):
        raise make_damage_error(path)
    return manifest


def _is_valid_manifest(manifest: dict) -> bool:
    """Return whether all required manifest fields have valid values."""
    try:
        size, whole = manifest["tokenizer"]["vocabulary_size"], manifest["complete"]
        shards = manifest["shards"]
        numbers = [size, *(shard[name] for shard in shards for name in ("bytes", *COUNT_FIELDS))]
        texts = [shard[name] for shard in shards for name in ("file", "sha256")]
        places = [] if whole else [shard["position"] for shard in shards]  # needed to continue
        return (
            type(whole) is bool
            and all(type(number) is int and number > 0 for number in numbers)
            and all(type(text) is str for text in texts)
            and all(type(place) is list and all(map(_is_place, place)) for place in places)
        )
    except (KeyError, TypeError):
        return False


def _is_place(value: object) -> bool:
    """Return whether a value can be part of a position, as an integer or a checksum."""
    return type(value) is str or (type(value) is int and value >= 0)


def make_damage_error(path: str | pathlib.Path) -> ValueError:
    """Create an error for a file with an unexpected size or checksum."""
    return ValueError(
        f"{path} is damaged or was changed: the size or checksum differs. Create the corpus again "
        "in another folder."
    )


BLOCK_CHARACTERS = 2**22  # maximum number of characters per call of the tokenizer


class Block(NamedTuple):
    """Tokenized documents, and their positions in the source.

    Attributes:
        shard: The `Shard` with the documents.
        positions: Sequence with the source position after each document.
        share: Optional float between 0 and 1. Fraction of text read so far. None if unknown.
    """

    shard: Shard
    positions: Sequence[list[int]]
    share: float | None


class CorpusSource(Protocol):
    """Protocol for sources that yield tokenized documents.

    Attributes:
        start: Sequence of integers. Position of the first document.
        tokenizer: Dict that describes the tokenizer.
        description: Dict that describes the documents. To continue a corpus, the description must
            be the same.
        modified: Optional list of integers. File modification times, which must also be the same.
            None for documents that are not in files.
        part: Optional tuple (i, n) for part i of n.
    """

    start: Sequence[int]
    tokenizer: dict
    description: dict
    modified: list[int] | None
    part: Sequence[int] | None

    def check_unchanged(self) -> None:
        """Raise a ValueError if the documents were changed during reading."""

    def read_blocks(self, position: Sequence[int], shard_tokens: int) -> Iterator[Block]:
        """Yield blocks with all documents after a source position."""


class CorpusTexts:
    """`CorpusSource` that tokenizes documents.

    Args:
        documents: `TextFiles` or `CorpusDocuments`. Documents to tokenize.
        tokenizer: The `Tokenizer` to use.
        part: Optional tuple (i, n) for part i of n.
    """

    def __init__(
        self,
        documents: TextFiles | CorpusDocuments,
        tokenizer: Tokenizer,
        part: Sequence[int] | None = None,
    ):
        self._documents, self._tokenizer = documents, tokenizer
        self.start, self.modified, self.part = documents.start, documents.modified, part
        self.tokenizer, self.description = describe_tokenizer(tokenizer), documents.describe()

    def check_unchanged(self) -> None:
        self._documents.check_unchanged()

    def read_blocks(self, position: Sequence[int], shard_tokens: int) -> Iterator[Block]:
        documents = self._documents.read_documents(position)
        for block in _make_blocks(documents, min(BLOCK_CHARACTERS, 4 * shard_tokens)):
            shard, kept = _tokenize_documents(
                [document.sentences for document in block], self._tokenizer
            )
            yield Block(shard, [block[i].position for i in kept], block[-1].share)


def write(
    folder: pathlib.Path, source: CorpusSource, shard_tokens: int, verbose: int | str
) -> None:
    """Write a corpus to a folder, or continue an incomplete corpus.

    Raises:
        ValueError: If `folder` contains another corpus, or if all documents are empty.
    """
    manifest = _open_or_create(folder, source, shard_tokens)
    if manifest["complete"]:
        return
    shards = manifest["shards"]
    position = shards[-1]["position"] if shards else source.start
    progress = CorpusProgress(shards) if verbose else None
    for shard, end in _make_shards(
        source.read_blocks(position, shard_tokens), shard_tokens, progress
    ):
        path = folder / f"shard-{len(shards):05d}.safetensors"
        source.check_unchanged()
        with replace_file(path) as new:
            shard.write(new, source.tokenizer["vocabulary_size"])
        counts = (len(shard.tokens), len(shard.sentences) - 1, len(shard.documents) - 1)
        shards.append(
            {
                "file": path.name,
                "bytes": path.stat().st_size,
                "sha256": compute_checksum(path),
                **dict(zip(COUNT_FIELDS, counts, strict=True)),
                "position": end,
            }
        )
        write_with_checksum(folder / CORPUS_NAME, manifest)
    if not shards and source.part is None:
        raise ValueError("All documents are empty. Expected documents with at least one sentence.")
    for shard in shards:  # positions in joined parts are different from positions in texts
        del shard["position"]
    write_with_checksum(folder / CORPUS_NAME, {**manifest, "complete": True})
    if progress:
        progress.show(", complete")


def _open_or_create(folder: pathlib.Path, source: CorpusSource, shard_tokens: int) -> dict:
    """Load the manifest for this corpus from a folder, or create a new manifest."""
    settings = {
        "format": CORPUS_FORMAT,
        "tokenizer": source.tokenizer,
        "source": source.description,
        "shard_tokens": shard_tokens,
        PART: source.part and list(source.part),
        MODIFIED: source.modified,
    }
    found = read_manifest(check_folder(folder))
    if not found:
        return {**settings, "encoder_zoo": __version__, "complete": False, "shards": []}
    found.setdefault(MODIFIED, settings[MODIFIED])  # missing in release 0.2
    modified = settings.pop(MODIFIED)
    for name, value in settings.items():
        if found.get(name) != value:
            raise ValueError(
                f"{folder} contains another corpus: {name} was {found.get(name)}, but is {value} "
                "now. Write to a different folder, or delete this folder."
            )
    if found[MODIFIED] != modified:
        cure = (
            "Open the existing corpus with PretrainingCorpus(folder), or write to another folder."
            if found["complete"]
            else "The corpus cannot be continued. Delete this folder, or write to another folder."
        )
        raise ValueError(f"The text files were changed after {folder} was created. {cure}")
    return found


def _make_shards(
    blocks: Iterable[Block], shard_tokens: int, progress: CorpusProgress | None
) -> Iterator[tuple[Shard, list[int]]]:
    """Yield (shard, end position). A shard ends with the document that reaches `shard_tokens`."""
    parts, size, position = [], 0, None
    for shard, positions, share in blocks:
        if progress:
            progress.add(shard, share)
        ends = shard.sentences[shard.documents[1:]]  # in tokens
        first, before = 0, 0
        while first < len(ends):
            behind = int(np.searchsorted(ends, before + shard_tokens - size)) + 1
            behind = min(behind, len(ends))
            parts.append(shard.select_documents(first, behind))
            size += int(ends[behind - 1]) - before
            first, before, position = behind, int(ends[behind - 1]), positions[behind - 1]
            if size >= shard_tokens:
                yield _join_parts(parts), position
                parts, size = [], 0
    if size:
        yield _join_parts(parts), position


def _make_blocks(documents: Iterable[Document], characters: int) -> Iterator[list[Document]]:
    """Yield lists of documents. Each list ends with the document that reaches `characters`."""
    block, size = [], 0
    for document in documents:
        block.append(document)
        size += sum(map(len, document.sentences))
        if size >= characters:
            yield block
            block, size = [], 0
    if block:
        yield block


def _tokenize_documents(
    documents: list[list[str]], tokenizer: Tokenizer
) -> tuple[Shard, list[int]]:
    """Tokenize documents. Return a shard with all non-empty documents, and their indices."""
    ids = tokenizer.tokenize([sentence for document in documents for sentence in document])
    lengths = ids.row_lengths().numpy()
    document = np.repeat(np.arange(len(documents)), [len(d) for d in documents])
    sentences = np.bincount(document[lengths > 0], minlength=len(documents))
    shard = Shard(
        ids.flat_values.numpy(),
        compute_splits(lengths[lengths > 0]),
        compute_splits(sentences[sentences > 0]),
    )
    return shard, np.flatnonzero(sentences).tolist()


def _join_parts(parts: list[Shard]) -> Shard:
    return Shard(
        np.concatenate([part.tokens for part in parts]),
        compute_splits(np.concatenate([np.diff(part.sentences) for part in parts])),
        compute_splits(np.concatenate([np.diff(part.documents) for part in parts])),
    )


class CorpusProgress(Progress):
    """Print the number of processed tokens and documents.

    Args:
        shards: List of dicts. Entries of the finished shards in the manifest.
    """

    def __init__(self, shards: list[dict]):
        super().__init__(sum(shard["tokens"] for shard in shards))
        self._documents = sum(shard["documents"] for shard in shards)

    def add(self, part: Shard, share: float | None) -> None:
        """Count tokenized documents, and print the progress every few seconds."""
        self._documents += len(part.documents) - 1
        self.count(len(part.tokens), "" if share is None else f", {share:.0%} of the text")

    def show(self, state: str = "") -> None:
        """Print the totals, the speed and the progress."""
        counts = f"{self.done:,} tokens of {self._documents:,} documents"
        print(f"Corpus: {counts}, {self.rate:,.0f} tokens/s{state}", flush=True)
