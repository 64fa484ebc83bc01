"""A corpus on disk: documents as token ids, in checked files, larger than memory."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, BinaryIO

from encoder_zoo.common.validation import PositiveInt, Rule, Verbosity, validate_arguments
from encoder_zoo.extras.corpora.documents import CorpusDocuments, TextFiles
from encoder_zoo.extras.corpora.reading import CorpusBatches
from encoder_zoo.extras.corpora.writing import (
    COUNTS,
    MODIFIED,
    NAME,
    PART,
    Block,
    Shard,
    Texts,
    damaged,
    described_tokenizer,
    manifest_in,
    read_manifest,
    write,
)
from encoder_zoo.presets.files.folder_files import size_of
from encoder_zoo.presets.files.manifest import checksum
from encoder_zoo.presets.files.open_folder import OpenFolder

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.tasks.preprocessing.batching import Plan
    from encoder_zoo.tasks.training.data import BatchMaker

SHARD_TOKENS = 2**23


def _is_part(value) -> bool:
    i, n = value
    return type(i) is int and type(n) is int and 0 <= i < n


Part = Annotated[tuple[int, int], Rule(_is_part, "(i, n) with i from 0 to n - 1")]


class PretrainingCorpus:
    """Documents, tokenized once into files, for the `fit` of a task that pretrains.

    The files hold numbers only, with checksums. Training reads the tokens of each batch from disk,
    so that a corpus may be larger than memory. `MaskedLM`, `ReplacedTokenDetection` and
    `Pretraining` take it instead of texts, and make their own examples: see their preprocessors.

    Args:
        folder: written by `from_files` or `from_documents`.

    Attributes:
        num_tokens, num_sentences, num_documents: number of each.
        num_shards: number of files.
        vocabulary_size: of its tokenizer.
        sha256: checksum of its contents.
        manifest: the contents of its `corpus.json`.

    Raises:
        ValueError: If the corpus is not complete, or is damaged or changed.

    Example:
        >>> import tempfile
        >>> import encoder_zoo as ez
        >>> folder = tempfile.mkdtemp() + "/corpus"
        >>> tokenizer = ez.BertTokenizer.from_preset("bert_nano_en_uncased")
        >>> documents = [["A cat sat down.", "It ate."], ["A dog ran."]]
        >>> ez.PretrainingCorpus.from_documents(folder, documents, tokenizer, verbose=0)
        <PretrainingCorpus: 13 tokens of 2 documents in 1 file>
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = pathlib.Path(folder)
        self.manifest = read_manifest(self.folder)
        if not self.manifest:
            raise ValueError(f"{self.folder} holds no corpus: there is no {NAME}.")
        shards = self.manifest["shards"]
        if not self.manifest["complete"]:
            raise ValueError(
                f"{self.folder} is not complete: it has {len(shards)} files so far. Call "
                "PretrainingCorpus.from_files or from_documents again as before to continue."
            )
        self.num_tokens, self.num_sentences, self.num_documents = (
            sum(shard[name] for shard in shards) for name in COUNTS
        )
        self.num_shards = len(shards)
        self.vocabulary_size = self.manifest["tokenizer"]["vocabulary_size"]
        self.sha256 = self.manifest["sha256"]
        self._compared: set[int] = set()  # files, with their checksums

    @classmethod
    @validate_arguments
    def from_files(
        cls,
        folder: str | os.PathLike[str],
        paths: Sequence[str | os.PathLike[str]],
        tokenizer: Tokenizer,
        shard_tokens: PositiveInt = SHARD_TOKENS,
        verbose: Verbosity = "auto",
        part: Part | None = None,
    ) -> PretrainingCorpus:
        """Tokenize text files with a sentence on each line and a blank line between documents.

        The same call, after a crash, continues after the last complete file; for a complete corpus
        it returns at once. Files that were changed meanwhile are an error. Memory is that of one
        file. Several processes or hosts make a part each, which `join` makes one corpus of.

        Args:
            folder: to write to, for this corpus alone.
            paths: of the text files, in UTF-8, packed by gzip or not. A document of more than
                16 million characters is cut.
            tokenizer: of the model that is to be pretrained.
            shard_tokens: approximate number of tokens in a file. Examples are shuffled over several
                files; only their positions are in memory.
            verbose: 0 is silent; otherwise progress and speed are printed.
            part: (i, n): only part i of n, from 0, about equally long; a file that is packed by
                gzip is in one part. All parts have the same other arguments, but for `folder`.

        Raises:
            FileNotFoundError: If a file does not exist.
            ValueError: If the folder belongs to another corpus, or a file is not text in UTF-8 or
                was changed during or after the reading.
        """
        source = Texts(TextFiles(paths, part), tokenizer, part)
        write(pathlib.Path(folder), source, shard_tokens, verbose)
        return cls(folder)

    @classmethod
    @validate_arguments
    def from_documents(
        cls,
        folder: str | os.PathLike[str],
        documents: Iterable,
        tokenizer: Tokenizer,
        shard_tokens: PositiveInt = SHARD_TOKENS,
        verbose: Verbosity = "auto",
        part: Part | None = None,
    ) -> PretrainingCorpus:
        """Tokenize documents that are given one by one; otherwise as `from_files`.

        Args:
            folder, tokenizer, shard_tokens, verbose: as for `from_files`.
            documents: a generator, a list, a `tf.data.Dataset`: of texts with a sentence on each
                line, or of lists of sentences. To continue after a crash it must give the same
                documents in the same order, which is checked; those that are done are skipped.
            part: (i, n): these documents are part i of n, from 0, of a corpus; the caller divides
                them.

        Raises:
            ValueError: If the folder belongs to another corpus, or a document is not text.
        """
        source = Texts(CorpusDocuments(documents), tokenizer, part)
        write(pathlib.Path(folder), source, shard_tokens, verbose)
        return cls(folder)

    @classmethod
    @validate_arguments
    def join(
        cls,
        folder: str | os.PathLike[str],
        parts: Sequence[str | os.PathLike[str]],
        verbose: Verbosity = "auto",
    ) -> PretrainingCorpus:
        """Make one corpus of the parts that several processes made.

        Its files are those that one process would have written, byte by byte. As there, the same
        call continues after a crash. The parts are not needed afterwards.

        Args:
            folder: to write to, for this corpus alone.
            parts: folders of all parts, in any order.
            verbose: 0 is silent; otherwise progress and speed are printed.

        Raises:
            ValueError: If a part is missing, given twice, of another corpus, damaged or changed.

        Example:
            >>> import tempfile
            >>> import encoder_zoo as ez
            >>> folder = tempfile.mkdtemp()
            >>> tokenizer = ez.BertTokenizer.from_preset("bert_nano_en_uncased")
            >>> for i, documents in enumerate([[["A cat."]], [["A dog."], ["It ran."]]]):
            ...     _ = ez.PretrainingCorpus.from_documents(
            ...         f"{folder}/{i}", documents, tokenizer, verbose=0, part=(i, 2))
            >>> parts = [f"{folder}/0", f"{folder}/1"]
            >>> ez.PretrainingCorpus.join(f"{folder}/all", parts, verbose=0)
            <PretrainingCorpus: 9 tokens of 3 documents in 1 file>
        """
        source = Parts([cls(part) for part in parts])
        write(pathlib.Path(folder), source, source.shard_tokens, verbose)
        return cls(folder)

    def __repr__(self) -> str:
        files = "1 file" if self.num_shards == 1 else f"{self.num_shards} files"
        return (
            f"<PretrainingCorpus: {self.num_tokens:,} tokens of {self.num_documents:,} documents "
            f"in {files}>"
        )

    def verify(self) -> None:
        """Read every file and compare it with its checksum.

        Raises:
            ValueError: If a file is damaged or changed.
        """
        for entry in self.manifest["shards"]:
            with self._opened(entry) as file:
                if checksum(file) != entry["sha256"]:
                    raise damaged(file.name)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise a ValueError for a tokenizer that is not the corpus's.

        Raises:
            ValueError: If the corpus was made with another tokenizer.
        """
        if self.manifest["tokenizer"] != described_tokenizer(tokenizer):
            raise ValueError(
                f"{self.folder} was made with another tokenizer than this task has: a "
                f"{self.manifest['tokenizer']['class']} of {self.vocabulary_size} tokens. Load "
                "that one, or make the corpus anew."
            )

    def training_data(self, plan: Plan, maker: BatchMaker) -> CorpusBatches:
        """Return the corpus as the data of `fit` and `evaluate`, which call this."""
        return CorpusBatches(plan, maker, self)

    def shard(self, number: int) -> Shard:
        """Open one of the files, from 0; the first time it is compared with its checksum."""
        entry = self.manifest["shards"][number]
        with self._opened(entry) as file:
            if size_of(file) != entry["bytes"]:
                raise damaged(file.name)
            if number not in self._compared and checksum(file) != entry["sha256"]:
                raise damaged(file.name)
            self._compared.add(number)
            return Shard.open(file, self.vocabulary_size)

    @contextlib.contextmanager
    def _opened(self, entry: Mapping) -> Iterator[BinaryIO]:
        """Open a file of the corpus, in a folder that still holds this corpus."""
        with OpenFolder(self.folder, [NAME, entry["file"]]) as files:
            if manifest_in(files).get("sha256") != self.sha256:
                raise ValueError(
                    f"{self.folder} was replaced by another corpus since it was opened. Open it "
                    "again, and begin the training anew."
                )
            yield files.file(entry["file"], self.folder / NAME)
            files.check_unchanged()


SHARED = ("tokenizer", "source", "shard_tokens")  # settings that all parts have alike


class Parts:
    """The documents of all parts of a corpus: a `Source` of `writing.py`.

    Args:
        corpora: the parts, in any order.

    Raises:
        ValueError: If a folder is not a part, or a part is missing, given twice, or of another
            corpus.
    """

    start = (0, 0)  # number of the shard among all, and of its document
    part = None

    def __init__(self, corpora: Sequence[PretrainingCorpus]):
        for corpus in corpora:
            if corpus.manifest.get(PART) is None:
                raise ValueError(f"{corpus.folder} is no part. Make it with `part`.")
        corpora = sorted(corpora, key=lambda corpus: corpus.manifest[PART])
        for corpus in corpora[1:]:
            _check_same_corpus(corpora[0], corpus)
        _check_complete(corpora)
        for corpus in corpora:
            corpus.verify()
        first = corpora[0].manifest
        self.tokenizer, self.shard_tokens = first["tokenizer"], first["shard_tokens"]
        self.description = first["source"]
        modified = [corpus.manifest.get(MODIFIED) for corpus in corpora]
        self.modified = modified[0] if all(times == modified[0] for times in modified) else None
        self._shards = [(corpus, n) for corpus in corpora for n in range(corpus.num_shards)]

    def check_unchanged(self) -> None:
        """Do nothing: reading a part's files compares them with its manifest."""

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
            f"The parts are {shown}. Expected parts 0 to {count - 1} of {count}, each once."
        )
