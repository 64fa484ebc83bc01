"""The graph of byte-level BPE, as in GPT-2 and, with NFC before it, in ModernBERT."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.files.merges import (
    alphabet_bytes,
    byte_alphabet,
    surrounding_spaces,
)
from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import (
    byte_level_character_kinds,
    byte_level_word_starts,
)
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.text.characters import Characters, encode_utf8, insert_spaces
from encoder_zoo.encoders.tokenizers.text.composition import NFCNormalizer
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import shift_left, shift_right
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph


class ByteBPEGraph(TokenizerGraph):
    """The graph of a `RobertaTokenizer`.

    Args:
        tokenizer: whose arguments describe the rules.
    """

    def __init__(self, tokenizer: RobertaTokenizer):
        super().__init__(tokenizer)
        self.add_prefix_space = tokenizer.add_prefix_space
        self._trims = tokenizer.trim_offsets
        self._kinds = CodePointTable(byte_level_character_kinds())
        vocabulary, added = tokenizer.vocabulary, tokenizer.added_tokens
        spaces = np.zeros([tokenizer.vocabulary_size, 2], np.int32)  # none for added tokens
        for token, spaces_around in zip(
            vocabulary, surrounding_spaces(list(vocabulary)), strict=True
        ):
            spaces[vocabulary[token]] = spaces_around
        spaces[[token["id"] for token in added]] = 0
        self._spaces = tf.constant(spaces)
        byte_ids = [vocabulary.get(c, self.unknown_token_id) for c in byte_alphabet()]
        symbol_ids = [*byte_ids, *self.special_token_ids]
        self._model = BPE(symbol_ids, tokenizer.merges, vocabulary)
        self._word_table = WordTable(*self._single_tokens(vocabulary))
        self._index_added_tokens(added)

    def _span_options(self) -> dict[str, bool]:
        return {"trim_offsets": self._trims, "keep_first_space": self.add_prefix_space}

    def _single_tokens(self, vocabulary: dict[str, int]) -> tuple[PackedWords, np.ndarray]:
        """Return the words that the merges make one token, as 1 + symbols, and their ids."""
        byte_of = alphabet_bytes()
        ids = {
            bytes(map(byte_of.get, token)): token_id
            for token, token_id in vocabulary.items()
            if 0 < len(token) <= MAX_SYMBOLS and all(c in byte_of for c in token)
        }
        words, ids = PackedWords.from_symbols(list(ids)), np.array(list(ids.values()), np.int64)
        is_made = self._are_whole(words, ids)
        special_ids = self.special_token_ids[:256]
        special = PackedWords.from_symbols([[256 + i] for i in range(len(special_ids))])
        words = words.where(is_made).concatenate(special)
        return words._replace(symbols=1 + words.symbols), np.array([*ids[is_made], *special_ids])

    def _are_whole(self, words: PackedWords, ids: np.ndarray) -> np.ndarray:
        """Return which words, boolean (W,), are one token."""
        return are_single_tokens(self._model.encode, words, ids)

    def _encode_words(self, symbols, starts, ends) -> WordTokens:
        """Return the tokens of words (W,) that are not in the table."""
        return self._model.encode(symbols, starts, ends)

    def _word_starts(self, chars: Characters) -> tf.Tensor:
        """Return the first characters (W,) of the words."""
        return byte_level_word_starts(chars.codes, self._kinds(chars.codes), chars.row_starts())

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        if not (self.add_prefix_space or as_words):
            return chars
        special = chars.codes >= SPECIALS.start
        first = chars.row_starts() | shift_right(special, 1, False)
        return insert_spaces(chars, first & ~special & (chars.codes != ord(" ")))

    def _tokenize(self, chars: Characters) -> Tokens:
        starts = self._word_starts(chars)
        symbols, splits, owners = encode_utf8(chars.codes)  # (S,), (N + 1,), (S,)
        begins = tf.gather(splits, starts)
        ends = shift_left(begins, 1, tf.size(symbols))
        ids, begins, ends, tokens = self._word_table.tokens(
            1 + symbols, begins, ends, functools.partial(self._encode_words, symbols)
        )
        rows = tf.gather(tokens, tf.searchsorted(starts, chars.row_splits))
        starts = tf.gather(chars.starts, tf.gather(owners, begins))
        ends = tf.gather(chars.ends, tf.gather(owners, ends - 1))
        return Tokens(ids, starts, ends, rows)

    def _trim_spans(self, tokens: Tokens) -> Tokens:
        """Remove the spaces around tokens from their spans, as RobertaProcessing does."""
        if not self._trims:
            return tokens
        ids, starts, ends, rows = tokens
        leading, trailing = tf.unstack(tf.gather(self._spaces, ids), num=2, axis=1)
        if self.add_prefix_space:  # the only space before a text counts as the added one
            first = tf.boolean_mask(rows[:-1], rows[:-1] < rows[1:])
            ones = tf.cast(tf.gather(leading, first) == 1, tf.int32)
            leading = tf.tensor_scatter_nd_sub(leading, first[:, None], ones)
        starts = tf.minimum(starts + leading, ends)
        return Tokens(ids, starts, tf.maximum(ends - trailing, starts), rows)


class ModernBPEGraph(ByteBPEGraph):
    """The graph of a `ModernBertTokenizer`, which normalizes by NFC."""

    def __init__(self, tokenizer: RobertaTokenizer):
        self._normalizer = NFCNormalizer()  # which the base applies to added tokens
        super().__init__(tokenizer)

    def _normalize(self, chars: Characters) -> Characters:
        return self._normalizer(chars)
