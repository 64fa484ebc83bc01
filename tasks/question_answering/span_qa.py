"""Extractive question answering.

Comments use these letters for shapes: B batch, L sequence.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, Unpack, overload

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.extras import load_extra
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveInt, Rate, validate_arguments
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.positions import find_last_positions
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.preset_task import FolderFormat, TaskRecord
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.explanation import Method
from encoder_zoo.tasks.base.head import get_head_dropout, make_head
from encoder_zoo.tasks.base.inference import compute_token_outputs_in_graph
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments, TinyData
from encoder_zoo.tasks.losses.batch_loss import BatchLoss
from encoder_zoo.tasks.preprocessing.batching import map_graph_batches
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, get_text
from encoder_zoo.tasks.question_answering import answer_ranking, squad
from encoder_zoo.tasks.question_answering.answers import (
    COLUMNS,
    NO_LABELS,
    Beam,
    NullThreshold,
    list_answers,
    split_inputs,
)
from encoder_zoo.tasks.question_answering.beam import NO_START, make_span_beam
from encoder_zoo.tasks.question_answering.question_answers import QuestionAnswers
from encoder_zoo.tasks.question_answering.span_qa_preprocessor import SpanQAPreprocessor
from encoder_zoo.tasks.question_answering.squad import compute_squad_scores, compute_squad_v2_scores
from encoder_zoo.tasks.training.objective import Objective


class SpanQAPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments for `SpanQA.from_preset`."""

    null_threshold: float | None
    beam: tuple[int, int] | None
    window_length: int
    doc_stride: int


class SpanQAFolderFormat(FolderFormat):
    """The folder layout of transformers, with the sizes of the beam in config.json."""

    def read_arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        record, config = SpanQA.get_family_head(checkpoint.family).beam, checkpoint.config
        if record is None or f"{record.output}.weight" not in checkpoint.shapes:
            return {}
        return {"beam": (config.get("start_n_top", 5), config.get("end_n_top", 5))}

    def make_config_fields(self, task: SpanQA) -> dict[str, object]:
        return dict(zip(("start_n_top", "end_n_top"), task.beam or (), strict=False))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanQA(Task):
    """Answer questions with a span from the context (extractive question answering).

    Args:
        backbone: The `Backbone` to use. It does not need a pooler.
        preprocessor: Optional `SpanQAPreprocessor` for raw text.
        dropout: Optional float between 0 and 1. Dropout rate to apply before the output layer, for
            families with dropout in the head. This is not used for BERT and RoBERTa. If None, the
            rate of the backbone will be used.
        null_threshold: Optional float. Default threshold for `answer` and exports. This is set by
            `evaluate_answers` and saved with the preset.
        beam: Optional tuple `(start_n_top, end_n_top)`. Beam sizes for the XLNet head: the number
            of start positions, and the number of end positions per start position (at most 100). In
            this head, end positions are predicted based on the start position, and a third output
            is added to predict "no answer". If None, both positions will be predicted
            independently. When using `from_preset`, the sizes are read from the checkpoint. The
            class in transformers is `XLNetForQuestionAnswering` with a beam, and
            `XLNetForQuestionAnsweringSimple` without a beam.

    For `fit` and `evaluate`, `x` can be `(questions, contexts)`, a list of examples `[{"question",
    "context", "answers"}]` as returned from `read_squad`, or a `tf.data.Dataset` of pairs or
    examples. `y` should contain `{"text", "answer_start"}` or a list of answers per question. If a
    list is passed to `fit`, the first answer will be used for training. Use None or an empty list
    for questions without an answer. When passing examples with answers, `y` should not be passed.
    `validation_data` can be `((questions, contexts), answers)`, examples, or a dataset. Error
    messages name the example, e.g. "Example 3: the answer 'cat' does not start at character 7 ..."

    Call arguments:
        inputs: Dict. The inputs to the model, as returned from the preprocessor.

    Returns:
        Float32 tensor of shape (B, 2, L). Logits for the first and last answer token. With a beam,
        the shape is (B, 1 + start_n_top * end_n_top, 4). Row 0 is [0, 0, logit for "no answer", 0].
        All following rows are spans [start position, end position, log-probability for the start,
        log-probability for the end]. For `fit` and `evaluate` with a beam, "answer_start" is passed
        as an input, and the shape is (B, 3, L). This contains log-probabilities for start
        positions, log-probabilities for end positions given the true start position, and the logit
        for "no answer". The metrics "accuracy", "exact_match" and "f1" are computed from these
        outputs. As a result, they will be higher than the metrics computed by `evaluate_answers`.

    Raises:
        ValueError: If `beam` is given for a family without a beam head.

    Source: Devlin et al. 2019, BERT, sections 4.2 and 4.3. The beam follows the released code of
    Yang et al. 2019, XLNet.

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
        answers_class=QuestionAnswers,
        text_method="answer",
        folder=SpanQAFolderFormat(),
        answer_settings=("null_threshold",),
        tuned_settings={"null_threshold": (None, "evaluate_answers")},
        file_advice="To read a file of SQuAD, use fit(ez.read_squad({!r})).",
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
        self.dropout = get_head_dropout(self.head_record, backbone, dropout)
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
            source: String or path. The preset to load: a name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Keyword arguments to pass to the model: `null_threshold`, `beam`. Arguments
                for the preprocessor: `sequence_length`, `window_length`, `doc_stride`. Arguments
                for the backbone, e.g. `dropout` and `dtype`. `added_tokens` for the tokenizer.
                Options for file checks: `verify`, `max_bytes`, `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    @property
    def head_record(self) -> Head:
        record = super().head_record
        if not self.beam:
            return record
        if record.beam is None:
            raise ValueError(
                f"The family {self.backbone.family.name!r} does not support beam search. Remove "
                "`beam`."
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

    def list_input_names(self) -> list[str]:
        return [*super().list_input_names(), *(["answer_mask"] if self.beam else [])]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if y is None:
            raise ValueError(NO_LABELS)
        if self.beam and "answer_start" not in x:
            raise ValueError(NO_START)
        loss = super().compute_loss(x, *squad.flatten_bounds(x, y, y_pred, sample_weight), training)
        return loss + self._compute_null_loss(x, y, y_pred, sample_weight) if self.beam else loss

    def _compute_null_loss(self, x, y, y_pred, sample_weight):
        """Return half of the mean cross-entropy of "no answer", as in the code of XLNet."""
        mean = BatchLoss(keras.losses.BinaryCrossentropy(from_logits=True))
        logits = y_pred[:, 2, :1]
        # (B, 1), the position of the start token, which means "no answer"
        last = find_last_positions(add_padding_mask(x)["padding_mask"])
        none = ops.cast(ops.cast(y[:, :1], "int32") == last, "float32")
        return 0.5 * mean(none, logits, sample_weight)[0]

    @property
    def objective(self) -> Objective:
        return Objective(
            # The mean of the two cross-entropies, over (B, 2).
            functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True),
            lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            "softmax",
            own_metrics={"exact_match": squad.SpanExactMatch, "f1": squad.AnswerF1},
            pads_classes=True,
            fills_batches=not self.beam,  # the loss with a beam is a sum of two losses
            inputs_of_metrics=squad.flatten_bounds,
        )

    # -- answers -----------------------------------------------------------------------------------

    answer = delegate_to_answers(QuestionAnswers.answer)

    @overload
    def explain(
        self,
        question: str,
        context: str,
        method: Method = "integrated_gradients",
        **options: Unpack[answer_ranking.AnswerOptions],
    ) -> answer_ranking.AnswerExplanation: ...
    @overload
    def explain(
        self,
        question: Iterable[Any],
        context: Iterable[Any],
        method: Method = "integrated_gradients",
        **options: Unpack[answer_ranking.AnswerOptions],
    ) -> list[answer_ranking.AnswerExplanation]: ...
    @validate_arguments
    @lock_weights
    def explain(
        self,
        question,
        context,
        method: Method = "integrated_gradients",
        max_answer_length: PositiveInt = 30,
        null_threshold: NullThreshold | None = None,
        batch_size: PositiveInt | None = None,
    ):
        """Find answers and compute word-level explanations for them.

        The result can be displayed with `ez.display.explanation`.

        Args:
            question: String or list of strings. The question or questions to answer.
            context: List with a context per question, or a single context to use for all questions.
            method: String. See `SequenceClassifier.explain`. Defaults to "integrated_gradients".
            max_answer_length: Positive integer. See `answer`. Defaults to 30.
            null_threshold: Optional float. See `answer`.
            batch_size: Optional positive integer. Batch size, in gradients. If None, 32 will be
                used.

        Returns:
            The answer, as returned from `answer`, with "texts", "words", "logit" and "baseline"
            added (see `SequenceClassifier.explain`). "texts" contains the question and the context.
            "logit" is the sum over the logits for the first and last answer token, or over the
            log-probabilities for a beam. For no answer, the "no answer" logit is used. If a context
            is split into several windows, the words are taken from the window with the answer. If a
            list of questions is passed, a list of answers will be returned.

        Raises:
            ValueError: If several contexts are passed for a question.

        Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, section 3.
        """
        question, context = convert_to_plain((get_text(question), get_text(context)))
        single, several = isinstance(question, str), not isinstance(context, str)
        if single and several:
            raise ValueError(
                "`explain` requires one context per question. Pass the passage with the answer: "
                "explain(question, passages[answer['passage']])."
            )
        questions = [question] if single else question
        contexts = context if several else [context] * len(questions)
        options = None, max_answer_length, null_threshold, batch_size
        answers = self.answer(questions, contexts, *options)
        found = load_extra("explain_answers")(
            self, questions, contexts, answers, method, batch_size
        )
        return found[0] if single else found

    @validate_arguments
    @lock_weights
    def evaluate_answers(
        self,
        x: object,
        y: object = None,
        max_answer_length: PositiveInt = 30,
        null_threshold: NullThreshold | None = None,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Compute exact match and F1 for answers in percent, as in the official SQuAD scripts.

        Args:
            x: Questions and contexts in memory, as for `fit`.
            y: Answers, as for `fit`. The predicted answer is compared to all answers for a
                question, and the best match will be used.
            max_answer_length: Positive integer. Maximum answer length, in tokens. Defaults to 30.
            null_threshold: Optional float. See `answer`. If None, the stored threshold will be
                used, as in `answer`. If no threshold is stored and the data has unanswerable
                questions, 0 will be used, and the threshold with the best F1 will be stored for
                `answer`, exports and the preset, until the next call to `fit`.
            batch_size: Optional positive integer. Batch size, in windows. If None, 32 will be used.

        Returns:
            `{"exact_match", "f1", "total"}` if all questions have an answer and no threshold is
            used (v1.1). Otherwise, the metrics from `compute_squad_v2_scores`. The
            `best_..._thresh` values can be used for `null_threshold`.

        Raises:
            ValueError: If `x` contains no questions, or if answers are missing.
        """
        questions, contexts, answers = split_inputs(x, y)
        texts = [text.decode() for text in contexts.numpy()]
        if not texts:
            raise ValueError("`x` is empty. Expected at least one question.")
        right = [[a["text"] for a in given] for given in list_answers(answers)]
        if len(right) != len(texts):
            raise ValueError(
                f"Received {len(texts)} questions, but answers for {len(right)}. Expected a list "
                "of answers for each question."
            )
        options = (1, max_answer_length, batch_size)
        found = self._get_answers(x).find_spans(questions, contexts, *options)
        found = answer_ranking.add_best_score(found) if self.beam else found
        best = zip(texts, found.start[:, 0].numpy(), found.end[:, 0].numpy(), strict=True)
        guesses = [text[start:end] for text, start, end in best]
        differences = (found.null - found.score[:, 0]).numpy().tolist()
        used = self.null_threshold if null_threshold is None else null_threshold
        if all(right) and used is None:
            return compute_squad_scores(guesses, right)
        threshold = 0.0 if used is None else used
        scores = compute_squad_v2_scores(guesses, right, differences, threshold)
        if used is None:
            found = scores["best_f1_thresh"]
            holds = (
                compute_squad_v2_scores(guesses, right, differences, found)["f1"]
                == scores["best_f1"]
            )
            self.null_threshold = found if holds else min(differences) - 1.0
        return scores

    @validate_arguments
    def signatures(
        self, max_answer_length: PositiveInt = 30, null_threshold: NullThreshold | None = None
    ) -> dict[str, Callable]:
        """Return the export signature for running `answer` on "question" and "context".

        Args:
            max_answer_length: Positive integer. See `answer`. Defaults to 30.
            null_threshold: Optional float. See `answer`.

        Returns:
            Dict with a single function. This function returns "text", "start", "end" and "score",
            each with shape (N,). For an empty context, "" will be returned, with score 0 if the
            model is set to always answer.
        """
        run = self._compute_outputs_in_graph
        answer = self._answers.make_answer_function(run, max_answer_length, null_threshold)
        return {"serving_default": answer}

    def _compute_outputs_in_graph(self, examples: dict) -> xp.Tensor:
        """Compute the outputs (W, 2, L) of all windows, or (W, 1 + n m, 4) with a beam."""
        if not self.beam:

            def compute_by_token(inputs: dict) -> xp.Tensor:
                return xp.transpose(self(inputs, training=False), (0, 2, 1))

            outputs = compute_token_outputs_in_graph(self, compute_by_token, examples)
            return xp.transpose(outputs.to_tensor(), (0, 2, 1))

        def compute_rows(examples: dict) -> xp.Tensor:
            outputs = self(self.preprocessor.pad(examples), training=False)
            return xp.reshape(outputs, [-1, COLUMNS])

        n, m = self.beam
        size = xp.constant(1 + n * m, xp.int64)
        counts = xp.fill([xp.size(examples["text_index"])], size)
        found = map_graph_batches(compute_rows, examples, counts, COLUMNS)
        return found.to_tensor(shape=(None, 1 + n * m, COLUMNS))
