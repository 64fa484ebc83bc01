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
from encoder_zoo.tasks.base.head import head_dropout, make_head
from encoder_zoo.tasks.base.task import TinyData
from encoder_zoo.tasks.question_answering import metrics as span_metrics
from encoder_zoo.tasks.question_answering.answering import SpanAnswers
from encoder_zoo.tasks.question_answering.answers import NO_LABELS, NullThreshold, holds_answers
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

    `fit` and `evaluate` take as x `(questions, contexts)`, or examples as `read_squad` gives them,
    `[{"question", "context", "answers"}]`; or a `tf.data.Dataset` of either. They take as y for
    every question `{"text", "answer_start"}` or a list of such, whose first is learned; None
    or an empty list if there is no answer. y is not given with examples. `validation_data` is
    `((questions, contexts), answers)`, examples, or a dataset. Errors name the example: "Example 3:
    the answer 'cat' does not stand at character 7 ..."

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, 2, L) float32 logits: of the answer's first, and of its last token.

    Source: Devlin et al. 2019, sections 4.2 and 4.3.

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
    predicts_lists = True
    answer_settings = ("null_threshold",)
    output_activation = "softmax"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: SpanQAPreprocessor | None = None,
        dropout: Rate | None = None,
        null_threshold: NullThreshold | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.null_threshold = null_threshold
        self.dropout = head_dropout(self.head_record, backbone, dropout)
        self.head = make_head(
            self.head_record, backbone, 2, self.dropout, self.dtype_policy, of_tokens=True
        )
        self._finish_building()

    @classmethod
    def tiny_data(cls) -> TinyData:
        answers = [{"text": "ab", "answer_start": 4}, {"text": "c d", "answer_start": 0}]
        return TinyData({}, (["a b", "p"], ["a b ab", "c d e a b"]), answers)

    def logits_of(self, encoded, inputs, training=None):
        logits = self.head(encoded["sequence_output"], training=training)  # (B, L, 2)
        return ops.transpose(logits, (0, 2, 1))  # (B, 2, L)

    def compute_output_spec(self, inputs, training=None):
        batch, length = inputs["token_ids"].shape
        return keras.KerasTensor((batch, 2, length), "float32")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if y is None:
            raise ValueError(NO_LABELS)
        weight = span_metrics.weights_of_bounds(sample_weight)
        return super().compute_loss(x, y, span_metrics.mask_padding(x, y_pred), weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        weight = span_metrics.weights_of_bounds(sample_weight)
        return super().compute_metrics(x, y, span_metrics.mask_padding(x, y_pred), weight)

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

    def _check_labels(self, x, y) -> None:
        if y is None and not (is_dataset(x) or holds_answers(x)):
            raise ValueError(NO_LABELS)
