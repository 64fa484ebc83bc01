"""Byte-level BPE model, implemented with TensorFlow core operations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet, map_alphabet_to_bytes
from encoder_zoo.encoders.tokenizers.graphs.patterns import BYTES
from encoder_zoo.encoders.tokenizers.graphs.words import Words
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.text.characters import encode_utf8
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import compute_row_ids, expand_spans, shift_left

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model


class ByteBPE(tf.Module):
    """Splits words into tokens with byte-level BPE.

    Args:
        model: `Model` to use.
        unknown_id: Integer. The id for bytes without a token.
    """

    def __init__(self, model: Model, unknown_id: int):
        super().__init__()
        settings, vocabulary = model.settings, model.settings["vocab"]
        byte_ids = [vocabulary.get(c, unknown_id) for c in make_byte_alphabet()]
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in settings["merges"]]
        self._model = BPE(byte_ids, merges, vocabulary)
        self._long = None
        ignores_merges = settings.get("ignore_merges", False)
        self._word_table = WordTable(*self._find_single_tokens(vocabulary, ignores_merges))

    def _find_single_tokens(
        self, vocabulary: Mapping[str, int], ignore_merges: bool
    ) -> tuple[PackedWords, np.ndarray]:
        """Return the symbols (starting with 1) and ids of all words with a single token.

        With `ignore_merges`, this includes all tokens. Otherwise, only tokens that result from
        merges are used. Tokens that are too long for the table are not included.
        """
        byte_of = map_alphabet_to_bytes()
        ids = {
            bytes(map(byte_of.get, token)): token_id
            for token, token_id in vocabulary.items()
            if token and all(c in byte_of for c in token)
        }
        words, ids = PackedWords.from_symbols(list(ids)), np.array(list(ids.values()), np.int64)
        is_short = words.lengths <= MAX_SYMBOLS
        if ignore_merges:
            self._long = self._make_long_token_table(words.where(~is_short), ids[~is_short])
        words, ids = words.where(is_short), ids[is_short]
        if not ignore_merges:
            is_made = are_single_tokens(self._model.encode, words, ids)
            words, ids = words.where(is_made), ids[is_made]
        return words._replace(symbols=1 + words.symbols), ids

    def _make_long_token_table(
        self, words: PackedWords, ids: np.ndarray
    ) -> tf.lookup.StaticHashTable | None:
        """Return a table to look up tokens that are too long for the word table.

        Only tokens that do not result from merges are included. Return None if there are no such
        tokens.
        """
        if not len(ids):
            return None
        left = ~are_single_tokens(self._model.encode, words, ids)
        if not left.any():
            return None
        words = words.where(left)
        texts = np.split(words.symbols.astype(np.uint8), words.starts[1:])
        keys = tf.constant([text.tobytes() for text in texts])
        pairs = tf.lookup.KeyValueTensorInitializer(keys, tf.constant(ids[left], tf.int32))
        return tf.lookup.StaticHashTable(pairs, default_value=-1)

    def _encode_words(self, symbols, starts, ends) -> WordTokens:
        """Return tokens for words (W,) that are not in the table."""
        tokens = self._model.encode(symbols, starts, ends)
        if self._long is None:
            return tokens
        long = tf.where(ends - starts > MAX_SYMBOLS)
        words = tf.gather(starts, long[:, 0]), tf.gather(ends, long[:, 0])
        indices, _, splits = expand_spans(*words)
        characters = tf.gather(BYTES, tf.gather(symbols, indices))
        texts = tf.RaggedTensor.from_row_splits(characters, splits, validate=False)
        found = self._long.lookup(tf.strings.reduce_join(texts, axis=1))
        ids = tf.tensor_scatter_nd_update(tf.fill(tf.shape(starts), -1), long, found)
        return _replace_whole(tokens, ids)

    def __call__(self, words: Words) -> Tokens:
        """Tokenize words."""
        chars, starts = words.chars, words.starts
        symbols, splits, owners = encode_utf8(chars.codes)  # (S,), (N + 1,), (S,)
        begins = tf.gather(splits, starts)
        ends = shift_left(begins, 1, tf.size(symbols))
        ids, begins, ends, tokens = self._word_table.look_up_tokens(
            1 + symbols, begins, ends, functools.partial(self._encode_words, symbols)
        )
        rows = tf.gather(tokens, tf.searchsorted(starts, chars.row_splits))
        starts = tf.gather(chars.starts, tf.gather(owners, begins))
        ends = tf.gather(chars.ends, tf.gather(owners, ends - 1))
        return Tokens(ids, starts, ends, rows)


def _replace_whole(tokens: WordTokens, ids: tf.Tensor) -> WordTokens:
    """Replace the tokens in a word by a single token if the word has an id (W,) other than -1."""
    whole = tf.gather(ids, compute_row_ids(tokens.splits, tf.size(tokens.ids)))  # (T,)
    kept = (whole < 0) | (tokens.starts == 0)
    kept_before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int32))], 0)
    found = tf.where(whole < 0, tokens.ids, whole)
    return WordTokens(
        tf.boolean_mask(found, kept),
        tf.boolean_mask(tokens.starts, kept),
        tf.gather(kept_before, tokens.splits),
    )
