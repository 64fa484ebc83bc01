"""Answers of a model that finds spans of contexts, and their evaluation.

Comment letters: B batch, L sequence, N questions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.explanation.words import Method
from encoder_zoo.tasks.preprocessing.columns import plain
from encoder_zoo.tasks.preprocessing.preprocessor import as_valid_text
from encoder_zoo.tasks.preprocessing.spacy_docs import text_of
from encoder_zoo.tasks.question_answering import ranking
from encoder_zoo.tasks.question_answering.answers import (
    NullThreshold,
    answer_lists,
    split_examples,
)
from encoder_zoo.tasks.question_answering.explaining import AnswerExplanation, explain_answers
from encoder_zoo.tasks.question_answering.ranking import Answer, PassageAnswer
from encoder_zoo.tasks.question_answering.searching import search, search_in_graph
from encoder_zoo.tasks.question_answering.squad import squad_scores, squad_v2_scores
from encoder_zoo.tasks.training.inference import unpadded_outputs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from encoder_zoo.tasks.question_answering.ranking import AnswerOptions


class SpanAnswers(Task):
    """Base of `SpanQA`: its answers.

    Attributes:
        null_threshold, beam: see `SpanQA`.
    """

    null_threshold: NullThreshold | None
    beam: tuple[int, int] | None

    def _predict_texts(self, x, batch_size, predict) -> list[list[np.ndarray]]:
        examples = self.preprocess(x)
        examples.pop("labels", None)
        outputs = zip(
            examples["text_index"].numpy(),
            unpadded_outputs(self, examples, batch_size, axis=None if self.beam else 1),
            strict=True,
        )
        by_question = itertools.groupby(outputs, key=lambda output: output[0])
        return [[values for _, values in windows] for _, windows in by_question]

    @overload
    def answer(
        self, question: str, context: str, top_k: None = None, **options: Unpack[AnswerOptions]
    ) -> Answer: ...
    @overload
    def answer(
        self, question: str, context: str, top_k: int, **options: Unpack[AnswerOptions]
    ) -> list[Answer]: ...
    @overload
    def answer(
        self,
        question: str,
        context: Iterable[Any],
        top_k: None = None,
        **options: Unpack[AnswerOptions],
    ) -> PassageAnswer: ...
    @overload
    def answer(
        self, question: str, context: Iterable[Any], top_k: int, **options: Unpack[AnswerOptions]
    ) -> list[PassageAnswer]: ...
    @overload
    def answer(
        self,
        question: Iterable[Any],
        context: Iterable[Any],
        top_k: None = None,
        **options: Unpack[AnswerOptions],
    ) -> list[Answer]: ...
    @overload
    def answer(
        self,
        question: Iterable[Any],
        context: Iterable[Any],
        top_k: int,
        **options: Unpack[AnswerOptions],
    ) -> list[list[Answer]]: ...
    @validate_arguments
    @reads_weights
    def answer(
        self,
        question,
        context,
        top_k: PositiveInt | None = None,
        max_answer_length: PositiveInt = 30,
        null_threshold: NullThreshold | None = None,
        batch_size: PositiveInt | None = None,
    ):
        """Return the answers that the contexts give.

        Args:
            question: a question, or a list of them.
            context: as many contexts, or one that all the questions are about; or, for a single
                question, a list of passages, of which the best answer is searched.
            top_k: how many answers for each question.
            max_answer_length: in tokens.
            null_threshold: "" (no answer) is returned where the score of no answer exceeds the
                best span's by more than this; 0 is a good start, `float("inf")` always answers.
                None is the best one that `evaluate_answers` found on questions with and without an
                answer, and before that always answers. With a beam it is compared to the logit of
                "no answer".
            batch_size: default 32.

        Returns:
            `{"text", "start", "end", "score"}` for a single question, a list of such for a list;
            with `top_k` a list of them for each question, the best first. Start and end count the
            characters of the caller's context; no answer is "" from 0 to 0. The score is the
            answer's share among all spans of all windows, with a beam among those that it found
            in each window. Of passages an answer has also "passage", the index of its passage,
            None for no answer; the share is among the spans of all passages.

        Raises:
            ValueError: "Example 3: the context is empty.", "Example 3: the question has ...",
                "top_k is 0. Expected ...", "max_answer_length is 0. Expected ...", "Expected at
                least one passage. ..."

        Source: of passages, Clark and Gardner 2018, Simple and Effective Multi-Paragraph Reading
        Comprehension, section 3.2: their spans are ranked by scores that were not normalized. Those
        of a beam are log-probabilities, normalized in each window.
        """
        question, context = plain(text_of(question)), plain(text_of(context))
        single, several = isinstance(question, str), not isinstance(context, str)
        if single and several and not len(context):
            raise ValueError("Expected at least one passage. Received: none.")
        if single:
            question = [question] * (len(context) if several else 1)
        context = context if several else [context] * len(question)
        questions, contexts, _ = split_examples((question, context), None)
        texts = [text.decode() for text in contexts.numpy()]
        if not texts:
            return []
        count = 1 if top_k is None else top_k
        found = search(self, questions, contexts, count, max_answer_length, batch_size)
        found = ranking.over_passages(found) if single and several else found
        found = ranking.null_beside_best(found) if self.beam else found
        found = ranking.insert_null_answers(found, self._threshold(null_threshold))
        answers = ranking.answer_dicts(found, texts, count, passages=single and several)
        answers = [row[0] for row in answers] if top_k is None else answers
        return answers[0] if single else answers

    @overload
    def explain(
        self,
        question: str,
        context: str,
        method: Method = "integrated_gradients",
        **options: Unpack[AnswerOptions],
    ) -> AnswerExplanation: ...
    @overload
    def explain(
        self,
        question: Iterable[Any],
        context: Iterable[Any],
        method: Method = "integrated_gradients",
        **options: Unpack[AnswerOptions],
    ) -> list[AnswerExplanation]: ...
    @validate_arguments
    @reads_weights
    def explain(
        self,
        question,
        context,
        method: Method = "integrated_gradients",
        max_answer_length: PositiveInt = 30,
        null_threshold: NullThreshold | None = None,
        batch_size: PositiveInt | None = None,
    ):
        """Return the answers that the contexts give, and which words speak for each of them.

        `ez.display.explanation` draws the answer.

        Args:
            question: a question, or a list of them.
            context: as many contexts, or one that all the questions are about.
            method: as for `SequenceClassifier.explain`.
            max_answer_length: as for `answer`.
            null_threshold: as for `answer`.
            batch_size: how many gradients are computed at once; default 32.

        Returns:
            For a question its answer, as of `answer`, with "texts", "words", "logit" and "baseline"
            as of `SequenceClassifier.explain`; the texts are the question and the context. The
            logit is the sum of those of the answer's first and last token; with a beam the sum of
            their log-probabilities, and of no answer its own logit. Of a context in several
            windows the words are those of the answer's window. For a list a list of such.

        Raises:
            ValueError: "explain takes one context for a question. ..."

        Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, section 3.
        """
        question, context = plain(text_of(question)), plain(text_of(context))
        single, several = isinstance(question, str), not isinstance(context, str)
        if single and several:
            raise ValueError(
                "explain takes one context for a question. Give the passage of its answer: "
                "explain(question, passages[answer['passage']])."
            )
        questions = [question] if single else question
        contexts = context if several else [context] * len(questions)
        options = None, max_answer_length, null_threshold, batch_size
        answers = self.answer(questions, contexts, *options)
        found = explain_answers(self, questions, contexts, answers, method, batch_size)
        return found[0] if single else found

    def _threshold(self, given: float | None) -> float | None:
        """Return the given null threshold, or the stored one; None always answers."""
        threshold = self.null_threshold if given is None else given
        return None if threshold == float("inf") else threshold

    @validate_arguments
    @reads_weights
    def evaluate_answers(
        self,
        x: object,
        y: object = None,
        max_answer_length: PositiveInt = 30,
        null_threshold: NullThreshold | None = None,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Compute exact match and F1 of the answers in percent, as SQuAD's official scripts do.

        Args:
            x: as for `fit`, in memory.
            y: as for `fit`; all answers of a question count, the best of them.
            max_answer_length: in tokens.
            null_threshold: as for `answer`. With questions without an answer, None is the stored
                threshold; if there is none, it is 0, and the threshold with the best F1 is stored
                for `answer`, exports and the preset, until the next `fit`.
            batch_size: default 32.

        Returns:
            `{"exact_match", "f1", "total"}` where every question has an answer (v1.1); else those
            of `squad_v2_scores`, in which the `best_..._thresh` are for `null_threshold`.

        Raises:
            ValueError: "The answers are missing. ...", "Expected at least one question. ..."
        """
        questions, contexts, answers = split_examples(x, y)
        texts = [text.decode() for text in contexts.numpy()]
        if not texts:
            raise ValueError("Expected at least one question. Received: none.")
        right = [[a["text"] for a in given] for given in answer_lists(answers)]
        if len(right) != len(texts):
            raise ValueError(f"Received {len(texts)} questions, but answers of {len(right)}.")
        found = search(self, questions, contexts, 1, max_answer_length, batch_size)
        found = ranking.null_beside_best(found) if self.beam else found
        best = zip(texts, found.start[:, 0].numpy(), found.end[:, 0].numpy(), strict=True)
        guesses = [text[start:end] for text, start, end in best]
        differences = (found.null - found.score[:, 0]).numpy().tolist()
        if all(right) and null_threshold is None:
            return squad_scores(guesses, right)
        kept = self.null_threshold
        threshold = next((t for t in (null_threshold, kept) if t is not None), 0.0)
        scores = squad_v2_scores(guesses, right, differences, threshold)
        if null_threshold is None and kept is None:
            found = scores["best_f1_thresh"]
            holds = squad_v2_scores(guesses, right, differences, found)["f1"] == scores["best_f1"]
            self.null_threshold = found if holds else min(differences) - 1.0
        return scores

    @validate_arguments
    def signatures(
        self, max_answer_length: PositiveInt = 30, null_threshold: NullThreshold | None = None
    ) -> dict[str, Callable]:
        """Return `answer` of "question" and "context" for exports.

        Args:
            max_answer_length: as for `answer`.
            null_threshold: as for `answer`.

        Returns:
            A function whose results are "text", "start", "end" and "score", each (N,). The
            answer of an empty context is "", with a score of 0 where one had to be given.
        """

        threshold = self._threshold(null_threshold)

        def answer(question, context):
            context = as_valid_text(context)
            found = search_in_graph(self, question, context, max_answer_length)
            found = ranking.null_beside_best(found) if self.beam else found
            found = ranking.insert_null_answers(found, threshold)
            start, end, score = found.start[:, 0], found.end[:, 0], ranking.answer_scores(found)
            text = tf.strings.substr(context, start, end - start, unit="UTF8_CHAR")
            return {"text": text, "start": start, "end": end, "score": score[:, 0]}

        return {"serving_default": answer}
