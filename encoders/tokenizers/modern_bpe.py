"""ModernBERT's tokenizer: byte-level BPE after NFC, with BERT's special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import keras

from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.writing import WritesFiles
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.composition import NFCNormalizer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ModernBertTokenizer(RobertaTokenizer):
    """Tokenizes texts by NFC and byte-level BPE, as ModernBERT checkpoints were trained.

    A composed character has the span of its first part. Spans keep the spaces of their tokens.

    Args:
        vocabulary: {token: id}, or the path of a vocab.json.
        merges: "a b" pairs in the order in which they were learned, or the path of a merges.txt.
        add_prefix_space: tokenize the first word like one after a space.
        special_tokens_in_text: read a literal "[SEP]" or "[MASK]" in a text as that token, see
            `RobertaTokenizer`.
        start_token, end_token, pad_token, mask_token, unknown_token: tokens of the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: number of end tokens between the two texts of a pair.
        added_tokens: tokens to find in texts before the model splits them, see
            `files.added_tokens.complete_added_tokens`; ModernBERT's are runs of 2 to 24 spaces.

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
        self._normalizer = NFCNormalizer()  # which the base applies to added tokens
        special_tokens = (start_token, end_token, pad_token, mask_token, unknown_token)
        super().__init__(
            vocabulary,
            merges,
            add_prefix_space,
            special_tokens_in_text,
            *special_tokens,
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

    def _normalize(self, chars: Characters) -> Characters:
        return self._normalizer(chars)

    def _span_options(self) -> dict[str, bool]:
        return {}

    def _trim_spans(self, tokens: Tokens) -> Tokens:
        return tokens

    def _settings(self) -> dict:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": self.add_prefix_space,
            "model_input_names": ["input_ids", "attention_mask"],
        }

    def _template(self) -> dict:
        return WritesFiles._template(self)
