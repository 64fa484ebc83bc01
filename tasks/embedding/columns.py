"""The texts of `fit`: one column, pairs, triplets, a text with a list of negatives.

Comment letters: N examples, K further texts of each.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.wording import with_type
from encoder_zoo.tasks.preprocessing.checks import check_each, has_text
from encoder_zoo.tasks.preprocessing.columns import plain
from encoder_zoo.tasks.preprocessing.preprocessor import as_column
from encoder_zoo.tasks.preprocessing.text_columns import check_text_columns

LISTS = (list, tuple, np.ndarray)
ROLES = ("anchor", "positive", "negative")
MAX_SHOWN = 60  # characters of a value in an error


def as_columns(x) -> list[tf.Tensor]:
    """Return the columns of texts in an input, checked (N,) string tensors, equally many.

    Args:
        x: texts; a tuple of columns; a list of pairs, triplets and so on; or a table. The last
            column may have a list of equally many texts in every row, such as negatives.

    Raises:
        ValueError: "Row 3 has 2 texts, row 0 has 3. ...", "texts[3] is empty. ..."

    Example:
        >>> columns = as_columns((["q", "r"], ["a", "b"], [["n", "m"], ["o", "p"]]))
        >>> [column.numpy().tolist() for column in columns]
        [[b'q', b'r'], [b'a', b'b'], [b'n', b'o'], [b'm', b'p']]
    """
    x, names = plain(x), ()
    if isinstance(x, dict):
        check_text_columns(x, ROLES)
        names, x = tuple(map(str, x)), tuple(x.values())
    elif _is_list_of_lists(x):
        x = tuple(_transposed(x, "x"))
    if not isinstance(x, tuple):
        return [check_not_empty_texts(as_column(x), "texts")]
    if not x:
        raise ValueError("x is an empty tuple. Expected one or more columns of texts.")
    columns = list(x)
    if _is_list_of_lists(columns[-1]):
        columns[-1:] = _transposed(columns[-1], "the last column")
    names = (*names, *(f"column {i}" for i in range(len(names), len(columns))))
    columns = [
        check_not_empty_texts(as_column(c, n), n) for c, n in zip(columns, names, strict=False)
    ]
    counts = [column.shape[0] for column in columns]
    if None not in counts and len(set(counts)) > 1:
        raise ValueError(
            f"Expected columns of equally many texts. Received: {', '.join(map(str, counts))}."
        )
    return columns


def check_not_empty_texts(texts: tf.Tensor, name: str) -> tf.Tensor:
    """Return texts (N,), or raise an error for one without any character but white space.

    Raises:
        ValueError: "Row 1 of texts is empty. Expected some text: leave the row out, ..."

    Example:
        >>> import tensorflow as tf
        >>> check_not_empty_texts(tf.constant(["a", " "]), "texts")
        Traceback (most recent call last):
        ValueError: Row 1 of texts is empty. Expected some text: leave the row out, or put a ...
    """
    advice = "Expected some text: leave the row out, or put a placeholder there."
    return check_each(texts, has_text(texts), f" of {name} is empty. {advice}")


def _is_list_of_lists(x) -> bool:
    return isinstance(x, list | np.ndarray) and len(x) > 0 and isinstance(x[0], LISTS)


def _transposed(rows, name: str) -> list[list]:
    """Return the columns of rows that have equally many texts each.

    Raises:
        ValueError: "Row 3 of x has 2 texts, row 0 has 3. ..."
    """
    for i, row in enumerate(rows):
        if not isinstance(row, LISTS):
            raise ValueError(
                f"Row {i} of {name} is {row!r:.{MAX_SHOWN}}. Expected a list of texts, as in row 0."
            )
        if len(row) != len(rows[0]):
            raise ValueError(
                f"Row {i} of {name} has {len(row)} texts, row 0 has {len(rows[0])}. Expected "
                "equally many in every row."
            )
    return [list(column) for column in zip(*rows, strict=True)]


def only_column(texts) -> tf.Tensor:
    """Return the texts (N,), checked; raise an error for pairs.

    Raises:
        ValueError: "embed takes texts, and got 2 columns of them ..."
    """
    columns = as_columns(texts)
    if len(columns) > 1:
        raise ValueError(
            f"embed takes texts, and got {len(columns)} columns of them: "
            f"{with_type(plain(texts)):.60}. Embed each column by itself."
        )
    return columns[0]
