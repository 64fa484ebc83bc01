"""Learn class names from labels, and convert labels to class indices or targets.

Comments use these letters for shapes: B batch, C classes.
"""

from __future__ import annotations

import enum

import numpy as np

from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.tasks.base import classes
from encoder_zoo.tasks.preprocessing import columns, given_labels
from encoder_zoo.tasks.preprocessing.checks import check_each

# Tolerance for the sum of the probabilities of a text.
ROUNDING = 1e-3


def learn_classes(y, multi_label: bool = False) -> list[str] | int:
    """Collect all classes from labels.

    Args:
        y: Labels, one per text, as for `SequenceClassifier.fit`. For multi-label classifiers, a
            list of names per text, or rows of shape (B, C).
        multi_label: Boolean. Whether to allow any number of labels per text. Defaults to False.

    Returns:
        List of class names. If `y` contains rows of numbers, or consecutive integers that start at
        0, the number of classes is returned instead. The names of a categorical column are in
        category order, and the names of a table are in column order. All other names are sorted.

    Raises:
        ValueError: If a row of `y` does not have exactly one label, if a value is not a valid
            class, or if there are fewer than two classes.

    Example:
        >>> learn_classes(["up", "down", "up"]), learn_classes([True, False])
        (['down', 'up'], ['False', 'True'])
        >>> learn_classes([0, 2, 1]), learn_classes([1.0, 5.0]), learn_classes([[0.3, 0.7]])
        (3, ['1', '5'], 2)
    """
    given_labels.check_not_missing(y)
    names = columns.list_categories(y) or (
        list(y) if isinstance(y, dict) else columns.list_table_columns(y)
    )
    if names is not None and len(names) > 1:
        return [given_labels.get_class_name(name) for name in names]
    y = _flatten_column(columns.convert_to_plain(y))
    if not len(y):
        raise invalid("y", y, "one label per text")
    if multi_label:
        return _learn_multi_label(y)
    y = _make_array(y)
    if y.dtype.kind in "fiub" and y.ndim == 2:
        return y.shape[1]
    if y.dtype.kind == "b":
        return ["False", "True"]
    if y.dtype.kind in "OSUT":
        found = sorted(set(_list_names(y.tolist())))
    else:
        numbers = np.unique(_convert_to_integers(xp.constant(y))).tolist()
        counted = numbers == list(range(len(numbers)))
        found = len(numbers) if counted else [str(number) for number in numbers]
    if classes.get_count_and_names(found)[0] == 1:
        raise ValueError(
            f"Every label is {quote(y.tolist()[0])}. Expected at least two classes. To train on a "
            "part of the classes, pass all class names as labels=[...]."
        )
    return found


def _learn_multi_label(y) -> list[str] | int:
    rows = [columns.convert_to_plain(row) for row in y]
    _check_lists(rows, None)
    values = [value for row in rows for value in row]
    if any(isinstance(value, str | bytes) for value in values):
        return sorted(set(map(given_labels.get_class_name, values)))
    counts = {len(row) for row in rows}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(
            f"y is {quote(y)}, so the number of labels is unknown. Expected a list of names or a "
            "row of 0s and 1s for each text. Convert lists of indices to lists of names."
        )
    return counts.pop()


def collect_labels(dataset: tf.data.Dataset, preprocessor) -> np.ndarray:
    """Collect the labels from all batches of a dataset.

    Args:
        dataset: Dataset of texts and labels, batched or unbatched.
        preprocessor: Preprocessor that batches the dataset, or None if the batches contain
            preprocessed inputs.
    """
    batches = dataset if preprocessor is None else preprocessor.batch_examples(dataset, 1024)
    parts = [keras.utils.unpack_x_y_sample_weight(element)[1].numpy() for element in batches]
    labels = np.concatenate(parts)
    given_labels.check_not_missing_in_dataset(labels, single=batches is not dataset)
    return labels


def list_classes(labels: np.ndarray, multi_label: bool) -> set[int]:
    """Return the set of class indices that occur in encoded labels.

    Args:
        labels: Class indices (B,), or rows (B, C).
        multi_label: Boolean. Whether to allow any number of classes per text.

    Example:
        >>> list_classes(np.array([[1, 0, 1]]), multi_label=True)
        {0, 2}
    """
    numbers = labels.argmax(axis=1) if labels.ndim == 2 else labels
    return set((labels.nonzero()[1] if multi_label else numbers).tolist())


def _list_names(values: list) -> list[str]:
    _check_single_labels(values)
    return [given_labels.get_class_name(name) for name in values]


def _check_single_labels(values: list) -> None:
    """Raise a ValueError for rows with a list of labels instead of a single label."""
    for row, name in enumerate(values):
        if isinstance(name, list | tuple | set | frozenset | dict | np.ndarray):
            raise ValueError(
                f"Row {row} is {quote(name)}, but this classifier requires one label per "
                "text. For several labels per text, create the classifier with "
                'from_preset(..., problem_type="multi_label_classification").'
            )


def _convert_to_integers(y: xp.Tensor) -> xp.Tensor:
    """Convert class indices of shape (B,) to int64. Floats and booleans are accepted."""
    numbers = xp.cast(y, xp.int64)
    return check_each(
        numbers,
        xp.cast(numbers, y.dtype) == y,
        " has the label ",
        y,
        ', which is not a class index. To predict numbers, use problem_type="regression".',
    )


def _make_array(y) -> np.ndarray:
    """Convert labels to an array without changing their values.

    An object array is returned if lists differ in length, because NumPy would raise an error, if
    strings are mixed with other values, because NumPy would convert all values to strings, and for
    enumerations, because NumPy would truncate them.
    """
    kept = False
    if isinstance(y, list | tuple):
        kinds = {type(v) for v in y}
        is_text = {issubclass(kind, str | bytes) for kind in kinds}
        kept = len(is_text) > 1 or any(
            issubclass(kind, str) and issubclass(kind, enum.Enum) for kind in kinds
        )
    try:
        return np.asarray(y, object if kept else None)
    except ValueError:
        rows = np.empty(len(y), object)
        rows[:] = y
        return rows


def _flatten_column(y):
    """Return the column of a table or array with one column. Other values are not changed."""
    if isinstance(y, dict):
        return next(iter(y.values())) if len(y) == 1 else y
    return columns.flatten_column(y)


def _make_matrix(y, labels: list[str] | None):
    """Convert a table to numeric rows. The columns are sorted in the order of the labels."""
    if not isinstance(y, dict):
        return y
    names = {given_labels.get_class_name(name): values for name, values in y.items()}
    order = labels if labels and set(labels) == set(names) else list(names)
    if labels and order is not labels and order != [str(i) for i in range(len(order))]:
        raise ValueError(
            f"The columns of `y` are {quote(list(names))}, but the labels are {labels}. Rename the "
            "columns, or pass an array with one column per label, in this order."
        )
    return np.stack([np.asarray(names[name]) for name in order], axis=1)


def convert_class_indices(y, labels: list[str] | None, num_classes: int | None) -> xp.Tensor:
    """Convert labels with one class per text to class indices, in memory or inside `tf.data`.

    Args:
        y: Class indices, names, one-hot rows (B, C), or rows with probabilities (B, C).
        labels: Optional list of strings. The class names.
        num_classes: Optional positive integer. Number of classes C, if it is known.

    Returns:
        Int32 class indices (B,), or float32 probabilities (B, C).

    Raises:
        ValueError: If `y` has an unknown label or a wrong shape.
        tf.errors.InvalidArgumentError: Raised instead of ValueError inside `tf.data`.

    Example:
        >>> convert_class_indices(["up", "down"], ["down", "up"], 2).numpy().tolist()
        [1, 0]
        >>> convert_class_indices([[0, 1], [1, 0]], None, 2).numpy().tolist()
        [1, 0]
    """
    y = given_labels.check_not_missing(y)
    if num_classes != 1 and xp.is_tensor(y):
        y = columns.flatten_column(y)
    if not xp.is_symbolic_tensor(y):
        y = _make_array(_make_matrix(_flatten_column(columns.convert_to_plain(y)), labels))
        if y.dtype.kind in "OSUT":
            y = y.tolist()
            _check_single_labels(y)
        y = xp.convert_to_tensor(y) if not isinstance(y, list) and y.dtype.kind in "fiub" else y
    if isinstance(y, list) or y.dtype == xp.string:
        return _convert_names(y, labels)
    rank = xp.TensorShape(y.shape).rank if xp.is_tensor(y) else -1
    if rank == 2 and (None in (num_classes, y.shape[1]) or num_classes == y.shape[1]):
        return _convert_probabilities(y)
    if rank not in (None, 1):
        probabilities = f", or rows of {num_classes} probabilities" if num_classes else ""
        raise ValueError(
            f"`y` has shape {tuple(y.shape)}. Expected one class index or name per text"
            f"{probabilities}."
        )
    if classes.find_boolean_indices(labels) and xp.as_dtype(y.dtype).is_bool:
        return _convert_names(y, labels)
    y = _convert_to_integers(y)
    if classes.has_integer_names(labels):
        return _convert_names(xp.strings.as_string(y), labels)
    expected = (
        f". Expected class indices from 0 to {(num_classes or 0) - 1} for {num_classes} classes."
    )
    inside = (y >= 0) & (y < (num_classes or y.dtype.max))
    return check_each(xp.cast(y, xp.int32), inside, " has the label ", y, expected)


def _convert_names(names: xp.Tensor | list, labels: list[str] | None) -> xp.Tensor:
    expected = f". Expected one of {labels}."
    if not labels:
        expected = ". The classes have no names. Create the classifier with labels=[...]."
    numbers = classes.find_label_indices(names, labels)
    return check_each(numbers, numbers >= 0, " has the unknown label ", names, expected)


def _convert_probabilities(y: xp.Tensor) -> xp.Tensor:
    """Check that rows (B, C) sum to 1, and convert one-hot rows to indices (B,)."""
    is_hot = not xp.as_dtype(y.dtype).is_floating
    y = xp.cast(y, xp.float32)
    right = xp.reduce_all(y >= 0, axis=1) & (abs(xp.reduce_sum(y, axis=1) - 1) <= ROUNDING)
    expected = ". Expected one 1 and otherwise 0s, or probabilities that sum to 1."
    y = check_each(y, right, " is ", y, expected)
    if not xp.is_symbolic_tensor(y):
        is_hot = bool(xp.reduce_all(xp.reduce_max(y, axis=1) == 1))
    return xp.argmax(y, 1, xp.int32) if is_hot else y


def convert_multi_label_targets(y, labels: list[str] | None, num_classes: int) -> xp.Tensor:
    """Convert labels with any number of classes per text, in memory or inside `tf.data`.

    Args:
        y: Rows of numbers. In memory, also a numeric table, or a list of names per text.
        labels: Optional list of strings. The class names.
        num_classes: Positive integer. Number of classes C.

    Returns:
        Float32 tensor of shape (B, C). Values between 0 and 1.

    Raises:
        ValueError: If a row of `y` is not a list of known labels, or has a wrong length.
        tf.errors.InvalidArgumentError: Raised instead of ValueError inside `tf.data`.

    Example:
        >>> convert_multi_label_targets([["up"], []], ["down", "up"], 2).numpy().tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    y = given_labels.check_not_missing(y)
    given = y if xp.is_symbolic_tensor(y) else _make_lists(y, labels, num_classes)
    if isinstance(given, list):
        if any(isinstance(v, str | bytes) for row in given for v in row) or not any(
            map(len, given)
        ):
            return _make_multi_hot(given, labels, num_classes)
        unknown = [np.nan] * num_classes  # for rows with another length
        y = xp.constant([r if len(r) == num_classes else unknown for r in given], xp.float32)
    y = xp.ensure_shape(xp.cast(y, xp.float32), (None, num_classes))
    expected = (
        f". Expected {num_classes} values between 0 and 1, one per class, or a list of names."
    )
    return check_each(y, xp.reduce_all((y >= 0) & (y <= 1), axis=1), " is ", given, expected)


def _make_lists(y, labels: list[str] | None, num_classes: int) -> list[list]:
    y = _make_matrix(columns.convert_to_plain(y), labels)
    y = np.asarray(y) if xp.is_tensor(y) else y
    _check_lists(y, num_classes)
    return [list(row) for row in (y.tolist() if isinstance(y, np.ndarray) else y)]


def _check_lists(y, num_classes: int | None) -> None:
    """Raise a ValueError if a row is a single label or a dict instead of a list."""
    numbers = f"{num_classes} numbers" if num_classes else "numbers"
    for i, row in enumerate(y):
        if isinstance(row, str | bytes | dict) or not hasattr(row, "__len__"):
            raise ValueError(
                f"Row {i} is {quote(row)}. A multi-label classifier requires a list for "
                f"each text, with names, or with {numbers} (0 or 1)."
            )


def _make_multi_hot(rows: list[list], labels: list[str] | None, num_classes: int) -> xp.Tensor:
    index = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    names = [name for row in rows for name in row]
    numbers = classes.find_label_indices(names, labels)
    right = (numbers >= 0) & (numbers < num_classes)
    expected = f". Expected one of {labels}."
    numbers = check_each(numbers, right, " has the unknown label ", names, expected, index=index)
    hot = np.zeros((len(rows), num_classes), "float32")
    hot[index, numbers] = 1.0
    return xp.constant(hot)


def convert_targets(
    y, problem_type: str, labels: list[str] | None, num_classes: int | None
) -> xp.Tensor:
    """Convert labels to the targets of a classifier with this problem type."""
    if problem_type == "regression":
        return convert_regression_targets(y, num_classes)
    if problem_type == "multi_label_classification":
        return convert_multi_label_targets(y, labels, num_classes)
    return convert_class_indices(y, labels, num_classes)


def convert_regression_targets(y, count: int) -> xp.Tensor:
    """Convert regression targets to float32, shape (B, count), in memory or inside `tf.data`.

    Raises:
        ValueError: If `y` does not have `count` finite numbers per text.
        tf.errors.InvalidArgumentError: Raised instead of ValueError inside `tf.data`.
    """
    y = given_labels.check_not_missing(y)
    if not xp.is_symbolic_tensor(y):
        y = np.asarray(_make_matrix(_flatten_column(columns.convert_to_plain(y)), None))
        y = xp.convert_to_tensor(y) if y.dtype.kind in "fiub" else y
    shapes = [(None, count), *([(None,)] if count == 1 else [])]
    numbers = xp.is_tensor(y) and y.dtype not in (xp.string, xp.complex64, xp.complex128)
    if not numbers or not any(map(xp.TensorShape(y.shape).is_compatible_with, shapes)):
        raise ValueError(
            f"`y` has dtype {y.dtype} and shape {tuple(y.shape)}. Expected {count} "
            f"number{'s' * (count > 1)} per text."
        )
    y = xp.reshape(xp.cast(y, xp.float32), (-1, count))
    right, given = (xp.reduce_all(xp.math.is_finite(y), axis=1), y[:, 0] if count == 1 else y)
    return check_each(y, right, " has the label ", given, ". Expected a number.")
