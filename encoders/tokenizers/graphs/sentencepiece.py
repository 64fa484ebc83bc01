"""The graphs of SentencePiece tokenizers: words that begin with "▁", by Unigram or BPE."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Unigram
from encoder_zoo.encoders.tokenizers.segmentation.word_table import (
    MAX_SYMBOLS,
    WhitespaceWordLookup,
    WordTable,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    SPECIALS,
    Characters,
    CodePointTable,
    encode_utf8,
    insert_spaces,
    members,
)
from encoder_zoo.encoders.tokenizers.text.composition import NFCNormalizer
from encoder_zoo.encoders.tokenizers.text.normalization import (
    folding_map,
    is_special_token,
    normalize_quotation_marks,
    normalize_white_space,
)
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords, character_numbers
from encoder_zoo.encoders.tokenizers.text.precompiled import CharacterMap, PrecompiledNormalizer
from encoder_zoo.encoders.tokenizers.text.ragged import (
    index_mask,
    row_ids,
    shift_left,
    shift_right,
    span_indices,
)

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.sentencepiece import AlbertTokenizer
    from encoder_zoo.encoders.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer

SPACE = "▁"
WHITE = 0  # the number of white space, which separates words


class SentencePieceGraph(TokenizerGraph):
    """The graph of a `SentencePieceTokenizer`.

    Args:
        tokenizer: whose arguments describe the rules.
    """

    def __init__(self, tokenizer: SentencePieceTokenizer):
        super().__init__(tokenizer)
        self.remove_extra_whitespaces = tokenizer.remove_extra_whitespaces
        self._only_spaces = tokenizer.only_spaces
        self._fuses = tokenizer.merges is None or not tokenizer.byte_fallback
        rules = tokenizer.normalization_rules()
        self._normalizer = PrecompiledNormalizer(rules)
        self._bytes = tf.constant(tokenizer.byte_ids) if tokenizer.byte_fallback else None
        words = self._make_model(tokenizer)
        mapping, lowers = self._mapping(tokenizer), self._lowers(tokenizer)
        self._word_lookup = WhitespaceWordLookup(words, rules, mapping, lowers)
        self._index_added_tokens(tokenizer.added_tokens)

    def _mapping(self, tokenizer: SentencePieceTokenizer) -> Mapping[int, Sequence[int]]:
        """Return {code point: code points} to apply before the model's own normalizer."""
        return {}

    def _lowers(self, tokenizer: SentencePieceTokenizer) -> bool:
        """Return whether texts are lower-cased first."""
        return False

    def _make_model(self, tokenizer: SentencePieceTokenizer) -> dict[str, int]:
        """Build the model and its tables; return {word: id} of the words that are one token."""
        ids, tokens = tokenizer.ids_in_texts, tokenizer.vocabulary
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
        self._model = self._make_splitter(tokenizer, words, ids, int(numbers.max()) + 1)
        self._splits_words = self._tokens_stay_in_words(words)
        self.words_are_independent &= self.remove_extra_whitespaces or self._splits_words
        if not self.remove_extra_whitespaces:
            numbers[ord(" ")] = self._space_number
        self._numbers = CodePointTable(numbers)
        whole = self._are_whole(words, ids)
        self._word_table = WordTable(words.where(whole), ids[whole])
        special = set(self.special_token_ids)
        return {tokens[i].removeprefix(SPACE): i for i in ids[whole] if i not in special}

    def _make_splitter(
        self,
        tokenizer: SentencePieceTokenizer,
        words: PackedWords,
        ids: np.ndarray,
        num_symbols: int,
    ) -> tf.Module:
        """Return the Unigram or BPE model of the tokens that are found in texts."""
        if tokenizer.merges is None:
            scores = np.zeros(tokenizer.vocabulary_size)
            known = tokenizer.scores
            scores[: len(known)] = [score or 0.0 for score in known]
            return Unigram(words, ids, scores, self.unknown_token_id)
        single = words.lengths == 1
        symbol_ids = np.full(num_symbols, self.unknown_token_id)
        symbol_ids[words.symbols[words.starts[single]]] = ids[single]
        all_ids = {token: i for i, token in enumerate(tokenizer.vocabulary)}
        return BPE(symbol_ids, tokenizer.merges_in_texts, all_ids)

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
        # Bytes of BPE each have the span of their own character.
        return tokens.fuse(self.unknown_token_id) if self._fuses else tokens

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if self._only_spaces or not self.words_are_independent:
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


class AlbertGraph(SentencePieceGraph):
    """The graph of an `AlbertTokenizer`: quotation marks, accents and case, then the charsmap."""

    def __init__(self, tokenizer: AlbertTokenizer):
        self._map = CharacterMap(self._mapping(tokenizer))
        super().__init__(tokenizer)

    def _mapping(self, tokenizer: AlbertTokenizer) -> Mapping[int, Sequence[int]]:
        return folding_map(tokenizer.lowercase, tokenizer.keep_accents)

    def _lowers(self, tokenizer: AlbertTokenizer) -> bool:
        return tokenizer.lowercase

    def _normalize(self, chars: Characters) -> Characters:
        return super()._normalize(self._map(normalize_quotation_marks(chars)))


class ComposingGraph(SentencePieceGraph):
    """The graph of a `DebertaV2Tokenizer` with `normalize_nfc`."""

    def __init__(self, tokenizer: SentencePieceTokenizer):
        self._nfc = NFCNormalizer()
        super().__init__(tokenizer)

    def _normalize(self, chars: Characters) -> Characters:
        return self._nfc(normalize_white_space(chars))

    def _word_starts(
        self, chars: Characters, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        solid, first, spaced = super()._word_starts(chars, numbers)
        # A "▁" of the text itself gets another one before it.
        behind_space = shift_right(~solid, 1, False) & ~chars.row_starts()
        spaced |= first & behind_space & ~is_special_token(chars.codes)
        return solid, first, spaced


class GemmaGraph(SentencePieceGraph):
    """The graph of a `GemmaTokenizer`, which adds no space before a text."""

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        if not as_words:
            return chars
        return insert_spaces(chars, chars.row_starts() & ~is_special_token(chars.codes))

    def _word_starts(
        self, chars: Characters, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        solid, first, _ = super()._word_starts(chars, numbers)
        return solid, first, tf.zeros_like(first)
