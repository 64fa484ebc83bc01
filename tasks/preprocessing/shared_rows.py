"""Texts of a padded batch in few rows, where a program is compiled for every shape.

Comment letters: B texts, L tokens of a padded text and of a row, R rows.
"""

from __future__ import annotations

import keras
import numpy as np

from encoder_zoo.tasks.preprocessing.filling import REAL_ROWS
from encoder_zoo.tasks.preprocessing.packed_examples import pack_examples

ROW_TOKENS = "row_tokens"  # (R, L) int32, see `encode_in_rows`
SAMPLE = 1000  # lengths that tell how many rows are needed
SPARE = 1.1  # rows of a batch, beside those that its texts would need if packed with all others
WORTHWHILE = 0.75  # rows, beside those of padded texts, up to which texts share them


def choose_row_counts(lengths: np.ndarray, length: int, batch_size: int) -> tuple[int, ...] | None:
    """Return how many rows a batch may have, ascending: enough for most, twice as many, or all.

    Args:
        lengths: (N,) int, tokens of the examples.
        length: L.
        batch_size: B.

    Returns:
        None if texts can hardly share rows.

    Example:
        >>> choose_row_counts(np.array([5, 7, 9, 20]), 32, 16)
        (9, 16)
    """
    sample = np.sort(lengths)[:: -max(1, len(lengths) // SAMPLE)]
    rows = int(pack_examples(sample, length).nrows()) / len(sample) * batch_size
    least = int(np.ceil(SPARE * rows))
    if least > WORTHWHILE * batch_size:
        return None
    return tuple(sorted({least, min(2 * least, batch_size), batch_size}))


def with_shared_rows(batch, counts: tuple[int, ...]):
    """Return a collated batch with the input `ROW_TOKENS`, in as few rows as its texts fit into.

    Rows that only fill the batch are left out.

    Args:
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`.
        counts: numbers of rows, ascending; the last is that of the texts or more.

    Example:
        >>> x = {"token_ids": np.array([[2, 3, 0], [2, 0, 0]])}
        >>> x["padding_mask"] = x["token_ids"] > 0
        >>> with_shared_rows(x, (1, 2))["row_tokens"].tolist()
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
    for row, members in enumerate(plan.to_list()):
        shared = np.concatenate([numbers[i][mask[i]] for i in order[members]])
        tokens[row, : len(shared)] = shared
    return keras.utils.pack_x_y_sample_weight({**x, ROW_TOKENS: tokens}, y, sample_weight)
