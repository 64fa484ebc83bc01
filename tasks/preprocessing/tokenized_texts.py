"""Tokenize texts or lists of words, and find the characters and the word of each token.

Comments use these letters for shapes: N (texts), P (tokens in all texts), W (words in all texts).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from encoder_zoo.common.lazy import xp

ROW_STRIDE = 2**32  # longer than any text, so that `row * ROW_STRIDE + offset` is sorted by row


class TokenizedTexts(NamedTuple):
    """The tokens of a batch of texts.

    Attributes:
        texts: String tensor of shape (N,). Words are joined by spaces.
        ids: Ragged int32 tensor of shape (N, None). Token ids.
        starts: Ragged int32 tensor of shape (N, None). Start of each token, in characters.
        ends: Ragged int32 tensor of shape (N, None). End of each token, in characters, exclusive.
        words: Ragged int32 tensor of shape (N, None). Word index.
    """

    texts: xp.Tensor
    ids: xp.RaggedTensor
    starts: xp.RaggedTensor
    ends: xp.RaggedTensor
    words: xp.RaggedTensor


def is_list(x) -> bool:
    """Return whether a value is a list, or an array or tensor that is used like a list."""
    return isinstance(x, list | tuple) or getattr(x, "ndim", 0) > 0


def has_word_lists(x) -> bool:
    """Return whether an input contains lists of words instead of texts."""
    if hasattr(x, "row_splits"):  # a ragged tensor of any library
        return True
    if xp.is_tensor(x):
        return len(x.shape) == 2
    return is_list(x) and len(x) > 0 and is_list(x.iloc[0] if hasattr(x, "iloc") else x[0])


def mark_word_tokens(tokenizer) -> np.ndarray:
    """Return a boolean table (V, 2): tokens that begin a word, and tokens that end a word.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "jo", "##sé"]
        >>> mark_word_tokens(BertTokenizer(tokens))[-2:].tolist()
        [[True, False], [False, False]]
    """
    ids = xp.range(tokenizer.vocabulary_size)[:, None]
    spelled = tokenizer.detokenize(ids, skip_special_tokens=False)
    tokens, token_format = tokenizer.get_vocabulary(), tokenizer.token_format
    begins = [token_format.starts_word(token) for token in tokens]
    ends = xp.strings.regex_full_match(spelled, "(?s).* ").numpy()  # with a space
    ends |= np.array([token_format.ends_word(token) for token in tokens])
    return np.stack([begins, ends], axis=1)


def tokenize_texts(tokenizer, texts: xp.Tensor, marks: np.ndarray) -> TokenizedTexts:
    """Tokenize texts, and use the vocabulary to find the tokens that begin a word.

    In BERT, a token that starts with "##" continues a word. In RoBERTa, a token without a space
    before it continues a word, so words are separated by spaces.

    Args:
        tokenizer: Any tokenizer from this package.
        texts: String tensor of shape (N,).
        marks: Boolean array of shape (V, 2) from `mark_word_tokens`.
    """
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    begins, ends_word = xp.unstack(xp.gather(marks, ids.flat_values), axis=1)
    begins |= shift_right(ends_word, False)
    return TokenizedTexts(texts, ids, starts, ends, number_groups(ids, begins))


def tokenize_words(tokenizer, words: xp.RaggedTensor) -> TokenizedTexts:
    """Tokenize sentences that are split into words.

    The words are joined by spaces and tokenized as a text. The first token of a word starts where
    the word starts, and the last token ends where the word ends, even if the tokenizer drops
    characters there.

    Args:
        tokenizer: Any tokenizer from this package.
        words: Ragged string tensor of shape (N, None).
    """
    texts = xp.strings.reduce_join(words, axis=1, separator=" ")
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    lengths = xp.strings.length(words.flat_values, unit="UTF8_CHAR") + 1
    offsets = cumsum_in_rows(words.with_values(lengths)) - lengths  # (W,)
    number = (
        xp.searchsorted(compute_sort_keys(words, offsets), compute_sort_keys(starts), side="right")
        - 1
    )
    word_start, word_end = (xp.gather(v, number) for v in (offsets, offsets + lengths - 1))
    number -= xp.cast(xp.gather(words.row_starts(), ids.value_rowids()), xp.int32)
    tokens = TokenizedTexts(texts, ids, starts, ends, ids.with_flat_values(number))
    begins = mark_word_starts(tokens)
    starts = xp.where(begins, word_start, starts.flat_values)
    ends = xp.where(shift_left(begins, True), word_end, ends.flat_values)
    return tokens._replace(starts=ids.with_flat_values(starts), ends=ids.with_flat_values(ends))


def compute_sort_keys(rows: xp.RaggedTensor, offsets: xp.Tensor | None = None) -> xp.Tensor:
    """Combine row indices and offsets into int64 keys that sort by row, then by offset."""
    return make_sort_keys(rows.value_rowids(), rows.flat_values if offsets is None else offsets)


def make_sort_keys(row: xp.Tensor, offset: xp.Tensor) -> xp.Tensor:
    """Combine row indices (S,) and offsets (S,) into keys, like `compute_sort_keys`."""
    return xp.cast(row, xp.int64) * ROW_STRIDE + xp.cast(offset, xp.int64)


def find_overlapping(
    starts: xp.RaggedTensor, ends: xp.RaggedTensor, row: xp.Tensor, start: xp.Tensor, end: xp.Tensor
) -> tuple[xp.Tensor, xp.Tensor]:
    """Find the first and the last token that share a character with each span.

    Args:
        starts, ends: Ragged tensors of shape (N, None). Offsets of tokens, or of words.
        row: Int64 tensor of shape (S,). Index of the text of each span.
        start, end: Integer tensors of shape (S,). Offsets of the spans.

    Returns:
        Two int32 tensors of shape (S,). Indices of tokens in the text. If a span has no token, the
        last index is less than the first.

    Example:
        >>> import tensorflow as tf
        >>> starts = tf.ragged.constant([[0], [0, 3, 5]])
        >>> ends = tf.ragged.constant([[4], [2, 5, 9]])
        >>> spans = tf.constant([[1, 1, 1], [0, 4, 2], [4, 6, 3]])  # texts, starts and ends
        >>> [index.numpy().tolist() for index in find_overlapping(starts, ends, *spans)]
        [[0, 1, 1], [1, 2, 0]]
    """
    first = xp.searchsorted(compute_sort_keys(ends), make_sort_keys(row, start), side="right")
    last = xp.searchsorted(compute_sort_keys(starts), make_sort_keys(row, end), side="left") - 1
    before = xp.cast(xp.gather(starts.row_starts(), row), xp.int32)
    return first - before, last - before


def cumsum_in_rows(rows: xp.RaggedTensor) -> xp.Tensor:
    """Return the cumulative sums (P,) of the values in each row.

    Example:
        >>> import tensorflow as tf
        >>> cumsum_in_rows(tf.ragged.constant([[2, 1], [], [3, 4]])).numpy().tolist()
        [2, 3, 3, 7]
    """
    total = xp.cumsum(rows.flat_values)
    before = total - rows.flat_values
    return total - xp.gather(before, xp.gather(rows.row_starts(), rows.value_rowids()))


def number_groups(rows: xp.RaggedTensor, begins: xp.Tensor) -> xp.RaggedTensor:
    """Compute the group index of each token. The first token of a text always begins a group.

    Args:
        rows: Ragged tensor of shape (N, None). Only its shape is used.
        begins: Boolean tensor of shape (P,). Whether a group begins at each token.

    Example:
        >>> import tensorflow as tf
        >>> rows = tf.ragged.constant([[5, 6, 7], [8, 9]])
        >>> number_groups(rows, tf.constant([False, True, False, False, False])).to_list()
        [[0, 1, 1], [0, 0]]
    """
    begins = rows.with_flat_values(xp.cast(begins | mark_row_starts(rows), xp.int32))
    return rows.with_flat_values(cumsum_in_rows(begins) - 1)


def get_row_values(values: xp.RaggedTensor, row: xp.Tensor, number: xp.Tensor) -> xp.Tensor:
    """Gather values of tokens, words or labels by text and index in the text.

    Args:
        values: Ragged tensor of shape (N, None).
        row: Integer tensor of shape (S,). Index of the text of each value.
        number: Integer tensor of shape (S,). Index of each value in its text.
    """
    begin = xp.cast(xp.gather(values.row_starts(), row), xp.int64)
    return xp.gather(values.values, begin + xp.cast(number, xp.int64))


def shift_right(values: xp.Tensor, first) -> xp.Tensor:
    """Return the value of the previous token for each token (P,). The first token gets `first`.

    Example:
        >>> import tensorflow as tf
        >>> shift_right(tf.constant([5, 6]), -1).numpy().tolist()
        [-1, 5]
    """
    return xp.concat([xp.constant([first], values.dtype), values], 0)[: xp.size(values)]


def shift_left(values: xp.Tensor, last) -> xp.Tensor:
    """Return the value of the next token for each token (P,). The last token gets `last`."""
    return xp.concat([values[1:], xp.constant([last], values.dtype)], 0)[: xp.size(values)]


def mark_row_starts(rows: xp.RaggedTensor) -> xp.Tensor:
    """Return a boolean mask (P,) of the tokens that are the first in their text."""
    row = rows.value_rowids()
    return row != shift_right(row, -1)


def mark_word_starts(tokens: TokenizedTexts) -> xp.Tensor:
    """Return a boolean mask (P,) of the tokens that are the first in their word."""
    words = tokens.words.flat_values
    return (words != shift_right(words, -1)) | mark_row_starts(tokens.words)


def slice_texts(texts: xp.Tensor, row: xp.Tensor, start: xp.Tensor, end: xp.Tensor) -> xp.Tensor:
    """Cut parts out of texts by character offsets.

    With `strings.substr`, the whole text would be copied for each part, and characters would be
    counted from the beginning of the text. For a long text with many parts, this would take
    quadratic time.

    Args:
        texts: String tensor of shape (N,).
        row: Int64 tensor of shape (G,). Text index per part.
        start: Int32 tensor of shape (G,). Start of each part, in characters.
        end: Int32 tensor of shape (G,). End of each part, in characters, exclusive.

    Returns:
        String tensor of shape (G,).

    Example:
        >>> import tensorflow as tf
        >>> parts = slice_texts(tf.constant(["", "Hi, Zoé!"]), *map(tf.constant, ([1], [4], [7])))
        >>> parts.numpy()[0].decode()
        'Zoé'
    """
    codes = xp.strings.unicode_decode(texts, "UTF-8")  # ragged (N, None)
    first = xp.gather(xp.cast(codes.row_starts(), xp.int64), row)
    start, end = (first + xp.cast(offset, xp.int64) for offset in (start, end))
    positions = xp.ragged.range(start, end)
    parts = positions.with_flat_values(xp.gather(codes.values, positions.values))
    return xp.strings.unicode_encode(parts, "UTF-8")
