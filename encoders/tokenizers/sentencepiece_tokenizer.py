"""The base class of SentencePiece tokenizers: Unigram or BPE of words that begin with "▁"."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.encoders.tokenizers.files.sentencepiece import BYTE_TOKENS, SentencePieceFiles
from encoder_zoo.encoders.tokenizers.files.vocabularies import check_merges
from encoder_zoo.encoders.tokenizers.text.charsmap import read_charsmap
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph

SPACE = "▁"


class SentencePieceTokenizer(SentencePieceFiles, Tokenizer):
    """Tokenizes texts with a model that SentencePiece has trained.

    A text is normalized and split at white space. Each word, also the first, is prefixed by "▁" and
    becomes the pieces with the highest sum of scores (Unigram) or, with merges, the pieces that
    byte pair encoding of its characters gives.

    Args:
        vocabulary: tokens in the order of their ids, with "▁" for spaces.
        scores: of the tokens, log probabilities; None for a token that is not found in texts. Added
            tokens at the end have no score. With merges, the numbers are not used.
        precompiled_charsmap: the normalizer in base64, as in tokenizer.json; None for none.
        byte_fallback: encode characters without a piece as bytes, the tokens "<0x00>" to "<0xFF>".
        merges: "a b" pairs in the order in which they were learned, of a BPE model; None for a
            Unigram model.
        remove_extra_whitespaces: split texts at white space and remove it. If False, every space
            becomes "▁", as does one inserted before a text, and tokens may span words.
        **options: the other arguments of `Tokenizer`.

    Raises:
        ValueError: "'<s>' is not among the 3 tokens ...", "scores has 5 values for 3 tokens",
            "merges[0] is 'ab'; expected two tokens ..."

    Source: Kudo & Richardson, "SentencePiece" (2018); Kudo, "Subword Regularization" (2018);
        Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016). Ids
        and offsets are those of the library `tokenizers`, which transformers uses.
    """

    lstrip_mask = True

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        scores: Sequence[float | None],
        precompiled_charsmap: str | None = None,
        byte_fallback: bool = False,
        merges: Sequence[str] | None = None,
        remove_extra_whitespaces: bool = True,
        **options,
    ):
        super().__init__(vocabulary, **options)
        self._scores = checked_scores(scores, vocabulary)
        self.precompiled_charsmap = precompiled_charsmap
        self.byte_fallback = byte_fallback
        self.remove_extra_whitespaces = remove_extra_whitespaces
        self._merges = None if merges is None else list(merges)
        self.normalization_rules()
        if merges is not None:
            check_merges(self.merges_in_texts, self._vocabulary.ids)
        if byte_fallback:
            self._check_byte_tokens()

    @property
    def library_is_equal(self) -> bool:
        """Return False where spaces are kept and tokens added: it wants a space before some."""
        return self.remove_extra_whitespaces or not self.added_tokens

    def _make_graph(self) -> TokenizerGraph:
        from encoder_zoo.encoders.tokenizers.graphs.sentencepiece import SentencePieceGraph

        return SentencePieceGraph(self)

    def normalization_rules(self) -> dict[str, str]:
        """Return {text: replacement} of the precompiled charsmap."""
        if not self.precompiled_charsmap:
            return {}
        content = base64.b64decode(self.precompiled_charsmap, validate=True)
        return read_charsmap(content, "precompiled_charsmap")

    @property
    def scores(self) -> list[float | None]:
        """Scores of the tokens; None for a token that is not found in texts."""
        return [None if np.isnan(score) else score for score in self._scores.tolist()]

    @property
    def merges(self) -> list[str] | None:
        """Pairs of tokens in the order in which they were learned; None for a Unigram model."""
        return None if self._merges is None else list(self._merges)

    @property
    def ids_in_texts(self) -> list[int]:
        """Ids of the tokens that the model finds in texts: with a score, and without a role."""
        special, tokens = set(self.special_token_ids[:5]), self._vocabulary.tokens
        return [
            token_id
            for token_id, (token, score) in enumerate(zip(tokens, self._scores, strict=False))
            if token and not np.isnan(score) and token_id not in special
        ]

    @property
    def merges_in_texts(self) -> list[str]:
        """The merges without those that make a token that is not found in texts."""
        texts = {self._vocabulary.tokens[i] for i in self.ids_in_texts}
        return [
            merge
            for merge in self._merges
            if (made := merge.replace(" ", "", 1)) in texts or made not in self._vocabulary.ids
        ]

    def starts_word(self, token: str) -> bool:
        """Return whether a token begins a word."""
        return token.startswith(SPACE)

    def _clean_up(self, texts: array_ops.Tensor) -> array_ops.Tensor:
        return array_ops.strings.regex_replace(texts, "^ ", "")

    def spelling(self) -> list[bytes]:
        """Return the text of each id."""
        return [self._text_of(token) for token in self.get_vocabulary()]

    def _text_of(self, token: str) -> bytes:
        """Return the text of a token."""
        if self.byte_fallback and token in BYTE_TOKENS:
            return bytes([BYTE_TOKENS.index(token)])
        return token.replace(SPACE, " ").encode("utf-8")

    def _check_byte_tokens(self) -> None:
        """Raise an error if bytes have no tokens."""
        lacking = [token for token in BYTE_TOKENS if token not in self._vocabulary.ids]
        if lacking:
            raise ValueError(
                f"byte_fallback is True, but the vocabulary lacks {', '.join(lacking[:3])}; "
                "expected the tokens <0x00> to <0xFF>"
            )

    @property
    def byte_ids(self) -> list[int]:
        """Ids of the tokens of the 256 bytes."""
        return [self._vocabulary.ids[token] for token in BYTE_TOKENS]


def checked_scores(scores: Sequence[float | None], tokens: Sequence[str]) -> np.ndarray:
    """Return scores with NaN for None; raise an error for other values."""
    if len(scores) > len(tokens):
        raise ValueError(f"scores has {len(scores)} values for {len(tokens)} tokens")
    for i, score in enumerate(scores):
        if score is not None and not (isinstance(score, int | float) and np.isfinite(score)):
            raise ValueError(
                f"scores[{i}], of {tokens[i]!r}, is {score!r}; expected a finite number or None"
            )
    if all(score is None for score in scores):
        raise ValueError("scores has no number; expected one for every piece of text")
    return np.array([np.nan if score is None else score for score in scores], np.float64)
