"""Extractive question answering.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.extras import extra
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import PositiveInt, Rate, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.positions import last_positions
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.preset_task import FolderFormat, TaskRecord
from encoder_zoo.tasks.base.explanation import Method
from encoder_zoo.tasks.base.head import head_dropout, make_head
from encoder_zoo.tasks.base.missing_answers import Missing
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments, TinyData
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.columns import plain, text_of
from encoder_zoo.tasks.question_answering import answer_ranking, squad
from encoder_zoo.tasks.question_answering.answer_ranking import (
    Answer,
    AnswerExplanation,
    PassageAnswer,
)
from encoder_zoo.tasks.question_answering.answers import (
    COLUMNS,
    NO_LABELS,
    Beam,
    NullThreshold,
    answer_lists,
    split_examples,
)
from encoder_zoo.tasks.question_answering.beam import NO_START, make_span_beam
from encoder_zoo.tasks.question_answering.question_answers import QuestionAnswers
from encoder_zoo.tasks.question_answering.span_qa_preprocessor import SpanQAPreprocessor
from encoder_zoo.tasks.question_answering.squad import squad_scores, squad_v2_scores
from encoder_zoo.tasks.training.batch_loss import BatchLoss
from encoder_zoo.tasks.training.inference import token_outputs_in_graph
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.sources import check_preprocessor

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.tasks.question_answering.answer_ranking import AnswerOptions


class SpanQAPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `SpanQA.from_preset`."""

    null_threshold: float | None
    beam: tuple[int, int] | None
    window_length: int
    doc_stride: int


class SpanQAFolder(FolderFormat):
    """Transformers' layout, whose config.json has the sizes of a beam."""

    def arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        record, config = SpanQA.head_of(checkpoint.family).beam, checkpoint.config
        if record is None or f"{record.output}.weight" not in checkpoint.shapes:
            return {}
        return {"beam": (config.get("start_n_top", 5), config.get("end_n_top", 5))}

    def config_fields(self, task: SpanQA) -> dict[str, object]:
        return dict(zip(("start_n_top", "end_n_top"), task.beam or (), strict=False))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanQA(Task):
    """Answers questions by the first and last token of a span of the context.

    Args:
        backbone: any `Backbone`; no pooler is needed.
        preprocessor: a `SpanQAPreprocessor`, for raw text.
        dropout: before the output layer, in training, in families whose head has one there; None
            is the backbone's. BERT's and RoBERTa's have none.
        null_threshold: default of `answer` and exports; `evaluate_answers` sets it, and it is saved
            with the preset.
        beam: (start_n_top, end_n_top) of XLNet's head with a beam: how many start positions are
            tried, and how many end positions after each, at most 100. The end position depends on
            the start position, and a third output says that there is no answer. None computes
            both by themselves. `from_preset` reads it from the checkpoint, whose class is
            `XLNetForQuestionAnswering` with a beam and `XLNetForQuestionAnsweringSimple` without.

    `fit` and `evaluate` take as x `(questions, contexts)`, or examples as `read_squad` gives them,
    `[{"question", "context", "answers"}]`; or a `tf.data.Dataset` of either. They take as y for
    every question `{"text", "answer_start"}` or a list of such, whose first is learned; None
    or an empty list if there is no answer. y is not given with examples. `validation_data` is
    `((questions, contexts), answers)`, examples, or a dataset. Errors name the example: "Example 3:
    the answer 'cat' does not stand at character 7 ..."

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, 2, L) float32 logits: of the answer's first, and of its last token. With a beam
        (B, 1 + start_n_top * end_n_top, 4): row 0 is [0, 0, the logit of "no answer", 0], each
        other one a span, [start position, end position, and the logarithms of their
        probabilities]. In `fit` and `evaluate`, with the input "answer_start", (B, 3, L): the
        log-probabilities of start positions, and of end positions after the answer's own start
        position, and the logit of "no answer":
        "accuracy", "exact_match" and "f1" are of these, and higher than those of answers, which
        `evaluate_answers` measures.

    Raises:
        ValueError: If `beam` is True and the family has no head with a beam.

    Source: Devlin et al. 2019, sections 4.2 and 4.3; of the beam, Yang et al. 2019, XLNet, the code
    released with it.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=False)
        >>> tuple(SpanQA(backbone)({"token_ids": np.array([[2, 7, 3, 8, 3]])}).shape)
        (1, 2, 5)
    """

    record = TaskRecord(
        "span_qa",
        SpanQAPreprocessor,
        head="ForQuestionAnswering",
        pipeline_tag="question-answering",
        text_method="answer",
        folder=SpanQAFolder(),
        answer_settings=("null_threshold",),
        tuned_settings={"null_threshold": (None, "evaluate_answers")},
        file_advice="Of SQuAD's files: fit(ez.read_squad({!r})).",
        predicts_lists=True,
    )
    beam: tuple[int, int] | None = None

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: SpanQAPreprocessor | None = None,
        dropout: Rate | None = None,
        null_threshold: NullThreshold | None = None,
        beam: Beam | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.null_threshold = null_threshold
        self.beam = beam and tuple(beam)
        self.dropout = head_dropout(self.head_record, backbone, dropout)
        self._finish_building()

    def build_head(self) -> keras.layers.Layer:
        record, policy = self.head_record, self.dtype_policy
        if self.beam:
            return make_span_beam(record, self.backbone, self.beam, policy)
        return make_head(record, self.backbone, 2, self.dropout, policy, of_tokens=True)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[SpanQAPresetArguments]
    ) -> Self:
        """Load a model for question answering, or an encoder with a new head.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `null_threshold`, `beam`; of the preprocessor `sequence_length`,
                `window_length`, `doc_stride`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.
        """
        return super().from_preset(source, **arguments)

    @property
    def head_record(self) -> Head:
        record = super().head_record
        if not self.beam:
            return record
        if record.beam is None:
            raise ValueError(
                f"The family {self.backbone.family.name!r} has no head with a beam. Leave out beam."
            )
        return record.beam

    @classmethod
    def tiny_data(cls) -> TinyData:
        answers = [{"text": "ab", "answer_start": 4}, {"text": "c d", "answer_start": 0}]
        return TinyData({}, (["a b", "p"], ["a b ab", "c d e a b"]), answers)

    def logits_of(self, encoded, inputs, training=None):
        x = encoded["sequence_output"]  # (B, L, D)
        if self.beam:
            real = add_padding_mask(inputs)["padding_mask"]
            read = inputs.get("answer_mask", real), inputs.get("answer_start")
            return self.head(x, self.backbone.text_vectors(x, inputs), *read)
        return ops.transpose(self.head(x, training=training), (0, 2, 1))  # (B, 2, L)

    def compute_output_spec(self, inputs, training=None):
        batch, length = inputs["token_ids"].shape
        shape = (2, length)
        if self.beam:
            n, m = self.beam
            shape = (3, length) if "answer_start" in inputs else (1 + n * m, COLUMNS)
        return keras.KerasTensor((batch, *shape), "float32")

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        ranges = super().input_ranges(length)
        own = {"answer_mask": (0, 1), "answer_start": (0, length - 1)}
        return {**ranges, **own} if self.beam else ranges

    def prepared_inputs(self) -> list[str]:
        return [*super().prepared_inputs(), *(["answer_mask"] if self.beam else [])]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if y is None:
            raise ValueError(NO_LABELS)
        if self.beam and "answer_start" not in x:
            raise ValueError(NO_START)
        loss = super().compute_loss(x, *squad.of_bounds(x, y, y_pred, sample_weight), training)
        return loss + self._loss_of_no_answer(x, y, y_pred, sample_weight) if self.beam else loss

    def _loss_of_no_answer(self, x, y, y_pred, sample_weight):
        """Return half the mean cross-entropy of whether there is no answer, as XLNet's code."""
        mean = BatchLoss(keras.losses.BinaryCrossentropy(from_logits=True))
        logits = y_pred[:, 2, :1]
        last = last_positions(add_padding_mask(x)["padding_mask"])  # (B, 1), of the start token
        none = ops.cast(ops.cast(y[:, :1], "int32") == last, "float32")
        return 0.5 * mean(none, logits, sample_weight)[0]

    @property
    def objective(self) -> Objective:
        return Objective(
            # Over (B, 2): the mean of the two cross-entropies.
            functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True),
            lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            "softmax",
            own_metrics={"exact_match": squad.SpanExactMatch, "f1": squad.SpanF1},
            pads_classes=True,
            fills_batches=not self.beam,  # whose loss is a sum of two
            inputs_of_metrics=squad.of_bounds,
        )

    # -- answers -----------------------------------------------------------------------------------

    @property
    def _answers(self) -> QuestionAnswers:
        return QuestionAnswers(self.preprocessor, self, self.beam, self.null_threshold)

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
    @overload
    def answer(
        self, question: object, context: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
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
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for an
                answer of None; "error", the default, for an error that names the first of them.

        Returns:
            `{"text", "start", "end", "score"}` for a single question, a list of such for a list;
            with `top_k` a list of them for each question, the best first. Start and end count the
            characters of the caller's context; no answer is "" from 0 to 0. The score is the
            answer's share among all spans of all windows, with a beam among those that it found
            in each window. Of passages an answer has also "passage", the index of its passage,
            None for no answer; the share is among the spans of all passages.

        Raises:
            ValueError: If a context is empty, a question is too long, there is no passage, or
                `top_k` or `max_answer_length` is less than 1.

        Source: of passages, Clark and Gardner 2018, Simple and Effective Multi-Paragraph Reading
        Comprehension, section 3.2: their spans are ranked by scores that were not normalized. Those
        of a beam are log-probabilities, normalized in each window.
        """
        check_preprocessor(self, (question, context))
        options = (top_k, max_answer_length, null_threshold, batch_size, missing)
        return self._answers.answer(question, context, *options)

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
            ValueError: If there are several contexts for a question.

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
        found = extra("explain_answers")(self, questions, contexts, answers, method, batch_size)
        return found[0] if single else found

    @validate_arguments
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
            ValueError: If there are no questions, or answers are missing.
        """
        questions, contexts, answers = split_examples(x, y)
        texts = [text.decode() for text in contexts.numpy()]
        if not texts:
            raise ValueError("x is empty. Expected at least one question.")
        right = [[a["text"] for a in given] for given in answer_lists(answers)]
        if len(right) != len(texts):
            raise ValueError(
                f"There are {len(texts)} questions, but answers of {len(right)}. Expected a list "
                "for each question."
            )
        check_preprocessor(self, x)
        options = (1, max_answer_length, batch_size)
        found = self._answers.find_spans(questions, contexts, *options)
        found = answer_ranking.null_beside_best(found) if self.beam else found
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
        run = self._outputs_in_graph
        answer = self._answers.trace_answers(run, max_answer_length, null_threshold)
        return {"serving_default": answer}

    def _outputs_in_graph(self, examples: dict) -> array_ops.Tensor:
        """Compute the outputs for all windows, (W, 2, L) or of a beam (W, 1 + n m, 4)."""
        if not self.beam:

            def by_token(inputs: dict) -> array_ops.Tensor:
                return array_ops.transpose(self(inputs, training=False), (0, 2, 1))

            outputs = token_outputs_in_graph(self, by_token, examples)
            return array_ops.transpose(outputs.to_tensor(), (0, 2, 1))

        def rows(examples: dict) -> array_ops.Tensor:
            outputs = self(self.preprocessor.pad(examples), training=False)
            return array_ops.reshape(outputs, [-1, COLUMNS])

        n, m = self.beam
        size = array_ops.constant(1 + n * m, array_ops.int64)
        counts = array_ops.fill([array_ops.size(examples["text_index"])], size)
        found = in_graph_batches(rows, examples, counts, COLUMNS)
        return found.to_tensor(shape=(None, 1 + n * m, COLUMNS))
