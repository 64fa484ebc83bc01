"""Read question answering data in SQuAD format."""

from __future__ import annotations

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
        if not isinstance(whole, dict):
            raise ValueError(f"the file contains {quote_with_type(whole)}")
        return [
            {
                "id": read_field(question, "id", (str, int), at),
                "question": read_field(question, "question", str, at),
                "context": read_field(paragraph, "context", str, of_paragraph),
                "answers": [
                    {
                        "text": read_field(answer, "text", str, of_answer),
                        "answer_start": read_field(answer, "answer_start", int, of_answer),
                    }
                    for of_answer, answer in _read_list(question, "answers", at)
                ],
            }
            for of_article, article in _read_list(whole, "data", "")
            for of_paragraph, paragraph in _read_list(article, "paragraphs", of_article)
            for at, question in _read_list(paragraph, "qas", of_paragraph)
        ]
    except ValueError as error:
        raise ValueError(
            f"{path} is not a SQuAD file: {str(error).rstrip('.')}. Expected data[] > paragraphs[] "
            "> context and qas[] > id, question, answers[] > text, answer_start."
        ) from None


def _read_list(holder: object, key: str, at: str) -> list[tuple[str, Any]]:
    """Return (location, item) for each item of a list. Error messages contain the location."""
    items = read_field(holder, key, list, at or "the file")
    place = f"{at}.{key}".lstrip(".")
    return [(f"{place}[{i}]", item) for i, item in enumerate(items)]
