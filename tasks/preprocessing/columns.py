"""Columns and tables of other libraries, as plain lists: pandas, polars, Arrow, datasets.

None of these is imported: the kind of a value is found by its attributes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.lazy import tf


def plain(values):
    """Return a column as a list, a table as {name: list}; lists, arrays and tensors unchanged.

    Args:
        values: anything; of a tuple, such as the two columns of a pair, every item.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"text": ["good", "bad"], "stars": [5, 1]})
        >>> plain(table), plain((table["text"], table["stars"]))
        ({'text': ['good', 'bad'], 'stars': [5, 1]}, (['good', 'bad'], [5, 1]))
    """
    if isinstance(values, tuple):
        return tuple(map(plain, values))
    if isinstance(values, str | bytes | list | dict | np.ndarray) or tf.is_tensor(values):
        return values
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
