"""Describe what the columns of a table hold, and what they are taken for."""

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


def other_content(name: str, values) -> str | None:
    """Return what a column holds in place of texts, in words; None if it may be texts.

    Args:
        name: of the column.
        values: a list or an array; of a tensor, or the specification of one, nothing is known.

    Example:
        >>> other_content("stars", [5, 4]), other_content("second", ["Yes.", "No."])
        ('numbers or other values, no texts, such as 5', None)
        >>> other_content("label", ["ham", "spam"] * 20)
        "2 names that are repeated, no texts, such as 'ham'"
    """
    if not _is_known(values) or isinstance(values, str | bytes):
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


def check_text_columns(table: Mapping, kinds: Sequence[str], by_name: str | None) -> None:
    """Raise a ValueError for a column of a table that seems to hold no texts.

    Args:
        table: {name: column}, columns of texts or of lists of texts.
        kinds: what each of them is taken for.
        by_name: the argument that names the columns of texts, in words; None: there is none.

    Raises:
        ValueError: "The column 'source' holds one value that is repeated, no texts, such as 'web'.
            It would be taken for negatives. Pass the columns by themselves: fit((x['q'], x['d']))."

    Example:
        >>> table = {"q": ["a b", "c d", "e f"], "d": ["g h", "i j", "k l"], "source": ["web"] * 3}
        >>> check_text_columns(table, ["anchors", "positives", "negatives"], None)
        Traceback (most recent call last):
        ValueError: The column 'source' holds one value that is repeated, no texts, such as 'web'...
    """
    found = {
        name: None if _holds_lists(values) else other_content(name, values)
        for name, values in table.items()
    }
    for (name, other), kind in zip(found.items(), kinds, strict=True):
        if other:
            texts = ", ".join(f"x[{n!r}]" for n, wrong in found.items() if wrong is None)
            texts = f"({texts})" if "," in texts else texts
            scores = f", x[{name!r}]" if other.startswith("numbers") else ""
            named = f" Or, if these are texts, name the columns: {by_name}." if by_name else ""
            raise ValueError(
                f"The column {name!r} holds {other}. It would be taken for {kind}. Pass the "
                f"columns by themselves: fit({texts}{scores}).{named}"
            )


def _holds_lists(values) -> bool:
    if not _is_known(values) or not len(values) or isinstance(values[0], str | bytes):
        return False
    return hasattr(values[0], "__len__")


def _is_known(values) -> bool:
    """Return whether values can be looked at: not those of tensors, nor of specifications."""
    return hasattr(values, "__len__") and not array_ops.is_tensor(values)


def log_columns(found: Mapping[str, str], y) -> None:
    """Log what the columns of a table are taken for.

    Args:
        found: {name of a column: what it is taken for}.
        y: a column of labels, or anything else.
    """
    shown = [f"{kind} {name!r}" for name, kind in found.items()]
    label = getattr(y, "name", None) or getattr(y, "column_name", None)
    shown += [f"labels {label!r}"] if isinstance(label, str) else []
    logger.warning("Columns of the table: %s.", ", ".join(shown))


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
