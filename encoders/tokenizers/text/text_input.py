"""Convert texts from various types to validated string tensors, and join tokens to texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from encoder_zoo.common.lazy import check_not_forked, tf, uses_tensorflow, xp
from encoder_zoo.common.missing import describe_missing_rows, is_masked_array
from encoder_zoo.common.wording import invalid

BYTES_PER_WORD = 8  # most words are shorter
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def make_text_tensor(texts: Any, name: str = "texts") -> xp.Tensor:
    """Convert texts to a validated string tensor.

    Lone surrogates are replaced by U+FFFD. Symbolic tensors are not validated, but the tokenizers
    will replace malformed bytes by U+FFFD.

    Args:
        texts: String, or a list, tuple, NumPy array, string tensor, or pandas, polars, Arrow or
            datasets column with strings. `bytes` are decoded as UTF-8.
        name: String. Argument name to use in error messages. Defaults to "texts".

    Returns:
        tf.string tensor of shape () for a single string, or with shape (B,) otherwise. The shape
        for `[]` is (0,).

    Raises:
        ValueError: If a text is not a string, or if bytes are not valid UTF-8.

    Example:
        >>> make_text_tensor(["naïve", "b"]).shape
        TensorShape([2])
    """
    if uses_tensorflow():  # other backends can also read texts in data loader workers
        check_not_forked()
    if isinstance(texts, xp.Tensor):
        return _check_tensor(texts, name)
    if isinstance(texts, str | bytes):
        return xp.constant(_check_text(texts, name), xp.string)
    if isinstance(texts, Sequence) and not hasattr(texts, "__array__"):
        texts = list(texts)  # for example, a column from datasets
    if not isinstance(texts, list) and not hasattr(texts, "__array__"):
        raise invalid(
            name, texts, "a string, or a list, NumPy array, pandas column or tensor of strings"
        )
    if is_masked_array(texts):
        texts = texts.tolist()  # masked values become None
    rows = texts if isinstance(texts, list) else np.asarray(texts, dtype=object).tolist()
    if isinstance(rows, str | bytes):  # an array of rank 0
        return xp.constant(_check_text(rows, name), xp.string)
    try:
        checked = [_check_text(row, f"{name}[{i}]") for i, row in enumerate(rows)]
    except ValueError as error:
        hint = describe_missing_rows(rows, name)
        raise ValueError(f"{error}{hint}") from None
    return xp.constant(checked, xp.string, shape=(len(checked),))


def make_word_tensor(words: Any) -> xp.RaggedTensor:
    """Convert texts that are split into words to a ragged string tensor of shape (B, None).

    Args:
        words: List with a list of strings for each text, RaggedTensor of strings, or string tensor
            of shape (B, length), padded with "".

    Raises:
        ValueError: If a row is not a list of words.
    """
    if isinstance(words, xp.RaggedTensor):
        return words
    if xp.is_tensor(words):
        return xp.RaggedTensor.from_tensor(words, padding="")
    for i, row in enumerate(words):
        if isinstance(row, str | bytes) or not (isinstance(row, Sequence) or np.ndim(row)):
            raise invalid(f"words[{i}]", row, "a list of words")
    rows = [make_text_tensor(row, f"words[{i}]") for i, row in enumerate(words)]
    values = xp.concat(rows, 0) if rows else xp.constant([], xp.string)
    lengths = xp.constant([row.shape[0] for row in rows], xp.int64)
    return xp.RaggedTensor.from_row_lengths(values, lengths)


def _check_text(text: object, name: str) -> bytes:
    """Encode a text as UTF-8, and raise an error for other types."""
    if isinstance(text, str):
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError:
            return LONE_SURROGATE.sub("\ufffd", text).encode("utf-8")
    if isinstance(text, bytes):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name} is not UTF-8 at byte {error.start}: {text[error.start :][:8]!r}. Decode "
                "the bytes with the correct encoding."
            ) from None
        return text
    nested = isinstance(text, list | tuple | np.ndarray)
    raise invalid(name, text, "a string" + " instead of a nested list" * nested)


def _check_tensor(texts: xp.Tensor, name: str) -> xp.Tensor:
    """Check the dtype and rank of a string tensor, and the bytes if the tensor is eager."""
    if texts.dtype != xp.string or (xp.TensorShape(texts.shape).rank or 0) > 1:
        raise ValueError(
            f"{name} has dtype {texts.dtype.name} and shape {texts.shape}. Expected a string "
            "tensor of rank 0 or 1."
        )
    if uses_tensorflow() and not xp.is_symbolic_tensor(texts):  # arrays are already checked
        repaired = xp.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        for row in np.flatnonzero(np.atleast_1d(tf.not_equal(texts, repaired).numpy())):
            _check_text(np.atleast_1d(texts.numpy())[row], f"{name}[{row}]")
    return texts


def truncate_texts(texts: xp.Tensor, num: int) -> xp.Tensor:
    """Truncate long texts (B,) after at least `num` tokens.

    An ASCII letter after a space always starts a word, and every word contains at least one token.
    A text is therefore truncated before such a space if at least `num` words start before it. Texts
    with fewer words in the first `BYTES_PER_WORD * num` bytes are not truncated.

    Example:
        >>> truncate_texts(xp.constant(["one, two " + "and more " * 9]), 2).numpy().tolist()
        [b'one, two and']
    """
    width = BYTES_PER_WORD * num

    def cut() -> xp.Tensor:
        codes = tf.io.decode_raw(texts, tf.uint8, fixed_length=width)  # (B, width)
        is_letter = tf.bitwise.bitwise_or(codes, 32) - ord("a") < 26  # lower-case; may wrap around
        begins = is_letter[:, 1:] & (codes[:, :-1] == ord(" "))
        enough = xp.math.count_nonzero(begins, 1, dtype=xp.int32) > num
        last = xp.reduce_max(xp.where(begins, xp.range(width - 1), 0), 1)
        lengths = xp.where(enough, last, xp.strings.length(texts))
        return xp.strings.substr(texts, xp.zeros_like(lengths), lengths)

    return xp.cond(xp.reduce_any(xp.strings.length(texts) > width), cut, lambda: texts)


def join_tokens(
    rows: xp.RaggedTensor, token_texts: xp.Tensor, skipped: Sequence[int] = ()
) -> xp.Tensor:
    """Join the tokens of each row into a text, and return a string tensor of shape (B,).

    Args:
        rows: Ragged int32 tensor of shape (B, None). The token ids.
        token_texts: String tensor of shape (V,). The text for each id.
        skipped: List of ids to skip.

    Example:
        >>> import tensorflow as tf
        >>> join_tokens(tf.ragged.constant([[1, 0], [0]]), tf.constant(["a", "b"])).numpy()
        array([b'ba', b'a'], dtype=object)
    """
    if skipped:
        special = xp.reduce_any(rows.values[:, None] == list(skipped), 1)
        rows = xp.ragged.boolean_mask(rows, rows.with_values(~special))
    return xp.strings.reduce_join(rows.with_values(xp.gather(token_texts, rows.values)), axis=1)
