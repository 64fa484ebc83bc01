"""Extractive question answering.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

from typing import Unpack

import keras
from keras import ops

from encoder_zoo.common.layer_arguments import LayerArguments
from encoder_zoo.common.validation import Rate, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.encoders.inputs import with_padding_mask
from encoder_zoo.encoders.positions import last_positions
from encoder_zoo.tasks.base.head import head_dropout, make_head
from encoder_zoo.tasks.base.task import TinyData
from encoder_zoo.tasks.preprocessing.given_labels import check_given
from encoder_zoo.tasks.preprocessing.text_columns import columns_advice
from encoder_zoo.tasks.question_answering import metrics as span_metrics
from encoder_zoo.tasks.question_answering.answering import SpanAnswers
from encoder_zoo.tasks.question_answering.answers import NO_LABELS, NullThreshold, holds_answers
from encoder_zoo.tasks.question_answering.beam import COLUMNS, NO_START, Beam, make_span_beam
from encoder_zoo.tasks.question_answering.preprocessor import SpanQAPreprocessor
from encoder_zoo.tasks.question_answering.presets import SpanQAPresets
from encoder_zoo.tasks.training.sources import is_dataset


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanQA(SpanQAPresets, SpanAnswers):
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
        ValueError: "The family 'bert' has no head with a beam. ..."

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

    task_name = "span_qa"
    checkpoint_class_suffix = "ForQuestionAnswering"
    pipeline_tag = "question-answering"
    preprocessor_class = SpanQAPreprocessor
    text_method = "answer"
    column_roles = ("question", "context", "answers")
    file_advice = "Of SQuAD's files: fit(ez.read_squad({!r}))."
    predicts_lists = True
    answer_settings = ("null_threshold",)
    output_activation = "softmax"
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
        record, policy = self.head_record, self.dtype_policy
        self.dropout = head_dropout(record, backbone, dropout)
        if self.beam:
            self.fills_batches = False  # of two losses
            self.head = make_span_beam(record, backbone, self.beam, policy)
        else:
            self.head = make_head(record, backbone, 2, self.dropout, policy, of_tokens=True)
        self._finish_building()

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
    def arguments_from_files(cls, checkpoint, given):
        record, config = cls.head_of(checkpoint.family).beam, checkpoint.config
        if record is None or f"{record.output}.weight" not in checkpoint.shapes:
            return {}
        return {"beam": (config.get("start_n_top", 5), config.get("end_n_top", 5))}

    def extra_config(self) -> dict:
        return dict(zip(("start_n_top", "end_n_top"), self.beam or (), strict=False))

    @classmethod
    def tiny_data(cls) -> TinyData:
        answers = [{"text": "ab", "answer_start": 4}, {"text": "c d", "answer_start": 0}]
        return TinyData({}, (["a b", "p"], ["a b ab", "c d e a b"]), answers)

    def logits_of(self, encoded, inputs, training=None):
        x = encoded["sequence_output"]  # (B, L, D)
        if self.beam:
            real = with_padding_mask(inputs)["padding_mask"]
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
        weight = span_metrics.weights_of_bounds(sample_weight)
        bounds = span_metrics.mask_padding(x, y_pred[:, :2])
        loss = super().compute_loss(x, y, bounds, weight, training)
        return loss + self._loss_of_no_answer(x, y, y_pred, sample_weight) if self.beam else loss

    def _loss_of_no_answer(self, x, y, y_pred, sample_weight):
        """Return half the mean cross-entropy of whether there is no answer, as XLNet's code."""
        loss_function = keras.losses.BinaryCrossentropy(from_logits=True)
        logits = y_pred[:, 2, :1]
        last = last_positions(with_padding_mask(x)["padding_mask"])  # (B, 1), of the start token
        none = ops.cast(ops.cast(y[:, :1], "int32") == last, "float32")
        loss = loss_function(none, logits, sample_weight)
        return 0.5 * self.distribution.loss_of_batch(loss_function, loss, logits, sample_weight)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        weight = span_metrics.weights_of_bounds(sample_weight)
        bounds = span_metrics.mask_padding(x, y_pred[:, :2])
        return super().compute_metrics(x, y, bounds, weight)

    def default_loss(self) -> keras.losses.Loss:
        # Over (B, 2): the mean of the two cross-entropies.
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def metric_by_name(self, name: str):
        metric = {"exact_match": span_metrics.SpanExactMatch, "f1": span_metrics.SpanF1}.get(name)
        return metric() if metric else super().metric_by_name(name)

    def _adapt(self, x, y) -> None:
        self.null_threshold = None  # it belongs to the weights before training

    def _check_given(self, y, x) -> None:
        check_given(y, x, none_is_answer=True)

    def _check_labels(self, x, y) -> None:
        if y is None and not (is_dataset(x) or holds_answers(x)):
            raise ValueError(f"{NO_LABELS}{columns_advice(x)}")
