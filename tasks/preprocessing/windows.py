"""Split long texts into overlapping windows. The values of a token are taken from one window.

Comments use these letters for shapes: N (texts), W (windows), P (tokens in all texts).
"""

from __future__ import annotations

from typing import NamedTuple

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.wording import invalid


class Windows(NamedTuple):
    """Windows of texts, which are short enough for the model.

    Every token is owned by one window. Its values in other windows are ignored.

    Attributes:
        example: Int64 tensor of shape (W,). Text index.
        begin: Int64 tensor of shape (W,). Index of the first token in the text.
        length: Int64 tensor of shape (W,). Number of tokens in the window.
        owned_from: Int64 tensor of shape (W,). Offset of the first owned token in the window.
        owned_to: Int64 tensor of shape (W,). Offset after the last owned token in the window.
    """

    example: xp.Tensor
    begin: xp.Tensor
    length: xp.Tensor
    owned_from: xp.Tensor
    owned_to: xp.Tensor


def check_stride(doc_stride: int, most: int) -> None:
    """Raise a ValueError if adjacent windows would share too many tokens.

    Args:
        doc_stride: Integer. Number of tokens that adjacent windows share.
        most: Integer. Maximum number of tokens that adjacent windows can share.

    Raises:
        ValueError: If `doc_stride` is greater than `most`.
    """
    if doc_stride > most:
        raise invalid("doc_stride", doc_stride, f"at most {most} for windows of this length")


def make_windows(
    lengths: xp.Tensor, capacity: xp.Tensor | int, doc_stride: xp.Tensor | int
) -> Windows:
    """Split texts into the smallest number of windows. The last window can be shorter.

    A token in two windows is owned by the window in which it is further from the edge. In this way,
    it is used only once in training, metrics and predictions, with context on both sides.

    Args:
        lengths: Int64 tensor of shape (N,). Number of tokens per text.
        capacity: Integer or tensor of shape (N,). Maximum number of tokens per window, at least 1.
        doc_stride: Integer or tensor of shape (N,). Number of tokens that adjacent windows share.
            It must be less than the capacity.

    Returns:
        `Windows`, ordered by text and from left to right. A text without tokens has one empty
        window.

    Source: Devlin et al. 2019, BERT, the released SQuAD code, for the idea of the widest context.

    Example:
        >>> import tensorflow as tf
        >>> windows = make_windows(tf.constant([3, 9], tf.int64), capacity=4, doc_stride=2)
        >>> [field.numpy().tolist() for field in windows[:3]]
        [[0, 1, 1, 1, 1], [0, 0, 2, 4, 6], [3, 4, 4, 4, 3]]
        >>> [field.numpy().tolist() for field in windows[3:]]
        [[0, 0, 1, 1, 1], [3, 3, 3, 3, 3]]
    """
    capacity, doc_stride = (
        xp.broadcast_to(xp.cast(value, xp.int64), xp.shape(lengths))
        for value in (capacity, doc_stride)
    )
    step = capacity - doc_stride
    further = xp.maximum(lengths - capacity, 0)
    counts = 1 + (further + step - 1) // step  # (N,)
    number = xp.ragged.range(counts)
    example = number.value_rowids()
    number = number.flat_values  # (W,) for the window in its text
    capacity, doc_stride, step, total, count = (
        xp.gather(value, example) for value in (capacity, doc_stride, step, lengths, counts)
    )
    begin = number * step
    length = xp.minimum(capacity, total - begin)
    left = doc_stride // 2
    owned_from = xp.where(number == 0, xp.zeros_like(left), left)
    owned_to = xp.where(number == count - 1, length, capacity - doc_stride + left)
    return Windows(example, begin, length, owned_from, owned_to)


def take(values: xp.RaggedTensor, windows: Windows) -> xp.RaggedTensor:
    """Gather the values of the tokens in every window.

    Args:
        values: Ragged tensor of shape (N, None) with one value per token.
        windows: `Windows` of these texts.

    Returns:
        Ragged tensor of shape (W, None).

    Example:
        >>> import tensorflow as tf
        >>> windows = make_windows(tf.constant([4], tf.int64), capacity=3, doc_stride=1)
        >>> take(tf.ragged.constant([[5, 6, 7, 8]]), windows).to_list()
        [[5, 6, 7], [7, 8]]
    """
    first = xp.gather(xp.cast(values.row_starts(), xp.int64), windows.example) + windows.begin
    positions = xp.ragged.range(first, first + windows.length)
    return positions.with_flat_values(xp.gather(values.flat_values, positions.flat_values))


def mark_owned_tokens(windows: Windows) -> xp.RaggedTensor:
    """Return a ragged boolean mask (W, None) of the tokens that each window owns.

    Example:
        >>> import tensorflow as tf
        >>> windows = make_windows(tf.constant([4], tf.int64), capacity=3, doc_stride=2)
        >>> mark_owned_tokens(windows).to_list()
        [[True, True, False], [False, True, True]]
    """
    columns = xp.ragged.range(windows.length)
    examples = columns.value_rowids()
    inside = (columns.flat_values >= xp.gather(windows.owned_from, examples)) & (
        columns.flat_values < xp.gather(windows.owned_to, examples)
    )
    return columns.with_flat_values(inside)


def merge(values: xp.RaggedTensor, windows: Windows) -> xp.Tensor:
    """Merge the values of all windows to one value per token, (P, ...).

    The value of a token is taken from the window that owns the token.

    Args:
        values: Ragged tensor of shape (W, None, ...) with one value per token in each window.
        windows: `Windows` that the values were computed for.

    Example:
        >>> import tensorflow as tf
        >>> windows = make_windows(tf.constant([4], tf.int64), capacity=3, doc_stride=2)
        >>> merge(tf.ragged.constant([[1, 2, 3], [20, 30, 40]]), windows).numpy().tolist()
        [1, 2, 30, 40]
    """
    return xp.boolean_mask(values.flat_values, mark_owned_tokens(windows).flat_values)


def make_full_windows(
    lengths: xp.Tensor, capacity: xp.Tensor | int, doc_stride: xp.Tensor | int
) -> Windows:
    """Split texts into windows like `make_windows`, but with a last window of full length.

    Every window owns all its tokens, so a token can be owned by several windows.

    Args:
        lengths, capacity, doc_stride: See `make_windows`.

    Example:
        >>> import tensorflow as tf
        >>> windows = make_full_windows(tf.constant([3, 9], tf.int64), capacity=4, doc_stride=0)
        >>> [field.numpy().tolist() for field in windows[:3]]
        [[0, 1, 1, 1], [0, 0, 4, 5], [3, 4, 4, 4]]
    """
    windows = make_windows(lengths, capacity, doc_stride)
    capacity = xp.broadcast_to(xp.cast(capacity, xp.int64), xp.shape(lengths))
    length, total = (
        xp.gather(values, windows.example) for values in (xp.minimum(lengths, capacity), lengths)
    )
    begin = xp.minimum(windows.begin, total - length)
    return Windows(windows.example, begin, length, xp.zeros_like(length), length)
