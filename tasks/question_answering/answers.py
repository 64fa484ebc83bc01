"""Validation of questions and answers, and search for the best answer spans.

Comments use these letters for shapes: N questions, W windows, L sequence, K longest answer.
"""

from __future__ import annotations

import math
import numbers
from typing import Annotated, NamedTuple

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import Rule
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.family import MAX_TOP, TOP
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, is_span
from encoder_zoo.tasks.preprocessing.given_labels import Labels, check_not_missing
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text

COLUMNS = 4  # start, end, log-probability of the start, and log-probability of the end
IMPOSSIBLE_LOGIT = -1e9  # logit of positions that cannot be an answer


def has_answers(x) -> bool:
    """Return whether the examples contain answers. Datasets are assumed to contain answers."""
    if hasattr(x, "element_spec"):
        return True
    x = convert_to_plain(x)
    rows = x if isinstance(x, list) else [x]
    return any(isinstance(row, dict) and "answers" in row for row in rows)


ANSWER_LABELS = Labels(
    "a list of answers for each question, which is empty without an answer, or examples with "
    "'answers'",
    "answer",
    none_is_answer=True,
    are_in=has_answers,
)
NO_LABELS = f"The answers are missing. Expected y: {ANSWER_LABELS.expected}."
NullThreshold = Annotated[
    float,
    Rule(
        lambda v: type(v) in (int, float) and not math.isnan(v), "a number, which can be infinite"
    ),
]


def _is_beam_size(value: object) -> bool:
    two = isinstance(value, list | tuple) and len(value) == 2
    return two and all(TOP.holds(count) for count in value)


_BEAM = f"two integers from 1 to {MAX_TOP}, (start_n_top, end_n_top), such as (5, 5)"
Beam = Annotated[tuple, Rule(_is_beam_size, _BEAM)]
_WHITE_SPACE = r"[\x09-\x0d\x1c-\x20\x{85}\p{Z}]+"


class AnswerCandidates(NamedTuple):
    """The best spans per window, sorted by score.

    Attributes:
        score: Float32 tensor of shape (W, n). Sum of the start logit and the end logit, or of the
            two log-probabilities for a beam. If fewer spans were found, the remaining scores are
            `IMPOSSIBLE_LOGIT` or less.
        start: Int32 tensor of shape (W, n). Position of the first token.
        end: Int32 tensor of shape (W, n). Position of the last token.
        total: Float32 tensor of shape (W,). Log-sum-exp over all span scores.
        null: Float32 tensor of shape (W,). Score for "no answer". For a beam, this is relative to
            the best span.
    """

    score: xp.Tensor
    start: xp.Tensor
    end: xp.Tensor
    total: xp.Tensor
    null: xp.Tensor


def find_spans(
    logits: xp.Tensor,
    is_context: xp.Tensor,
    max_answer_length: int,
    n_best: int,
    null_column: xp.Tensor | None = None,
) -> AnswerCandidates:
    """Find the best answer spans for each window.

    Only spans in the context with at most `max_answer_length` tokens are allowed. A span cannot end
    before it starts.

    Args:
        logits: Float tensor of shape (W, 2, L). Logits for the first and last tokens.
        is_context: Boolean tensor of shape (W, L). Mask for the context tokens.
        max_answer_length: Integer. Maximum answer length K, in tokens.
        n_best: Integer. Number of spans n to return.
        null_column: Int32 tensor of shape (W,). Position of the "no answer" token. If None, the
            first token will be used.

    Source: Devlin et al. 2019, BERT, sections 4.2 and 4.3.

    Example:
        >>> import tensorflow as tf
        >>> logits = tf.constant([[[9.0, 0.0, 3.0, 1.0], [9.0, 5.0, 0.0, 2.0]]])
        >>> found = find_spans(logits, tf.constant([[False, True, True, True]]), 2, 1)
        >>> found.score.numpy().tolist(), found.start.numpy().tolist(), found.end.numpy().tolist()
        ([[5.0]], [[1]], [[1]])
    """
    if max_answer_length < 1:
        raise invalid("max_answer_length", max_answer_length, "an integer of at least 1")
    masked = xp.where(is_context[:, None], xp.cast(logits, xp.float32), IMPOSSIBLE_LOGIT)
    start, end = xp.unstack(masked, axis=1)  # (W, L)
    padded = xp.pad(end, [[0, 0], [0, max_answer_length - 1]], constant_values=IMPOSSIBLE_LOGIT)
    ends = xp.signal.frame(padded, max_answer_length, 1)  # (W, L, K)
    scores = start[:, :, None] + ends
    flat = xp.reshape(
        scores, [xp.shape(scores)[0], xp.shape(scores)[1] * max_answer_length]
    )  # (W, L * K)
    flat = xp.pad(flat, [[0, 0], [0, n_best]], constant_values=2 * IMPOSSIBLE_LOGIT)
    best, index = xp.math.top_k(flat, n_best)
    first = index // max_answer_length
    total = xp.reduce_logsumexp(flat, axis=1)
    # Without windows, there is no first column.
    null = logits[:, :, :1]
    if null_column is not None:
        null = xp.where(xp.range(xp.shape(logits)[2]) == null_column[:, None, None], logits, 0)
    null = xp.cast(xp.reduce_sum(null, axis=[1, 2]), xp.float32)
    return AnswerCandidates(best, first, first + index % max_answer_length, total, null)


def make_context_mask(column: xp.Tensor, tokens: xp.Tensor, positions: xp.Tensor) -> xp.Tensor:
    """Compute a boolean mask (W, n) for positions that can be used in answers.

    Args:
        column: Int32 tensor of shape (W,). Position of the first context token.
        tokens: Boolean tensor of shape (W, P). Mask for context tokens with characters.
        positions: Int32 tensor of shape (W, n), or of shape (n,) to use the same positions for all
            windows.

    Example:
        >>> import tensorflow as tf
        >>> tokens = tf.constant([[True, False]])
        >>> make_context_mask(tf.constant([2]), tokens, tf.range(5)).numpy().tolist()
        [[False, False, True, False, False]]
    """
    index = positions - column[:, None]
    outside = xp.shape(tokens)[1]
    index = xp.where(index < 0, outside, xp.minimum(index, outside))
    return xp.gather(xp.pad(tokens, [[0, 0], [0, 1]]), index, batch_dims=1)


INPUTS = Inputs(Text("questions", "question"), Text("contexts", "context"), ignores_others=True)


def split_inputs(x, y) -> tuple:
    """Split the inputs for `SpanQA` into questions, contexts and answers.

    Args:
        x: `(questions, contexts)`, or a list of pairs. This can also be a list of examples
            `{"question", "context", "answers"}`, or a dict or table with these columns.
        y: Optional answers.

    Returns:
        Questions and contexts as string tensors of shape (N,), and the answers or None.

    Raises:
        ValueError: If a row has no answers. See `Inputs.convert` for other errors.
    """
    x, y = convert_to_plain(x), y if isinstance(y, list) else convert_to_plain(y)
    texts = INPUTS.convert(x)
    if y is None and isinstance(x, dict):
        y = x.get("answers")
    elif y is None and has_answers(x):
        for i, example in enumerate(x):
            if "answers" not in example:
                raise ValueError(
                    f"Row {i} has no 'answers', unlike other rows. Expected an empty list for a "
                    "question without an answer."
                )
        y = [example["answers"] for example in x]
    return (*texts, y)


def list_answers(y) -> list[list[dict]]:
    """Convert the answers to a list of `{"text", "answer_start"}` per question.

    Args:
        y: The answers for each question: a dict `{"text", "answer_start"}`, a spaCy `Span`, a list
            of dicts or `Span` objects, or a dict of lists. Use None or an empty list for questions
            without an answer.

    Raises:
        ValueError: If answers are missing, or if an answer has no text or start.

    Example:
        >>> list_answers([{"text": ["a", "b"], "answer_start": [3, 7]}, None])
        [[{'text': 'a', 'answer_start': 3}, {'text': 'b', 'answer_start': 7}], []]
    """
    if y is None:
        raise ValueError(NO_LABELS)
    check_not_missing(y, none_is_answer=True)
    return [_list_answers_at(answers, i) for i, answers in enumerate(y)]


def _list_answers_at(answers, number: int) -> list[dict]:
    lists = list | tuple | np.ndarray
    if isinstance(answers, dict) and isinstance(answers.get("text"), lists):
        answers = _make_answers(answers, number)
    answers = [] if answers is None else answers
    answers = list(answers) if isinstance(answers, lists) else [answers]
    answers = [{"text": a.text, "answer_start": a.start_char} if is_span(a) else a for a in answers]
    for answer in answers:
        if (
            not isinstance(answer, dict)
            or not isinstance(answer.get("text"), str)
            or not isinstance(answer.get("answer_start"), numbers.Integral)
        ):
            raise ValueError(
                f"Example {number}: {quote(answer)} is not an answer. Expected a dict with the "
                "string text and the integer answer_start, or an empty list for a question "
                "without an answer."
            )
    return answers


def _make_answers(columns: dict, number: int) -> list[dict]:
    texts, starts = columns["text"], columns.get("answer_start")
    if np.shape(starts) != np.shape(texts):
        raise invalid(
            f"Example {number}: answer_start",
            starts,
            f"one position for each of the texts {texts!r}",
        )
    return [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=True)]


def check_answers(y, contexts: xp.Tensor) -> tuple[xp.Tensor, xp.Tensor]:
    """Check answers, and return the first answer to each question, in memory or inside `tf.data`.

    Args:
        y: The answers (see `list_answers`). Inside `tf.data`, this should be a dict of tensors
            {"text", "answer_start"}. Use shape (N,) for a single answer per question, with "" for
            no answer. Use ragged or padded tensors of shape (N, None) for several answers.
        contexts: String tensor of shape (N,).

    Returns:
        Two int32 tensors of shape (N,) with the start and end offsets for each answer, or -1 for no
        answer.

    Raises:
        ValueError: If an answer is not found at the given position in the context.
        tf.errors.InvalidArgumentError: If an answer is invalid inside `tf.data`.
    """
    as_tensors = isinstance(y, dict) and xp.is_tensor(y["text"])
    answers = _make_answer_tensors(y) if as_tensors else _make_answer_columns(y, contexts)
    index, text, start = answers[0].value_rowids(), *(column.flat_values for column in answers)
    context = xp.gather(contexts, index)
    length, size = (xp.strings.length(v, unit="UTF8_CHAR") for v in (text, context))
    begin = xp.clip_by_value(start, 0, size)
    there = xp.strings.substr(context, begin, xp.maximum(length, 10), unit="UTF8_CHAR")
    same = xp.strings.substr(context, begin, length, unit="UTF8_CHAR") == text
    start = check_each(
        start,
        (length > 0) & (start >= 0) & same,
        ": the answer ",
        text,
        " does not start at character ",
        start,
        " of its context, which continues with ",
        there,
        ".",
        lambda i: _find_answer(text.numpy()[i].decode(), context.numpy()[i].decode()),
        " Correct answer_start, or remove the example. For a question without an answer, pass an "
        "empty list.",
        unit="Example",
        index=index,
    )
    bounds = (answers[1].with_flat_values(values)[:, :1] for values in (start, start + length))
    first, stop = (values.to_tensor(-1, shape=(None, 1))[:, 0] for values in bounds)
    return first, stop


def _find_answer(text: str, context: str) -> str:
    return f" It starts at {context.index(text)}." if text and text in context else ""


def _make_answer_columns(y, contexts: xp.Tensor) -> tuple[xp.RaggedTensor, xp.RaggedTensor]:
    """Return ragged (N, None) answer texts and start offsets from lists."""
    answers = list_answers(y)
    if len(answers) != len(contexts):
        raise ValueError(
            f"Received {len(contexts)} questions, but answers for {len(answers)}. Expected a list "
            "of answers for each question."
        )
    given = [answer for row in answers for answer in row]
    starts = [min(max(int(answer["answer_start"]), -1), 2**31 - 1) for answer in given]
    texts = xp.constant([answer["text"] for answer in given], xp.string)
    counts = xp.constant([len(row) for row in answers], xp.int64)
    columns = texts, xp.constant(starts, xp.int32)
    return tuple(xp.RaggedTensor.from_row_lengths(column, counts) for column in columns)


def _make_answer_tensors(y: dict) -> tuple[xp.RaggedTensor, xp.RaggedTensor]:
    """Return ragged (N, None) answer texts and start offsets from tensors."""
    text, start = y["text"], xp.cast(y["answer_start"], xp.int32)
    if len(text.shape) == 1:
        text, start = text[:, None], start[:, None]
    text, start = (v.to_tensor() if isinstance(v, xp.RaggedTensor) else v for v in (text, start))
    text = xp.RaggedTensor.from_tensor(text, padding="")
    return text, xp.RaggedTensor.from_tensor(start, lengths=text.row_lengths())


def strip_white_space(
    contexts: xp.Tensor, start: xp.Tensor, end: xp.Tensor
) -> tuple[xp.Tensor, xp.Tensor]:
    """Strip whitespace from answers, as in `str.strip`, and return the new offsets.

    Args:
        contexts: String tensor of shape (N,).
        start: Int32 tensor of shape (N,). Start offset per answer, or -1 for no answer.
        end: Int32 tensor of shape (N,). End offset per answer, or -1 for no answer.

    Example:
        >>> import tensorflow as tf
        >>> bounds = strip_white_space(
        ...     tf.constant(["in Rome "]), tf.constant([2]), tf.constant([8]))
        >>> [bound.numpy().tolist() for bound in bounds]
        [[3], [7]]
    """
    answer = xp.strings.substr(contexts, xp.maximum(start, 0), end - start, unit="UTF8_CHAR")
    answer = xp.strings.regex_replace(answer, f"^{_WHITE_SPACE}", "")
    start = end - xp.strings.length(answer, unit="UTF8_CHAR")
    answer = xp.strings.regex_replace(answer, f"{_WHITE_SPACE}$", "")
    return start, start + xp.strings.length(answer, unit="UTF8_CHAR")


def find_beam_spans(
    outputs: xp.Tensor, columns: xp.Tensor, tokens: xp.Tensor, max_answer_length: int, n_best: int
) -> AnswerCandidates:
    """Find the best spans for each window from the n * m spans in the beam.

    Scores are log-probabilities. The score of "no answer" is its logit, which is compared to the
    score of the best span.

    Args:
        outputs: Tensor of shape (W, 1 + n m, 4), as returned from `SpanBeam`.
        columns: Int32 tensor of shape (W,). Position of the first context token.
        tokens: Boolean tensor of shape (W, P). Mask for context tokens with characters.
        max_answer_length: Integer. Maximum answer length, in tokens.
        n_best: Integer. Number of spans to return per window.

    Source: Yang et al. 2019, XLNet, the released code (squad_utils.py), which adds the
    log-probabilities. The example scripts of transformers add the probabilities instead.

    Example:
        >>> import tensorflow as tf
        >>> spans = [[0.0, 0.0, -1.5, 0.0], [2.0, 1.0, -0.1, -0.2], [1.0, 2.0, -2.0, -0.25]]
        >>> tokens = tf.ones([1, 3], tf.bool)
        >>> found = find_beam_spans(tf.constant([spans]), tf.constant([0]), tokens, 9, 1)
        >>> [field.numpy().tolist() for field in found]
        [[[-2.25]], [[1]], [[2]], [-2.25], [-1.5]]
    """
    no_answer, spans = outputs[:, 0, 2], outputs[:, 1:]
    first, last = (xp.cast(spans[:, :, i], xp.int32) for i in (0, 1))  # (W, n m)
    inside = make_context_mask(columns, tokens, first) & make_context_mask(columns, tokens, last)
    right = inside & (first <= last) & (last - first < max_answer_length)
    scores = xp.where(right, spans[:, :, 2] + spans[:, :, 3], IMPOSSIBLE_LOGIT)
    total = xp.reduce_logsumexp(scores, axis=1)
    scores = xp.pad(scores, [[0, 0], [0, n_best]], constant_values=2 * IMPOSSIBLE_LOGIT)
    best, index = xp.math.top_k(scores, n_best)
    first, last = (
        xp.gather(xp.pad(values, [[0, 0], [0, n_best]]), index, batch_dims=1)
        for values in (first, last)
    )
    return AnswerCandidates(best, first, last, total, no_answer)
