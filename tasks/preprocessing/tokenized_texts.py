"""Tokens of texts, or of sentences in words, with their characters and their words.

Comment letters: N texts, P tokens of all texts, W words of all texts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.wording import with_type

ROW = 2**32  # more than the characters of any text: keys `row * ROW + position` sort by row


class TokenizedTexts(NamedTuple):
    """The tokens of some texts.

    Attributes:
        texts: (N,) strings; of sentences in words these, with one space between them.
        ids: ragged (N, None) int32, token ids.
        starts: ragged (N, None) int32, the first character of every token in its text.
        ends: ragged (N, None) int32, the character after the last.
        words: ragged (N, None) int32, the number of the token's word in its text.
    """

    texts: tf.Tensor
    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    words: tf.RaggedTensor


def is_list(x) -> bool:
    """Return whether a value is a list, or an array or tensor that serves as one."""
    return isinstance(x, list | tuple) or getattr(x, "ndim", 0) > 0


def is_words(x) -> bool:
    """Return whether an input is sentences in words, not texts."""
    if isinstance(x, tf.RaggedTensor):
        return True
    if tf.is_tensor(x):
        return x.shape.rank == 2
    return is_list(x) and len(x) > 0 and is_list(x.iloc[0] if hasattr(x, "iloc") else x[0])


def as_word_tensor(x) -> tf.RaggedTensor:
    """Return checked strings, ragged (N, None), from lists of words or a tensor padded with "".

    Raises:
        ValueError: "words[1] is 'Rome' (str); expected a list of words"
    """
    from encoder_zoo.encoders.tokenizers.text.text_input import as_text_tensor

    if isinstance(x, tf.RaggedTensor):
        return x
    if tf.is_tensor(x):
        return tf.RaggedTensor.from_tensor(x, padding="")
    for i, row in enumerate(x):
        if not is_list(row):
            raise ValueError(f"words[{i}] is {with_type(row)}; expected a list of words")
    rows = [as_text_tensor(row, name=f"words[{i}]") for i, row in enumerate(x)]
    lengths = tf.constant([row.shape[0] for row in rows], tf.int64)
    return tf.RaggedTensor.from_row_lengths(tf.concat(rows, axis=0), lengths)


def word_marks(tokenizer) -> np.ndarray:
    """Return (vocabulary, 2) bool: whether a token is marked as a word's beginning; ends a word.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "jo", "##sé"]
        >>> word_marks(BertTokenizer(tokens))[-2:].tolist()
        [[True, False], [False, False]]
    """
    ids = tf.range(tokenizer.vocabulary_size)[:, None]
    spelled = tokenizer.detokenize(ids, skip_special_tokens=False)
    begins = [tokenizer.starts_word(token) for token in tokenizer.get_vocabulary()]
    ends = tf.strings.regex_full_match(spelled, "(?s).* ").numpy()  # with a space
    ends |= np.array([tokenizer.ends_word(token) for token in tokenizer.get_vocabulary()])
    return np.stack([begins, ends], axis=1)


def tokenize_texts(tokenizer, texts: tf.Tensor, marks: np.ndarray) -> TokenizedTexts:
    """Return the tokens of texts; the vocabulary marks the words.

    That is, a token continues a word where BERT writes "##", and where RoBERTa has no space
    before: there a word is what stands between spaces.

    Args:
        tokenizer: a `BertTokenizer` or `RobertaTokenizer`.
        texts: (N,) strings.
        marks: the tokenizer's `word_marks`.
    """
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    begins, ends_word = tf.unstack(tf.gather(marks, ids.flat_values), axis=1)
    begins |= tf.concat([[False], ends_word], 0)[: tf.size(begins)]
    return TokenizedTexts(texts, ids, starts, ends, numbered(ids, begins))


def tokenize_words(tokenizer, words: tf.RaggedTensor) -> TokenizedTexts:
    """Return the tokens of sentences in words.

    They are tokenized as running text, with a space before every word but the first, so that a
    model meets them as it does in texts.

    Args:
        tokenizer: a `BertTokenizer` or `RobertaTokenizer`.
        words: ragged (N, None) strings.
    """
    texts = tf.strings.reduce_join(words, axis=1, separator=" ")
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    lengths = tf.strings.length(words.flat_values, unit="UTF8_CHAR") + 1
    positions = tf.cumsum(lengths, exclusive=True)  # (W,)
    positions -= tf.gather(
        tf.concat([positions, [0]], 0), tf.gather(words.row_starts(), words.value_rowids())
    )
    number = tf.searchsorted(keys(words, positions), keys(starts), side="right") - 1
    number -= tf.cast(tf.gather(words.row_starts(), ids.value_rowids()), tf.int32)
    return TokenizedTexts(texts, ids, starts, ends, ids.with_flat_values(number))


def keys(rows: tf.RaggedTensor, positions: tf.Tensor | None = None) -> tf.Tensor:
    """Return int64 numbers that sort positions row by row; None takes the ragged values."""
    positions = rows.flat_values if positions is None else positions
    return tf.cast(rows.value_rowids(), tf.int64) * ROW + tf.cast(positions, tf.int64)


def numbered(rows: tf.RaggedTensor, begins: tf.Tensor) -> tf.RaggedTensor:
    """Return ragged numbers of the groups in every row; a row's first token always begins one.

    Args:
        rows: ragged (N, None), for its shape.
        begins: (P,) bool, where a group begins.

    Example:
        >>> import tensorflow as tf
        >>> rows = tf.ragged.constant([[5, 6, 7], [8, 9]])
        >>> numbered(rows, tf.constant([False, True, False, False, False])).to_list()
        [[0, 1, 1], [0, 0]]
    """
    begins = tf.cast(begins | row_begins(rows), tf.int32)
    total = tf.cumsum(begins)
    first = tf.gather(tf.concat([total, [0]], 0), tf.gather(rows.row_starts(), rows.value_rowids()))
    return rows.with_flat_values(total - first)


def row_begins(rows: tf.RaggedTensor) -> tf.Tensor:
    """Return (P,) bool: the first token of each row."""
    row = rows.value_rowids()
    return tf.concat([tf.fill([1], True), row[1:] != row[:-1]], 0)[: tf.size(row)]


def word_begins(tokens: TokenizedTexts) -> tf.Tensor:
    """Return (P,) bool: the first token of each word."""
    words = tokens.words.flat_values
    other = tf.concat([tf.fill([1], True), words[1:] != words[:-1]], 0)[: tf.size(words)]
    return other | row_begins(tokens.words)
