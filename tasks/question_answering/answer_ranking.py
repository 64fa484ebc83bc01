"""Rank the best spans from all windows to find the best answers for each question.

Comments use these letters for shapes: N questions, W windows, K spans of all windows, n answers of
a question.
"""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from encoder_zoo.common.lazy import xp
from encoder_zoo.tasks.base.explanation import Attributions
from encoder_zoo.tasks.question_answering.answers import IMPOSSIBLE_LOGIT, AnswerCandidates
from encoder_zoo.tasks.question_answering.span_qa_preprocessor import QuestionContexts


class Answer(TypedDict):
    """An answer with start and end offsets into the context, or "" with 0 and 0 for no answer."""

    text: str
    start: int
    end: int
    score: float


class AnswerExplanation(Answer, Attributions):
    """An answer, with the contribution of each word to the sum of the two answer logits.

    With a beam, this is the sum of two log-probabilities. For no answer, the "no answer" logit is
    used.
    """


class PassageAnswer(Answer):
    """An answer from several passages. `passage` is the passage index, or None for no answer."""

    passage: int | None


class AnswerOptions(TypedDict, total=False):
    """Options for `SpanQA.answer`."""

    max_answer_length: int
    null_threshold: float | None
    batch_size: int | None


class RankedSpans(NamedTuple):
    """The best answers for each question, sorted by score.

    Attributes:
        start: Int32 tensor of shape (N, n). Start offset into the context.
        end: Int32 tensor of shape (N, n). End offset into the context.
        score: Float32 tensor of shape (N, n). Sum of the start logit and the end logit, or of the
            two log-probabilities for a beam. If fewer answers were found, the remaining scores are
            `IMPOSSIBLE_LOGIT` or less.
        total: Float32 tensor of shape (N,). Log-sum-exp over all span scores in all windows.
        null: Float32 tensor of shape (N,). Score for "no answer", as the minimum over all windows.
            For a beam, see `add_best_score`.
        context: Int32 tensor of shape (N, n). Context index for each answer, or -1 for "no answer".
    """

    start: xp.Tensor
    end: xp.Tensor
    score: xp.Tensor
    total: xp.Tensor
    null: xp.Tensor
    context: xp.Tensor


def find_best_answers(
    found: AnswerCandidates, contexts: QuestionContexts, columns: xp.Tensor, n_best: int
) -> RankedSpans:
    """Return the best answers to each question. Spans found in two windows are only counted once.

    Args:
        found: `AnswerCandidates`. The best spans per window.
        contexts: `QuestionContexts`. The contexts for all windows.
        columns: Int32 tensor of shape (W,). Position of the first context token.
        n_best: Integer. Number of spans n to return.
    """
    example = contexts.windows.example
    spans, scores = _remove_duplicates(*_collect_spans(found, contexts, columns))
    question, *offsets = xp.unstack(spans, 3, axis=1)
    index = _find_best_in_groups(scores, question, contexts.ids.nrows(), n_best)

    def get_fields(values, filler):
        filler = xp.constant([filler], values.dtype)
        return xp.gather(xp.concat([values, filler], 0), index)

    start, end = (get_fields(xp.cast(offset, xp.int32), 0) for offset in offsets)
    best = get_fields(scores, 2 * IMPOSSIBLE_LOGIT)
    most = xp.math.segment_max(found.total, example)
    total = xp.exp(found.total - xp.gather(most, example))
    total = most + xp.math.log(xp.math.segment_sum(total, example))
    null = xp.math.segment_min(found.null, example)
    context = xp.broadcast_to(xp.range(xp.shape(best)[0])[:, None], xp.shape(best))
    return RankedSpans(start, end, best, total, null, context)


def _find_best_in_groups(scores: xp.Tensor, group: xp.Tensor, count: int, n_best: int) -> xp.Tensor:
    """Return the indices (N, n) of the best scores of each group. Missing scores have the index K.

    A table with one row per group would be as wide as the largest group.

    Args:
        scores: Float32 tensor of shape (K,).
        group: Int64 tensor of shape (K,). Sorted group index per score.
        count: Integer. Number of groups N.
        n_best: Integer. Number of indices n to return.
    """
    order = xp.argsort(scores, direction="DESCENDING", stable=True)
    order = xp.gather(order, xp.argsort(xp.gather(group, order), stable=True))
    bounds = xp.searchsorted(group, xp.range(xp.cast(count, group.dtype) + 1))
    rank = bounds[:-1, None] + xp.range(n_best)  # (N, n)
    order = xp.concat([order, xp.shape(scores)], 0)
    return xp.gather(order, xp.where(rank < bounds[1:, None], rank, xp.size(scores)))


def _collect_spans(
    found: AnswerCandidates, contexts: QuestionContexts, columns: xp.Tensor
) -> tuple[xp.Tensor, xp.Tensor]:
    """Return the question, start and end of each span, int64 (K, 3), and the span scores (K,)."""
    windows = contexts.windows
    index = xp.where(found.score > IMPOSSIBLE_LOGIT / 2)  # (K, 2)
    row_starts = xp.gather(xp.cast(contexts.ids.row_starts(), xp.int64), windows.example)
    shift = row_starts + windows.begin - xp.cast(columns, xp.int64)  # (W,)
    first, last = (
        xp.cast(xp.gather_nd(column, index), xp.int64) + xp.gather(shift, index[:, 0])
        for column in (found.start, found.end)
    )
    start = xp.gather(contexts.starts.flat_values, first)
    end = xp.gather(contexts.ends.flat_values, last)
    question = xp.gather(windows.example, index[:, 0])
    characters = xp.cast(xp.stack([start, end], axis=1), xp.int64)
    return xp.concat([question[:, None], characters], 1), xp.gather_nd(found.score, index)


def _remove_duplicates(spans: xp.Tensor, scores: xp.Tensor) -> tuple[xp.Tensor, xp.Tensor]:
    """Remove duplicate spans and return the best score for each span, in the same order."""
    with xp.device("CPU"):  # GPUs compare single numbers only
        spans, number = xp.raw_ops.UniqueV2(x=spans, axis=[0])
    return spans, xp.math.unsorted_segment_max(scores, number, xp.shape(spans)[0])


def rank_passages(found: RankedSpans) -> RankedSpans:
    """Return the best answers to a single question over N passages.

    Args:
        found: `RankedSpans`. The answers found in each passage.

    Returns:
        `RankedSpans` for a single question, with the same number of answers.

    Example:
        >>> import tensorflow as tf
        >>> scores, zeros = tf.constant([[1.0], [5.0]]), tf.zeros([2, 1], tf.int32)
        >>> context = tf.constant([[0], [1]])
        >>> found = RankedSpans(zeros, zeros, scores, scores[:, 0], tf.zeros([2]), context)
        >>> rank_passages(found).context.numpy().tolist()
        [[1]]
    """
    score, index = xp.math.top_k(xp.reshape(found.score, [1, -1]), found.score.shape[1])
    start, end, context = (
        xp.gather(xp.reshape(values, [1, -1]), index, batch_dims=1)
        for values in (found.start, found.end, found.context)
    )
    total = xp.reduce_logsumexp(found.total, keepdims=True)
    null = xp.reduce_min(found.null, keepdims=True)
    return RankedSpans(start, end, score, total, null, context)


def add_best_score(found: RankedSpans) -> RankedSpans:
    """Add the score of the best span to the relative "no answer" score from a beam.

    Args:
        found: `RankedSpans`, with `null` relative to the score of the best span.

    Example:
        >>> import tensorflow as tf
        >>> one, score = tf.constant([[1]]), tf.constant([[-5.0]])
        >>> found = RankedSpans(one, one + 2, score, score[0], tf.constant([2.0]), one - 1)
        >>> add_best_score(found).null.numpy().tolist()
        [-3.0]
    """
    return found._replace(null=found.score[:, 0] + found.null)


def insert_null_answers(found: RankedSpans, null_threshold: float | None) -> RankedSpans:
    """Insert "no answer" (with offsets 0 and 0) into the answers, if allowed.

    Args:
        found: `RankedSpans`. The answers for each question.
        null_threshold: Optional float. If given, "no answer" will be placed before all spans
            scoring lower than the null score minus this threshold. If None, "no answer" will not be
            added.

    Returns:
        `RankedSpans` with the same number of answers, or with an additional answer. In the second
        case, `total` also includes "no answer".

    Example:
        >>> import tensorflow as tf
        >>> one = tf.constant([[1]])
        >>> score = tf.constant([[5.0]])
        >>> found = RankedSpans(one, one + 2, score, score[0], tf.zeros([1]), one - 1)
        >>> [insert_null_answers(found, t).end.numpy().tolist() for t in (None, 0.0, -9.0)]
        [[[3]], [[3, 0]], [[0, 3]]]
    """
    if null_threshold is None:
        return found
    null = found.null[:, None]
    # The same differences as in `evaluate_answers`, so that rounding is the same.
    ahead = xp.fill(xp.shape(null), xp.constant(-null_threshold, null.dtype))
    rank = xp.concat([found.score - null, ahead], axis=1)
    order = xp.argsort(rank, axis=1, direction="DESCENDING", stable=True)
    start, end = (xp.pad(values, [[0, 0], [0, 1]]) for values in (found.start, found.end))
    context = xp.pad(found.context, [[0, 0], [0, 1]], constant_values=-1)
    fields = start, end, xp.concat([found.score, null], axis=1), context
    start, end, score, context = (xp.gather(f, order, batch_dims=1) for f in fields)
    total = xp.reduce_logsumexp(xp.stack([found.total, found.null], axis=1), axis=1)
    return RankedSpans(start, end, score, total, found.null, context)


def compute_answer_scores(found: RankedSpans) -> xp.Tensor:
    """Compute the probability (N, n) of each answer among the allowed answers, or 0 for no span."""
    share = xp.exp(found.score - found.total[:, None])
    return xp.where(found.score > IMPOSSIBLE_LOGIT / 2, share, 0.0)


def make_answer_dicts(
    found: RankedSpans, texts: list[str], count: int, passages: bool = False
) -> list[list[Answer]] | list[list[PassageAnswer]]:
    """Convert answers to lists of `{"text", "start", "end", "score"}` per question.

    Args:
        found: `RankedSpans`. The answers for N questions.
        texts: The contexts.
        count: Integer. Maximum number of answers per question.
        passages: Boolean. Whether to add the "passage" index to each answer.

    Returns:
        N lists with up to `count` answers, sorted by score. If a beam contains no span in the
        context, the list contains "" with a score of 0.

    Example:
        >>> import tensorflow as tf
        >>> one, score = tf.constant([[1]]), tf.constant([[5.0]])
        >>> found = RankedSpans(one, one + 2, score, score[0], tf.zeros([1]), one - 1)
        >>> make_answer_dicts(found, ["a cat"], 1)
        [[{'text': ' c', 'start': 1, 'end': 3, 'score': 1.0}]]
    """
    nothing = {"text": "", "start": 0, "end": 0, "score": 0.0}
    nothing |= {"passage": None} if passages else {}
    exists = found.score > IMPOSSIBLE_LOGIT / 2
    fields = (found.start, found.end, compute_answer_scores(found), found.context, exists)
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
