"""What callers give as labels of texts, checked; and the classes that it speaks of.

Comment letters: B batch, C classes.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.base.class_names import numbers_are_names
from encoder_zoo.tasks.preprocessing.checks import assert_right
from encoder_zoo.tasks.preprocessing.columns import categories, plain, table_columns

# How far the sum of a text's probabilities may be from 1.
ROUNDING = 1e-3


def learn_classes(y, several: bool = False) -> list[str] | int:
    """The classes that labels speak of.

    Args:
        y: one label for every text, as for `SequenceClassifier.fit`; or for every text a list of
            names, or rows (B, C).
        several: whether a text may have any number of them.

    Returns:
        Their names: in the order of a categorical column or of a table's columns, else sorted. Of
        whole numbers from 0 on, and of rows, only how many.

    Raises:
        ValueError: "Row 3 has no label: it is None. ...", "y holds 2.5, which is no class. ...",
            "Every label is 'up'. ...", "y is empty: ..."

    Example:
        >>> learn_classes(["up", "down", "up"]), learn_classes([True, False])
        (['down', 'up'], ['False', 'True'])
        >>> learn_classes([0, 2, 1]), learn_classes([1.0, 5.0]), learn_classes([[0.3, 0.7]])
        (3, ['1', '5'], 2)
    """
    names = categories(y) or table_columns(y)
    if names is not None and len(names) > 1:
        return [str(name) for name in names]
    y = _single_column(plain(y))
    if not len(y):
        raise ValueError(f"y is empty: {y!r}. Expected one label for each text.")
    if several:
        return _learn_several(y)
    y = _array(y)
    if y.dtype.kind in "fiub" and y.ndim == 2:
        return y.shape[1]
    if y.dtype.kind == "b":
        return ["False", "True"]
    if y.dtype.kind in "OSUT":
        found = sorted(set(_names(y.tolist())))
    else:
        numbers = np.unique(_whole_numbers(y)).tolist()
        found = numbers if numbers != list(range(len(numbers))) else len(numbers)
        found = [str(number) for number in found] if isinstance(found, list) else found
    if found == 1 or (isinstance(found, list) and len(found) == 1):
        raise ValueError(
            f"Every label is {y.tolist()[0]!r}. Expected two classes or more, or labels=[...] that "
            "names the others."
        )
    return found


def _learn_several(y) -> list[str] | int:
    rows = [plain(row) for row in y]
    values = [value for row in rows for value in row]
    if values and isinstance(values[0], str):
        return sorted(set(values))
    counts = {len(row) for row in rows}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(
            "There are no classes to learn from y. Expected for each text a list of names, or as "
            "many numbers as there are classes; or pass labels=[...]."
        )
    return counts.pop()


def _names(values: list) -> list[str]:
    names = [value.decode() if isinstance(value, bytes) else value for value in values]
    for row, name in enumerate(names):
        if name is None or name != name:  # NaN
            raise ValueError(
                f"Row {row} has no label: it is {name!r}. Leave out the texts without one."
            )
        if isinstance(name, list | tuple | np.ndarray):
            raise ValueError(
                f"Row {row} is {name!r}. Expected one label for each text; several for each are "
                'for problem_type="multi_label_classification".'
            )
    return [str(name) for name in names]


def _whole_numbers(y: np.ndarray) -> np.ndarray:
    """Class numbers that were perhaps written as 0.0 and 1.0, or False and True."""
    if y.dtype.kind == "f":
        for row in np.flatnonzero(y != np.round(y))[:1]:
            raise ValueError(
                f"Row {row} has the label {y[row]}, which is no class. Numbers are learned with "
                'problem_type="regression".'
            )
    return y.astype(int) if y.dtype.kind in "fb" else y


def _array(y) -> np.ndarray:
    """Labels as an array; of objects where their lists have different lengths."""
    try:
        return np.asarray(y)
    except ValueError:
        rows = np.empty(len(y), object)
        rows[:] = y
        return rows


def _single_column(y):
    """The column of a table that has no other."""
    return next(iter(y.values())) if isinstance(y, dict) and len(y) == 1 else y


def _matrix(y, labels: list[str] | None):
    """A table's columns as rows of numbers, in the order of the labels that they are called by."""
    if not isinstance(y, dict):
        return y
    names = {str(name): values for name, values in y.items()}
    order = labels if labels and set(labels) == set(names) else list(names)
    return np.stack([np.asarray(names[name]) for name in order], axis=1)


def class_numbers(y, labels: list[str] | None, num_classes: int | None) -> np.ndarray:
    """One class for each text: numbers (B,) int, or probabilities (B, C) float32.

    Args:
        y: numbers or names; or rows (B, C) of 0 and a 1, or of probabilities.
        labels: the classes' names, if there are.
        num_classes: C, if it is known.

    Raises:
        ValueError: naming the first label that is unknown and the row it stands in.

    Example:
        >>> class_numbers(["up", "down"], ["down", "up"], 2).tolist()
        [1, 0]
        >>> class_numbers([[0, 1], [1, 0]], None, 2).tolist()
        [1, 0]
    """
    y = _array(_matrix(_single_column(plain(y)), labels))
    if y.ndim == 2 and y.dtype.kind in "fiub" and num_classes in (None, y.shape[1]):
        return _probabilities(y)
    if y.ndim == 1 and y.dtype.kind in "fb" and y.size:
        y = _whole_numbers(y)
    if y.dtype.kind in "iu" and y.ndim == 1 and numbers_are_names(labels):
        y = y.astype(str)
    if y.dtype.kind in "OSUT":
        y = numbers_of_names(y.tolist(), labels)
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise ValueError(
            "Expected one class number or name for each text"
            + (f", or rows of {num_classes} probabilities" if num_classes else "")
            + f". Received: labels of type {y.dtype} and shape {y.shape}."
        )
    wrong = np.flatnonzero((y < 0) | (y >= (num_classes or np.inf)))
    if wrong.size:
        raise ValueError(
            f"Row {wrong[0]} has the label {y[wrong[0]]}, but there are "
            f"{num_classes} classes: labels go from 0 to {num_classes - 1}."
        )
    return y


def _probabilities(y: np.ndarray) -> np.ndarray:
    """Rows (B, C) that each add up to 1; where there is a 1 in each, its places (B,)."""
    y = y.astype("float32")
    right = (y >= 0).all(axis=1) & (abs(y.sum(axis=1) - 1) <= ROUNDING)
    for row in np.flatnonzero(~right)[:1]:
        raise ValueError(
            f"Row {row} is {y[row].tolist()}. Expected a 1 among 0s, or probabilities of the "
            f"{y.shape[1]} classes, which add up to 1."
        )
    return y.argmax(axis=1) if (y.max(axis=1) == 1).all() else y


def numbers_of_names(names: list, labels: list[str] | None) -> np.ndarray:
    """The places of names in the labels.

    Raises:
        ValueError: "Row 3 has the unknown label 'upp'. Expected one of ['down', 'up']."
    """
    if not labels:
        raise ValueError(
            f"Received the label {names[0]!r}, but the classifier has no names for its "
            "classes. Build it with labels=[...]."
        )
    numbers = {label: i for i, label in enumerate(labels)}
    names = [n.decode() if isinstance(n, bytes) else n for n in names]
    if numbers_are_names(labels):
        names = [n if isinstance(n, str) else str(n) for n in names]
    for row, name in enumerate(names):
        if not isinstance(name, str) or name not in numbers:
            raise ValueError(f"Row {row} has the unknown label {name!r}. Expected one of {labels}.")
    return np.array([numbers[name] for name in names], int)


def class_numbers_in_graph(
    y: tf.Tensor, labels: list[str] | None, num_classes: int | None
) -> tf.Tensor:
    """As `class_numbers`, inside `tf.data`."""
    if y.dtype.is_floating and y.shape.rank == 2:
        return _probabilities_in_graph(y, num_classes)
    if y.shape.rank == 2 and num_classes and y.dtype != tf.string:
        return tf.argmax(_probabilities_in_graph(y, num_classes), 1, tf.int32)
    if y.dtype.is_floating or y.dtype.is_bool:
        given, y = y, tf.cast(y, tf.int32)
        whole = tf.cast(y, given.dtype) == given if given.dtype.is_floating else given == given
        message = ("Row ", tf.range(tf.size(y)), " of the batch has the label ", given)
        with tf.control_dependencies([assert_right(whole, *message, ", which is no class.")]):
            y = tf.identity(y)
    if y.dtype.is_integer and numbers_are_names(labels):
        y = tf.strings.as_string(y)
    if y.dtype == tf.string:
        matches = tf.equal(y[:, None], tf.constant(labels or [""]))  # (B, C)
        y = tf.where(tf.reduce_any(matches, axis=1), tf.argmax(matches, axis=1), -1)
    y = tf.cast(y, tf.int32)
    if num_classes is None:
        return y
    inside = tf.reduce_all((y >= 0) & (y < num_classes))
    expected = f"{labels or list(range(num_classes))}"
    with tf.control_dependencies([tf.debugging.Assert(inside, ["Labels outside", expected, y])]):
        return tf.identity(y)


def _probabilities_in_graph(y: tf.Tensor, num_classes: int | None) -> tf.Tensor:
    y = tf.ensure_shape(tf.cast(y, "float32"), (None, num_classes))
    right = tf.reduce_all(y >= 0, axis=1) & (abs(tf.reduce_sum(y, axis=1) - 1) <= ROUNDING)
    row = tf.range(tf.shape(y)[0])
    message = ("Row ", row, " of the batch is not of probabilities, which add up to 1.")
    with tf.control_dependencies([assert_right(right, *message)]):
        return tf.identity(y)


def several_classes(y, labels: list[str] | None, num_classes: int) -> np.ndarray:
    """Any number of classes for each text: (B, C) float32, 0 or 1 or a probability between them.

    Args:
        y: for every text a list of names, or rows of numbers, perhaps in a table.
        labels: the classes' names, if there are.
        num_classes: C.

    Raises:
        ValueError: "Row 3 is 'up'. With several labels a text, expected a list for each ..."

    Example:
        >>> several_classes([["up"], []], ["down", "up"], 2).tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    y = _matrix(plain(y), labels)
    y = np.asarray(y) if tf.is_tensor(y) else y
    for i, row in enumerate(y):
        if isinstance(row, str | bytes) or not hasattr(row, "__len__"):
            raise ValueError(
                f"Row {i} is {row!r}. With several labels a text, expected a list for each: of "
                f"names, or of {num_classes} numbers, 0 or 1 for each class."
            )
    if any(isinstance(v, str) for row in y for v in row) or not any(len(row) for row in y):
        hot = np.zeros((len(y), num_classes), "float32")
        for row, names in enumerate(y):
            hot[row, numbers_of_names(list(names), labels) if len(names) else []] = 1.0
        return hot
    for i, row in enumerate(y):
        if len(row) != num_classes or not all(0 <= value <= 1 for value in row):
            raise ValueError(
                f"Row {i} is {list(row)!r}. Expected {num_classes} numbers, 0 or 1 for "
                "each class or a probability between them, or a list of names."
            )
    return np.array(y, "float32")


def several_classes_in_graph(y: tf.Tensor, num_classes: int) -> tf.Tensor:
    """As `several_classes`, inside `tf.data`: rows of numbers."""
    y = tf.ensure_shape(tf.cast(y, "float32"), (None, num_classes))
    right = tf.reduce_all((y >= 0) & (y <= 1), axis=1)
    row = tf.range(tf.shape(y)[0])
    message = ("Row ", row, " of the batch has other numbers than 0 and 1 for its classes.")
    with tf.control_dependencies([assert_right(right, *message)]):
        return tf.identity(y)


def targets(y, count: int) -> tf.Tensor:
    """Numbers to predict, (B, count) float32, in memory or inside `tf.data`."""
    in_graph = tf.is_symbolic_tensor(y)
    y = y if in_graph else np.asarray(_matrix(_single_column(plain(y)), None))
    numbers = y.dtype.is_floating or y.dtype.is_integer if in_graph else y.dtype.kind in "fiub"
    shapes = [(None, count), *([(None,)] if count == 1 else [])]
    if not numbers or not any(map(tf.TensorShape(y.shape).is_compatible_with, shapes)):
        raise ValueError(
            f"Expected {count} number{'s' * (count > 1)} for each text, in the shape (texts, "
            f"{count}). Received: labels of type {y.dtype} and shape {tuple(y.shape)}."
        )
    if not in_graph:
        for row in np.argwhere(~np.isfinite(y))[:1]:
            raise ValueError(f"Row {row[0]} has the label {y[tuple(row)]}. Expected a number.")
    return tf.reshape(tf.cast(y, "float32"), (-1, count))
