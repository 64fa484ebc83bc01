"""Rank the best spans of windows to the best answers of questions.

Comment letters: N questions, W windows, K spans of all windows, n answers of a question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.tasks.base.explanation import Attributions
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.windows import take
from encoder_zoo.tasks.question_answering.answers import (
    COLUMNS,
    IMPOSSIBLE,
    Candidates,
    beam_spans,
    context_mask,
    find_spans,
)
from encoder_zoo.tasks.question_answering.span_qa_preprocessor import Contexts, SpanQAPreprocessor
from encoder_zoo.tasks.training.inference import example_outputs, token_outputs_in_graph
from encoder_zoo.tasks.training.sources import check_preprocessor

if TYPE_CHECKING:
    from encoder_zoo.tasks.question_answering.span_qa import SpanQA

# The most spans of tokens that are one span of characters. A character has 4 tokens at most: its
# bytes (RoBERTa) or its decomposition (BERT). Any token of the first may begin the span, any of the
# last may end it.
SAME_CHARACTERS = 4 * 4


class Answer(TypedDict):
    """An answer, characters `start` to `end` of its context; "" from 0 to 0 if there is none."""

    text: str
    start: int
    end: int
    score: float


class AnswerExplanation(Answer, Attributions):
    """An answer, and what each word of question and context adds to the sum of its two logits.

    With a beam the sum is of two log-probabilities, and of no answer its own logit.
    """


class PassageAnswer(Answer):
    """An answer in one of several passages; `passage` is its index, None for no answer."""

    passage: int | None


class AnswerOptions(TypedDict, total=False):
    """Options of `SpanQA.answer`."""

    max_answer_length: int
    null_threshold: float | None
    batch_size: int | None


class Answers(NamedTuple):
    """The best answers of every question, the best first.

    Attributes:
        start: (N, n) int32, the first character in the context.
        end: (N, n) int32, the character after the last.
        score: (N, n) float32, sum of the two logits, of a beam of the two log-probabilities;
            `IMPOSSIBLE` or less where there are fewer.
        total: (N,) float32, log of the sum of all spans' exponentiated scores, in all windows.
        null: (N,) float32, score of "no answer": the lowest of the windows'; with a beam see
            `null_beside_best`.
        context: (N, n) int32, the number of the answer's context; -1 of "no answer".
    """

    start: array_ops.Tensor
    end: array_ops.Tensor
    score: array_ops.Tensor
    total: array_ops.Tensor
    null: array_ops.Tensor
    context: array_ops.Tensor


def best_answers(
    found: Candidates, contexts: Contexts, columns: array_ops.Tensor, n_best: int
) -> Answers:
    """Return the best answers of every question; a span in two windows counts once.

    Args:
        found: the windows' best spans.
        contexts: of the windows.
        columns: (W,) int32, the position in a window's example at which the context begins.
        n_best: n.
    """
    example, count = contexts.windows.example, contexts.ids.nrows()
    spans, scores = _distinct(*_spans(found, contexts, columns))

    def by_question(values, examples, filler):
        filler = array_ops.cast(filler, values.dtype)
        rows = array_ops.RaggedTensor.from_value_rowids(values, examples, count).to_tensor(filler)
        return array_ops.pad(
            rows, [[0, 0], [0, n_best]], constant_values=filler
        )  # there may be fewer

    question, *characters = array_ops.unstack(spans, 3, axis=1)
    best, index = array_ops.math.top_k(by_question(scores, question, 2 * IMPOSSIBLE), n_best)
    bounds = (
        by_question(array_ops.cast(offset, array_ops.int32), question, 0) for offset in characters
    )
    start, end = (array_ops.gather(values, index, batch_dims=1) for values in bounds)
    total = array_ops.reduce_logsumexp(by_question(found.total, example, 2 * IMPOSSIBLE), axis=1)
    null = array_ops.reduce_min(by_question(found.null, example, float("inf")), axis=1)
    context = array_ops.broadcast_to(
        array_ops.range(array_ops.shape(best)[0])[:, None], array_ops.shape(best)
    )
    return Answers(start, end, best, total, null, context)


def _spans(
    found: Candidates, contexts: Contexts, columns: array_ops.Tensor
) -> tuple[array_ops.Tensor, array_ops.Tensor]:
    """Return (K, 3) int64 question, first character and the one after the last; (K,) their
    scores."""
    windows = contexts.windows
    index = array_ops.where(found.score > IMPOSSIBLE / 2)  # (K, 2)
    row_starts = array_ops.gather(
        array_ops.cast(contexts.ids.row_starts(), array_ops.int64), windows.example
    )
    shift = row_starts + windows.begin - array_ops.cast(columns, array_ops.int64)  # (W,)
    first, last = (
        array_ops.cast(array_ops.gather_nd(column, index), array_ops.int64)
        + array_ops.gather(shift, index[:, 0])
        for column in (found.start, found.end)
    )
    start = array_ops.gather(contexts.starts.flat_values, first)
    end = array_ops.gather(contexts.ends.flat_values, last)
    question = array_ops.gather(windows.example, index[:, 0])
    characters = array_ops.cast(array_ops.stack([start, end], axis=1), array_ops.int64)
    return array_ops.concat([question[:, None], characters], 1), array_ops.gather_nd(
        found.score, index
    )


def _distinct(
    spans: array_ops.Tensor, scores: array_ops.Tensor
) -> tuple[array_ops.Tensor, array_ops.Tensor]:
    """Return the spans without repeats, in order, each with its best score."""
    with array_ops.device("CPU"):  # GPUs compare single numbers only
        spans, number = array_ops.raw_ops.UniqueV2(x=spans, axis=[0])
    return spans, array_ops.math.unsorted_segment_max(scores, number, array_ops.shape(spans)[0])


def over_passages(found: Answers) -> Answers:
    """Return the best answers of one question in N passages.

    Args:
        found: of the question in every passage.

    Returns:
        As many answers, as of one question.

    Example:
        >>> import tensorflow as tf
        >>> scores, zeros = tf.constant([[1.0], [5.0]]), tf.zeros([2, 1], tf.int32)
        >>> context = tf.constant([[0], [1]])
        >>> found = Answers(zeros, zeros, scores, scores[:, 0], tf.zeros([2]), context)
        >>> over_passages(found).context.numpy().tolist()
        [[1]]
    """
    score, index = array_ops.math.top_k(
        array_ops.reshape(found.score, [1, -1]), found.score.shape[1]
    )
    start, end, context = (
        array_ops.gather(array_ops.reshape(values, [1, -1]), index, batch_dims=1)
        for values in (found.start, found.end, found.context)
    )
    total = array_ops.reduce_logsumexp(found.total, keepdims=True)
    null = array_ops.reduce_min(found.null, keepdims=True)
    return Answers(start, end, score, total, null, context)


def null_beside_best(found: Answers) -> Answers:
    """Return answers with the score of "no answer", of which a beam tells how much it has more.

    Args:
        found: of questions, with a `null` that is more than the best span's score by so much.

    Example:
        >>> import tensorflow as tf
        >>> one, score = tf.constant([[1]]), tf.constant([[-5.0]])
        >>> found = Answers(one, one + 2, score, score[0], tf.constant([2.0]), one - 1)
        >>> null_beside_best(found).null.numpy().tolist()
        [-3.0]
    """
    return found._replace(null=found.score[:, 0] + found.null)


def insert_null_answers(found: Answers, null_threshold: float | None) -> Answers:
    """Return the answers with "no answer", 0 to 0, among them if it is allowed.

    Args:
        found: of questions.
        null_threshold: None leaves "no answer" out; else it comes before the spans whose score
            does not reach the null score less this.

    Returns:
        As many answers, or one more, with `total` that of all that is allowed.

    Example:
        >>> import tensorflow as tf
        >>> one = tf.constant([[1]])
        >>> score = tf.constant([[5.0]])
        >>> found = Answers(one, one + 2, score, score[0], tf.zeros([1]), one - 1)
        >>> [insert_null_answers(found, t).end.numpy().tolist() for t in (None, 0.0, -9.0)]
        [[[3]], [[3, 0]], [[0, 3]]]
    """
    if null_threshold is None:
        return found
    null = found.null[:, None]
    # The differences that `evaluate_answers` compares: others would be rounded otherwise.
    ahead = array_ops.fill(array_ops.shape(null), array_ops.constant(-null_threshold, null.dtype))
    rank = array_ops.concat([found.score - null, ahead], axis=1)
    order = array_ops.argsort(rank, axis=1, direction="DESCENDING", stable=True)
    start, end = (array_ops.pad(values, [[0, 0], [0, 1]]) for values in (found.start, found.end))
    context = array_ops.pad(found.context, [[0, 0], [0, 1]], constant_values=-1)
    fields = start, end, array_ops.concat([found.score, null], axis=1), context
    start, end, score, context = (array_ops.gather(f, order, batch_dims=1) for f in fields)
    total = array_ops.reduce_logsumexp(array_ops.stack([found.total, found.null], axis=1), axis=1)
    return Answers(start, end, score, total, found.null, context)


def answer_scores(found: Answers) -> array_ops.Tensor:
    """Return (N, n) float32: every answer's share among all allowed ones; 0 if there is none."""
    share = array_ops.exp(found.score - found.total[:, None])
    return array_ops.where(found.score > IMPOSSIBLE / 2, share, 0.0)


def answer_dicts(
    found: Answers, texts: list[str], count: int, passages: bool = False
) -> list[list[Answer]] | list[list[PassageAnswer]]:
    """Return for every question its answers as `{"text", "start", "end", "score"}`.

    Args:
        found: N questions' answers.
        texts: the contexts.
        count: the most answers of a question.
        passages: whether the answers tell also which "passage" they are from.

    Returns:
        N lists of at most `count` answers, the best first. Where a beam found no span in the
        context, the answer is "", with a score of 0.

    Example:
        >>> import tensorflow as tf
        >>> one, score = tf.constant([[1]]), tf.constant([[5.0]])
        >>> found = Answers(one, one + 2, score, score[0], tf.zeros([1]), one - 1)
        >>> answer_dicts(found, ["a cat"], 1)
        [[{'text': ' c', 'start': 1, 'end': 3, 'score': 1.0}]]
    """
    nothing = {"text": "", "start": 0, "end": 0, "score": 0.0}
    nothing |= {"passage": None} if passages else {}
    exists = found.score > IMPOSSIBLE / 2
    fields = (found.start, found.end, answer_scores(found), found.context, exists)
    return [
        [
            {"text": texts[context][start:end], "start": start, "end": end, "score": score}
            | ({"passage": context if context >= 0 else None} if passages else {})
            for start, end, score, context, exists in zip(*row, strict=True)
            if exists
        ][:count]
        or [nothing]
        for row in zip(*(field.numpy().tolist() for field in fields), strict=True)
    ]


class ContextColumns(NamedTuple):
    """Positions of the context in the examples of W windows.

    Attributes:
        first: (W,) int32, the position of its first token.
        tokens: (W, P) bool, which of its tokens have characters.
        null: (W,) int32, the position of "no answer".
    """

    first: array_ops.Tensor
    tokens: array_ops.Tensor
    null: array_ops.Tensor


def search(
    model: SpanQA,
    questions: array_ops.Tensor,
    texts: array_ops.Tensor,
    top_k: int,
    max_answer_length: int,
    batch_size: int | None,
) -> Answers:
    """Return the best answers of every question.

    Args:
        model: the task.
        questions: (N,) strings.
        texts: (N,) strings, the contexts.
        top_k: how many answers.
        max_answer_length: in tokens.
        batch_size: None for the default.

    Returns:
        n = top_k answers of each question, see `Answers`: (N, n) and (N,).

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo import SpanQA
        >>> model = SpanQA.from_preset("bert_nano_en_uncased")
        >>> questions, texts = tf.constant(["Who sings?"]), tf.constant(["Anna sings."])
        >>> found = search(model, questions, texts, 2, 30, None)
        >>> tuple(found.start.shape), tuple(found.null.shape)
        ((1, 2), (1,))
    """
    check_preprocessor(model, (questions, texts))
    contexts = model.preprocessor.contexts(questions, texts)
    examples = model.preprocessor.examples(contexts)
    columns, order, parts = _context_columns(model.preprocessor, contexts, examples), [], []
    wanted = top_k if top_k == 1 else top_k * SAME_CHARACTERS
    for numbers, outputs in example_outputs(model, examples, batch_size):
        chosen = ContextColumns(*(array_ops.gather(values, numbers) for values in columns))
        parts.append(
            _candidates(model, array_ops.constant(outputs), chosen, max_answer_length, wanted)
        )
        order.extend(numbers)
    found = (
        array_ops.gather(array_ops.concat(f, 0), np.argsort(order))
        for f in zip(*parts, strict=True)
    )
    return best_answers(Candidates(*found), contexts, columns.first, top_k)


def search_in_graph(
    model: SpanQA, questions: array_ops.Tensor, texts: array_ops.Tensor, max_answer_length: int
) -> Answers:
    """Return the best answer of every question, inside `tf.function`; contexts may be empty.

    Args:
        model, questions, texts, max_answer_length: as for `search`.

    Returns:
        One answer of each question, see `Answers`: (N, 1) and (N,).

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo import SpanQA
        >>> model = SpanQA.from_preset("bert_nano_en_uncased")
        >>> found = search_in_graph(model, tf.constant(["Who sings?"]), tf.constant([""]), 30)
        >>> tuple(found.start.shape), tuple(found.null.shape)
        ((1, 1), (1,))
    """
    contexts = model.preprocessor.contexts(questions, texts, allow_empty=True)
    examples = model.preprocessor.examples(contexts)
    columns = _context_columns(model.preprocessor, contexts, examples)
    found = _candidates(model, _outputs(model, examples), columns, max_answer_length, 1)
    return best_answers(found, contexts, columns.first, 1)


def _context_columns(
    preprocessor: SpanQAPreprocessor, contexts: Contexts, examples: dict
) -> ContextColumns:
    tokens = take(contexts.has_characters, contexts.windows).to_tensor()
    first, null = preprocessor.context_column(examples), preprocessor.null_column(examples)
    return ContextColumns(first, tokens, null)


def _candidates(
    model: SpanQA,
    outputs: array_ops.Tensor,
    columns: ContextColumns,
    max_answer_length: int,
    n_best: int,
) -> Candidates:
    first, tokens, null = columns
    if model.beam:
        return beam_spans(outputs, first, tokens, max_answer_length, n_best)
    is_context = context_mask(first, tokens, array_ops.range(array_ops.shape(outputs)[2]))
    return find_spans(outputs, is_context, max_answer_length, n_best, null)


def _outputs(model: SpanQA, examples: dict) -> array_ops.Tensor:
    """Return the model's outputs for all windows, (W, 2, L) or of a beam (W, 1 + n m, 4)."""

    def outputs(inputs: dict) -> array_ops.Tensor:
        return model(inputs, training=False)

    if not model.beam:
        by_token = token_outputs_in_graph(
            model, lambda inputs: array_ops.transpose(outputs(inputs), (0, 2, 1)), examples
        )
        return array_ops.transpose(by_token.to_tensor(), (0, 2, 1))

    def rows(examples: dict) -> array_ops.Tensor:
        return array_ops.reshape(outputs(model.preprocessor.pad(examples)), [-1, COLUMNS])

    n, m = model.beam
    counts = array_ops.fill(
        [array_ops.size(examples["text_index"])], array_ops.constant(1 + n * m, array_ops.int64)
    )
    found = in_graph_batches(rows, examples, counts, COLUMNS)
    return found.to_tensor(shape=(None, 1 + n * m, COLUMNS))
