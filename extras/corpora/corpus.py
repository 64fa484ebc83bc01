"""Store pretraining corpora on disk, as token ids in files with checksums."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, BinaryIO

from encoder_zoo.common import validation
from encoder_zoo.extras.corpora import writing
from encoder_zoo.extras.corpora.documents import CorpusDocuments, TextFiles
from encoder_zoo.extras.corpora.reading import CorpusBatches
from encoder_zoo.presets.files.folder_files import get_size
from encoder_zoo.presets.files.manifest import hash_file
from encoder_zoo.presets.files.open_folder import OpenFolder

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.tasks.preprocessing.batching import Plan
    from encoder_zoo.tasks.training.data import BatchMaker

SHARD_TOKENS = 2**23


def _is_part(value) -> bool:
    i, n = value
    return type(i) is int and type(n) is int and 0 <= i < n


Part = Annotated[tuple[int, int], validation.Rule(_is_part, "(i, n) with i from 0 to n - 1")]


class PretrainingCorpus:
    """Tokenized documents on disk for pretraining with `fit`.

    Documents are tokenized once. During training, the tokens for each batch are read from disk, so
    a corpus can be larger than memory. Pass the corpus to `MaskedLM`, `ReplacedTokenDetection` or
    `Pretraining` instead of texts. The preprocessor of the task creates examples from the corpus.
    The files only contain numbers, and have checksums.

    Args:
        folder: Path. Folder written by `from_files` or `from_documents`.

    Attributes:
        num_tokens, num_sentences, num_documents: The number of tokens, sentences and documents.
        num_shards: The number of corpus files.
        vocabulary_size: Integer. Number of tokens in the vocabulary of the tokenizer.
        sha256: String. Checksum over all contents.
        manifest: Dict with the contents of `corpus.json`.

    Raises:
        ValueError: If the corpus is incomplete, damaged or changed.

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
        self.folder = validation.check_path(folder, "folder")
        self.manifest = writing.read_manifest(self.folder)
        if not self.manifest:
            raise ValueError(
                f"{self.folder} does not contain a corpus: {writing.CORPUS_NAME} is missing."
            )
        shards = self.manifest["shards"]
        if not self.manifest["complete"]:
            raise ValueError(
                f"The corpus in {self.folder} is incomplete, with {len(shards)} files so far. To "
                "continue, call PretrainingCorpus.from_files or from_documents again with the "
                "same arguments."
            )
        self.num_tokens, self.num_sentences, self.num_documents = (
            sum(shard[name] for shard in shards) for name in writing.COUNT_FIELDS
        )
        self.num_shards = len(shards)
        self.vocabulary_size = self.manifest["tokenizer"]["vocabulary_size"]
        self.sha256 = self.manifest["sha256"]
        self._compared: set[int] = set()  # indices of files with verified checksums

    @classmethod
    @validation.validate_arguments
    def from_files(
        cls,
        folder: str | os.PathLike[str],
        paths: Sequence[str | os.PathLike[str]],
        tokenizer: Tokenizer,
        shard_tokens: validation.PositiveInt = SHARD_TOKENS,
        verbose: validation.Verbosity = "auto",
        part: Part | None = None,
    ) -> PretrainingCorpus:
        """Tokenize text files with one sentence per line and blank lines between documents.

        After a crash, call this method again to continue after the last complete file. A complete
        corpus will be returned immediately. If text files were changed in the meantime, an error
        will be raised. Only one corpus file is kept in memory. To use several processes or hosts,
        create one part per process, and combine the parts with `join`.

        Args:
            folder: Path. The output folder, which should not contain other files.
            paths: List of paths. UTF-8 text files, which can be compressed with gzip. Documents
                with more than 16 million characters will be split.
            tokenizer: Tokenizer for the model to pretrain.
            shard_tokens: Integer. The approximate number of tokens per corpus file. During
                training, examples from several files are shuffled together, and only the example
                positions are kept in memory. Defaults to 2**23.
            verbose: Set to 0 to disable the output. Defaults to "auto", which prints progress and
                speed.
            part: Optional tuple (i, n). Only process part i of n, starting from 0. The parts have a
                similar length, but compressed files are not split. All other arguments except
                `folder` must be the same for all parts.

        Raises:
            FileNotFoundError: If one of the `paths` does not exist.
            ValueError: If `folder` contains another corpus, if a file is not UTF-8 text, or if a
                file was changed during or after reading.
        """
        source = writing.CorpusTexts(TextFiles(paths, part), tokenizer, part)
        writing.write(validation.check_path(folder, "folder"), source, shard_tokens, verbose)
        return cls(folder)

    @classmethod
    @validation.validate_arguments
    def from_documents(
        cls,
        folder: str | os.PathLike[str],
        documents: Iterable,
        tokenizer: Tokenizer,
        shard_tokens: validation.PositiveInt = SHARD_TOKENS,
        verbose: validation.Verbosity = "auto",
        part: Part | None = None,
    ) -> PretrainingCorpus:
        """Tokenize documents from an iterable instead of files. See `from_files`.

        Args:
            folder, tokenizer, shard_tokens, verbose: See `from_files`.
            documents: Generator, list or `tf.data.Dataset`. Each document is a string with one
                sentence per line, or a list of sentences. To continue after a crash, pass the same
                documents in the same order. Finished documents are compared and skipped.
            part: Optional tuple (i, n). Mark `documents` as part i of n, starting from 0. The
                caller should divide the documents into parts.

        Raises:
            ValueError: If `folder` contains another corpus, or if a document is not text.
        """
        source = writing.CorpusTexts(CorpusDocuments(documents), tokenizer, part)
        writing.write(validation.check_path(folder, "folder"), source, shard_tokens, verbose)
        return cls(folder)

    @classmethod
    @validation.validate_arguments
    def join(
        cls,
        folder: str | os.PathLike[str],
        parts: Sequence[str | os.PathLike[str]],
        verbose: validation.Verbosity = "auto",
    ) -> PretrainingCorpus:
        """Combine the parts that several processes have created into one corpus.

        The result is identical to a corpus from a single process. After a crash, call this method
        again to continue. The parts can be deleted afterwards.

        Args:
            folder: Path. The output folder, which should not contain other files.
            parts: List of paths. Folders of all parts, in any order.
            verbose: Set to 0 to disable the output. Defaults to "auto", which prints progress and
                speed.

        Raises:
            ValueError: If a part is missing, occurs twice, is damaged or was changed, or if parts
                belong to different corpora.

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
        source = CorpusParts([cls(part) for part in parts])
        writing.write(validation.check_path(folder, "folder"), source, source.shard_tokens, verbose)
        return cls(folder)

    def __repr__(self) -> str:
        files = "1 file" if self.num_shards == 1 else f"{self.num_shards} files"
        return (
            f"<PretrainingCorpus: {self.num_tokens:,} tokens of {self.num_documents:,} documents "
            f"in {files}>"
        )

    def verify(self) -> None:
        """Verify the checksums of all corpus files.

        Raises:
            ValueError: If a file is damaged or was changed.
        """
        for entry in self.manifest["shards"]:
            with self._open_file(entry) as file:
                if hash_file(file) != entry["sha256"]:
                    raise writing.make_damage_error(file.name)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Check that this corpus was created with a certain tokenizer.

        Raises:
            ValueError: If the corpus was created with another tokenizer.
        """
        if self.manifest["tokenizer"] != writing.describe_tokenizer(tokenizer):
            raise ValueError(
                f"{self.folder} was created with a different tokenizer, a "
                f"{self.manifest['tokenizer']['class']} with {self.vocabulary_size} tokens. Use "
                "this tokenizer for the task, or create the corpus again with the task tokenizer."
            )

    def make_training_data(self, plan: Plan, maker: BatchMaker) -> CorpusBatches:
        """Create the data source for `fit` and `evaluate`."""
        return CorpusBatches(plan, maker, self)

    def open_shard(self, number: int) -> writing.Shard:
        """Open a corpus file by index. The checksum is verified once per file."""
        entry = self.manifest["shards"][number]
        with self._open_file(entry) as file:
            if get_size(file) != entry["bytes"]:
                raise writing.make_damage_error(file.name)
            if number not in self._compared and hash_file(file) != entry["sha256"]:
                raise writing.make_damage_error(file.name)
            self._compared.add(number)
            return writing.Shard.open(file, self.vocabulary_size)

    @contextlib.contextmanager
    def _open_file(self, entry: Mapping) -> Iterator[BinaryIO]:
        """Open a file, and check that the folder still contains this corpus."""
        with OpenFolder(self.folder, [writing.CORPUS_NAME, entry["file"]]) as files:
            if writing.load_manifest(files).get("sha256") != self.sha256:
                raise ValueError(
                    f"{self.folder} was replaced by a different corpus during training. Open the "
                    "corpus again and restart the training."
                )
            yield files.open_file(entry["file"], self.folder / writing.CORPUS_NAME)
            files.check_unchanged()


# Settings that must be the same for all parts.
SHARED_FIELDS = ("tokenizer", "source", "shard_tokens")


class CorpusParts:
    """`CorpusSource` that joins the tokenized documents from all parts.

    Args:
        corpora: Sequence of `PretrainingCorpus` objects. All parts, in any order.

    Raises:
        ValueError: If a corpus is not a part, or if parts are missing, occur twice, or belong to
            different corpora.
    """

    start = (0, 0)  # shard index over all parts, and document index in the shard
    part = None

    def __init__(self, corpora: Sequence[PretrainingCorpus]):
        for corpus in corpora:
            if corpus.manifest.get(writing.PART) is None:
                raise ValueError(
                    f"{corpus.folder} contains a whole corpus instead of a part. To create a part, "
                    "use the argument `part`."
                )
        corpora = sorted(corpora, key=lambda corpus: corpus.manifest[writing.PART])
        for corpus in corpora[1:]:
            _check_same_corpus(corpora[0], corpus)
        _check_all_parts(corpora)
        for corpus in corpora:
            corpus.verify()
        first = corpora[0].manifest
        self.tokenizer, self.shard_tokens = first["tokenizer"], first["shard_tokens"]
        self.description = first["source"]
        modified = [corpus.manifest.get(writing.MODIFIED) for corpus in corpora]
        self.modified = modified[0] if all(times == modified[0] for times in modified) else None
        self._shards = [(corpus, n) for corpus in corpora for n in range(corpus.num_shards)]

    def check_unchanged(self) -> None:
        """Do nothing, because part files are compared with the manifest during reading."""

    def read_blocks(self, position: Sequence[int], shard_tokens: int) -> Iterator[writing.Block]:
        begin, document = position
        for number in range(begin, len(self._shards)):
            corpus, of_part = self._shards[number]
            shard = corpus.open_shard(of_part)
            count = len(shard.documents) - 1
            if document < count:
                positions = [[number, d + 1] for d in range(document, count)]
                share = (number + 1) / len(self._shards)
                yield writing.Block(shard.select_documents(document, count), positions, share)
            document = 0


def _check_same_corpus(first: PretrainingCorpus, other: PretrainingCorpus) -> None:
    mine, others = first.manifest, other.manifest
    for name in SHARED_FIELDS:
        if mine.get(name) != others.get(name):
            raise ValueError(
                f"{first.folder} and {other.folder} are not parts of the same corpus: {name} is "
                f"{mine.get(name)} and {others.get(name)}."
            )


def _check_all_parts(corpora: Sequence[PretrainingCorpus]) -> None:
    """Raise a ValueError if a part is missing or occurs twice."""
    found = [tuple(corpus.manifest[writing.PART]) for corpus in corpora]
    count = found[0][1]
    if found != [(i, count) for i in range(count)]:
        shown = ", ".join(f"part {i} of {n}" for i, n in found)
        raise ValueError(
            f"`parts` contains {shown}. Expected all parts from 0 to {count - 1} of {count}, "
            "without duplicates."
        )
