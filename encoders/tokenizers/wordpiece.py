"""BERT's tokenizer: normalization, a split at spaces and punctuation, then WordPiece."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import keras

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import decoded, shown
from encoder_zoo.encoders.tokenizers.arguments import BERT_DEFAULTS
from encoder_zoo.encoders.tokenizers.files.wordpiece import WordPieceFiles, parse_vocabulary
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BertTokenizer(WordPieceFiles, Tokenizer):
    """Tokenizes texts by WordPiece, with the ids that BERT checkpoints were trained with.

    Args:
        vocabulary: tokens in the order of their ids, or the path of a vocab.txt. Tokens that
            continue a word start with "##".
        lowercase: lower-case the text.
        strip_accents: decompose characters and remove nonspacing marks; None follows lowercase.
        split_chinese_characters: make every Chinese character a word.
        clean_text: remove control characters, and take all white space for spaces. If all four are
            False, texts are not normalized.
        **options: the other arguments of `Tokenizer`.

    Raises:
        ValueError: "'[CLS]' is not among the 3 tokens ..."

    Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019); Wu et
        al., "Google's Neural Machine Translation System" (2016), section 4.1, for WordPiece.

    Example:
        >>> words = ["un", "##affable", "café", "cafe"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> tokenizer.tokenize(["Unaffable Café?"]).to_list()
        [[5, 6, 8, 1]]
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("Unaffable Café?")
        >>> starts.numpy().tolist(), ends.numpy().tolist()
        ([0, 2, 10, 14], [2, 9, 14, 15])
    """

    lstrip_mask = False
    defaults: ClassVar = {**BERT_DEFAULTS, "uses_segments": True}

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str] | str | Path,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_chinese_characters: bool = True,
        clean_text: bool = True,
        **options,
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = parse_vocabulary(decoded(Path(vocabulary).read_bytes(), vocabulary))
        for i, token in enumerate(vocabulary):
            if isinstance(token, str) and ("\n" in token or token.endswith("\r")):
                raise ValueError(
                    f"vocabulary[{i}] is {shown(token)}; expected no line break in a token, of "
                    "which vocab.txt has one in each line"
                )
        super().__init__(vocabulary, **options)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese_characters = split_chinese_characters
        self.clean_text = clean_text

    def _make_graph(self) -> TokenizerGraph:
        from encoder_zoo.encoders.tokenizers.graphs.wordpiece import WordPieceGraph

        return WordPieceGraph(self)

    def spelling(self) -> list[str]:
        """Return the text of each id."""
        return [f" {t}" if self.starts_word(t) else t[2:] for t in self.get_vocabulary()]

    @property
    def strips_accents(self) -> bool:
        """Whether accents are removed."""
        return self.lowercase if self.strip_accents is None else self.strip_accents

    def starts_word(self, token: str) -> bool:
        """Return whether a token begins a word."""
        return not token.startswith("##")

    def _clean_up(self, texts: array_ops.Tensor) -> array_ops.Tensor:
        return array_ops.strings.strip(texts)
