"""Values that are missing: None, NaN and what NumPy, pandas and Arrow have for them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np


def is_missing(value: object) -> bool:
    """Return whether a value stands for one that is not there.

    Example:
        >>> [is_missing(value) for value in (None, float("nan"), np.datetime64("NaT"), "", 0.0)]
        [True, True, True, False, False]
    """
    if value is None or value is np.ma.masked:
        return True
    if isinstance(value, float | np.floating | Decimal | np.datetime64 | np.timedelta64):
        return bool(value != value)
    return type(value).__name__ in ("NAType", "NaTType", "NullScalar")


def is_blank(value: object) -> bool:
    """Return whether a value is a text without anything but white space.

    Example:
        >>> is_blank(""), is_blank(b" "), is_blank("a"), is_blank(None)
        (True, True, False, False)
    """
    return isinstance(value, str | bytes) and not value.strip()


def shown(value: object) -> str:
    """Return a missing or blank value as errors show it.

    Example:
        >>> shown(np.float64("nan")), shown(""), shown(None)
        ('nan', "''", 'None')
    """
    return repr(value) if isinstance(value, str) else str(value)


def missing_rows(values: Sequence, name: str) -> str:
    """Return the end of an error that counts missing texts and says how to keep their rows.

    Args:
        values: of all rows.
        name: of the argument that holds them.

    Returns:
        Begins with a space; "" if no value is missing.

    Example:
        >>> missing_rows(["good", None, float("nan")], "x")[:65]
        ' 2 of 3 rows of x are missing (None or NaN), the first is row 1. '
        >>> missing_rows(["good"], "x")
        ''
    """
    rows = [row for row, value in enumerate(values) if is_missing(value)]
    if not rows:
        return ""
    kinds = {"None" if values[row] is None else "NaN" for row in rows}
    kinds = " or ".join(sorted(kinds, reverse=True))
    return (
        f" {len(rows)} of {len(values)} rows of {name} {'is' if len(rows) == 1 else 'are'} missing "
        f"({kinds}), the first is row {rows[0]}. Fill them with an empty text, in pandas by "
        '`column.fillna("")`, or with a placeholder. Methods that answer, such as `classify`, give '
        'None for them if they are called with missing="none".'
    )
