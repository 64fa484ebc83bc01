"""A corpus on disk: documents as ids, in files that are checked and larger than memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

from encoder_zoo.common.validation import PositiveInt, Verbosity, validate_arguments
from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.folder_files import size_of
from encoder_zoo.presets.files.manifest import checksum, digest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.tasks.corpora.documents import Documents, TextFiles
from encoder_zoo.tasks.corpora.shards import Shard

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

NAME = "corpus.json"
FORMAT = 1
SHARD_TOKENS = 2**23
COUNTS = ("tokens", "sentences", "documents")


class PretrainingCorpus:
    """Documents, tokenized once into files, for the `fit` of a task that pretrains.

    The files are numbers and nothing else, with checksums; whoever trains reads from the disk what
    a batch needs, so that a corpus may be larger than the memory. `MaskedLM`,
    `ReplacedTokenDetection` and `Pretraining` take it in place of texts, and make their own rows
    of it: see their preprocessors.

    Args:
        folder: that `from_files` or `from_documents` wrote.

    Attributes:
        num_tokens, num_sentences, num_documents: how many there are.
        num_shards: of how many files it is.
        vocabulary_size: of its tokenizer.
        sha256: checksum of all that it holds.

    Raises:
        ValueError: "... is not complete: it has 3 files so far. ...", "... is damaged or changed"

    Example:
        >>> import tempfile
        >>> import encoder_zoo as ez
        >>> folder = tempfile.mkdtemp() + "/corpus"
        >>> tokenizer = ez.BertTokenizer.from_preset("bert_nano_en_uncased")
        >>> documents = [["A cat sat down.", "It ate."], ["A dog ran."]]
        >>> ez.PretrainingCorpus.from_documents(folder, documents, tokenizer, verbose=0)
        <PretrainingCorpus: 13 tokens of 2 documents in 1 file>
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        self._manifest = read_manifest(self.folder)
        if not self._manifest:
            raise ValueError(f"{self.folder} holds no corpus: there is no {NAME}.")
        shards = self._manifest["shards"]
        if not self._manifest["complete"]:
            raise ValueError(
                f"{self.folder} is not complete: it has {len(shards)} files so far. Call "
                "PretrainingCorpus.from_files or from_documents again as before: it goes on."
            )
        self.num_tokens, self.num_sentences, self.num_documents = (
            sum(shard[name] for shard in shards) for name in COUNTS
        )
        self.num_shards = len(shards)
        self.vocabulary_size = self._manifest["tokenizer"]["vocabulary_size"]
        self.sha256 = self._manifest["sha256"]

    @classmethod
    @validate_arguments
    def from_files(
        cls,
        folder: str | os.PathLike,
        paths: Sequence[str | os.PathLike],
        tokenizer: Tokenizer,
        shard_tokens: PositiveInt = SHARD_TOKENS,
        verbose: Verbosity = "auto",
    ) -> PretrainingCorpus:
        """Tokenizes text files: a sentence on each line, a blank line between documents.

        The same call, after a kill, goes on behind the last whole file; for a corpus that is
        complete it returns at once. Memory is that of one file.

        Args:
            folder: to write to, of this corpus alone.
            paths: of the text files, in UTF-8, packed by gzip or not. A document of more than
                16 million characters is cut.
            tokenizer: of the model that is to be pretrained.
            shard_tokens: how many tokens, about, one file holds. Rows are shuffled over several
                files, in memory their places alone.
            verbose: 0 is silent; otherwise lines say how far it is and how fast.

        Raises:
            FileNotFoundError: "... is not there."
            ValueError: "... belongs to another corpus: ...", "... is not text in UTF-8: ..."
        """
        from encoder_zoo.tasks.corpora.writing import write

        write(pathlib.Path(folder), TextFiles(paths), tokenizer, shard_tokens, verbose)
        return cls(folder)

    @classmethod
    @validate_arguments
    def from_documents(
        cls,
        folder: str | os.PathLike,
        documents: Iterable,
        tokenizer: Tokenizer,
        shard_tokens: PositiveInt = SHARD_TOKENS,
        verbose: Verbosity = "auto",
    ) -> PretrainingCorpus:
        """As `from_files`, of documents that something gives one by one.

        Args:
            folder, tokenizer, shard_tokens, verbose: as for `from_files`.
            documents: a generator, a list, a `tf.data.Dataset`: of texts with a sentence on each
                line, or of lists of sentences. To go on after a kill it must give the same
                documents in the same order; those that are done are passed over.

        Raises:
            ValueError: "... belongs to another corpus: ...", "Document 3 is or holds 7. ..."
        """
        from encoder_zoo.tasks.corpora.writing import write

        write(pathlib.Path(folder), Documents(documents), tokenizer, shard_tokens, verbose)
        return cls(folder)

    def __repr__(self) -> str:
        files = "1 file" if self.num_shards == 1 else f"{self.num_shards} files"
        return (
            f"<PretrainingCorpus: {self.num_tokens:,} tokens of {self.num_documents:,} documents "
            f"in {files}>"
        )

    def verify(self) -> None:
        """Compares every file with its checksum, which reads them all.

        Raises:
            ValueError: "... is damaged or changed: ..."
        """
        for entry in self._manifest["shards"]:
            with self._opened(entry) as file:
                if checksum(file) != entry["sha256"]:
                    raise _damaged(file.name)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuses a tokenizer that is not the corpus's.

        Raises:
            ValueError: "... was made with another tokenizer ..."
        """
        if self._manifest["tokenizer"] != described_tokenizer(tokenizer):
            raise ValueError(
                f"{self.folder} was made with another tokenizer than this task has: a "
                f"{self._manifest['tokenizer']['class']} of {self.vocabulary_size} tokens. Load "
                "that one, or make the corpus anew."
            )

    def shard(self, number: int) -> Shard:
        """Opens one of the files, from 0."""
        entry = self._manifest["shards"][number]
        with self._opened(entry) as file:
            if size_of(file) != entry["bytes"]:
                raise _damaged(file.name)
            return Shard.open(file, self.vocabulary_size)

    @contextlib.contextmanager
    def _opened(self, entry: Mapping) -> Iterator[BinaryIO]:
        """Opens a file of the corpus, in a folder that still holds this corpus."""
        with OpenFolder(self.folder, [NAME, entry["file"]]) as files:
            if _manifest_in(files).get("sha256") != self.sha256:
                raise ValueError(
                    f"{self.folder} was replaced by another corpus since it was opened. Open it "
                    "again, and begin the training anew."
                )
            yield files.file(entry["file"], self.folder / NAME)
            files.check_unchanged()


def described_tokenizer(tokenizer: Tokenizer) -> dict:
    """What a corpus keeps of its tokenizer: class, size, and a checksum of all its settings."""
    config = json.dumps(tokenizer.get_config(), sort_keys=True).encode()
    return {
        "class": type(tokenizer).__name__,
        "vocabulary_size": tokenizer.vocabulary_size,
        "sha256": hashlib.sha256(config).hexdigest(),
    }


def read_manifest(folder: pathlib.Path) -> dict:
    """What `corpus.json` says, checked; {} where there is none.

    Raises:
        ValueError: "...: ... Expected ...", "... is damaged or changed"
    """
    if not folder.is_dir():
        return {}
    with OpenFolder(folder, [NAME]) as files:
        return _manifest_in(files)


def _manifest_in(files: OpenFolder) -> dict:
    if NAME not in files:
        return {}
    path = files.path / NAME
    manifest = files.read_json(NAME)
    if manifest.get("format") != FORMAT:
        found = shown(manifest.get("format"))
        raise ValueError(f"{path}: format is {found}. Expected {FORMAT}, which this version reads.")
    if manifest.get("sha256") != digest(manifest) or not _is_sound(manifest):
        raise _damaged(path)
    return manifest


def _is_sound(manifest: dict) -> bool:
    """Whether all is there that is looked for, and of its kind."""
    kinds = {"file": str, "bytes": int, "sha256": str, "place": list, **dict.fromkeys(COUNTS, int)}
    try:
        size = manifest["tokenizer"]["vocabulary_size"]
        whole = isinstance(manifest["complete"], bool) and type(size) is int and size > 0
        fields = [(s[name], kind) for s in manifest["shards"] for name, kind in kinds.items()]
        return whole and all(type(value) is kind for value, kind in fields)
    except (KeyError, TypeError):
        return False


def _damaged(path: str | pathlib.Path) -> ValueError:
    return ValueError(
        f"{path} is damaged or changed: its size or checksum is another. Make the corpus anew, in "
        "another folder."
    )
