"""Tokenizing of documents into the files of a corpus, continued after a crash."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.version import __version__
from encoder_zoo.presets.files.atomic import replacing_file
from encoder_zoo.presets.files.manifest import checksum_of, digest
from encoder_zoo.tasks.corpora.documents import Document, Documents, TextFiles
from encoder_zoo.tasks.corpora.manifest import (
    COUNTS,
    FORMAT,
    NAME,
    described_tokenizer,
    read_manifest,
)
from encoder_zoo.tasks.corpora.shards import Shard, splits

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

BLOCK = 2**22  # characters that are tokenized at a time, at most
SECONDS = 10  # between two lines of progress


def write(
    folder: pathlib.Path,
    source: TextFiles | Documents,
    tokenizer: Tokenizer,
    shard_tokens: int,
    verbose: int | str,
) -> None:
    """Write a corpus, or the rest of one.

    Raises:
        ValueError: "... belongs to another corpus: ...", "There is no text in it."
    """
    manifest = _begun(folder, source, tokenizer, shard_tokens)
    if manifest["complete"]:
        return
    shards = manifest["shards"]
    position = shards[-1]["position"] if shards else source.start
    progress = Progress(shards) if verbose else None
    for shard, end in _shards(source.documents(position), tokenizer, shard_tokens, progress):
        path = folder / f"shard-{len(shards):05d}.safetensors"
        with replacing_file(path) as new:
            shard.write(new, tokenizer.vocabulary_size)
        counts = (len(shard.tokens), len(shard.sentences) - 1, len(shard.documents) - 1)
        shards.append(
            {
                "file": path.name,
                "bytes": path.stat().st_size,
                "sha256": checksum_of(path),
                **dict(zip(COUNTS, counts, strict=True)),
                "position": end,
            }
        )
        _write_manifest(folder, manifest)
    if not shards:
        raise ValueError("There is no text in the documents. Expected sentences.")
    _write_manifest(folder, {**manifest, "complete": True})
    if progress:
        progress.show(", complete")


def _begun(folder, source, tokenizer: Tokenizer, shard_tokens: int) -> dict:
    """Return the manifest in the folder, which must be of the same corpus, or a new one."""
    settings = {
        "format": FORMAT,
        "tokenizer": described_tokenizer(tokenizer),
        "source": source.describe(),
        "shard_tokens": shard_tokens,
    }
    found = read_manifest(folder)
    if not found:
        return {**settings, "encoder_zoo": __version__, "complete": False, "shards": []}
    for name, value in settings.items():
        if found.get(name) != value:
            raise ValueError(
                f"{folder} belongs to another corpus: {name} is {found.get(name)} there, "
                f"{value} now. Write to another folder, or delete that one."
            )
    return found


def _write_manifest(folder: pathlib.Path, manifest: dict) -> None:
    manifest = {**manifest, "sha256": digest(manifest)}
    with replacing_file(folder / NAME) as new:
        new.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _shards(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    shard_tokens: int,
    progress: Progress | None,
) -> Iterator[tuple[Shard, list[int]]]:
    """Yield shards of at least so many tokens, but for the last, and the position after each."""
    parts, size = [], 0
    for block in _blocks(documents, min(BLOCK, 4 * shard_tokens)):
        part = _tokenized([document.sentences for document in block], tokenizer)
        parts.append(part)
        size += len(part.tokens)
        if progress:
            progress.add(part, block[-1].share)
        if size >= shard_tokens:
            yield _joined(parts), block[-1].position
            parts, size = [], 0
    if size:
        yield _joined(parts), block[-1].position


def _blocks(documents: Iterable[Document], characters: int) -> Iterator[list[Document]]:
    """Yield documents of about so many characters, to be tokenized at a time."""
    block, size = [], 0
    for document in documents:
        block.append(document)
        size += sum(map(len, document.sentences))
        if size >= characters:
            yield block
            block, size = [], 0
    if block:
        yield block


def _tokenized(documents: list[list[str]], tokenizer: Tokenizer) -> Shard:
    """Return documents as ids, without sentences and documents of no token."""
    ids = tokenizer.tokenize([sentence for document in documents for sentence in document])
    lengths = ids.row_lengths().numpy()
    document = np.repeat(np.arange(len(documents)), [len(d) for d in documents])
    sentences = np.bincount(document[lengths > 0], minlength=len(documents))
    return Shard(
        ids.flat_values.numpy(),
        splits(lengths[lengths > 0]),
        splits(sentences[sentences > 0]),
    )


def _joined(parts: list[Shard]) -> Shard:
    return Shard(
        np.concatenate([part.tokens for part in parts]),
        splits(np.concatenate([np.diff(part.sentences) for part in parts])),
        splits(np.concatenate([np.diff(part.documents) for part in parts])),
    )


class Progress:
    """Prints progress and speed.

    Args:
        shards: entries of those that are written already.
    """

    def __init__(self, shards: list[dict]):
        self._before = sum(shard["tokens"] for shard in shards)
        self._tokens, self._documents = self._before, sum(shard["documents"] for shard in shards)
        self._begun = self._printed = time.monotonic()

    def add(self, part: Shard, share: float | None) -> None:
        """Count tokenized documents, and print progress now and then."""
        self._tokens += len(part.tokens)
        self._documents += len(part.documents) - 1
        if time.monotonic() - self._printed >= SECONDS:
            self._printed = time.monotonic()
            self.show("" if share is None else f", {share:.0%} of the text")

    def show(self, state: str) -> None:
        """Print totals, speed and how far the writing is."""
        rate = (self._tokens - self._before) / max(time.monotonic() - self._begun, 1e-3)
        counts = f"{self._tokens:,} tokens of {self._documents:,} documents"
        print(f"Corpus: {counts}, {rate:,.0f} tokens/s{state}", flush=True)
