"""WordPiece model, and all steps of BERT, implemented with TensorFlow core operations."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import find_bert_words
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens, WordTokens
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Trie
from encoder_zoo.encoders.tokenizers.segmentation.word_table import (
    TextSplitter,
    WordTable,
    make_ascii_splitter,
)
from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.normalization import BertNormalizer, unpack_codes
from encoder_zoo.encoders.tokenizers.text.packed_words import (
    UNKNOWN_SYMBOL,
    PackedWords,
    number_characters,
)
from encoder_zoo.encoders.tokenizers.text.ragged import expand_spans, make_index_mask

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps

MAX_WORD_CHARACTERS = 100
START, CONTINUATION = 1, 2  # root nodes in the trie


class WordPiece(tf.Module):
    """Splits words into the longest tokens in a vocabulary, from left to right.

    Args:
        tokens: `PackedWords` without "##". Symbols are numbered from 1.
        continues: Boolean array of shape (W,). Whether each token continues a word.
        ids: Integer array of shape (W,). The id for each token.
        unknown_id: Integer. The id for words that cannot be split, or that have more than
            `MAX_WORD_CHARACTERS` characters.

    Source: Wu et al., "Google's Neural Machine Translation System" (2016), section 4.1.

    Example:
        >>> tokens = PackedWords.from_symbols([[7, 8], [7], [9]])
        >>> model = WordPiece(tokens, np.array([False, False, True]), [4, 5, 6], unknown_id=0)
        >>> symbols = tf.constant([7, 8, 9, 9, 7])
        >>> model.encode(symbols, tf.constant([0, 3]), tf.constant([3, 5])).ids.numpy().tolist()
        [4, 6, 0]
    """

    def __init__(
        self, tokens: PackedWords, continues: np.ndarray, ids: Sequence[int], unknown_id: int
    ):
        super().__init__()
        self._trie = Trie(np.where(continues, CONTINUATION, START), tokens, ids, num_roots=2)
        self._unknown_id = unknown_id

    def encode(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordTokens:
        """Tokenize words, given as start and end indices (W,) in `symbols` (S,)."""
        too_long = ends - starts > MAX_WORD_CHARACTERS
        ends = tf.where(too_long, starts, ends)
        indices, word, splits = expand_spans(starts, ends + 1)  # (P,), (P,), (W + 1,)
        symbols = tf.gather(symbols, tf.minimum(indices, tf.size(symbols) - 1))
        symbols = tf.tensor_scatter_nd_update(symbols, splits[1:, None] - 1, tf.zeros_like(starts))
        begins = splits[:-1]  # symbols now contain all words, separated by zeros

        roots = tf.where(make_index_mask(begins, tf.size(symbols)), START, CONTINUATION)
        ids, lengths = self._trie.find_longest_matches(
            tf.cast(roots, tf.int64), lambda index, offset: tf.gather(symbols, index + offset)
        )
        reached = mark_reachable_positions(begins, lengths)
        stuck = tf.boolean_mask(word, reached & (lengths == 0) & (symbols != 0))
        failed = too_long | make_index_mask(stuck, tf.size(starts))  # the whole word is unknown
        ids = tf.where(tf.gather(failed, word), self._unknown_id, ids)
        is_token = tf.where(
            tf.gather(failed, word),
            make_index_mask(begins, tf.size(symbols)),
            reached & (lengths > 0),
        )
        found = tf.cast(tf.where(is_token)[:, 0], tf.int32)
        within = found - tf.gather(begins, tf.gather(word, found))
        return WordTokens(tf.gather(ids, found), within, tf.searchsorted(found, splits))


def mark_reachable_positions(begins: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Return a mask (P,) for positions that a sequence of tokens reaches from a start position.

    Args:
        begins: int32 tensor of shape (W,). The start positions.
        lengths: int32 tensor of shape (P,). The token length at each position, or 0 if no
            token starts there.

    Example:
        >>> lengths = tf.constant([2, 1, 1, 0, 0])
        >>> mark_reachable_positions(tf.constant([0, 4]), lengths).numpy().tolist()
        [True, False, True, True, True]
    """

    def follow(current, reached):
        ones = tf.ones_like(current)
        reached = tf.tensor_scatter_nd_update(reached, current[:, None], ones)
        length = tf.gather(lengths, current)
        return tf.boolean_mask(current + length, length > 0), reached

    _, reached = tf.while_loop(
        lambda current, _: tf.size(current) > 0,
        follow,
        [begins, tf.zeros_like(lengths)],
        shape_invariants=[tf.TensorShape([None])] * 2,
        parallel_iterations=1,
    )
    return reached > 0


class BertWordPiece(tf.Module):
    """Splits texts into tokens with the normalizer, pre-tokenizer and model of BERT.

    `normalizer` looks up the kind and the number of each character in a single step. With separate
    steps, texts in many languages take 1.4 to 1.9 times as long.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.
    """

    def __init__(self, steps: Steps, model: Model):
        super().__init__()
        tables = make_word_piece(model.settings["vocab"], steps.unknown_id)
        numbers, self._model, self._word_table = tables
        self.normalizer = BertNormalizer(*get_bert_options(steps.normalizer), numbers)

    def __call__(self, chars: Characters) -> Tokens:
        """Tokenize texts, given as packed characters from the normalizer."""
        starts, ends = find_bert_words(chars)
        words = tf.searchsorted(starts, chars.row_splits)
        numbers = unpack_codes(chars.codes)
        ids, starts, ends, splits = self._word_table.look_up_tokens(
            numbers, starts, ends, functools.partial(self._model.encode, numbers)
        )
        return Tokens(
            ids,
            tf.gather(chars.starts, starts),
            tf.gather(chars.ends, ends - 1),
            tf.gather(splits, words),
        )


def has_bert_steps(steps: Steps) -> bool:
    """Return whether `BertWordPiece` supports all steps before the model.

    It requires a BertPreTokenizer step, and supports a BertNormalizer step. Added tokens must not
    be normalized, because they are found by code points, which its normalizer does not return.
    """
    normalizers, words = steps.list_types("normalizer"), steps.list_types("pre_tokenizer")
    is_bert = normalizers in ([], ["BertNormalizer"]) and words == ["BertPreTokenizer"]
    return is_bert and not any(token["normalized"] for token in steps.added_tokens)


def get_bert_options(normalizer: Sequence[Mapping]) -> tuple[bool, bool, bool, bool]:
    """Return `lowercase`, `strip_accents`, `handle_chinese_chars` and `clean_text` as booleans."""
    if not normalizer:
        return False, False, False, False
    [step] = normalizer
    strips = step["lowercase"] if step["strip_accents"] is None else step["strip_accents"]
    return step["lowercase"], strips, step["handle_chinese_chars"], step["clean_text"]


def make_bert_splitter(steps: Steps) -> TextSplitter:
    """Create a function to split texts at ASCII spaces and punctuation before normalization."""
    lowercase, _, _, clean_text = get_bert_options(steps.normalizer)
    return make_ascii_splitter(lowercase, clean_text)


def make_word_piece(
    vocabulary: Mapping[str, int], unknown_id: int
) -> tuple[np.ndarray, WordPiece, WordTable]:
    """Number the characters, and create a model and a word table that use these numbers."""
    names = [token for token in vocabulary if token]
    continues = np.array([name.startswith("##") and len(name) > 2 for name in names])
    pairs = zip(names, continues, strict=True)
    tokens = PackedWords.from_texts([name[2:] if continued else name for name, continued in pairs])
    ids = np.array([vocabulary[name] for name in names])
    numbers = number_characters(tokens)
    tokens = tokens._replace(symbols=numbers[tokens.symbols])
    unknown = PackedWords.from_symbols([[UNKNOWN_SYMBOL]])
    words, word_ids = tokens.select(~continues).concatenate(unknown), ids[~continues]
    table = WordTable(words, [*word_ids, unknown_id])
    return numbers, WordPiece(tokens, continues, ids, unknown_id), table
