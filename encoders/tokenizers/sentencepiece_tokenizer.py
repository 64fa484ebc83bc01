"""The base class of SentencePiece tokenizers: Unigram or BPE of words that begin with "▁"."""

import base64
import functools
import json
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.encoders.tokenizers.files.sentencepiece import BYTE_TOKENS, SentencePieceFiles
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Unigram
from encoder_zoo.encoders.tokenizers.segmentation.whitespace_words import WhitespaceWordLookup
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.charsmap import read_charsmap
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords, character_numbers
from encoder_zoo.encoders.tokenizers.text.precompiled import PrecompiledNormalizer, is_special_token
from encoder_zoo.encoders.tokenizers.text.ragged import (
    index_mask,
    row_ids,
    shift_left,
    shift_right,
    span_indices,
)
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable, members
from encoder_zoo.encoders.tokenizers.text.utf8 import encode_utf8
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

SPACE = "▁"
WHITE = 0  # the number of white space, which separates words


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
        # As JSON, since tf.Module would wrap a list of strings.
        self._merges_json = json.dumps(None if merges is None else list(merges))
        rules = {}
        if precompiled_charsmap:
            content = base64.b64decode(precompiled_charsmap, validate=True)
            rules = read_charsmap(content, "precompiled_charsmap")
        self._normalizer = PrecompiledNormalizer(rules)
        self._bytes = self._byte_ids() if byte_fallback else None
        words = self._make_model()
        self._word_lookup = WhitespaceWordLookup(words, rules, self._mapping(), self._lowers())
        self._spelling = tf.constant([self._text_of(token) for token in self.get_vocabulary()])
        self._index_added_tokens()

    @property
    def scores(self) -> list[float | None]:
        """Scores of the tokens; None for a token that is not found in texts."""
        return [None if np.isnan(score) else score for score in self._scores.tolist()]

    @property
    def merges(self) -> list[str] | None:
        """Pairs of tokens in the order in which they were learned; None for a Unigram model."""
        return json.loads(self._merges_json)

    def starts_word(self, token: str) -> bool:
        """Return whether a token begins a word."""
        return token.startswith(SPACE)

    def _clean_up(self, texts: tf.Tensor) -> tf.Tensor:
        return tf.strings.regex_replace(texts, "^ ", "")

    def _text_of(self, token: str) -> bytes:
        """Return the text of a token."""
        if self._bytes is not None and token in BYTE_TOKENS:
            return bytes([BYTE_TOKENS.index(token)])
        return token.replace(SPACE, " ").encode("utf-8")

    def _byte_ids(self) -> tf.Tensor:
        """Return the ids (256,) of the byte tokens."""
        lacking = [token for token in BYTE_TOKENS if token not in self._vocabulary.ids]
        if lacking:
            raise ValueError(
                f"byte_fallback is True, but the vocabulary lacks {', '.join(lacking[:3])}; "
                "expected the tokens <0x00> to <0xFF>"
            )
        return tf.constant([self._vocabulary.ids[token] for token in BYTE_TOKENS], tf.int32)

    @property
    def _words_are_independent(self) -> bool:
        return super()._words_are_independent and (
            self.remove_extra_whitespaces or self._splits_words
        )

    def _mapping(self) -> Mapping[int, Sequence[int]]:
        """Return {code point: code points} to apply before the model's own normalizer."""
        return {}

    def _lowers(self) -> bool:
        """Return whether texts are lower-cased first."""
        return False

    def _make_model(self) -> dict[str, int]:
        """Build the model and its tables; return {word: id} of the words that are one token."""
        special, tokens = set(self.special_token_ids), self._vocabulary.tokens
        ids = [
            token_id
            for token_id, (token, score) in enumerate(zip(tokens, self._scores, strict=False))
            if token and not np.isnan(score) and token_id not in special
        ]
        in_text = self.special_token_ids[: len(SPECIALS)]
        codes = PackedWords.from_symbols([[code] for code in SPECIALS[: len(in_text)]])
        words = PackedWords.from_texts([tokens[i] for i in ids]).concatenate(codes)
        ids = np.array([*ids, *in_text])
        numbers = character_numbers(words.concatenate(PackedWords.from_symbols([[ord(SPACE)]])))
        self._space_number = int(numbers[ord(SPACE)])
        numbers[ord(" ") if self._only_spaces else members("white_space")] = WHITE
        words = words._replace(symbols=numbers[words.symbols])
        in_words = np.logical_and.reduceat(words.symbols != WHITE, words.starts)
        words, ids = words.where(in_words), ids[in_words]
        self._model = self._make_splitter(words, ids, int(numbers.max()) + 1)
        self._splits_words = self._tokens_stay_in_words(words)
        if not self.remove_extra_whitespaces:
            numbers[ord(" ")] = self._space_number
        self._numbers = CodePointTable(numbers)
        whole = self._are_whole(words, ids)
        self._word_table = WordTable(words.where(whole), ids[whole])
        return {tokens[i].removeprefix(SPACE): i for i in ids[whole] if i not in special}

    def _make_splitter(self, words: PackedWords, ids: np.ndarray, num_symbols: int) -> tf.Module:
        """Return the Unigram or BPE model of the tokens that are found in texts."""
        if self.merges is None:
            scores = np.zeros(self.vocabulary_size)
            scores[: len(self._scores)] = np.nan_to_num(self._scores)
            return Unigram(words, ids, scores, self.unknown_token_id)
        single = words.lengths == 1
        symbol_ids = np.full(num_symbols, self.unknown_token_id)
        symbol_ids[words.symbols[words.starts[single]]] = ids[single]
        special = set(self.special_token_ids)  # which are among the words
        texts = {self._vocabulary.tokens[i] for i in ids if i not in special}
        all_ids = self._vocabulary.ids
        merges = [  # none that make a token that is not found in texts
            merge
            for merge in self.merges
            if (made := merge.replace(" ", "", 1)) in texts or made not in all_ids
        ]
        return BPE(symbol_ids, merges, all_ids)

    def _tokens_stay_in_words(self, words: PackedWords) -> bool:
        """Return whether no token spans several words."""
        is_sign = words.symbols == self._space_number
        inner = np.ones_like(is_sign)
        inner[words.starts] = False
        crosses = is_sign & inner & ~np.roll(is_sign, 1)
        alone = is_sign[words.starts] & (words.lengths == 1)  # else it may be unknown and fused
        return bool(alone.any() and not crosses.any())

    def _are_whole(self, words: PackedWords, ids: np.ndarray) -> np.ndarray:
        """Return, boolean (W,), which short words are one token of their own."""
        first = words.symbols[words.starts]
        is_whole = np.isin(ids, self.special_token_ids) | (first == self._space_number)
        is_whole &= words.lengths <= MAX_SYMBOLS
        few = words.where(is_whole)
        is_whole[is_whole] = are_single_tokens(self._split, few, ids[is_whole])
        return is_whole

    def _split(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordTokens:
        """Return the tokens of the words at starts (W,) ... ends (W,) of the symbols (S,)."""
        tokens = self._model.encode(symbols, starts, ends)
        if self.merges is not None and self.byte_fallback:
            return tokens  # each byte has the span of its own character
        return tokens.fuse(self.unknown_token_id)

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if self._only_spaces or not self._words_are_independent:
            return super()._ids(texts, as_words)
        return self._word_lookup.ids(texts, lambda parts: self._encode(parts, as_words)[0])

    def _tokenize(self, chars: Characters) -> Tokens:
        numbers = self._numbers(chars.codes)
        solid, first, spaced = self._word_starts(chars, numbers)
        # White space is removed, and "▁" inserted before the words without one.
        splits = tf.concat(
            [[0], tf.cumsum(tf.cast(solid, tf.int32) + tf.cast(spaced, tf.int32))], 0
        )
        owner = row_ids(splits, splits[-1])
        is_sign = index_mask(tf.boolean_mask(splits[:-1], spaced), splits[-1])
        symbols = tf.where(is_sign, self._space_number, tf.gather(numbers, owner))
        starts = tf.boolean_mask(splits[:-1], first)
        ids, begins, ends, tokens = self._word_table.tokens(
            symbols,
            starts,
            shift_left(starts, 1, splits[-1]),
            functools.partial(self._split, symbols),
        )
        words = tf.searchsorted(starts, tf.gather(splits, chars.row_splits))
        rows = tf.gather(tokens, words)
        if self._bytes is not None:
            codes = tf.where(is_sign, ord(SPACE), tf.gather(chars.codes, owner))
            ids, begins, ends, rows = self._with_bytes(codes, ids, begins, ends, rows)
        starts = tf.gather(chars.starts, tf.gather(owner, begins))
        return Tokens(ids, starts, tf.gather(chars.ends, tf.gather(owner, ends - 1)), rows)

    def _normalize(self, chars: Characters) -> Characters:
        """Apply the model's own normalizer."""
        return self._normalizer(chars)

    def _word_starts(
        self, chars: Characters, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return masks (N,): no white space, first character of a word, first without "▁"."""
        special = is_special_token(chars.codes)
        solid = numbers != WHITE
        is_sign = numbers == self._space_number
        if not self.remove_extra_whitespaces:
            begins = chars.row_starts() | special | shift_right(special, 1, False)
            first = (
                begins | (is_sign & ~shift_right(is_sign, 1, False))
                if self._splits_words
                else begins
            )
            return solid, first, begins & ~special
        gap = shift_right(~solid | special, 1, True) | chars.row_starts() | special | is_sign
        first = solid & gap
        return solid, first, first & ~is_sign & ~special

    def _with_bytes(
        self, codes: tf.Tensor, ids: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor, rows: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Replace unknown tokens by bytes, each with the span of the whole token."""
        unknown = ids == self.unknown_token_id
        unknown &= ~is_special_token(tf.gather(codes, begins))
        indices, token, _ = span_indices(
            tf.boolean_mask(begins, unknown), tf.boolean_mask(ends, unknown)
        )
        symbols, splits, _ = encode_utf8(tf.gather(codes, indices))
        num_bytes = tf.math.segment_sum(splits[1:] - splits[:-1], token)
        where = tf.where(unknown)
        lengths = tf.tensor_scatter_nd_update(tf.ones_like(ids), where, num_bytes)
        splits = tf.concat([[0], tf.cumsum(lengths)], 0)
        owner = row_ids(splits, splits[-1])
        ids = tf.gather(ids, owner)
        is_byte = tf.where(tf.gather(unknown, owner))
        ids = tf.tensor_scatter_nd_update(ids, is_byte, tf.gather(self._bytes, symbols))
        return ids, tf.gather(begins, owner), tf.gather(ends, owner), tf.gather(splits, rows)


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
