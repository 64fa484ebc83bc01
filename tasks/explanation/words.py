"""Attributions of words: how much each says for an output, or against it.

Comment letters: L sequence, T tokens of a text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypedDict

import keras
import numpy as np

from encoder_zoo.common.validation import one_of
from encoder_zoo.tasks.explanation.gradients import straight_line
from encoder_zoo.tasks.explanation.integration import (
    TOLERANCE,
    gradient_times_input,
    integrated_gradients,
)
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.preprocessing.examples import take_examples
from encoder_zoo.tasks.preprocessing.tokenized_texts import TokenizedTexts

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

logger = logging.getLogger("encoder_zoo")

METHODS = {
    "integrated_gradients": integrated_gradients,
    "gradient_x_input": gradient_times_input,
}
Method = Annotated[str, one_of(*METHODS)]


class WordAttribution(TypedDict):
    """A word, characters `start` to `end` of the text with the number `part`, and what it adds."""

    part: int
    text: str
    start: int
    end: int
    attribution: float


class Attributions(TypedDict):
    """The words of one text or of two, and what each adds to a logit.

    `baseline` is the logit of the same texts with all their words masked: `logit` less this is the
    sum of the words' attributions.
    """

    texts: list[str]
    words: list[WordAttribution]
    logit: float
    baseline: float


class Part(NamedTuple):
    """A text, or the tokens of it that an example holds.

    Attributes:
        text: the whole text.
        column: position of its first token in the example.
        words: (T,) int, the number of each token's word in the text.
        starts: the first character of each word of the text.
        ends: the character after its last; 0 of a word without characters.
    """

    text: str
    column: int
    words: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def part_of(
    tokens: TokenizedTexts, row: int, column: int, begin: int = 0, count: int | None = None
) -> Part:
    """Return the tokens of a text that an example holds.

    Args:
        tokens: of texts.
        row: the text.
        column: position in the example of the first of them.
        begin: the first of them in the text.
        count: how many; None: all after this one.
    """
    end = None if count is None else begin + count
    first, last, words = (
        field[row].numpy() for field in (tokens.starts, tokens.ends, tokens.words)
    )
    text, visible = np.asarray(tokens.texts)[row].decode(), first < last
    count = words.max(initial=-1) + 1
    starts, ends = np.full(count, len(text)), np.zeros(count, int)
    np.minimum.at(starts, words[visible], first[visible])
    np.maximum.at(ends, words[visible], last[visible])
    return Part(text, column, words[begin:end], starts, ends)


def example_inputs(task: Task, examples: Mapping, index: int) -> dict[str, np.ndarray]:
    """Return the model's inputs of an encoded example, {name: (1, L)}."""
    example = take_examples(examples, [index])
    inputs = keras.utils.unpack_x_y_sample_weight(task.graphs.collate()(example))[0]
    return {name: values.numpy() for name, values in inputs.items()}


def attributions(
    task: Task,
    inputs: Mapping[str, np.ndarray],
    parts: Sequence[Part],
    weights: np.ndarray,
    method: str,
    batch_size: int | None,
) -> Attributions:
    """Return what the words of an example add to a weighted sum of its outputs.

    Args:
        task: the model.
        inputs: of the example, {name: (1, L)}.
        parts: its texts.
        weights: of its outputs, (1, ...).
        method: one of `METHODS`.
        batch_size: points of a line at once; None for the default.
    """
    masked = np.array(inputs["token_ids"])
    for part in parts:
        columns = slice(part.column, part.column + len(part.words))
        masked[0, columns] = task.preprocessor.tokenizer.mask_token_id
    along = straight_line(task, inputs, masked, weights, batch_size or BATCH_SIZE)
    found = METHODS[method](along)
    words = [word for i, part in enumerate(parts) for word in _words(i, part, found.tokens)]
    return Attributions(
        texts=[part.text for part in parts],
        words=words,
        logit=float(found.output),
        baseline=float(found.baseline),
    )


def _words(number: int, part: Part, attribution: np.ndarray) -> list[WordAttribution]:
    """Return the words of a text, each with the sum of its tokens' attributions."""
    found, unseen = [], 0.0
    for word in dict.fromkeys(part.words.tolist()):
        tokens = np.flatnonzero(part.words == word)
        added = float(attribution[part.column + tokens].sum())
        start, end = int(part.starts[word]), int(part.ends[word])
        text = part.text[start:end]
        if not text.strip():  # a space that is a token goes with the word behind it
            unseen += added
            continue
        found.append(
            WordAttribution(
                part=number, text=text, start=start, end=end, attribution=added + unseen
            )
        )
        unseen = 0.0
    if found:
        found[-1]["attribution"] += unseen
    return found


def weighted_sum(found: Sequence[Attributions], weights: Sequence[float]) -> Attributions:
    """Return the attributions to a weighted sum of the logits of several parts of the same texts.

    Args:
        found: of the parts.
        weights: as many.
    """
    words = {}
    for row, weight in zip(found, weights, strict=True):
        for word in row["words"]:
            key = word["part"], word["start"], word["end"]
            kept = words.setdefault(key, {**word, "attribution": 0.0})
            kept["attribution"] += float(weight) * word["attribution"]
    logit, baseline = (
        float(sum(w * row[name] for w, row in zip(weights, found, strict=True)))
        for name in ("logit", "baseline")
    )
    words = [words[key] for key in sorted(words)]
    return Attributions(texts=found[0]["texts"], words=words, logit=logit, baseline=baseline)


def warn_incomplete(found: Sequence[Attributions], method: str) -> None:
    """Log how many explanations do not add up to the difference of the logits."""
    if method != "integrated_gradients":
        return
    gaps = [
        abs(sum(word["attribution"] for word in row["words"]) - (row["logit"] - row["baseline"]))
        for row in found
    ]
    wrong = sum(gap > TOLERANCE for gap in gaps)
    if wrong:
        logger.warning(
            "The attributions of %d of %d explanations do not add up to the difference of the "
            "logits, by up to %.4f. float16 and bfloat16 are too coarse for that; "
            "dtype='float32' is not.",
            wrong,
            len(gaps),
            max(gaps),
        )
