"""Which columns of a table hold the texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.missing import is_missing

ID_NAME = re.compile(r"(^|[_\s.-])(id|ids|idx|index|key|uuid|guid|number|nr|no)$", re.IGNORECASE)
LOOKED_AT = 1000  # rows
REPEATED = 10  # times that each value of a column occurs that is taken for labels


def text_columns_of(table: Mapping, names: Sequence[str] | None = None) -> tuple:
    """Return the one or two columns of a table that hold texts.

    Args:
        table: {name: column}; in a graph {name: tensor}.
        names: of the columns of texts; None: there are no others.

    Raises:
        ValueError: "There is no column 'txt'. The table has 'id', 'text'.", "The table has the
            columns ... Name those that hold the texts: text_columns=[...].", "The column 'id'
            holds identifiers, no texts: 'a17'. ..."

    Example:
        >>> table = {"id": ["a17", "a18"], "text": ["good film", "bad film"]}
        >>> text_columns_of(table, ["text"])
        (['good film', 'bad film'],)
        >>> text_columns_of(table)
        Traceback (most recent call last):
        ValueError: The column 'id' holds identifiers, no texts, such as 'a17'. ...
    """
    known = ", ".join(map(repr, table))
    if names is not None:
        for name in names:
            if name not in table:
                raise ValueError(f"There is no column {name!r}. The table has {known}.")
        return tuple(table[name] for name in names)
    if len(table) > 2:
        raise ValueError(
            f"The table has the columns {known}. Expected one of texts, or two of pairs of texts. "
            "Name those that hold the texts: text_columns=[...] of the preprocessor and of "
            "from_preset."
        )
    for name, values in table.items() if len(table) == 2 else ():
        found = other_content(name, values)
        if found:
            [other] = [n for n in table if n != name]
            raise ValueError(
                f"The column {name!r} holds {found}. Two columns are a pair of texts. Pass the "
                f"column of texts alone, x[{other!r}]; or name the columns of texts, of this pair "
                f"text_columns=[{known}], an argument of the preprocessor and of from_preset."
            )
    return tuple(table.values())


def other_content(name: str, values) -> str | None:
    """Return what a column holds in place of texts, in words; None if it may be texts.

    Args:
        name: of the column.
        values: a list or an array; of a tensor nothing is known.

    Example:
        >>> other_content("stars", [5, 4]), other_content("second", ["Yes.", "No."])
        ('numbers or other values, no texts, such as 5', None)
        >>> other_content("label", ["ham", "spam"] * 20)
        "2 names that are repeated, no texts, such as 'ham'"
    """
    if tf.is_tensor(values) or isinstance(values, str | bytes):
        return None
    values = [v for v in list(values)[:LOOKED_AT] if not is_missing(v) and not _is_empty(v)]
    if not values:
        return None
    if not all(isinstance(value, str | bytes) for value in values):
        wrong = next(value for value in values if not isinstance(value, str | bytes))
        return f"numbers or other values, no texts, such as {wrong!r:.40}"
    values = [value.decode() if isinstance(value, bytes) else value for value in values]
    if any(re.search(r"\s", value) or not value.isascii() for value in values):
        return None
    shown, distinct = f"no texts, such as {values[0]!r:.40}", len(set(values))
    if ID_NAME.search(str(name)) or all(re.search(r"\d", value) for value in values):
        return f"identifiers, {shown}"
    if distinct * REPEATED <= len(values):
        return f"{distinct} names that are repeated, {shown}"
    return None


def _is_empty(value: object) -> bool:
    return isinstance(value, str | bytes) and not value
