"""Find missing values: None, NaN, and the missing values of NumPy, pandas and Arrow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Decimal

import numpy as np


def is_missing(value: object) -> bool:
    """Return whether a value is missing.

    Example:
        >>> [is_missing(value) for value in (None, float("nan"), np.datetime64("NaT"), "", 0.0)]
        [True, True, True, False, False]
    """
    if value is None:
        return True
    if isinstance(value, float | np.floating | Decimal | np.datetime64 | np.timedelta64):
        return bool(value != value)
    return type(value).__name__ in ("NAType", "NaTType", "NullScalar", "MaskedConstant")


def is_masked_array(values: object) -> bool:
    """Return whether an object is a masked array, without importing `numpy.ma`.

    Example:
        >>> is_masked_array(np.ma.array([1, 2], mask=[0, 1])), is_masked_array(np.array([1, 2]))
        (True, False)
    """
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(values, ma.MaskedArray)


def is_blank(value: object) -> bool:
    """Return whether a value is an empty string or a string of whitespace.

    Example:
        >>> is_blank(""), is_blank(b" "), is_blank("a"), is_blank(None)
        (True, True, False, False)
    """
    return isinstance(value, str | bytes) and not value.strip()


def quote_missing(value: object) -> str:
    """Format a missing value or a blank string for error messages.

    Example:
        >>> quote_missing(np.float64("nan")), quote_missing(""), quote_missing(None)
        ('nan', "''", 'None')
    """
    return repr(value) if isinstance(value, str) else str(value)


def describe_missing_rows(values: Sequence, name: str) -> str:
    """Describe the missing texts for an error message, and suggest what to do.

    Args:
        values: Sequence of texts, one for each row.
        name: String. Name of the argument in the message.

    Returns:
        A string to append to the message, or "" if there are no missing values.

    Example:
        >>> describe_missing_rows(["good", None, float("nan")], "x")[:65]
        ' 2 of 3 rows of x are missing (None or NaN). The first is row 1. '
        >>> describe_missing_rows(["good"], "x")
        ''
    """
    rows = [row for row, value in enumerate(values) if is_missing(value)]
    if not rows:
        return ""
    found = {"None" if values[row] is None else "NaN" for row in rows}
    kinds = " or ".join(sorted(found, reverse=True))
    return (
        f" {len(rows)} of {len(values)} rows of {name} {'is' if len(rows) == 1 else 'are'} missing "
        f"({kinds}). The first is row {rows[0]}. Fill them with an empty string or a placeholder, "
        'for example `column.fillna("")` in pandas. Methods such as `classify` return None for '
        'these rows if you pass missing="none".'
    )
