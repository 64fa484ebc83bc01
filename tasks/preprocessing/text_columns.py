"""Find the columns of a table that hold texts, and say which are taken for what."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.missing import is_missing
from encoder_zoo.tasks.preprocessing.columns import plain, table_columns

logger = logging.getLogger("encoder_zoo")

ID_NAME = re.compile(r"(^|[_\s.-])(id|ids|idx|index|key|uuid|guid|number|nr|no)$", re.IGNORECASE)
LABEL_NAME = re.compile(
    r"labels?|class(es)?|category|categories|targets?|y|(.*_)?tags?|scores?|stars|rating|sentiment"
    r"|answers?|entities|spans|gold",
    re.IGNORECASE,
)
# Of columns whose texts may be repeated: a query stands beside each of its documents.
QUERY_NAME = re.compile(r"q|quer(y|ies)|questions?|anchors?|premises?", re.IGNORECASE)
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
    if array_ops.is_tensor(values) or isinstance(values, str | bytes):
        return None
    values = [v for v in list(values)[:LOOKED_AT] if not is_missing(v) and not _is_empty(v)]
    if not values:
        return None
    if not all(isinstance(value, str | bytes) for value in values):
        wrong = next(value for value in values if not isinstance(value, str | bytes))
        return f"numbers or other values, no texts, such as {wrong!r:.40}"
    values = [value.decode() if isinstance(value, bytes) else value for value in values]
    shown, distinct = f"no texts, such as {values[0]!r:.40}", len(set(values))
    if not QUERY_NAME.fullmatch(str(name)):
        if distinct == 1 and len(values) > 2:
            return f"one value that is repeated, {shown}"
        if distinct * REPEATED <= len(values) and all(map(_is_short, values)):
            return f"{distinct} names that are repeated, {shown}"
    if any(re.search(r"\s", value) or not value.isascii() for value in values):
        return None
    if ID_NAME.search(str(name)) or all(re.search(r"\d", value) for value in values):
        return f"identifiers, {shown}"
    return None


def _is_short(value: str) -> bool:
    return len(value) <= 30 and len(value.split()) <= 3


def check_text_columns(table: Mapping, roles: Sequence[str]) -> None:
    """Raise a ValueError for a column of a table that seems to hold no texts.

    Args:
        table: {name: column}, columns of texts or of lists of texts.
        roles: of the columns by their position; the last is that of further columns too.

    Raises:
        ValueError: "The column 'source' holds one value that is repeated, no texts, such as 'web'.
            It would be taken for negative. Pass the columns by themselves: fit((x['q'], x['d']))."

    Example:
        >>> table = {"q": ["a b", "c d", "e f"], "d": ["g h", "i j", "k l"], "source": ["web"] * 3}
        >>> check_text_columns(table, ["anchor", "positive", "negative"])
        Traceback (most recent call last):
        ValueError: The column 'source' holds one value that is repeated, no texts, such as 'web'...
    """
    found = {
        name: None if _holds_lists(values) else other_content(name, values)
        for name, values in table.items()
    }
    for (name, other), role in zip(found.items(), _roles(len(table), roles), strict=True):
        if other:
            texts = ", ".join(f"x[{n!r}]" for n, wrong in found.items() if wrong is None)
            texts = f"({texts})" if "," in texts else texts
            scores = f", x[{name!r}]" if other.startswith("numbers") else ""
            raise ValueError(
                f"The column {name!r} holds {other}. It would be taken for {role}. Pass the "
                f"columns by themselves: fit({texts}{scores})."
            )


def _holds_lists(values) -> bool:
    if array_ops.is_tensor(values) or not len(values) or isinstance(values[0], str | bytes):
        return False
    return hasattr(values[0], "__len__")


def _roles(count: int, roles: Sequence[str]) -> list[str]:
    return ["text"] if count == 1 else [*roles, *[roles[-1]] * count][:count]


def log_roles(x, y, roles: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Log what the columns of a table are taken for; nothing for other inputs.

    Args:
        x: a table of several columns, or anything else.
        y: a column of labels, or anything else.
        roles: see `check_text_columns`.
        names: of the columns of texts; None for all.
    """
    columns = list(x) if isinstance(x, Mapping) else table_columns(x)
    if columns is None:
        return
    columns = names or columns
    columns = list(zip(_roles(len(columns), roles), columns, strict=True))
    label = getattr(y, "name", None) or getattr(y, "column_name", None)
    columns += [("labels", label)] if isinstance(label, str) else []
    logger.warning(
        "Columns of the table: %s.", ", ".join(f"{role} {name!r}" for role, name in columns)
    )


def columns_advice(x) -> str:
    """Return the end of an error for a table without labels: its columns and the line to type.

    Example:
        >>> columns_advice({"text": ["a b", "c d"], "label": ["up", "down"]})
        " The table has the columns 'text', 'label'. Type fit(x['text'], x['label'])."
        >>> columns_advice(["a b"])
        ''
    """
    names = list(x) if isinstance(x, Mapping) else table_columns(x)
    if not names:
        return ""
    labels = [name for name in names if LABEL_NAME.fullmatch(str(name))]
    texts = []
    for name in names:
        values = plain(x[name])
        if name not in labels and (_holds_lists(values) or other_content(name, values) is None):
            texts.append(name)
    shown = ", ".join(map(repr, names))
    if not texts or not labels:
        return f" The table has the columns {shown}. Name two of them: fit(x[...], x[...])."
    given = ", ".join(f"x[{name!r}]" for name in texts[:2])
    given = f"({given})" if len(texts) > 1 else given
    return f" The table has the columns {shown}. Type fit({given}, x[{labels[0]!r}])."


def _is_empty(value: object) -> bool:
    return isinstance(value, str | bytes) and not value
