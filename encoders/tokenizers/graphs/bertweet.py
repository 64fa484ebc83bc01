"""The graph of BERTweet's tokenizer: words between white space, split by fastBPE's merges."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.files.reading import WORD_END
from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.text.characters import SPECIALS, Characters, CodePointTable
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords, character_numbers
from encoder_zoo.encoders.tokenizers.text.ragged import index_mask, shift_left, shift_right

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.bertweet import BertweetTokenizer
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph


class BertweetGraph(TokenizerGraph):
    """The graph of a `BertweetTokenizer`.

    Args:
        tokenizer: whose arguments describe the rules.
    """

    def __init__(self, tokenizer: BertweetTokenizer):
        super().__init__(tokenizer)
        spaces = np.zeros(SPECIALS.stop, np.int32)
        spaces[[ord(space) for space in tokenizer.white_space]] = 1
        self._spaces = CodePointTable(spaces)
        numbers = _numbered_characters(tokenizer.vocabulary, tokenizer.merges)
        self._numbers = CodePointTable(numbers)
        self._num_characters = int(numbers.max()) + 1
        self._make_bpe(tokenizer, numbers)
        self._word_table = WordTable(*self._single_tokens(tokenizer.vocabulary, numbers))
        self._index_added_tokens(tokenizer.added_tokens)

    def _make_bpe(self, tokenizer: BertweetTokenizer, numbers: np.ndarray) -> None:
        """Build the BPE, whose symbols have ids of their own since some are no tokens."""
        ids = tokenizer.symbols()
        symbol_ids = np.zeros(2 * self._num_characters, np.int32)
        for code in np.flatnonzero(numbers[: SPECIALS.start] > 1):
            symbol_ids[numbers[code]] = ids.get(chr(code), 0)
            last = ids.get(chr(code) + WORD_END, 0)
            symbol_ids[numbers[code] + self._num_characters] = last
        inner, last = tokenizer.ids_of_symbols()
        self._inner_ids = tf.constant(inner, tf.int32)
        self._last_ids = tf.constant(last, tf.int32)
        self._model = BPE(symbol_ids.tolist(), tokenizer.merges, ids)

    def _single_tokens(
        self, tokens: Sequence[str], numbers: np.ndarray
    ) -> tuple[PackedWords, np.ndarray]:
        """Return the words that the merges make one token, as numbers, and their ids."""
        special = set(self.special_token_ids)
        ids = {
            token: i
            for i, token in enumerate(tokens)
            if 0 < len(token) <= MAX_SYMBOLS and i not in special
        }
        words, ids = PackedWords.from_texts(list(ids)), np.array(list(ids.values()), np.int64)
        words = words._replace(symbols=numbers[words.symbols].astype(np.int64))
        is_made = are_single_tokens(
            lambda symbols, starts, ends: self._encode_words(symbols, ends, starts, ends),
            words,
            ids,
        )
        of_special = PackedWords.from_symbols([[numbers[code]] for code in SPECIALS[:5]])
        words = words.where(is_made).concatenate(of_special)
        return words, np.array([*ids[is_made], *self.special_token_ids[:5]])

    def _encode_words(
        self, numbers: tf.Tensor, all_ends: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> WordTokens:
        """Return the tokens of the words at starts (W,) ... ends (W,) of the numbers (N,)."""
        ends_word = tf.cast(index_mask(all_ends - 1, tf.size(numbers)), tf.int32)
        symbols = numbers + self._num_characters * ends_word
        tokens = self._model.encode(symbols, starts, ends)
        is_last = index_mask(tokens.splits[1:] - 1, tf.size(tokens.ids))
        last, inner = tf.gather(self._last_ids, tokens.ids), tf.gather(self._inner_ids, tokens.ids)
        return tokens._replace(ids=tf.where(is_last, last, inner))

    def _tokenize(self, chars: Characters) -> Tokens:
        starts, ends = self._word_bounds(chars)
        numbers = self._numbers(chars.codes)
        ids, begins, ends, splits = self._word_table.tokens(
            numbers, starts, ends, functools.partial(self._encode_words, numbers, ends)
        )
        rows = tf.gather(splits, tf.searchsorted(starts, chars.row_splits))
        starts, ends = tf.gather(chars.starts, begins), tf.gather(chars.ends, ends - 1)
        return Tokens(ids, starts, ends, rows)

    def _word_bounds(self, chars: Characters) -> tuple[tf.Tensor, tf.Tensor]:
        """Return starts and ends (W,) of the words, with a line break directly after them."""
        solid = self._spaces(chars.codes) == 0
        special = chars.codes >= SPECIALS.start
        alone = chars.row_starts() | special | shift_right(special, 1, False)
        begins = solid & (alone | ~shift_right(solid, 1, False))
        is_last = solid & (shift_left(begins, 1, True) | ~shift_left(solid, 1, False))
        breaks = (chars.codes == ord("\n")) & ~chars.row_starts()
        starts = tf.cast(tf.where(begins)[:, 0], tf.int32)
        lasts = tf.cast(tf.where(is_last)[:, 0], tf.int32)
        takes_break = shift_left(breaks, 1, False) & ~special
        return starts, lasts + 1 + tf.cast(tf.gather(takes_break, lasts), tf.int32)


def _numbered_characters(tokens: Sequence[str], merges: Sequence[str]) -> np.ndarray:
    """Number the characters of the vocabulary and the merges, and special tokens in texts."""
    texts = PackedWords.from_texts([*tokens, "\n".join(merges)])
    special = PackedWords.from_symbols([[code] for code in SPECIALS[:5]])
    return character_numbers(texts.concatenate(special))
