"""Search the best answers in a model's outputs, in memory and in graphs.

Comment letters: B batch, L sequence, N questions, W windows, n m spans of a beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.windows import take
from encoder_zoo.tasks.question_answering import ranking
from encoder_zoo.tasks.question_answering.answers import Candidates, context_mask, find_spans
from encoder_zoo.tasks.question_answering.beam import COLUMNS, beam_spans
from encoder_zoo.tasks.question_answering.preprocessor import Contexts, SpanQAPreprocessor
from encoder_zoo.tasks.training.inference import example_outputs, token_outputs_in_graph
from encoder_zoo.tasks.training.sources import check_preprocessor

if TYPE_CHECKING:
    from encoder_zoo.tasks.question_answering.answering import SpanAnswers


class ContextColumns(NamedTuple):
    """Positions of the context in the examples of W windows.

    Attributes:
        first: (W,) int32, the position of its first token.
        tokens: (W, P) bool, which of its tokens have characters.
        null: (W,) int32, the position of "no answer".
    """

    first: tf.Tensor
    tokens: tf.Tensor
    null: tf.Tensor


def search(
    model: SpanAnswers,
    questions: tf.Tensor,
    texts: tf.Tensor,
    top_k: int,
    max_answer_length: int,
    batch_size: int | None,
) -> ranking.Answers:
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
    wanted = top_k if top_k == 1 else top_k * ranking.SAME_CHARACTERS
    for numbers, outputs in example_outputs(model, examples, batch_size):
        chosen = ContextColumns(*(tf.gather(values, numbers) for values in columns))
        parts.append(_candidates(model, tf.constant(outputs), chosen, max_answer_length, wanted))
        order.extend(numbers)
    found = (tf.gather(tf.concat(f, 0), np.argsort(order)) for f in zip(*parts, strict=True))
    return ranking.best_answers(Candidates(*found), contexts, columns.first, top_k)


def search_in_graph(
    model: SpanAnswers, questions: tf.Tensor, texts: tf.Tensor, max_answer_length: int
) -> ranking.Answers:
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
    return ranking.best_answers(found, contexts, columns.first, 1)


def _context_columns(
    preprocessor: SpanQAPreprocessor, contexts: Contexts, examples: dict
) -> ContextColumns:
    tokens = take(contexts.has_characters, contexts.windows).to_tensor()
    first, null = preprocessor.context_column(examples), preprocessor.null_column(examples)
    return ContextColumns(first, tokens, null)


def _candidates(
    model: SpanAnswers,
    outputs: tf.Tensor,
    columns: ContextColumns,
    max_answer_length: int,
    n_best: int,
) -> Candidates:
    first, tokens, null = columns
    if model.beam:
        return beam_spans(outputs, first, tokens, max_answer_length, n_best)
    is_context = context_mask(first, tokens, tf.range(tf.shape(outputs)[2]))
    return find_spans(outputs, is_context, max_answer_length, n_best, null)


def _outputs(model: SpanAnswers, examples: dict) -> tf.Tensor:
    """Return the model's outputs for all windows, (W, 2, L) or of a beam (W, 1 + n m, 4)."""

    def outputs(inputs: dict) -> tf.Tensor:
        return model(inputs, training=False)

    if not model.beam:
        by_token = token_outputs_in_graph(
            model, lambda inputs: tf.transpose(outputs(inputs), (0, 2, 1)), examples
        )
        return tf.transpose(by_token.to_tensor(), (0, 2, 1))

    def rows(examples: dict) -> tf.Tensor:
        return tf.reshape(outputs(model.preprocessor.pad(examples)), [-1, COLUMNS])

    n, m = model.beam
    counts = tf.fill([tf.size(examples["text_index"])], tf.constant(1 + n * m, tf.int64))
    found = in_graph_batches(rows, examples, counts, COLUMNS)
    return found.to_tensor(shape=(None, 1 + n * m, COLUMNS))
