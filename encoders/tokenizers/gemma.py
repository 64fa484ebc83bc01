"""Gemma's tokenizer, which mmBERT has: byte pair encoding of characters, with bytes for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles, flat, special_tokens
from encoder_zoo.encoders.tokenizers.files.sentencepiece import in_short
from encoder_zoo.encoders.tokenizers.files.sentencepiece_merges import json_merges, merge_scores
from encoder_zoo.encoders.tokenizers.sentencepiece_tokenizer import SPACE, SentencePieceTokenizer
from encoder_zoo.encoders.tokenizers.text.characters import Characters, with_spaces
from encoder_zoo.encoders.tokenizers.text.precompiled import is_special

# Steps of tokenizer.json. No space is left for the second to split at.
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
SPLIT = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


@keras.saving.register_keras_serializable(package="encoder_zoo")
class GemmaTokenizer(SentencePieceTokenizer):
    """Gemma's tokens: a space is written "▁", none is added or removed, and nothing is normalized.

    Args:
        vocabulary: tokens in the order of their ids, the spaces in them written as "▁".
        merges: "a b" pairs in the order in which they were learned.
        byte_fallback: write characters that are no token as bytes, "<0x00>" to "<0xFF>".
        special_tokens_in_text: read a literal "<eos>" or "<mask>" in a text as that token; without
            this, it is text like any other, so that a text cannot forge structure.
        start_token, end_token, pad_token, mask_token, unknown_token: names in the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: how many end tokens stand between the two texts of a pair.
        added_tokens: words, markers or white space to be found in texts before all else, see
            `added_tokens.described`.

    Raises:
        ValueError: "merges[0] is 'ab'; expected two tokens ..."

    Source: Gemma Team, "Gemma" (2024), section 2; Marone et al., "mmBERT" (2025), section 3.1.

    Example:
        >>> tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", "a", "b", "▁a"]
        >>> tokenizer = GemmaTokenizer(tokens, ["▁ a"], byte_fallback=False)
        >>> tokenizer.tokenize(["a a", "  ab"]).to_list()
        [[6, 8], [5, 8, 7]]
    """

    model_file = "tokenizer.json"
    mask_takes_space_before = False

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[str],
        byte_fallback: bool = True,
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "<bos>",
        end_token: SpecialToken = "<eos>",
        pad_token: SpecialToken = "<pad>",
        mask_token: SpecialToken = "<mask>",
        unknown_token: SpecialToken = "<unk>",
        uses_segments: bool = False,
        pair_separators: PositiveInt = 1,
        added_tokens: Sequence[str | Mapping] = (),
    ):
        roles = (start_token, end_token, pad_token, mask_token, unknown_token)
        super().__init__(
            vocabulary,
            merge_scores(vocabulary, merges, silent=roles),
            None,
            byte_fallback,
            special_tokens_in_text,
            *roles,
            uses_segments,
            pair_separators,
            added_tokens,
            merges,
            remove_extra_whitespaces=False,
        )

    @classmethod
    def from_files(cls, files: TokenizerFiles, **template) -> GemmaTokenizer:
        if "tokenizer.json" not in files:
            raise FileNotFoundError(f"{files.folder} has no tokenizer.json")
        roles = special_tokens(cls, files)
        _, added = files.divided({}, roles.values())
        tokens, merges, _ = json_merges(files, roles)
        byte_fallback = bool(files.part("model").get("byte_fallback"))
        tokenizer = cls(tokens, merges, byte_fallback, added_tokens=added, **roles, **template)
        tokenizer._check_steps(files)
        return tokenizer

    @validate_arguments
    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> tf.Tensor:
        """The texts whose tokens these are.

        Args:
            ids: integers (B, L), ragged or padded, or those of one text (L,).
            skip_special_tokens: leave out padding, <bos> and the like.

        Returns:
            tf.string tensor (B,); () for one text.
        """
        return self._joined(ids, self._spelling, skip_special_tokens)

    def _prepared(self, chars: Characters, as_words: bool) -> Characters:
        if not as_words:
            return chars
        return with_spaces(chars, chars.row_starts() & ~is_special(chars.codes))

    def _word_starts(
        self, chars: Characters, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        solid, first, _ = super()._word_starts(chars, numbers)
        return solid, first, tf.zeros_like(first)  # no space is put before a text

    def _normalizers(self) -> list[dict]:
        return [REPLACE]

    def _steps(self) -> dict:
        spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
        decoders = [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]
        return {
            **super()._steps(),
            "normalizer": REPLACE,
            "pre_tokenizer": SPLIT,
            "decoder": {"type": "Sequence", "decoders": decoders},
        }

    def _model(self) -> None:
        """Only tokenizer.json holds it."""

    def _check_steps(self, files: TokenizerFiles) -> None:
        for part, inner, allowed in (
            ("normalizer", "normalizers", ([REPLACE],)),
            ("pre_tokenizer", "pretokenizers", ([], [SPLIT])),
        ):
            if (found := flat(files.part(part), inner)) not in allowed:
                raise ValueError(
                    f"{files.folder / 'tokenizer.json'}: {part} is {in_short(found)}; this kind of "
                    f"tokenizer has {in_short(allowed[-1])}, so the ids would differ"
                )
