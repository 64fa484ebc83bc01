"""Read question answering data in SQuAD format."""

from __future__ import annotations

import os
from typing import Any

from encoder_zoo.common.reading import parse_json, read_field, read_text
from encoder_zoo.common.validation import FilePath, validate_arguments
from encoder_zoo.common.wording import quote_with_type


@validate_arguments
def read_squad(path: FilePath) -> list[dict[str, Any]]:
    """Read questions from a SQuAD v1.1 or v2.0 JSON file.

    Args:
        path: The path to a JSON file.

    Returns:
        A list of dicts with the keys "id", "question", "context" and "answers", which can be passed
        to `SpanQA.fit`. Each answer is a dict with the keys "text" and "answer_start". Unanswerable
        questions have an empty list of answers.

    Raises:
        ValueError: If `path` is not a file in SQuAD format.

    Example:
        >>> import json, pathlib, tempfile
        >>> paragraph = {"context": "In Rome.", "qas": [{"id": "a", "question": "Where?"}]}
        >>> paragraph["qas"][0]["answers"] = [{"text": "Rome", "answer_start": 3}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "train.json"
        ...     _ = path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
        ...     [row["question"] for row in read_squad(path)]
        ['Where?']
    """
    text = read_text(path)
    try:
        whole = parse_json(text, "the file")
    except ValueError as error:
        raise _make_squad_error(path, str(error).rstrip(".")) from None
    if not isinstance(whole, dict):
        raise _make_squad_error(path, f"the file contains {quote_with_type(whole)}")
    return [
        {
            "id": _read_field(path, question, "id", (str, int), at),
            "question": _read_field(path, question, "question", str, at),
            "context": _read_field(path, paragraph, "context", str, of_paragraph),
            "answers": [
                {
                    "text": _read_field(path, answer, "text", str, of_answer),
                    "answer_start": _read_field(path, answer, "answer_start", int, of_answer),
                }
                for of_answer, answer in _read_list(path, question, "answers", at)
            ],
        }
        for of_article, article in _read_list(path, whole, "data", "")
        for of_paragraph, paragraph in _read_list(path, article, "paragraphs", of_article)
        for at, question in _read_list(path, paragraph, "qas", of_paragraph)
    ]


def _read_list(
    path: str | os.PathLike[str], holder: object, key: str, at: str
) -> list[tuple[str, object]]:
    """Return (location, item) for each item of a list. Error messages contain the location."""
    items = _read_field(path, holder, key, list, at)
    place = f"{at}.{key}".lstrip(".")
    return [(f"{place}[{i}]", item) for i, item in enumerate(items)]


def _read_field(path: str | os.PathLike[str], holder: object, key: str, kind, at: str) -> Any:
    try:
        return read_field(holder, key, kind, at or "the file")
    except ValueError as error:
        raise _make_squad_error(path, str(error).rstrip(".")) from None


def _make_squad_error(path: str | os.PathLike, what: str) -> ValueError:
    return ValueError(
        f"{path} is not a SQuAD file: {what}. Expected data[] > paragraphs[] > context and qas[] > "
        "id, question, answers[] > text, answer_start."
    )
