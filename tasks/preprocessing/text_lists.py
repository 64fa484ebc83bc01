"""Lists of texts, one for each example, as ragged strings.

Comment letters: N lists.
"""

from __future__ import annotations

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.wording import with_type
from encoder_zoo.tasks.preprocessing.checks import check_each, has_text
from encoder_zoo.tasks.preprocessing.columns import ROWS, plain
from encoder_zoo.tasks.preprocessing.preprocessor import as_column, check_no_iterator

ADVICE = "Expected some text: leave it out, or put a placeholder there."


MAX_SHOWN = 60  # characters of a value in an error


def as_text_lists(lists, name: str, owner: str) -> array_ops.RaggedTensor:
    """Return lists of texts as ragged strings (N, None), checked.

    Args:
        lists: a list, array, tensor or column of lists of texts.
        name: of the lists, for errors.
        owner: that each list belongs to, such as "question", for errors.

    Raises:
        ValueError: "Row 1 of choices is 'a' (str). Expected a list of texts for each question.",
            "Row 1 of choices has no text. ...", "Row 1 of choices has an empty text. ..."

    Example:
        >>> as_text_lists([["a"], []], "choices", "question")
        Traceback (most recent call last):
        ValueError: Row 1 of choices has no text. Expected one or more for each question.
    """
    check_no_iterator(lists, name)
    lists = plain(lists)
    if not isinstance(lists, array_ops.RaggedTensor):
        is_tensor = array_ops.is_tensor(lists)
        lists = (
            array_ops.RaggedTensor.from_tensor(lists) if is_tensor else _ragged(lists, name, owner)
        )
    expected = f" of {name} has no text. Expected one or more for each {owner}."
    lists = check_each(lists, lists.row_lengths() > 0, expected)
    right, row = has_text(lists.values), lists.value_rowids()
    return check_each(lists, right, f" of {name} has an empty text. {ADVICE}", index=row)


def _ragged(rows, name: str, owner: str) -> array_ops.RaggedTensor:
    if isinstance(rows, str | bytes):
        raise ValueError(
            f"{name} is {with_type(rows):.{MAX_SHOWN}}. Expected a list of texts for each {owner}."
        )
    for i, row in enumerate(rows):
        is_list = isinstance(row, ROWS)
        wrong = [v for v in row if not isinstance(v, str | bytes)] if is_list else [row]
        if wrong:
            raise ValueError(
                f"Row {i} of {name} {'has' if is_list else 'is'} "
                f"{with_type(wrong[0]):.{MAX_SHOWN}}. Expected a list of texts for each {owner}."
            )
    values = [text for row in rows for text in row]
    values = as_column(values, name) if values else array_ops.constant([], array_ops.string)
    return array_ops.RaggedTensor.from_row_lengths(values, [len(row) for row in rows])
