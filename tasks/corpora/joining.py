"""Parts of a corpus that several processes made, read one after the other to join them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from encoder_zoo.tasks.corpora.manifest import PART
from encoder_zoo.tasks.corpora.writing import Block

if TYPE_CHECKING:
    from encoder_zoo.tasks.corpora.corpus import PretrainingCorpus

SHARED = ("tokenizer", "source", "shard_tokens")  # settings that all parts have alike


class Parts:
    """The documents of all parts of a corpus: a `writing.Source`.

    Args:
        corpora: the parts, in any order.

    Raises:
        ValueError: "... is no part ...", "Part 1 of 4 is missing. ...", "... and ... are of
            different corpora: ..."
    """

    start = (0, 0)  # number of the shard among all, and of its document
    part = None

    def __init__(self, corpora: Sequence[PretrainingCorpus]):
        for corpus in corpora:
            if corpus.manifest.get(PART) is None:
                raise ValueError(f"{corpus.folder} is no part: it was made without `part`.")
        corpora = sorted(corpora, key=lambda corpus: corpus.manifest[PART])
        for corpus in corpora[1:]:
            _check_same_corpus(corpora[0], corpus)
        _check_complete(corpora)
        for corpus in corpora:
            corpus.verify()
        first = corpora[0].manifest
        self.tokenizer, self.shard_tokens = first["tokenizer"], first["shard_tokens"]
        self.description = first["source"]
        self._shards = [(corpus, n) for corpus in corpora for n in range(corpus.num_shards)]

    def blocks(self, position: Sequence[int], shard_tokens: int) -> Iterator[Block]:
        begin, document = position
        for number in range(begin, len(self._shards)):
            corpus, of_part = self._shards[number]
            shard = corpus.shard(of_part)
            count = len(shard.documents) - 1
            if document < count:
                positions = [[number, d + 1] for d in range(document, count)]
                share = (number + 1) / len(self._shards)
                yield Block(shard.part(document, count), positions, share)
            document = 0


def _check_same_corpus(first: PretrainingCorpus, other: PretrainingCorpus) -> None:
    mine, others = first.manifest, other.manifest
    for name in SHARED:
        if mine.get(name) != others.get(name):
            raise ValueError(
                f"{first.folder} and {other.folder} are of different corpora: {name} is "
                f"{mine.get(name)} and {others.get(name)}."
            )


def _check_complete(corpora: Sequence[PretrainingCorpus]) -> None:
    """Raise an error unless each part is there once."""
    found = [tuple(corpus.manifest[PART]) for corpus in corpora]
    count = found[0][1]
    if found != [(i, count) for i in range(count)]:
        shown = ", ".join(f"{i} of {n}" for i, n in found)
        raise ValueError(
            f"Expected parts 0 to {count - 1} of {count}, each once. Received: {shown}."
        )
