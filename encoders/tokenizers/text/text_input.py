"""Converts texts of many types to checked string tensors, and joins spellings to texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.lazy import array_ops, in_tensorflow, refuse_in_fork, tf
from encoder_zoo.common.missing import is_masked_array, missing_rows
from encoder_zoo.common.wording import invalid

BYTES_PER_WORD = 8  # most texts have shorter words
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def as_text_tensor(texts: object, name: str = "texts") -> array_ops.Tensor:
    """Convert texts to a checked string tensor.

    Lone surrogates become U+FFFD. Symbolic tensors are not checked; the tokenizers read their
    malformed bytes as U+FFFD.

    Args:
        texts: a string, or a list, tuple, NumPy array, string tensor, or column of pandas, polars,
            Arrow or datasets, of strings; `bytes` are read as UTF-8.
        name: of the argument, for error messages.

    Returns:
        tf.string tensor, () for a single string and (B,) otherwise; `[]` gives (0,).

    Raises:
        ValueError: If a text is not a string in UTF-8.

    Example:
        >>> as_text_tensor(["naïve", "b"]).shape
        TensorShape([2])
    """
    if in_tensorflow():  # elsewhere texts are read without the backend, in workers of a loader too
        refuse_in_fork()
    if isinstance(texts, array_ops.Tensor):
        return _checked_tensor(texts, name)
    if isinstance(texts, str | bytes):
        return array_ops.constant(_checked_text(texts, name), array_ops.string)
    if isinstance(texts, Sequence) and not hasattr(texts, "__array__"):
        texts = list(texts)  # such as a column of datasets
    if not isinstance(texts, list) and not hasattr(texts, "__array__"):
        raise invalid(
            name, texts, "a string, or a list, NumPy array, pandas column or tensor of strings"
        )
    if is_masked_array(texts):
        texts = texts.tolist()  # None in the place of what is masked
    rows = texts if isinstance(texts, list) else np.asarray(texts, dtype=object).tolist()
    if isinstance(rows, str | bytes):  # an array of rank 0
        return array_ops.constant(_checked_text(rows, name), array_ops.string)
    try:
        checked = [_checked_text(row, f"{name}[{i}]") for i, row in enumerate(rows)]
    except ValueError as error:
        hint = missing_rows(rows, name)
        raise ValueError(f"{error}{hint}") from None
    return array_ops.constant(checked, array_ops.string, shape=(len(checked),))


def _checked_text(text: object, name: str) -> bytes:
    """Return a text as UTF-8; raise an error for other values."""
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
                "it with its own encoding first."
            ) from None
        return text
    nested = isinstance(text, list | tuple | np.ndarray)
    raise invalid(name, text, "a string" + ", not texts nested one deeper" * nested)


def _checked_tensor(texts: array_ops.Tensor, name: str) -> array_ops.Tensor:
    """Check type and rank of a string tensor, and the bytes of an eager one."""
    if texts.dtype != array_ops.string or (array_ops.TensorShape(texts.shape).rank or 0) > 1:
        raise ValueError(
            f"{name} is a tensor of {texts.dtype.name} with shape {texts.shape}. Expected strings "
            "of rank 0 or 1."
        )
    if in_tensorflow() and not array_ops.is_symbolic_tensor(texts):  # arrays were checked when made
        repaired = array_ops.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        for row in np.flatnonzero(np.atleast_1d(tf.not_equal(texts, repaired).numpy())):
            _checked_text(np.atleast_1d(texts.numpy())[row], f"{name}[{row}]")
    return texts


def truncate_texts(texts: array_ops.Tensor, num: int) -> array_ops.Tensor:
    """Truncate long texts (B,) after at least `num` tokens.

    An ASCII letter after a space always begins a word, and every word has a token. So a text is
    truncated before such a space if `num` words begin before it; a text with fewer in its first
    `BYTES_PER_WORD * num` bytes stays as it is.

    Example:
        >>> truncate_texts(array_ops.constant(["one, two " + "and more " * 9]), 2).numpy().tolist()
        [b'one, two and']
    """
    width = BYTES_PER_WORD * num

    def cut() -> array_ops.Tensor:
        codes = tf.io.decode_raw(texts, tf.uint8, fixed_length=width)  # (B, width)
        is_letter = tf.bitwise.bitwise_or(codes, 32) - ord("a") < 26  # lower-cased; wraps around
        begins = is_letter[:, 1:] & (codes[:, :-1] == ord(" "))
        enough = array_ops.math.count_nonzero(begins, 1, dtype=array_ops.int32) > num
        last = array_ops.reduce_max(array_ops.where(begins, array_ops.range(width - 1), 0), 1)
        lengths = array_ops.where(enough, last, array_ops.strings.length(texts))
        return array_ops.strings.substr(texts, array_ops.zeros_like(lengths), lengths)

    return array_ops.cond(
        array_ops.reduce_any(array_ops.strings.length(texts) > width), cut, lambda: texts
    )


def join_spelling(
    rows: array_ops.RaggedTensor, spelling: array_ops.Tensor, skipped: Sequence[int] = ()
) -> array_ops.Tensor:
    """Return the texts of the tokens of each row, (B,).

    Args:
        rows: ragged (B, None) int32, token ids.
        spelling: (V,) the text of each id.
        skipped: ids that are left out.

    Example:
        >>> import tensorflow as tf
        >>> join_spelling(tf.ragged.constant([[1, 0], [0]]), tf.constant(["a", "b"])).numpy()
        array([b'ba', b'a'], dtype=object)
    """
    if skipped:
        special = array_ops.reduce_any(rows.values[:, None] == list(skipped), 1)
        rows = array_ops.ragged.boolean_mask(rows, rows.with_values(~special))
    return array_ops.strings.reduce_join(
        rows.with_values(array_ops.gather(spelling, rows.values)), axis=1
    )
