"""Byte-level BPE tokenizers for RoBERTa, ModernBERT and EuroBERT."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import decode_text, describe_mismatch
from encoder_zoo.encoders.tokenizers import BYTE_BPE, LLAMA_BPE, MODERN_BPE
from encoder_zoo.encoders.tokenizers.files.reading import (
    TokenizerFiles,
    check_merges,
    check_vocabulary,
    get_token_bytes,
    make_byte_alphabet,
    parse_merges,
    read_merges,
)
from encoder_zoo.encoders.tokenizers.steps import LLAMA_WORDS, make_bpe_model, make_split_step
from encoder_zoo.encoders.tokenizers.token_format import TokenFormat
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer, format_json

logger = logging.getLogger("encoder_zoo")


@serializable
class RobertaTokenizer(Tokenizer):
    """Byte-level BPE tokenizer for RoBERTa.

    This tokenizer returns the same token ids that were used to train RoBERTa checkpoints.

    Args:
        vocabulary: Dict mapping tokens to ids, or path to a vocab.json. Bytes without a token are
            converted to the unknown token.
        merges: List of "a b" pairs in the order in which they were learned, or path to a
            merges.txt.
        add_prefix_space: Boolean. Whether to insert a space before the first word. Defaults to
            False.
        trim_offsets: Optional boolean. Whether to exclude surrounding spaces from token spans. If
            None, the class default will be used.
        **options: Other arguments for `Tokenizer`.

    Raises:
        ValueError: If the vocabulary does not contain a special token, if ids are too large, or if
            a merge does not join two tokens to a third token.

    Source: Liu et al., "RoBERTa" (2019), section 4.4; Radford et al., "Language Models are
        Unsupervised Multitask Learners" (2019), section 2.2.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
        >>> tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *make_byte_alphabet(), "Ġh", "Ġhi"]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = RobertaTokenizer(vocabulary, ["Ġ h", "Ġh i"], add_prefix_space=True)
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("hi hi!")
        >>> [tokenizer.id_to_token(i) for i in ids], starts.numpy().tolist()
        (['Ġhi', 'Ġhi', '!'], [0, 3, 5])
    """

    kind = BYTE_BPE
    token_format = TokenFormat(get_token_bytes, starts_word=lambda token: token.startswith("Ġ"))
    normalizer: ClassVar[str | None] = None
    trims_spans: ClassVar[bool] = True

    @validate_arguments
    def __init__(
        self,
        vocabulary: Mapping[str, int] | str | Path,
        merges: Sequence[str] | str | Path,
        add_prefix_space: bool = False,
        trim_offsets: bool | None = None,
        **options,
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = json.loads(decode_text(Path(vocabulary).read_bytes(), vocabulary))
        if isinstance(merges, str | Path):
            merges = parse_merges(decode_text(Path(merges).read_bytes(), merges))
        vocabulary = check_vocabulary(vocabulary, "vocabulary")
        tokens = [""] * (max(vocabulary.values()) + 1)  # "" for ids without a token
        for token, token_id in vocabulary.items():
            tokens[token_id] = token
        super().__init__(tokens, **options)
        self.add_prefix_space = add_prefix_space
        self.trim_offsets = self.trims_spans if trim_offsets is None else trim_offsets
        self._merges = list(merges)
        check_merges(merges, vocabulary)

    @property
    def vocabulary(self) -> dict[str, int]:
        """A dict {token: id} for all tokens in the model."""
        return {token: i for i, token in enumerate(self._vocabulary.tokens) if token}

    @property
    def has_unknown_bytes(self) -> bool:
        """Return True if at least one byte has no token in the vocabulary."""
        return not set(make_byte_alphabet()) <= set(self._vocabulary.tokens)

    @property
    def merges(self) -> list[str]:
        """The merged token pairs, in the order in which they were learned."""
        return list(self._merges)

    # -- files -------------------------------------------------------------------------------------

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        if "vocab.json" in files and "merges.txt" in files:
            vocabulary = check_vocabulary(files.contents["vocab.json"], "vocab.json")
            merges = parse_merges(files.contents["merges.txt"])
            if "tokenizer.json" in files:
                files.compare_ids("vocab.json", vocabulary, files.get_vocabulary("vocab.json"))
                _check_same_merges(files, merges)
        else:
            vocabulary = files.get_vocabulary("vocab.json and merges.txt")
            merges = read_merges(files)
        files.compare_added_tokens(vocabulary)
        parts = "pre_tokenizer", "post_processor"
        prefix = files.get_setting("add_prefix_space", "add_prefix_space", *parts)
        trims = files.get_setting("trim_offsets", "trim_offsets", "post_processor")
        if trims is None and files.get_steps("post_processor"):
            trims = False
        vocabulary |= files.map_added_tokens(roles.values())
        model, unknown = files.get_part("model"), roles["unknown_token"]
        is_omitted = model and files.has_class_name and not model.get("unk_token")
        if is_omitted and not vocabulary.keys() >= {*make_byte_alphabet()}:
            logger.warning(
                "%s: some bytes have no token, and model.unk_token in tokenizer.json is null. "
                "transformers omits these bytes. They are converted to %s instead.",
                files.folder.name,
                unknown,
            )
            model["unk_token"] = unknown
        return {
            "vocabulary": vocabulary,
            "merges": merges,
            "add_prefix_space": bool(prefix),
            "trim_offsets": trims,
        }

    def _make_vocabulary_files(self) -> dict[str, str]:
        lines = ["#version: 0.2", *self.merges]
        return {
            "vocab.json": format_json(self.vocabulary),
            "merges.txt": "".join(f"{line}\n" for line in lines),
        }

    def _make_steps(self) -> dict:
        return {
            "normalizer": self.normalizer and {"type": self.normalizer},
            "pre_tokenizer": self._make_byte_level(),
            "decoder": self._make_byte_level(),
        }

    def _make_model(self) -> dict:
        unknown = self.unknown_token if self.has_unknown_bytes else None
        affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
        return make_bpe_model(self.vocabulary, self._merges, unk_token=unknown, **affixes)

    def _make_byte_level(self) -> dict:
        """Return a ByteLevel step. If used as a post-processor, this step trims spans."""
        return {
            "type": "ByteLevel",
            "add_prefix_space": self.add_prefix_space,
            "trim_offsets": True,
            "use_regex": True,
        }

    def _make_post_processor(self) -> dict:
        is_usual = self.pair_separators == 2 and not self.post_processor
        if self.uses_segments or not (is_usual and self.trims_spans):
            trims = [self._make_byte_level()] if self.trim_offsets else []
            return super()._make_post_processor(trims)
        return {
            "type": "RobertaProcessing",
            "sep": [self.end_token, self.end_token_id],
            "cls": [self.start_token, self.start_token_id],
            "trim_offsets": self.trim_offsets,
            "add_prefix_space": self.add_prefix_space,
        }


def _check_same_merges(files: TokenizerFiles, merges: list[str]) -> None:
    """Raise a ValueError if the merges in tokenizer.json and merges.txt differ."""
    for i, (one, other) in enumerate(itertools.zip_longest(merges, read_merges(files))):
        if one != other:
            said = {"merges.txt": one, "tokenizer.json": other}
            raise ValueError(f"{files.folder}: merge {i} is {describe_mismatch(said)}")


@serializable
class ModernBertTokenizer(RobertaTokenizer):
    """Byte-level BPE tokenizer for ModernBERT, with NFC normalization.

    If several characters are composed, the span only includes the first character. Token spans
    include spaces. See `RobertaTokenizer` for the arguments. In ModernBERT checkpoints,
    `added_tokens` are used for 2 to 24 consecutive spaces.

    Source: Warner et al. 2024, ModernBERT, section 2.2.1.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
        >>> tokens = ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", *make_byte_alphabet()]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = ModernBertTokenizer(vocabulary, [], added_tokens=["  "])
        >>> composed, decomposed = tokenizer.tokenize(["é  a", "e\\u0301  a"]).to_list()
        >>> composed == decomposed, tokenizer.id_to_token(composed[2])
        (True, '  ')
    """

    kind = MODERN_BPE
    normalizer = "NFC"
    trims_spans = False


@serializable
class EuroBertTokenizer(RobertaTokenizer):
    """Byte-level BPE tokenizer for EuroBERT, which is based on the Llama 3 tokenizer.

    Words are split with a different pattern than in RoBERTa. For example, numbers are split after
    three digits. If a word is in the vocabulary, merges are not applied. The end token is also used
    for padding. Token spans include spaces. See `RobertaTokenizer` for the arguments.

    Source: Boizard et al. 2025, EuroBERT, section 2.1; Dubey et al. 2024, The Llama 3 Herd of
        Models, section 3.2.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
        >>> special = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
        >>> tokens = [*special, *make_byte_alphabet(), "12"]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = EuroBertTokenizer(vocabulary, ["1 2"])
        >>> [tokenizer.id_to_token(i) for i in tokenizer.tokenize("3451212")]
        ['3', '4', '5', '12', '1', '2']
    """

    kind = LLAMA_BPE
    trims_spans = False

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        # The library would add a space before every word instead of only before the first word.
        if any(step.get("add_prefix_space") for step in files.get_steps("pre_tokenizer")):
            raise files.make_mismatch_error(
                "pre_tokenizer has add_prefix_space=True", "add_prefix_space=False"
            )
        return super()._read(files, roles)

    def _make_vocabulary_files(self) -> dict[str, str]:
        return {}

    def _make_steps(self) -> dict:
        steps = super()._make_steps()
        words = [make_split_step(LLAMA_WORDS), {**steps["pre_tokenizer"], "use_regex": False}]
        return {**steps, "pre_tokenizer": {"type": "Sequence", "pretokenizers": words}}

    def _make_model(self) -> dict:
        return {**super()._make_model(), "ignore_merges": True}
