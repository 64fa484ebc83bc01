"""Columns and tables of other libraries, as plain lists: pandas, polars, Arrow, datasets.

None of these is imported: the kind of a value is found by its attributes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.lazy import array_ops


def is_doc(value: object) -> bool:
    """Return whether this is a `Doc`, or a `Span` of one, which is a text in tokens."""
    return hasattr(value, "ents") and hasattr(value, "text") and hasattr(value, "__iter__")


def are_documents(values: object) -> bool:
    """Return whether this is a list of documents."""
    return isinstance(values, list | tuple) and len(values) > 0 and is_doc(values[0])


def text_of(value):
    """Return the text of a document; anything else unchanged."""
    return value.text if is_doc(value) else value


def doc_words(value):
    """Return the words of a document, one for each of its tokens; anything else unchanged."""
    return [token.text for token in value] if is_doc(value) else value


def is_span(value: object) -> bool:
    """Return whether this is a `Span`."""
    return hasattr(value, "start_char") and hasattr(value, "end_char")


def spans_in(document, spans) -> list[tuple[int, int, str]]:
    """Return spans as (start, end, label), in characters of a document's text.

    Args:
        document: a `Doc`, or a `Span` of the same.
        spans: `Span`s, such as `document.ents`.
    """
    begin = getattr(document, "start_char", 0)
    return [(span.start_char - begin, span.end_char - begin, span.label_) for span in spans]


def reference_of(value):
    """Return the annotated document of an `Example`; anything else unchanged."""
    return value.reference if hasattr(value, "reference") and hasattr(value, "predicted") else value


def unformatted(values):
    """Return a dataset of Hugging Face, or a column of one, whose values are Python's; of one with
    another format, such as PyTorch's, they are tensors. Anything else unchanged.
    """
    source = getattr(values, "source", None)  # of a column
    if source is not None and hasattr(values, "column_name"):
        plain_source = unformatted(source)
        return values if plain_source is source else plain_source[values.column_name]
    given = getattr(values, "format", None) if hasattr(values, "with_format") else None
    # A transform of the user's own may make the values.
    changed = isinstance(given, dict) and given.get("type") != "custom"
    return values.with_format(None) if changed else values


ROWS = (list, tuple, np.ndarray)  # types of a row in a list of rows


def plain(values):
    """Return a column as a list, a table as {name: list}; lists, arrays and tensors unchanged.

    Args:
        values: anything; of a tuple, such as the two columns of a pair, every item. A list of
            spaCy's documents becomes that of their texts.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"text": ["good", "bad"], "stars": [5, 1]})
        >>> plain(table), plain((table["text"], table["stars"]))
        ({'text': ['good', 'bad'], 'stars': [5, 1]}, (['good', 'bad'], [5, 1]))
    """
    if isinstance(values, tuple):
        return tuple(map(plain, values))
    if isinstance(values, np.ma.MaskedArray):
        return values.tolist()  # None in the place of what is masked
    if isinstance(values, list) and are_documents(values):
        return [document.text for document in values]
    if isinstance(values, str | bytes | list | dict | np.ndarray) or array_ops.is_tensor(values):
        return values
    values = unformatted(values)
    names = table_columns(values)
    if names is not None:
        return {name: plain(values[name]) for name in names}
    for method in ("to_pylist", "to_list"):  # of Arrow; of pandas and polars
        if hasattr(values, method):
            return getattr(values, method)()
    return list(values) if isinstance(values, Sequence) else values


def table_columns(values) -> list | None:
    """Return the names of a table's columns; None for anything else.

    Example:
        >>> import pandas as pd
        >>> table_columns(pd.DataFrame({"text": ["good"]})), table_columns(["good"])
        (['text'], None)
    """
    for attribute in ("column_names", "columns"):  # of Arrow and datasets; of pandas and polars
        names = getattr(values, attribute, None)
        if names is not None:
            return list(names)
    return None


def categories(values) -> list | None:
    """Return the categories of a categorical column, in their order; None for another column.

    Example:
        >>> import pandas as pd
        >>> categories(pd.Series(pd.Categorical(["bad", "good"], categories=["good", "bad"])))
        ['good', 'bad']
    """
    names = getattr(getattr(values, "dtype", None), "categories", None)
    return None if names is None else plain(names)


def single_column(values):
    """Return the texts of an array or list with one in each row, (n, 1), as (n,); else unchanged.

    Example:
        >>> single_column(np.array([["good"], ["bad"]])).tolist(), single_column([["good"]])
        (['good', 'bad'], ['good'])
    """
    if hasattr(values, "shape"):  # an array or a tensor
        shape = array_ops.TensorShape(values.shape)
        return values[:, 0] if shape.rank == 2 and shape[1] == 1 else values
    if (
        isinstance(values, list)
        and values
        and all(isinstance(row, ROWS) and len(row) == 1 for row in values)
    ):
        return [row[0] for row in values]
    return values


def is_pairs(x) -> bool:
    """Return whether this is a list of pairs, and not of texts."""
    if not isinstance(x, list | np.ndarray) or not len(x) or not isinstance(x[0], ROWS):
        return False
    for row, pair in enumerate(x):
        if not isinstance(pair, ROWS) or len(pair) != 2:
            raise ValueError(
                f"Row {row} is {pair!r:.60}. Expected a pair of texts, as in row 0, or a text in "
                "every row."
            )
    return True
