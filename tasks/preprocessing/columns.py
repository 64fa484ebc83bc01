"""Convert columns and tables from pandas, polars, Arrow and datasets to plain lists.

These packages are not imported. Attributes are used to detect the type of each value.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import KeysView, Mapping, Sequence, ValuesView

import numpy as np

from encoder_zoo.common.extras import load_extra
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.missing import is_masked_array, is_missing

logger = logging.getLogger("encoder_zoo")


def is_doc(value: object) -> bool:
    """Return whether a value is a spaCy `Doc` or `Span`, which are tokenized texts."""
    return hasattr(value, "ents") and hasattr(value, "text") and hasattr(value, "__iter__")


def has_documents(values: object) -> bool:
    """Return whether a value is a list of spaCy documents."""
    return isinstance(values, list | tuple) and len(values) > 0 and is_doc(values[0])


def get_text(value):
    """Return a spaCy document's text. Any other value is returned unchanged."""
    return value.text if is_doc(value) else value


def list_doc_words(value):
    """List the words in a spaCy document, one per token. Return any other value unchanged."""
    return [token.text for token in value] if is_doc(value) else value


def is_span(value: object) -> bool:
    """Return whether a value is a spaCy `Span`."""
    return hasattr(value, "start_char") and hasattr(value, "end_char")


def convert_spans(document, spans) -> list[tuple[int, int, str]]:
    """Convert spaCy spans to (start, end, label), with character offsets in the document.

    Args:
        document: A `Doc`, or a `Span` from the same document.
        spans: `Span` objects, such as `document.ents`.
    """
    begin = getattr(document, "start_char", 0)
    return [(span.start_char - begin, span.end_char - begin, span.label_) for span in spans]


def get_reference(value):
    """Return the annotated document of a spaCy `Example`. Any other value is returned unchanged."""
    return value.reference if hasattr(value, "reference") and hasattr(value, "predicted") else value


def remove_format(values):
    """Make a Hugging Face dataset or column return Python objects.

    In other formats, such as "torch", it would return tensors. Any other value is returned
    unchanged.
    """
    source = getattr(values, "source", None)  # set for columns
    if source is not None and hasattr(values, "column_name"):
        plain_source = remove_format(source)
        return values if plain_source is source else plain_source[values.column_name]
    given = getattr(values, "format", None) if hasattr(values, "with_format") else None
    # A user-defined transform is kept, because it may compute the values.
    changed = isinstance(given, dict) and given.get("type") != "custom"
    return values.with_format(None) if changed else values


def materialize(values):
    """Compute lazy values, and convert sparse matrices and tensors of other packages to arrays.

    Args:
        values: Any. A polars LazyFrame is converted to a table, a SciPy sparse matrix to an array,
            and a view on dict keys or values to a list. A tensor from PyTorch or JAX, or from
            TensorFlow on another backend, is converted to an array, and a ragged tensor to a list.
            Any other value is returned unchanged.

    Example:
        >>> materialize({1: "good", 2: "bad"}.values())
        ['good', 'bad']
    """
    if hasattr(values, "lazy") and hasattr(values, "collect"):  # polars
        return values.collect()
    if hasattr(values, "nnz") and hasattr(values, "toarray"):  # SciPy
        return values.toarray()
    if isinstance(values, KeysView | ValuesView):
        return list(values)
    if xp.is_tensor(values):
        return values
    if hasattr(values, "detach") and hasattr(values, "cpu"):  # PyTorch
        return values.detach().cpu().numpy()
    if hasattr(values, "row_splits"):  # a `tf.RaggedTensor` on JAX and PyTorch
        return values.to_list()
    # TensorFlow (except for symbolic tensors) and JAX
    is_tensor = hasattr(values, "numpy") or hasattr(values, "addressable_data")
    return np.asarray(values) if is_tensor else values


ROW_TYPES = (list, tuple, np.ndarray)  # types of a row in a list of rows
PLAIN_COLUMNS = (str, bytes, list, dict, np.ndarray, type(None))


def convert_to_plain(values):
    """Convert a column to a list, or a table to a dict mapping names to lists.

    Args:
        values: Any. The items in a tuple, such as the two columns in a pair, are converted
            separately. A list of spaCy documents is converted to a list of texts. Lists, arrays and
            tensors are returned unchanged.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"text": ["good", "bad"], "stars": [5, 1]})
        >>> convert_to_plain(table), convert_to_plain((table["text"], table["stars"]))
        ({'text': ['good', 'bad'], 'stars': [5, 1]}, (['good', 'bad'], [5, 1]))

    Raises:
        ValueError: If `values` is a table with two columns of the same name.
    """
    if isinstance(values, tuple):
        return tuple(map(convert_to_plain, values))
    if is_masked_array(values):
        return values.tolist()  # masked values become None
    if isinstance(values, list) and has_documents(values):
        return [document.text for document in values]
    if isinstance(values, PLAIN_COLUMNS) or xp.is_tensor(values):
        return values
    values = remove_format(materialize(values))
    if isinstance(values, list | np.ndarray):
        return values
    names = list_table_columns(values)
    if names is not None:
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(
                f"The table has several columns with the name {twice[0]!r}. Rename these columns."
            )
        return {name: convert_to_plain(values[name]) for name in names}
    for method in ("to_pylist", "to_list"):  # the first for Arrow, the second for pandas and polars
        if hasattr(values, method):
            return getattr(values, method)()
    return list(values) if isinstance(values, Sequence) else values


def name_classes(values: object, classes: Sequence[str] | None = None):
    """Convert a column to a list. If the dataset has class names, replace class indices by names.

    Args:
        values: Column of any type. A column of a Hugging Face dataset has class names in
            `features`.
        classes: Optional list of strings. The task's class names. If a dataset has the same number
            of classes but different names, its class indices are used.
    """
    feature = getattr(values, "features", None)
    feature = getattr(feature, "feature", feature)
    names, values = getattr(feature, "names", None), convert_to_plain(values)
    if names is None or isinstance(feature, Mapping):
        return values
    if classes is not None and not set(names) <= set(classes) and len(names) == len(classes):
        logger.warning(
            "The class names are %s in the dataset and %s in the model. The classes are matched by "
            "index.",
            ", ".join(map(str, names)),
            ", ".join(classes),
        )
        return values

    def get_name(value):
        if isinstance(value, list | tuple | np.ndarray):
            return [get_name(item) for item in value]
        is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
        # In Hugging Face datasets, -1 is a hidden label.
        return (None if value == -1 else names[value]) if is_number else value

    return [get_name(value) for value in values]


def split_texts_and_labels(
    x: object, y: object, classes: Sequence[str] | None, several: bool
) -> tuple:
    """Split training data into texts and labels.

    If `y` is None, `x` can contain rows with texts and labels.

    Args:
        x: Texts, or rows of texts and labels if `y` is None.
        y: Optional labels.
        classes: Optional list of strings. The task's class names, or None if they are unknown.
        several: Boolean. Whether a text can have several labels.

    Example:
        >>> split_texts_and_labels([{"text": "Hm", "label": "up"}], None, None, False)
        (['Hm'], ['up'])
    """
    if y is None and (rows := load_extra("read_rows")(x, ("labels",), classes, several)):
        return tuple(rows)
    return x, name_classes(y, classes) if hasattr(y, "features") else y


def list_table_columns(values) -> list | None:
    """Return the column names of a table, or None for any other value.

    Example:
        >>> import pandas as pd
        >>> list_table_columns(pd.DataFrame({"text": ["good"]})), list_table_columns(["good"])
        (['text'], None)
    """
    for attribute in ("column_names", "columns"):  # Arrow and datasets, pandas and polars
        names = getattr(values, attribute, None)
        if names is not None:
            return list(names)
    return None


def list_categories(values) -> list | None:
    """Return the ordered categories of a categorical column, or None for any other column.

    Example:
        >>> import pandas as pd
        >>> list_categories(pd.Series(pd.Categorical(["bad", "good"], categories=["good", "bad"])))
        ['good', 'bad']
    """
    names = getattr(getattr(values, "dtype", None), "categories", None)
    # Categorical columns of polars have no order.
    return convert_to_plain(names) if hasattr(names, "__len__") else None


def flatten_column(values):
    """Convert an array or tensor from shape (n, 1) to (n,). Any other value is returned unchanged.

    Example:
        >>> flatten_column(np.array([["good"], ["bad"]])).tolist(), flatten_column([["good"]])
        (['good', 'bad'], [['good']])
    """
    if hasattr(values, "shape"):  # an array or a tensor
        shape = xp.TensorShape(values.shape)
        return values[:, 0] if shape.rank == 2 and shape[1] == 1 else values
    return values


ID_NAME = re.compile(r"(^|[_\s.-])(id|ids|idx|index|key|uuid|guid|number|nr|no)$", re.IGNORECASE)
LABEL_NAME = re.compile(
    r"labels?|class(es)?|category|categories|targets?|y|(.*_)?tags?|scores?|stars|rating|sentiment"
    r"|answers?|entities|spans|gold",
    re.IGNORECASE,
)
# Names of columns whose texts can be repeated, such as a query for each document.
QUERY_NAME = re.compile(r"q|quer(y|ies)|questions?|anchors?|premises?", re.IGNORECASE)
MAX_CHECKED_ROWS = 1000  # maximum number of rows to check
REPEATED = 10  # with this number of rows per distinct value, a column is assumed to be labels


def describe_other_content(name: str, values) -> str | None:
    """Describe the content of a column without texts. Return None if it may contain texts.

    Args:
        name: String. Column name.
        values: List or array. None is returned for tensors and specifications, because their
            content is unknown.

    Example:
        >>> describe = describe_other_content
        >>> describe("stars", [5, 4]), describe("second", ["Yes.", "No."])
        ('numbers or other values instead of texts, such as 5', None)
        >>> describe_other_content("label", ["ham", "spam"] * 20)
        "2 repeated values instead of texts, such as 'ham'"
    """
    if not _is_known(values) or isinstance(values, str | bytes):
        return None
    values = [v for v in list(values)[:MAX_CHECKED_ROWS] if not is_missing(v) and not _is_empty(v)]
    if not values:
        return None
    if not all(isinstance(value, str | bytes) for value in values):
        wrong = next(value for value in values if not isinstance(value, str | bytes))
        return f"numbers or other values instead of texts, such as {wrong!r:.40}"
    values = [value.decode() if isinstance(value, bytes) else value for value in values]
    shown, distinct = f"instead of texts, such as {values[0]!r:.40}", len(set(values))
    if not QUERY_NAME.fullmatch(str(name)):
        if distinct == 1 and len(values) > 2 and _is_short(values[0]):
            return f"a single value {shown}"
        if distinct * REPEATED <= len(values) and all(map(_is_short, values)):
            return f"{distinct} repeated values {shown}"
    if any(re.search(r"\s", value) or not value.isascii() for value in values):
        return None
    if ID_NAME.search(str(name)) or all(re.search(r"\d", value) for value in values):
        return f"identifiers {shown}"
    return None


def _is_short(value: str) -> bool:
    return len(value) <= 30 and len(value.split()) <= 3


def check_text_columns(table: Mapping, kinds: Sequence[str], by_name: str | None) -> None:
    """Raise a ValueError if a column of a table does not seem to contain texts.

    Args:
        table: Dict mapping names to columns. The columns should contain texts or lists of texts.
        kinds: List of strings. The expected content of each column, such as "anchors".
        by_name: Optional string. Description of the argument that names the columns of texts, for
            the error message.

    Raises:
        ValueError: If a column does not contain texts.

    Example:
        >>> table = {"q": ["a b", "c d", "e f"], "d": ["g h", "i j", "k l"], "source": ["web"] * 3}
        >>> check_text_columns(table, ["anchors", "positives", "negatives"], None)
        Traceback (most recent call last):
        ValueError: The column 'source' contains a single value instead of texts, such as 'web', ...
    """
    found = {
        name: None if _has_lists(values) else describe_other_content(name, values)
        for name, values in table.items()
    }
    for (name, other), kind in zip(found.items(), kinds, strict=True):
        if other and str(name).lower() not in (kind, kind.removesuffix("s")):
            texts = ", ".join(f"x[{n!r}]" for n, wrong in found.items() if wrong is None)
            texts = f"({texts})" if "," in texts else texts
            scores = f", x[{name!r}]" if other.startswith("numbers") else ""
            named = f" If it contains texts, name the columns: {by_name}." if by_name else ""
            raise ValueError(
                f"The column {name!r} contains {other}, but would be used as {kind}. Choose the "
                f"columns: fit({texts}{scores}).{named}"
            )


def _has_lists(values) -> bool:
    if not _is_known(values) or not len(values) or isinstance(values[0], str | bytes):
        return False
    return hasattr(values[0], "__len__")


def _is_known(values) -> bool:
    """Return whether the values can be inspected. This is not possible for tensors and specs."""
    return hasattr(values, "__len__") and not xp.is_tensor(values)


def log_columns(found: Mapping[str, str], y) -> None:
    """Log a table's columns that are used as texts and labels.

    Args:
        found: Dict mapping column names to descriptions.
        y: Column of labels, or any other value.
    """
    shown = [f"{kind} {name!r}" for name, kind in found.items()]
    label = getattr(y, "name", None) or getattr(y, "column_name", None)
    shown += [f"labels {label!r}"] if isinstance(label, str) else []
    logger.warning("Using the table's columns: %s.", ", ".join(shown))


def describe_columns(x) -> str:
    """Describe a table's columns and an example call, for an error about missing labels.

    Example:
        >>> describe_columns({"text": ["a b", "c d"], "label": ["up", "down"]})
        " The table has the columns 'text', 'label'. Pass fit(x['text'], x['label'])."
        >>> describe_columns(["a b"])
        ''
    """
    names = list(x) if isinstance(x, Mapping) else list_table_columns(x)
    if not names:
        return ""
    labels = [name for name in names if LABEL_NAME.fullmatch(str(name))]
    texts = []
    for name in names:
        values = convert_to_plain(x[name])
        if name not in labels and (
            _has_lists(values) or describe_other_content(name, values) is None
        ):
            texts.append(name)
    shown = ", ".join(map(repr, names))
    if not texts or not labels:
        return f" The table has the columns {shown}. Pass two of them: fit(x[...], x[...])."
    given = ", ".join(f"x[{name!r}]" for name in texts[:2])
    given = f"({given})" if len(texts) > 1 else given
    return f" The table has the columns {shown}. Pass fit({given}, x[{labels[0]!r}])."


def _is_empty(value: object) -> bool:
    return isinstance(value, str | bytes) and not value
