"""Packing of a padded batch's texts, where a program is compiled for every shape.

Comment letters: B texts, L tokens of a padded text and of a packed sequence, S packed sequences.
"""

from __future__ import annotations

import keras
import numpy as np

from encoder_zoo.tasks.preprocessing.filling import PACKED_TOKENS, REAL_ROWS
from encoder_zoo.tasks.preprocessing.packed_examples import pack_examples

SAMPLE = 1000  # lengths that tell how many sequences are needed
SPARE = 1.1  # sequences of a batch, relative to those that it needs on average
WORTHWHILE = 0.75  # sequences, relative to B, up to which batches are packed


def choose_sequence_counts(
    lengths: np.ndarray, length: int, batch_size: int
) -> tuple[int, ...] | None:
    """Return the numbers of packed sequences S that a batch may have: three at most.

    The first is enough for most batches, the next twice that, the last is B.

    Args:
        lengths: (N,) int, tokens of the examples.
        length: L.
        batch_size: B.

    Returns:
        The numbers, ascending, or None if packing hardly saves any padding.

    Example:
        >>> choose_sequence_counts(np.array([5, 7, 9, 20]), 32, 16)
        (9, 16)
    """
    sample = np.sort(lengths)[:: -max(1, len(lengths) // SAMPLE)]
    needed = int(pack_examples(sample, length).nrows()) / len(sample) * batch_size
    least = int(np.ceil(SPARE * needed))
    if least > WORTHWHILE * batch_size:
        return None
    return tuple(sorted({least, min(2 * least, batch_size), batch_size}))


def with_packed_tokens(batch, counts: tuple[int, ...]):
    """Return a collated batch with the input `PACKED_TOKENS`, of as few sequences as it fits into.

    Examples that only fill the batch are left out.

    Args:
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`.
        counts: numbers of packed sequences, ascending; the last is B or more.

    Example:
        >>> x = {"token_ids": np.array([[2, 3, 0], [2, 0, 0]])}
        >>> x["padding_mask"] = x["token_ids"] > 0
        >>> with_packed_tokens(x, (1, 2))["packed_tokens"].tolist()
        [[0, 1, 3]]
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    mask = np.asarray(x["padding_mask"], bool)  # (B, L)
    (texts, length), real = mask.shape, x.get(REAL_ROWS)
    lengths = mask.sum(axis=1) if real is None else mask.sum(axis=1) * np.asarray(real)
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    plan = pack_examples(lengths[order], length)
    count = next(n for n in counts if n >= int(plan.nrows()))
    tokens = np.full((count, length), texts * length, np.int32)
    numbers = np.arange(texts * length, dtype=np.int32).reshape(texts, length)
    for sequence, members in zip(tokens, plan.to_list(), strict=False):
        packed = np.concatenate([numbers[i][mask[i]] for i in order[members]])
        sequence[: len(packed)] = packed
    return keras.utils.pack_x_y_sample_weight({**x, PACKED_TOKENS: tokens}, y, sample_weight)
