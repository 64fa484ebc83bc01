"""ModernBERT's tokenizer: byte-level BPE of texts in normal form C, with BERT's special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import keras

from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles, WritesFiles
from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.composition import Composer
from encoder_zoo.encoders.tokenizers.tokenizer import Tokens


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ModernBertTokenizer(RobertaTokenizer):
    """Byte-level BPE ids of texts, exactly those that ModernBERT checkpoints were trained with.

    Texts are brought into Unicode's normal form C first; a composed character has the span of the
    first of those that it is made of. A token's span has the spaces that the token has.

    Args:
        vocabulary: token to id, or the path of a vocab.json.
        merges: "a b" pairs in the order in which they were learned, or the path of a merges.txt.
        add_prefix_space: treat the first word like one after a space.
        special_tokens_in_text: read a literal "[SEP]" or "[MASK]" in a text as that token, see
            `RobertaTokenizer`.
        start_token, end_token, pad_token, mask_token, unknown_token: names in the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: how many end tokens stand between the two texts of a pair.
        added_tokens: words, markers or white space to be found in texts before all else, see
            `added_tokens.described`; ModernBERT's has one for every number of spaces up to 24.

    Source: Warner et al. 2024, ModernBERT, section 2.1.3; its words are those of
        `RobertaTokenizer`.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.byte_bpe import byte_alphabet
        >>> tokens = ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", *byte_alphabet()]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = ModernBertTokenizer(vocabulary, [], added_tokens=["  "])
        >>> composed, decomposed = tokenizer.tokenize(["é  a", "e\\u0301  a"]).to_list()
        >>> composed == decomposed, tokenizer.id_to_token(composed[2])
        (True, '  ')
    """

    normalizer = "NFC"
    special_token_names: ClassVar[Mapping[str, tuple[str, ...]]] = WritesFiles.special_token_names

    @validate_arguments
    def __init__(
        self,
        vocabulary: Mapping[str, int] | str | Path,
        merges: Sequence[str] | str | Path,
        add_prefix_space: bool = False,
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "[CLS]",
        end_token: SpecialToken = "[SEP]",
        pad_token: SpecialToken = "[PAD]",
        mask_token: SpecialToken = "[MASK]",
        unknown_token: SpecialToken = "[UNK]",
        uses_segments: bool = False,
        pair_separators: PositiveInt = 1,
        added_tokens: Sequence[str | Mapping] = (),
    ):
        self._compose = Composer()  # before the base looks for added tokens as they are normalised
        super().__init__(
            vocabulary,
            merges,
            add_prefix_space,
            special_tokens_in_text,
            start_token,
            end_token,
            pad_token,
            mask_token,
            unknown_token,
            uses_segments,
            pair_separators,
            added_tokens,
        )

    @classmethod
    def from_files(cls, files: TokenizerFiles, **template) -> ModernBertTokenizer:
        if "tokenizer.json" in files and not files.part("normalizer"):
            raise ValueError(
                f"{files.folder / 'tokenizer.json'}: normalizer is null; this kind of tokenizer "
                "has NFC, so the ids would differ"
            )
        return super().from_files(files, **template)

    def _normalized(self, chars: Characters) -> Characters:
        return self._compose(chars)

    def _span_options(self) -> dict[str, bool]:
        return {}

    def _trimmed(self, tokens: Tokens) -> Tokens:
        return tokens

    def _settings(self) -> dict:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": self.add_prefix_space,
            "model_input_names": ["input_ids", "attention_mask"],
        }

    def _template(self) -> dict:
        return WritesFiles._template(self)
