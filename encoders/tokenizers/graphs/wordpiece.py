"""The graph of WordPiece: normalization, a split at spaces and punctuation, the model."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import bert_word_bounds
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.segmentation.word_table import WholeWordLookup, WordTable
from encoder_zoo.encoders.tokenizers.segmentation.wordpiece import MAX_WORD_CHARACTERS, WordPiece
from encoder_zoo.encoders.tokenizers.text.characters import Characters, characters
from encoder_zoo.encoders.tokenizers.text.normalization import (
    FIRST_DROPPED,
    FIRST_SPACE,
    BertNormalizer,
    normalization_tables,
    unpack_codes,
)
from encoder_zoo.encoders.tokenizers.text.packed_words import (
    UNKNOWN_SYMBOL,
    PackedWords,
    character_numbers,
)
from encoder_zoo.encoders.tokenizers.text.ragged import row_ids
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable, members

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
    from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer


class WordPieceGraph(TokenizerGraph):
    """The graph of a `BertTokenizer`.

    Args:
        tokenizer: whose arguments describe the rules.
    """

    def __init__(self, tokenizer: BertTokenizer):
        super().__init__(tokenizer)
        strips, chinese = tokenizer.strips_accents, tokenizer.split_chinese_characters
        self._options = (tokenizer.lowercase, strips, chinese, tokenizer.clean_text)
        tokens, continues, ids = _tokens_in_texts(tokenizer)
        numbers = character_numbers(tokens)
        added = tokenizer.added_tokens
        self._make_normalizers(numbers, added)
        tokens = tokens._replace(symbols=numbers[tokens.symbols])
        self._model = WordPiece(tokens, continues, ids, self.unknown_token_id)
        unknown = PackedWords.from_symbols([[UNKNOWN_SYMBOL]])
        words, word_ids = tokens.where(~continues).concatenate(unknown), ids[~continues]
        self._word_table = WordTable(words, [*word_ids, self.unknown_token_id])
        vocabulary = {token: i for i, token in enumerate(tokenizer.vocabulary)}
        words = self._whole_words(vocabulary)
        self._word_lookup = WholeWordLookup(words, tokenizer.lowercase, tokenizer.clean_text)
        self._index_added_tokens(added)

    def _make_normalizers(self, numbers: np.ndarray, added: list[dict]) -> None:
        """Build the normalizer to character numbers, and that to code points if needed."""
        self._normalizer = BertNormalizer(*self._options, numbers)
        self._numbers = None
        if any(token["normalized"] for token in added):  # with any characters
            self._numbers = CodePointTable(numbers)
            identity = np.arange(SPECIALS.stop, dtype=np.int32)
            self._to_codes = BertNormalizer(*self._options, identity)
            chinese = members("chinese") & self._options[2]
            self._chinese = CodePointTable(chinese.astype(np.int32))

    def _whole_words(self, ids: dict[str, int]) -> dict[str, int]:
        """Return {word: id} of the words that are one token and that normalization keeps."""
        words = [t for t in ids if 0 < len(t) <= MAX_WORD_CHARACTERS and not _continues(t)]
        kept = normalization_tables(*self._options).unchanged(words)
        return {word: ids[word] for word in kept}

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if not self.words_are_independent:
            return super()._ids(texts, as_words)
        return self._word_lookup.ids(texts, self._split_words)

    def _split_words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return ids (B, None) of texts (B,) that mostly are words of several tokens."""
        chars = self._normalizer(characters(texts))
        starts, ends = bert_word_bounds(chars)
        tokens = self._model.encode(unpack_codes(chars.codes), starts, ends)
        splits = tf.gather(tokens.splits, tf.searchsorted(starts, chars.row_splits))
        return tf.RaggedTensor.from_row_splits(tokens.ids, splits, validate=False)

    def _normalize(self, chars: Characters) -> Characters:
        if self._numbers is None:
            return self._normalizer(chars)
        chars = self._to_codes(chars)
        if self._options[3]:  # cleaning makes spaces of all white space
            is_space = (chars.codes >= FIRST_SPACE) & (chars.codes < FIRST_DROPPED)
            chars = chars._replace(codes=tf.where(is_space, FIRST_SPACE | ord(" "), chars.codes))
        # Chinese characters get a space on both sides, which added tokens may contain.
        repeats = 1 + 2 * self._chinese(unpack_codes(chars.codes))
        splits = tf.concat([[0], tf.cumsum(repeats)], 0)
        owner = row_ids(splits, splits[-1])
        is_added = tf.range(splits[-1]) != tf.gather(splits[:-1] + repeats // 2, owner)
        codes = tf.where(is_added, FIRST_SPACE | ord(" "), tf.gather(chars.codes, owner))
        rows = tf.gather(splits, chars.row_splits)
        return chars.take(owner)._replace(codes=codes, row_splits=rows)

    def _code_points(self, chars: Characters) -> tf.Tensor:
        return unpack_codes(chars.codes)

    def _tokenize(self, chars: Characters) -> Tokens:
        starts, ends = bert_word_bounds(chars)
        words = tf.searchsorted(starts, chars.row_splits)
        numbers = unpack_codes(chars.codes)
        if self._numbers is not None:
            numbers = self._numbers(numbers)
        ids, starts, ends, splits = self._word_table.tokens(
            numbers, starts, ends, functools.partial(self._model.encode, numbers)
        )
        return Tokens(
            ids,
            tf.gather(chars.starts, starts),
            tf.gather(chars.ends, ends - 1),
            tf.gather(splits, words),
        )


def _tokens_in_texts(tokenizer: BertTokenizer) -> tuple[PackedWords, np.ndarray, np.ndarray]:
    """Return the tokens that texts can hold, whether they continue a word, and their ids."""
    known = {token: i for i, token in enumerate(tokenizer.vocabulary)}
    tokens = [token for token in known if token]
    special_ids = tokenizer.special_token_ids[: len(SPECIALS)]
    special = PackedWords.from_symbols([[code] for code in SPECIALS[: len(special_ids)]])
    texts = [token[2:] if _continues(token) else token for token in tokens]
    continues = [*map(_continues, tokens), *[False] * len(special_ids)]
    ids = [*map(known.get, tokens), *special_ids]
    return (
        PackedWords.from_texts(texts).concatenate(special),
        np.array(continues),
        np.array(ids),
    )


def _continues(token: str) -> bool:
    return token.startswith("##") and len(token) > 2
