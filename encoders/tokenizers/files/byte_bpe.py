"""Reads and writes the files of byte-level BPE tokenizers: vocab.json and merges.txt."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from encoder_zoo.common.wording import differing, shown
from encoder_zoo.encoders.tokenizers.files.reading import SPECIAL_TOKENS, TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.vocabularies import check_count, checked_vocabulary
from encoder_zoo.encoders.tokenizers.files.writing import WritesFiles, as_json

logger = logging.getLogger("encoder_zoo")


class ByteBPEFiles(WritesFiles):
    """Mixin: reads and writes the files of a byte-level BPE tokenizer.

    Attributes:
        normalizer: type of the normalizer in tokenizer.json; None for none.
        trims_spans: whether `trim_offsets` is the default.
    """

    normalizer: ClassVar[str | None] = None
    trims_spans: ClassVar[bool] = True
    special_token_names: ClassVar[Mapping[str, tuple[str, ...]]] = SPECIAL_TOKENS

    @classmethod
    def _from_files(cls, files: TokenizerFiles, **template) -> ByteBPEFiles:
        if "vocab.json" in files and "merges.txt" in files:
            vocabulary = checked_vocabulary(files.contents["vocab.json"], "vocab.json")
            merges = parse_merges(files.contents["merges.txt"])
            if "tokenizer.json" in files:
                files.compare_ids("vocab.json", vocabulary, files.vocabulary("vocab.json"))
                _compare_merges(files, merges)
        else:
            vocabulary = files.vocabulary("vocab.json and merges.txt")
            merges = read_merges(files)
        files.compare_added(vocabulary)
        _check_merges(merges, vocabulary, files.folder)
        roles = files.special_tokens_for(cls)
        vocabulary, added = files.split_added_tokens(vocabulary, roles.values())
        parts = "pre_tokenizer", "post_processor"
        prefix = files.setting("add_prefix_space", "add_prefix_space", *parts)
        trims = files.setting("trim_offsets", "trim_offsets", "post_processor")
        if trims is None and files.steps("post_processor"):
            trims = False
        tokenizer = cls(
            vocabulary,
            merges,
            add_prefix_space=bool(prefix),
            trim_offsets=trims,
            added_tokens=added,
            **roles,
            **template,
        )
        model = files.part("model")
        if model and tokenizer.unknown_bytes and files.names_class and not model.get("unk_token"):
            logger.warning(
                "%s: some bytes have no token, and model.unk_token in tokenizer.json is null: "
                "transformers leaves them out of texts, here they are %s.",
                files.folder.name,
                tokenizer.unknown_token,
            )
            model["unk_token"] = tokenizer.unknown_token
        return tokenizer

    def same_steps(self, normalizer: list[dict], words: list[dict]) -> tuple[list[dict], ...]:
        """See `WritesFiles`: spans are trimmed by the post-processor alone."""
        untrimmed = [{k: v for k, v in step.items() if k != "trim_offsets"} for step in words]
        return normalizer, untrimmed

    def same_model(self, settings: dict) -> dict:
        """See `WritesFiles`: where every byte has a token, none is unknown."""
        if self.unknown_bytes:
            return settings
        never = ("unk_token", "fuse_unk", "byte_fallback")
        return {name: value for name, value in settings.items() if name not in never}

    def _vocabulary_files(self) -> dict[str, str]:
        lines = ["#version: 0.2", *self.merges]
        return {
            "vocab.json": as_json(self.vocabulary),
            "merges.txt": "".join(f"{line}\n" for line in lines),
        }

    def _settings(self) -> dict:
        return {
            "tokenizer_class": "RobertaTokenizer",
            "add_prefix_space": self.add_prefix_space,
            "trim_offsets": self.trim_offsets,
        }

    def _steps(self) -> dict:
        return {
            "normalizer": self.normalizer and {"type": self.normalizer},
            "pre_tokenizer": self._byte_level(),
            "post_processor": self._template(),
            "decoder": self._byte_level(),
            "model": bpe_model(
                self.vocabulary, self.merges, self.unknown_token if self.unknown_bytes else None
            ),
        }

    def _library_steps(self, as_words: bool = False) -> dict:
        steps = super()._library_steps(as_words)
        steps["model"]["unk_token"] = self.unknown_token  # of bytes without a token
        if as_words:
            steps["pre_tokenizer"]["add_prefix_space"] = True
        return {**steps, **({"post_processor": self._byte_level()} if self.trim_offsets else {})}

    def _byte_level(self) -> dict:
        """Return the step of that name, which as a post-processor trims spans."""
        return {
            "type": "ByteLevel",
            "add_prefix_space": self.add_prefix_space,
            "trim_offsets": True,
            "use_regex": True,
        }

    def _template(self) -> dict:
        if self.pair_separators != 2 or self.uses_segments or not self.trims_spans:
            template = super()._template()
            if not self.trim_offsets:
                return template
            return {"type": "Sequence", "processors": [self._byte_level(), template]}
        return {
            "type": "RobertaProcessing",
            "sep": [self.end_token, self.end_token_id],
            "cls": [self.start_token, self.start_token_id],
            "trim_offsets": self.trim_offsets,
            "add_prefix_space": self.add_prefix_space,
        }


def bpe_model(
    vocabulary: Mapping[str, int],
    merges: Sequence[str],
    unknown: str | None = None,
    affix: str | None = "",
    fuse_unk: bool = False,
    byte_fallback: bool = False,
) -> dict:
    """Return a BPE model of tokenizer.json.

    Args:
        vocabulary: {token: id}.
        merges: "a b" pairs in their order.
        unknown: the unknown token.
        affix: prefix and suffix of subwords; "" and None both mean that there is none.
        fuse_unk, byte_fallback: fields of the model.
    """
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": affix,
        "end_of_word_suffix": affix,
        "fuse_unk": fuse_unk,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [merge.split(" ") for merge in merges],
    }


def parse_merges(merges_txt: str) -> list[str]:
    """Return the pairs of a merges.txt, without its version line.

    Example:
        >>> parse_merges("#version: 0.2\\na b\\n")
        ['a b']
    """
    check_count(merges_txt.count("\n"), "merges.txt")
    lines = merges_txt.split("\n")
    return [line for line in lines if line and not line.startswith("#version")]


def read_merges(files: TokenizerFiles) -> list[str]:
    """Return the merges of tokenizer.json, where each is a string or a pair.

    Raises:
        ValueError: "FILE: model.merges[3] is ['a']; expected two tokens"

    Example:
        >>> model = {"merges": [["a", "b"], "ab c"]}
        >>> read_merges(TokenizerFiles("preset", {"tokenizer.json": {"model": model}}))
        ['a b', 'ab c']
    """
    name = f"{files.json_path}: model.merges"
    merges = files.part("model").get("merges")
    if not isinstance(merges, list):
        raise ValueError(f"{name} is not a list of pairs of tokens")
    check_count(len(merges), name)
    for i, merge in enumerate(merges):
        tokens = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(tokens, list) and len(tokens) == 2
        if not is_pair or not all(isinstance(t, str) and t and " " not in t for t in tokens):
            raise ValueError(f"{name}[{i}] is {shown(merge)}; expected two tokens")
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _compare_merges(files: TokenizerFiles, merges: list[str]) -> None:
    """Raise an error if tokenizer.json has other merges than merges.txt."""
    for i, (one, other) in enumerate(itertools.zip_longest(merges, read_merges(files))):
        if one != other:
            said = {"merges.txt": one, "tokenizer.json": other}
            raise ValueError(f"{files.folder}: merge {i} is {differing(said)}")


def _check_merges(merges: list[str], vocabulary: Mapping[str, int], folder: Path) -> None:
    """Raise an error if a merge has symbols or a result that are no tokens.

    Raises:
        ValueError: "FOLDER: merge 3 is 'a b', but 'ab' is not in the vocabulary ..."
    """
    for i, merge in enumerate(merges):
        pair = merge.split(" ")
        if len(pair) != 2:
            raise ValueError(f"{folder}: merge {i} is {shown(merge)}; expected two tokens")
        for token in (*pair, "".join(pair)):
            if token not in vocabulary:
                raise ValueError(
                    f"{folder}: merge {i} is {shown(merge)}, but {shown(token)} is not in the "
                    "vocabulary; they are not from the same model"
                )
