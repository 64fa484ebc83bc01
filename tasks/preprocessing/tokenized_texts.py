"""Tokens of texts, or of sentences in words, with their characters and their words.

Comment letters: N texts, P tokens of all texts, W words of all texts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.wording import with_type

ROW = 2**32  # more than the characters of any text: keys `row * ROW + offset` sort by row


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
        return len(x.shape) == 2
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

    A token continues a word where BERT writes "##", and where RoBERTa has no space before it: there
    words are separated by spaces.

    Args:
        tokenizer: any of this package's.
        texts: (N,) strings.
        marks: the tokenizer's `word_marks`.
    """
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    begins, ends_word = tf.unstack(tf.gather(marks, ids.flat_values), axis=1)
    begins |= previous(ends_word, False)
    return TokenizedTexts(texts, ids, starts, ends, numbered(ids, begins))


def tokenize_words(tokenizer, words: tf.RaggedTensor) -> TokenizedTexts:
    """Return the tokens of sentences in words.

    They are tokenized as running text, with a space before every word but the first.

    Args:
        tokenizer: any of this package's.
        words: ragged (N, None) strings.
    """
    texts = tf.strings.reduce_join(words, axis=1, separator=" ")
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    lengths = tf.strings.length(words.flat_values, unit="UTF8_CHAR") + 1
    offsets = tf.cumsum(lengths, exclusive=True)  # (W,)
    offsets -= tf.gather(offsets, tf.gather(words.row_starts(), words.value_rowids()))
    number = tf.searchsorted(keys(words, offsets), keys(starts), side="right") - 1
    number -= tf.cast(tf.gather(words.row_starts(), ids.value_rowids()), tf.int32)
    return TokenizedTexts(texts, ids, starts, ends, ids.with_flat_values(number))


def keys(rows: tf.RaggedTensor, offsets: tf.Tensor | None = None) -> tf.Tensor:
    """Return int64 numbers that sort offsets row by row; None takes the ragged values."""
    offsets = rows.flat_values if offsets is None else offsets
    return tf.cast(rows.value_rowids(), tf.int64) * ROW + tf.cast(offsets, tf.int64)


def numbered(rows: tf.RaggedTensor, begins: tf.Tensor) -> tf.RaggedTensor:
    """Return ragged numbers of the groups in every text; its first token always begins one.

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
    first = tf.gather(total, tf.gather(rows.row_starts(), rows.value_rowids()))
    return rows.with_flat_values(total - first)


def previous(values: tf.Tensor, first) -> tf.Tensor:
    """Return the value before each token (P,), with another before the first.

    Example:
        >>> import tensorflow as tf
        >>> previous(tf.constant([5, 6]), -1).numpy().tolist()
        [-1, 5]
    """
    return tf.concat([tf.constant([first], values.dtype), values], 0)[: tf.size(values)]


def following(values: tf.Tensor, last) -> tf.Tensor:
    """Return the value after each token (P,), with another after the last."""
    return tf.concat([values[1:], tf.constant([last], values.dtype)], 0)[: tf.size(values)]


def row_begins(rows: tf.RaggedTensor) -> tf.Tensor:
    """Return (P,) bool: the first token of each text."""
    row = rows.value_rowids()
    return row != previous(row, -1)


def word_begins(tokens: TokenizedTexts) -> tf.Tensor:
    """Return (P,) bool: the first token of each word."""
    words = tokens.words.flat_values
    return (words != previous(words, -1)) | row_begins(tokens.words)
