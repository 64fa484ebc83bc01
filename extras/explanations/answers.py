"""Explain answers by the words in the question and the context.

Comments use these letters for shapes: L sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from keras import ops

from encoder_zoo.common.lazy import xp
from encoder_zoo.extras.explanations.attributions import (
    compute_attributions,
    make_example_inputs,
    select_tokens,
    select_window,
    tokenize_columns,
    warn_if_incomplete,
)
from encoder_zoo.tasks.preprocessing.windows import Windows
from encoder_zoo.tasks.question_answering.answer_ranking import Answer, AnswerExplanation

if TYPE_CHECKING:
    from encoder_zoo.tasks.question_answering.span_qa import SpanQA


def explain_answers(
    model: SpanQA,
    questions: Sequence[str],
    contexts: Sequence[str],
    answers: Sequence[Answer],
    method: str,
    batch_size: int | None,
) -> list[AnswerExplanation]:
    """Explain the answers to questions. See `SpanQA.explain` for the arguments."""
    preprocessor = model.preprocessor
    columns = [question.strip() for question in questions], contexts
    columns = [xp.constant(texts, xp.string) for texts in columns]
    asked, told = tokenize_columns(model, columns)
    encoded = preprocessor.tokenize_contexts(asked.texts, told.texts)
    examples = preprocessor.make_examples(encoded)
    columns = Columns(
        preprocessor.find_question_start(examples).numpy(),
        preprocessor.find_context_start(examples).numpy(),
        preprocessor.find_null_position(examples).numpy(),
    )
    windows = Windows(*(field.numpy() for field in encoded.windows))
    bounds = np.searchsorted(windows.example, np.arange(len(answers) + 1))
    found = []
    for i, answer in enumerate(answers):
        offsets = told.starts[i].numpy(), told.ends[i].numpy()
        spans = [
            span
            for window in range(*bounds[i : i + 2])
            for span in _find_spans(model, examples, windows, window, offsets, columns, answer)
        ]
        # The "no answer" score is the minimum over all windows.
        best = (max if answer["text"] else min)(spans, key=lambda span: span.score)
        question = select_tokens(asked, i)._replace(column=best.question)
        parts = [question, select_window(select_tokens(told, i), *best.context)]
        values = compute_attributions(model, best.inputs, parts, best.weights, method, batch_size)
        found.append(AnswerExplanation(**answer, **values))
    warn_if_incomplete(found, method)
    return found


class Columns(NamedTuple):
    """Start positions of question, context and "no answer" in each window, shape (windows,)."""

    question: np.ndarray
    context: np.ndarray
    null: np.ndarray


class SpanPositions(NamedTuple):
    """A possible answer in a window, given by its start and end positions.

    Attributes:
        score: Float. The sum of the outputs at these positions, or the "no answer" output of a beam
            head.
        weights: Array of shape (1, ...). 1 for the outputs in the score, and 0 for all other
            outputs.
        inputs: Dict mapping names to arrays of shape (1, L). Model inputs for the window.
        question: Integer. Start position of the question.
        context: Tuple of integers (start position of the context, index of the first token in the
            context, number of tokens).
    """

    score: float
    weights: np.ndarray
    inputs: dict
    question: int
    context: tuple[int, int, int]


def _find_spans(
    model: SpanQA,
    examples: dict,
    windows: Windows,
    window: int,
    offsets: tuple[np.ndarray, np.ndarray],
    columns: Columns,
    answer: Answer,
) -> list[SpanPositions]:
    """Find all token spans in a window that cover exactly the characters of an answer.

    Several spans can match, because tokens can share characters. `offsets` contains the start and
    end offsets of all context tokens.
    """
    inputs = make_example_inputs(model, examples, window)
    begin, length = int(windows.begin[window]), int(windows.length[window])
    question, context, null = (int(column[window]) for column in columns)
    bounds = [(null, null)]
    if answer["text"]:
        starts, ends = (values[begin : begin + length] for values in offsets)
        bounds = _list_bounds(starts, ends, answer, context)
    found = []
    for first, last in bounds:
        given, at = inputs, ([0, 1], [first, last])
        if model.beam and answer["text"]:
            given = {**inputs, "answer_start": np.array([[first]], "int32")}
        elif model.beam:
            at = ([0], [2])  # "no answer" logit, for outputs over all spans
        outputs = ops.convert_to_numpy(model(given, training=False)).astype("float32")
        weights = np.zeros_like(outputs)
        weights[0, at[0], at[1]] = 1
        score = float((weights * outputs).sum())
        found.append(SpanPositions(score, weights, given, question, (context, begin, length)))
    return found


def _list_bounds(
    starts: np.ndarray, ends: np.ndarray, answer: Answer, column: int
) -> list[tuple[int, int]]:
    """List the pairs of start and end positions in a window that match an answer.

    `starts` and `ends` are character offsets of the tokens in the window.
    """
    real = starts < ends
    first = np.flatnonzero(real & (starts == answer["start"])) + column
    last = np.flatnonzero(real & (ends == answer["end"])) + column
    return [(i, j) for i in first.tolist() for j in last.tolist() if i <= j]
