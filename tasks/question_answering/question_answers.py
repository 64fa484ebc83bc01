"""Answers to questions about contexts, based on the outputs for each window.

Comments use these letters for shapes: N questions, W windows, P tokens of a window's context, L
sequence.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.base.answers import Answers, prepares_in_numpy
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, get_text
from encoder_zoo.tasks.preprocessing.preprocessor import replace_invalid_text
from encoder_zoo.tasks.preprocessing.windows import take
from encoder_zoo.tasks.question_answering import answer_ranking
from encoder_zoo.tasks.question_answering.answer_ranking import (
    Answer,
    AnswerOptions,
    PassageAnswer,
    RankedSpans,
)
from encoder_zoo.tasks.question_answering.answers import (
    AnswerCandidates,
    Beam,
    NullThreshold,
    find_beam_spans,
    find_spans,
    make_context_mask,
    split_inputs,
)
from encoder_zoo.tasks.question_answering.span_qa_preprocessor import (
    QuestionContexts,
    SpanQAPreprocessor,
)

# Maximum number of token spans for the same character span. A character has up to 4 tokens, for
# its bytes (RoBERTa) or its decomposition (BERT). A span can start with any token from the first
# character and end with any token from the last character.
SAME_CHARACTERS = 4 * 4


class ContextColumns(NamedTuple):
    """Context positions for W windows.

    Attributes:
        first: Integer tensor of shape (W,). Position of the first context token.
        tokens: Boolean tensor of shape (W, P). Mask for context tokens with characters.
        null: Integer tensor of shape (W,). Position of "no answer".
    """

    first: xp.Tensor
    tokens: xp.Tensor
    null: xp.Tensor


@dataclasses.dataclass(frozen=True)
class QuestionAnswers(Answers):
    """The `Answers` of `SpanQA`. See `SpanQA` for the settings.

    Attributes:
        beam: Optional pair of integers.
        null_threshold: Optional float. If None, the best span will always be returned.
    """

    preprocessor_class = SpanQAPreprocessor
    methods = ("answer",)
    returns_lists = True
    beam: Beam | None = None
    null_threshold: NullThreshold | None = None

    @prepares_in_numpy
    def predict_texts(self, x: Any, batch_size: int | None = None) -> list[list[np.ndarray]]:
        examples = self.preprocessor.encode(x)
        examples.pop("labels", None)
        outputs = zip(
            examples["text_index"].numpy(),
            self.compute_unpadded_outputs(examples, batch_size, axis=None if self.beam else 1),
            strict=True,
        )
        by_question = itertools.groupby(outputs, key=lambda output: output[0])
        return [[values for _, values in windows] for _, windows in by_question]

    @overload
    def answer(
        self: Any, question: str, context: str, top_k: None = None, **options: Unpack[AnswerOptions]
    ) -> Answer: ...
    @overload
    def answer(
        self: Any, question: str, context: str, top_k: int, **options: Unpack[AnswerOptions]
    ) -> list[Answer]: ...
    @overload
    def answer(
        self: Any,
        question: str,
        context: Iterable[Any],
        top_k: None = None,
        **options: Unpack[AnswerOptions],
    ) -> PassageAnswer: ...
    @overload
    def answer(
        self: Any,
        question: str,
        context: Iterable[Any],
        top_k: int,
        **options: Unpack[AnswerOptions],
    ) -> list[PassageAnswer]: ...
    @overload
    def answer(
        self: Any,
        question: Iterable[Any],
        context: Iterable[Any],
        top_k: None = None,
        **options: Unpack[AnswerOptions],
    ) -> list[Answer]: ...
    @overload
    def answer(
        self: Any,
        question: Iterable[Any],
        context: Iterable[Any],
        top_k: int,
        **options: Unpack[AnswerOptions],
    ) -> list[list[Answer]]: ...
    @overload
    def answer(
        self: Any, question: object, context: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    @prepares_in_numpy
    @skips_missing("question", "context")
    def answer(
        self,
        question,
        context,
        top_k: PositiveInt | None = None,
        max_answer_length: PositiveInt = 30,
        null_threshold: NullThreshold | None = None,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ):
        """Find answers to questions in the given contexts.

        Args:
            question: String or list of strings. The question or questions to answer.
            context: List with a context per question, or a single context to use for all questions.
                For a single question, this can also be a list of passages. In this case, the best
                answer from all passages will be returned.
            top_k: Optional positive integer. Number of answers to return per question.
            max_answer_length: Positive integer. Maximum answer length, in tokens. Defaults to 30.
            null_threshold: Optional float. Threshold for returning "" (no answer). No answer is
                returned when the score for "no answer" exceeds the score for the best span by more
                than this threshold. 0 is a good value to start with. Use `float("inf")` to always
                answer. With a beam, this is compared to the logit for "no answer". If None, the
                threshold that `evaluate_answers` found on questions with and without answers will
                be used. If no threshold was set, the best span will always be returned.
            batch_size: Optional positive integer. Batch size, in windows. If None, 32 will be used.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            `{"text", "start", "end", "score"}` for a single question, or a list with an answer per
            question. With `top_k`, a list of answers per question, sorted by score. "start" and
            "end" are character offsets into the context, or 0 and 0 for "". The score is the
            probability among all spans in all windows. With a beam, it is the probability among the
            beam spans in each window. For passages, "passage" is added to each answer, with the
            passage index, or None for no answer. In this case, the score is the probability among
            the spans in all passages.

        Raises:
            ValueError: If a context is empty, if a question is too long, if no passages are given,
                or if `top_k` or `max_answer_length` is less than 1.

        Source: For passages, spans are ranked by unnormalized scores, as in Clark and Gardner
        2018, Simple and Effective Multi-Paragraph Reading Comprehension, section 3.2. For a beam,
        scores are log-probabilities, normalized for each window.
        """
        question, context = convert_to_plain((get_text(question), get_text(context)))
        single, several = isinstance(question, str), not isinstance(context, str)
        if single and several and not len(context):
            raise invalid("context", context, "at least one passage")
        if single:
            question = [question] * (len(context) if several else 1)
        context = context if several else [context] * len(question)
        questions, contexts, _ = split_inputs((question, context), None)
        texts = [text.decode() for text in contexts.numpy()]
        if not texts:
            return []
        count = 1 if top_k is None else top_k
        found = self.find_spans(questions, contexts, count, max_answer_length, batch_size)
        found = answer_ranking.rank_passages(found) if single and several else found
        found = self._insert_null_answers(found, null_threshold)
        answers = answer_ranking.make_answer_dicts(found, texts, count, passages=single and several)
        answers = [row[0] for row in answers] if top_k is None else answers
        return answers[0] if single else answers

    def make_answer_function(
        self, run: Callable, max_answer_length: int, null_threshold: float | None
    ) -> Callable:
        """Create the function to export. See `SpanQA.signatures`.

        Args:
            run: A function that computes outputs for examples, with shape (W, 2, L), or (W, 1 + n
                m, 4) for a beam.
            max_answer_length, null_threshold: See `answer`.
        """

        def answer(question, context):
            context = replace_invalid_text(context)
            contexts = self.preprocessor.tokenize_contexts(question, context, allow_empty=True)
            examples = self.preprocessor.make_examples(contexts)
            columns = self._find_context_columns(contexts, examples)
            found = self._find_candidates(run(examples), columns, max_answer_length, 1)
            found = answer_ranking.find_best_answers(found, contexts, columns.first, 1)
            found = self._insert_null_answers(found, null_threshold)
            start, end = found.start[:, 0], found.end[:, 0]
            score = answer_ranking.compute_answer_scores(found)[:, 0]
            text = xp.strings.substr(context, start, end - start, unit="UTF8_CHAR")
            return {"text": text, "start": start, "end": end, "score": score}

        return answer

    def find_spans(
        self,
        questions: xp.Tensor,
        texts: xp.Tensor,
        top_k: int,
        max_answer_length: int,
        batch_size: int | None,
    ) -> RankedSpans:
        """Find the `top_k` best spans for each question.

        Args:
            questions: String tensor of shape (N,).
            texts: String tensor of shape (N,). The contexts.
            top_k: Positive integer. Number of spans to return per question.
            max_answer_length: Positive integer. Maximum number of tokens per span.
            batch_size: Positive integer. Defaults to 32.
        """
        contexts = self.preprocessor.tokenize_contexts(questions, texts)
        examples = self.preprocessor.make_examples(contexts)
        columns, order, parts = self._find_context_columns(contexts, examples), [], []
        wanted = top_k if top_k == 1 else top_k * SAME_CHARACTERS
        for numbers, outputs in self.runner.run_examples(examples, batch_size):
            chosen = ContextColumns(*(xp.gather(values, numbers) for values in columns))
            outputs = xp.constant(outputs)
            parts.append(self._find_candidates(outputs, chosen, max_answer_length, wanted))
            order.extend(numbers)
        found = (
            xp.gather(xp.concat(field, 0), np.argsort(order)) for field in zip(*parts, strict=True)
        )
        return answer_ranking.find_best_answers(
            AnswerCandidates(*found), contexts, columns.first, top_k
        )

    def _insert_null_answers(self, found: RankedSpans, given: float | None) -> RankedSpans:
        """Insert "no answer", with the given null threshold or the threshold in the settings."""
        found = answer_ranking.add_best_score(found) if self.beam else found
        threshold = self.null_threshold if given is None else given
        threshold = None if threshold == float("inf") else threshold
        return answer_ranking.insert_null_answers(found, threshold)

    def _find_context_columns(self, contexts: QuestionContexts, examples: dict) -> ContextColumns:
        tokens = take(contexts.has_characters, contexts.windows).to_tensor()
        first = self.preprocessor.find_context_start(examples)
        return ContextColumns(first, tokens, self.preprocessor.find_null_position(examples))

    def _find_candidates(
        self, outputs, columns: ContextColumns, max_answer_length: int, n_best: int
    ) -> AnswerCandidates:
        first, tokens, null = columns
        if self.beam:
            return find_beam_spans(outputs, first, tokens, max_answer_length, n_best)
        is_context = make_context_mask(first, tokens, xp.range(xp.shape(outputs)[2]))
        return find_spans(outputs, is_context, max_answer_length, n_best, null)
