"""Token classification: named entities, parts of speech.

Comment letters: B batch, L sequence, D hidden, C tags, P tokens of all texts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Unpack

import keras

from encoder_zoo.common.layer_arguments import LayerArguments
from encoder_zoo.common.validation import PositiveInt, Rate, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.tasks.base.class_names import count_and_names
from encoder_zoo.tasks.base.head import head_dropout
from encoder_zoo.tasks.base.task import TinyData
from encoder_zoo.tasks.token_classification import metrics, token_labels
from encoder_zoo.tasks.token_classification.answering import TokenAnswers
from encoder_zoo.tasks.token_classification.decoding import is_possible, transitions
from encoder_zoo.tasks.token_classification.entities import Entity, Strategy
from encoder_zoo.tasks.token_classification.preprocessor import TokenClassifierPreprocessor
from encoder_zoo.tasks.token_classification.presets import TokenClassifierPresets
from encoder_zoo.tasks.token_classification.tags import (
    notation_line,
    outside_index,
    parse_tags,
)

logger = logging.getLogger("encoder_zoo")


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TokenClassifier(TokenClassifierPresets, TokenAnswers):
    """Tags words: names of persons and places, parts of speech.

    Args:
        backbone: any `Backbone`; no pooler is needed.
        preprocessor: a `TokenClassifierPreprocessor`, for raw text.
        num_classes: C; with `labels` their number.
        labels: names of the tags, saved with the preset. Without `labels` and `num_classes`, the
            first `fit` learns them from its data. Where one of the names is an integer, integers
            in `y` are names and not the tags' numbers.
        dropout: before the output layer, in training; None is the backbone's.
        strategy: default of `extract_entities` and exports. None: "simple", until `fit` sets it to
            "first", or "average" if all tokens are labelled. It is saved with the preset.
        valid_tags: whether answers and exports have only sequences of tags that can be, such as no
            I-PER after B-LOC: the most probable of these. None: no, until `fit` sets it to whether
            the tags that it learns are such sequences (IOB2 and IOBES, also called BIO and BILOU,
            but not IOB1). It is saved with the preset.
        head: a Keras layer instead of the family's head, from the vectors of tokens (B, L, D) to
            logits (B, L, C). It is saved in `.keras` files; a preset holds its weights, which
            `from_preset(folder, head=...)` loads into an equal layer.

    `fit` and `evaluate` take as x texts, or lists of words; texts with their spans, as spaCy's
    `Doc` or `(text, {"entities"})` or Prodigy's `{"text", "spans"}`; or a `tf.data.Dataset`, see
    `Task.fit`, whose elements may hold words and tags as vectors or ragged batches. They take as y
    for every text a list of `{"start", "end", "label"}`, or of tuples of these, or of spaCy's
    `Span`s, in characters, not overlapping; for every list of words, or `Doc`, a list of as many
    tags, names or numbers. Their errors name the example: "Example 3 has 7 words but 6 tags."

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, L, C) float32 logits.

    Raises:
        ValueError: if `labels` and `num_classes` disagree.

    Source: Devlin et al. 2019, section 5.3.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=False)
        >>> classifier = TokenClassifier(backbone, labels=["O", "B-PER", "I-PER"])
        >>> tuple(classifier({"token_ids": np.array([[2, 7, 3]])}).shape)
        (1, 3, 3)
    """

    task_name = "token_classifier"
    checkpoint_class_suffix = "ForTokenClassification"
    pipeline_tag = "token-classification"
    preprocessor_class = TokenClassifierPreprocessor
    learns_soft_labels = True
    peft_task_type = "TOKEN_CLS"
    text_method = "extract_entities"
    answer_type = Entity
    output_activation = "softmax"
    labels_tokens = True
    predicts_lists = True
    _logged_notation: str | None = None
    answer_settings = ("strategy", "valid_tags")
    expected_labels = "for every text a list of spans, or for every list of words a list of tags"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: TokenClassifierPreprocessor | None = None,
        num_classes: PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        dropout: Rate | None = None,
        strategy: Strategy | None = None,
        valid_tags: bool | None = None,
        head: keras.layers.Layer | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.dropout = head_dropout(self.head_record, backbone, dropout)
        self.strategy = strategy
        self.valid_tags = valid_tags
        self._set_head(head)
        self._set_classes(num_classes, labels)

    @classmethod
    def tiny_data(cls) -> TinyData:
        spans = [[(0, 1, "X"), (4, 6, "X")], [], [(2, 5, "X")], []]
        return TinyData({"labels": ["O", "B-X", "I-X"]}, super().tiny_data().x, spans)

    def logits_of(self, encoded, inputs, training=None):
        return self.head(encoded["sequence_output"], training=training)  # (B, L, C)

    def compute_output_spec(self, inputs, training=None):
        self._check_labels_known()
        return keras.KerasTensor((*inputs["token_ids"].shape, self.num_classes), "float32")

    def default_loss(self) -> keras.losses.Loss:
        # Over labelled tokens: examples have different numbers of them.
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )

    def default_metrics(self) -> list:
        names = ("accuracy", "f1") if self._marks_entities else ("accuracy",)
        return [self.metric_by_name(name) for name in names]

    def metric_by_name(self, name: str):
        if name == "accuracy":
            return metrics.TokenAccuracy(name=name)
        if name == "f1" and self._marks_entities:
            return metrics.EntityF1(self.labels)
        return super().metric_by_name(name)

    @property
    def _marks_entities(self) -> bool:
        return self.labels is not None and outside_index(self.labels) is not None

    def _adapt(self, x, y) -> None:
        if self.preprocessor is not None and not isinstance(x, dict):
            self._set_word_splitting(x)
        super()._adapt(x, y)
        line = notation_line(self.labels) if self.labels else None
        if line and line != self._logged_notation:
            logger.warning(line)
            self._logged_notation = line
        if self.valid_tags is None and not isinstance(x, dict):
            self.valid_tags = self._are_valid(x, y)

    def _are_valid(self, x, y) -> bool | None:
        """Return whether the tags of `fit` are sequences that can be; None if that is not known."""
        if token_labels.has_spans(x):
            return True
        if y is None:
            return None
        tags = token_labels.check_labels(x, y, self.labels, self.num_classes)
        allowed = transitions(parse_tags(self.tag_names))
        return is_possible(tags.flat_values, tags.value_rowids(), allowed)

    def _answer_like(self, teacher: TokenClassifier) -> None:
        if None not in (self.preprocessor, teacher.preprocessor):
            self.strategy, self.valid_tags = teacher.strategy, teacher.valid_tags
            for name in ("label_all_tokens", "split_symbols"):
                setattr(self.preprocessor, name, getattr(teacher.preprocessor, name))

    def _set_word_splitting(self, x) -> None:
        """Set the splitting of words in answers to that of the labels of `fit`."""
        preprocessor = self.preprocessor
        preprocessor.split_symbols = True if token_labels.has_spans(x) else "outer"
        if self.strategy is None:
            self.strategy = "average" if preprocessor.label_all_tokens else "first"

    def _labels_in(self, x, y) -> list[str] | int:
        if y is None:
            return token_labels.learn_labels(token_labels.labels_of_dataset(x))
        learned = token_labels.learn_labels(y)
        if not isinstance(x, dict):
            # Errors in them must be raised before the head is built for them.
            count, names = count_and_names(learned)
            token_labels.check_labels(x, y, names, count)
        return learned

    def _separate(self, x, y) -> tuple:
        return token_labels.separated(x, y, self.labels)
