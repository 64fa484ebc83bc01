"""ModernBERT's tokenizer: byte-level BPE after NFC, with BERT's special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import keras

from encoder_zoo.encoders.tokenizers.arguments import BERT_DEFAULTS
from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.files.writing import WritesFiles

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ModernBertTokenizer(RobertaTokenizer):
    """Tokenizes texts by NFC and byte-level BPE, as ModernBERT checkpoints were trained.

    A composed character has the span of its first part. Spans keep the spaces of their tokens.

    The arguments are those of `RobertaTokenizer`; ModernBERT's `added_tokens` are runs of 2 to 24
    spaces.

    Source: Warner et al. 2024, ModernBERT, section 2.1.3; its words are those of
        `RobertaTokenizer`.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.files.byte_alphabet import byte_alphabet
        >>> tokens = ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", *byte_alphabet()]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = ModernBertTokenizer(vocabulary, [], added_tokens=["  "])
        >>> composed, decomposed = tokenizer.tokenize(["é  a", "e\\u0301  a"]).to_list()
        >>> composed == decomposed, tokenizer.id_to_token(composed[2])
        (True, '  ')
    """

    normalizer = "NFC"
    trims_spans = False
    defaults: ClassVar = BERT_DEFAULTS
    special_token_names: ClassVar[Mapping[str, tuple[str, ...]]] = WritesFiles.special_token_names

    def _make_graph(self) -> TokenizerGraph:
        from encoder_zoo.encoders.tokenizers.graphs.byte_bpe import ModernBPEGraph

        return ModernBPEGraph(self)

    def _settings(self) -> dict:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": self.add_prefix_space,
            "model_input_names": ["input_ids", "attention_mask"],
        }
