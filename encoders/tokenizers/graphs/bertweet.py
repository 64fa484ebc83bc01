"""Graph for the BERTweet tokenizer: words between white space are split with fastBPE merges."""

from __future__ import annotations

import functools
from collections.abc import Mapping
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
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.steps import (
    PYTHON_SPACE,
    TWEET_WORDS,
    WORD_END,
    without_interpreter,
)
from encoder_zoo.encoders.tokenizers.text.characters import SPECIALS, Characters, CodePointTable
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords, character_numbers
from encoder_zoo.encoders.tokenizers.text.ragged import index_mask, shift_left, shift_right

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps


MAX_WORD = MAX_SYMBOLS + len(WORD_END)  # maximum symbol length in the table


class BertweetGraph(TokenizerGraph):
    """Graph for words between white space, and for BPE with a suffix on the last character.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.
    """

    def __init__(self, steps: Steps, model: Model):
        super().__init__(steps, model)
        if steps.normalizer:
            raise without_interpreter("normalizer", steps.normalizer)
        if steps.pre_tokenizer != [TWEET_WORDS]:
            raise without_interpreter("pre_tokenizer", steps.pre_tokenizer)
        spaces = np.zeros(SPECIALS.stop, np.int32)
        spaces[[*map(ord, PYTHON_SPACE)]] = 1
        self._spaces = CodePointTable(spaces)
        symbols = model.settings["vocab"]
        special = PackedWords.from_symbols([[code] for code in SPECIALS[: len(self.special_ids)]])
        letters = [symbol for symbol in symbols if len(symbol) == 1]
        numbers = character_numbers(PackedWords.from_texts(letters).concatenate(special))
        self._numbers = CodePointTable(numbers)
        self._num_characters = int(numbers.max()) + 1
        symbol_ids = np.zeros(2 * self._num_characters, np.int32)
        for letter in letters:
            number = numbers[ord(letter)]
            symbol_ids[number] = symbols[letter]
            symbol_ids[number + self._num_characters] = symbols[letter + WORD_END]
        self._token_ids = tf.constant(model.ids, tf.int32)
        merges = [" ".join(pair) for pair in model.settings["merges"]]
        self._model = BPE(symbol_ids.tolist(), merges, symbols)
        words = {
            symbol.removesuffix(WORD_END): model.ids[number]
            for symbol, number in symbols.items()
            if symbol.endswith(WORD_END) and len(WORD_END) < len(symbol) <= MAX_WORD
        }
        self._word_table = WordTable(*self._single_tokens(words, numbers, special))
        self._index_added_tokens(steps)

    def _single_tokens(
        self, words: Mapping[str, int], numbers: np.ndarray, special: PackedWords
    ) -> tuple[PackedWords, np.ndarray]:
        """Return words with numbered characters that are merged to a single token, and ids."""
        words, ids = PackedWords.from_texts(list(words)), np.array(list(words.values()), np.int64)
        words = words._replace(symbols=numbers[words.symbols].astype(np.int64))
        is_made = are_single_tokens(
            lambda symbols, starts, ends: self._encode_words(symbols, ends, starts, ends),
            words,
            ids,
        )
        special = special._replace(symbols=numbers[special.symbols].astype(np.int64))
        return words.where(is_made).concatenate(special), np.array(
            [*ids[is_made], *self.special_ids]
        )

    def _encode_words(
        self, numbers: tf.Tensor, all_ends: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> WordTokens:
        """Return tokens for words, given start and end indices with shape (W,) for numbers (N,)."""
        ends_word = tf.cast(index_mask(all_ends - 1, tf.size(numbers)), tf.int32)
        symbols = numbers + self._num_characters * ends_word
        tokens = self._model.encode(symbols, starts, ends)
        return tokens._replace(ids=tf.gather(self._token_ids, tokens.ids))

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
        """Return starts and ends (W,) for words. A line break directly after a word is included."""
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
