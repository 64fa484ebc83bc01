"""Classification of texts or pairs of texts, and regression.

Comment letters: B batch, K windows of a text, D hidden, C classes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Unpack

import keras
from keras import ops

from encoder_zoo.common.layer_arguments import LayerArguments
from encoder_zoo.common.validation import PositiveInt, Rate, one_of, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.encoders.inputs import CANDIDATE, inputs_of_all_texts
from encoder_zoo.tasks.base.class_names import labels_from_config
from encoder_zoo.tasks.base.class_weights import label_weights, weighted_labels
from encoder_zoo.tasks.base.head import check_pooler, head_dropout, text_logits
from encoder_zoo.tasks.base.labelled_task import LabelledTask
from encoder_zoo.tasks.base.task import TinyData
from encoder_zoo.tasks.preprocessing.candidates import with_candidate_ranges
from encoder_zoo.tasks.preprocessing.checks import check_one_each
from encoder_zoo.tasks.sequence_classification.answering import Answering, LabelScore
from encoder_zoo.tasks.sequence_classification.class_labels import (
    classes_among,
    labels_of_dataset,
    learn_classes,
)
from encoder_zoo.tasks.sequence_classification.explaining import TextExplanations
from encoder_zoo.tasks.sequence_classification.pooling import (
    WindowPooling,
    pooled_logits,
)
from encoder_zoo.tasks.sequence_classification.preprocessor import SequenceClassifierPreprocessor
from encoder_zoo.tasks.sequence_classification.presets import ClassifierPresets
from encoder_zoo.tasks.training.data import TrainingData
from encoder_zoo.tasks.training.logit_metrics import (
    ClassAccuracy,
    ClassCrossentropy,
    LabelCrossentropy,
)
from encoder_zoo.tasks.training.prepared import is_prepared
from encoder_zoo.tasks.training.sources import is_dataset

logger = logging.getLogger("encoder_zoo")

OUTPUT_ACTIVATIONS = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "linear",
}
ProblemType = Annotated[str, one_of(*OUTPUT_ACTIVATIONS)]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SequenceClassifier(Answering, TextExplanations, ClassifierPresets, LabelledTask):
    """Classifies texts or pairs of texts, or maps them to numbers.

    Args:
        backbone: any `Backbone`; for BERT one with a pooler.
        preprocessor: a `SequenceClassifierPreprocessor`, for raw text.
        num_classes: C; with `labels` their number.
        labels: names of the classes, saved with the preset; integers become strings. Where one
            of the names is an integer, integers in `y` are names and not class indices.
            Without `labels` and `num_classes`, the first `fit` learns them from its `y`.
        problem_type: "single_label_classification" (one class for each text),
            "multi_label_classification" (any number of classes) or "regression" (numbers).
        dropout: before the output layer, in training; None is the backbone's.
        window_pooling: of a preprocessor with a `window_length`: the logits of a text are the
            "mean" or the "max" of those of its windows, in training and in answers.
        head: a Keras layer instead of the family's head, from its features (B, D) to logits (B, C):
            `head=keras.Sequential([...])`. It is saved in `.keras` files; a preset holds its
            weights, which `from_preset(folder, head=...)` loads into an equal layer.

    `fit` takes as y for every text a class, by name or by number, or a row of probabilities of the
    classes, such as 0s and a 1. For "multi_label_classification" a list of names, or a row of 0s
    and 1s; for "regression" a number or a row of them. Errors name the row: "Row 3 has the unknown
    label 'upp'. Expected one of ['down', 'up']."

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, C) float logits, or the numbers themselves for regression.

    Raises:
        ValueError: if `labels` and `num_classes` disagree; for one class that is not a number.

    Source: Devlin et al. 2019, section 4.1; Liu et al. 2019's code for RoBERTa's head, which has
    a tanh layer of its own instead of the pooler.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16)
        >>> classifier = SequenceClassifier(backbone, num_classes=3)
        >>> keras.ops.shape(classifier({"token_ids": np.array([[2, 7, 3]])}))
        (1, 3)
    """

    task_name = "sequence_classifier"
    checkpoint_class_suffix = "ForSequenceClassification"
    pipeline_tag = "text-classification"
    preprocessor_class = SequenceClassifierPreprocessor
    learns_soft_labels = True
    peft_task_type = "SEQ_CLS"
    text_method = "classify"
    packs_batches = True
    answer_type = LabelScore
    answer_settings = ("window_pooling",)
    expected_labels = "one label for each text"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: SequenceClassifierPreprocessor | None = None,
        num_classes: PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        problem_type: ProblemType = "single_label_classification",
        dropout: Rate | None = None,
        window_pooling: WindowPooling = "mean",
        head: keras.layers.Layer | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.problem_type = problem_type
        self.window_pooling = window_pooling
        check_pooler(self, "classifier")
        self.dropout = head_dropout(self.head_record, backbone, dropout)
        if labels is None and num_classes is None and problem_type == "regression":
            num_classes = 1
        self._set_head(head)
        self._set_classes(num_classes, labels)
        if self.num_classes == 1 and problem_type == "single_label_classification":
            raise ValueError(
                "A classifier of one class always answers it. Pass problem_type='regression', or "
                "'multi_label_classification' for yes or no. Received: one class, "
                f"problem_type={problem_type!r}."
            )

    @classmethod
    def tiny_data(cls) -> TinyData:
        labels = ["O", "B-X", "I-X"]
        return TinyData({"labels": labels}, super().tiny_data().x, [*labels, "O"])

    def call(self, inputs, training=None):
        if CANDIDATE + "token_ids" not in inputs:
            return super().call(inputs, training)  # (B, C)
        windows = inputs_of_all_texts(inputs)  # (B * K, L)
        if windows.get("padding_mask") is None:
            windows["padding_mask"] = ops.ones_like(windows["token_ids"])
        count = 1 + ops.shape(inputs[CANDIDATE + "token_ids"])[1]
        logits = super().call(windows, training)  # (B * K, C)
        return pooled_logits(logits, windows["padding_mask"], count, self.window_pooling)

    def logits_of(self, encoded, inputs, training=None):
        return text_logits(self, encoded, inputs, training)  # (B, C)

    def compute_output_spec(self, inputs, training=None):
        self._check_labels_known()
        return keras.KerasTensor((inputs["token_ids"].shape[0], self.num_classes), "float32")

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return with_candidate_ranges(super().input_ranges(length))

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        stored = {}
        if cls._is_head_of(config) and cls._shares_classes_with(config, arguments):
            default = "single_label_classification"
            if len(labels_from_config(config)) == 1:
                default = "regression"
                if not (config.get("problem_type") or arguments.get("problem_type")):
                    logger.warning(
                        "config.json has one class and no problem_type: answers are numbers, as "
                        "in transformers' training. For their sigmoid, as in its pipeline, load it "
                        "with problem_type='multi_label_classification'."
                    )
            stored["problem_type"] = config.get("problem_type") or default
        return {**stored, **super().checkpoint_arguments(config, head, arguments)}

    @property
    def output_activation(self) -> str:
        return OUTPUT_ACTIVATIONS[self.problem_type]

    def default_loss(self) -> keras.losses.Loss:
        if self.problem_type == "regression":
            return keras.losses.MeanSquaredError()
        if self.problem_type == "multi_label_classification":
            return LabelCrossentropy(from_logits=True)
        return ClassCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        if self.problem_type == "regression":
            return [keras.metrics.RootMeanSquaredError()]
        if self.problem_type == "multi_label_classification":
            # Of rare labels the accuracy is high without finding any.
            accuracy = keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")
            return [accuracy, self.metric_by_name("f1")]
        return [ClassAccuracy(name="accuracy")]

    def _labels_in(self, x, y) -> list[str] | int:
        if is_dataset(x):
            y = labels_of_dataset(x, self.preprocessor)
        learned = learn_classes(y, self._is_multi_label())
        if not is_dataset(x):  # before the head is built for them: it could not learn others
            check_one_each(x, y)
        if is_prepared(x) and not isinstance(learned, int):
            raise ValueError(
                f"y holds {learned}. With prepared inputs expected class indices from 0 on, all "
                "of them present; or pass labels=[...] or num_classes."
            )
        return learned

    def _weigh_classes(self, data: TrainingData, class_weight: Mapping | str) -> TrainingData:
        if self.problem_type == "regression":
            raise ValueError(
                "class_weight is of classes, and this classifier predicts numbers. Use "
                "sample_weight."
            )
        if not self._is_multi_label():
            return super()._weigh_classes(data, class_weight)
        if not isinstance(getattr(self, "loss", None), LabelCrossentropy):
            raise ValueError(
                "With several labels a text, class_weight is of each label by itself, which only "
                "the default loss can weigh. Use loss='auto', or sample_weight."
            )
        weights = label_weights(class_weight, self.labels, self.num_classes, data.one_pass())
        return data.weighted(weighted_labels, weights)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if sample_weight is not None and len(sample_weight.shape) == 2:  # of single labels
            sample_weight = ops.mean(sample_weight, axis=-1)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _warn_unseen_classes(self, examples: dict, held_out: dict) -> None:
        if "labels" not in examples or self.problem_type == "regression":
            return
        seen, wanted = (
            classes_among(part["labels"].numpy(), self._is_multi_label())
            for part in (examples, held_out)
        )
        unseen = [repr(self.class_names[i]) for i in wanted - seen]
        if unseen:
            count = len(held_out["labels"])
            logger.warning(
                "validation_split holds out the last %d of %d texts, and with them every text of "
                "%s, which training never sees. Shuffle texts and labels before `fit`.",
                count,
                count + len(examples["labels"]),
                ", ".join(sorted(unseen)),
            )
