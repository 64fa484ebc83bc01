"""Entity extraction with labels that are passed with each call (GLiNER).

Comments use these letters for shapes: B batch, L tokens, W words, K widths of spans, C labels, N
texts, P candidates.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common import validation
from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.presets.formats import gliner
from encoder_zoo.presets.formats.gliner import SpanWidth
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base import confidence
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.classes import validate_labels
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments, TinyData
from encoder_zoo.tasks.losses.batch_loss import get_keras_function, get_name
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain
from encoder_zoo.tasks.preprocessing.given_labels import check_not_missing, get_class_name
from encoder_zoo.tasks.preprocessing.inputs import convert_column
from encoder_zoo.tasks.tagging import entity_metrics, token_labels
from encoder_zoo.tasks.tagging.entities import Entity
from encoder_zoo.tasks.tagging.entity_answers import EntityAnswers, make_label_set, make_label_sets
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import EntityExtractorPreprocessor
from encoder_zoo.tasks.tagging.span_head import (
    SpanF1,
    SpanFocalLoss,
    SpanHead,
    SpanInputs,
    SpanMode,
    SubtokenPooling,
)
from encoder_zoo.tasks.training import sources
from encoder_zoo.tasks.training.objective import Objective

logger = logging.getLogger("encoder_zoo")


class EntityExtractorPresetArguments(TaskPresetArguments, total=False):
    """Types of the keyword arguments of `EntityExtractor.from_preset`."""

    labels: Sequence[str] | None
    thresholds: Mapping[str, float] | None
    max_width: int
    span_dim: int | None
    span_mode: SpanMode
    num_rnn_layers: int
    subtoken_pooling: SubtokenPooling
    embed_label_marker: bool
    max_words: int
    doc_stride: int | None
    label_marker: str | None
    separator: str | None


class SpanObjective(Objective):
    """Objective of an `EntityExtractor`: binary classification of each span and label."""

    def resolve_loss(self, loss):
        loss = super().resolve_loss(loss)
        if get_keras_function(loss) is not None:
            raise ValueError(
                f"{get_name(loss)} is a mean over spans, including padding. Expected "
                "ez.SpanFocalLoss(), or a loss that returns the sum over the spans of each text."
            )
        return loss


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EntityExtractor(Task):
    """Extract entities of any type. Labels are passed with each call (GLiNER).

        model = ez.EntityExtractor.from_preset("hf://urchade/gliner_multi-v2.1")
        model.extract_entities("Zoë met Bob in Paris.", labels=["person", "city"])

    The labels and the text are passed to the model together, and each span is compared to each
    label. Use `nested=True` to allow entities inside entities.

    `from_preset` loads span-based models from the gliner package. It also loads any encoder, and
    adds new layers, which `fit` trains. Presets are saved in the gliner format.

    Args:
        backbone: The `Backbone` to use.
        preprocessor: Optional `EntityExtractorPreprocessor` for raw text.
        labels: Optional list of strings. Default labels, which are saved with the preset. If None,
            the first call to `fit` learns the labels from the spans.
        thresholds: Optional dict mapping labels to minimum scores (see `tune_thresholds`). Only
            entities with a higher score will be returned. For missing labels, 0.5 is used.
        max_width: Positive integer. Maximum number of words per entity. Defaults to 12.
        span_dim: Optional positive integer. Width of the layers after the backbone. If None, the
            width of the backbone will be used.
        span_mode: String. How to combine word embeddings into span embeddings (see `SpanHead`).
            Defaults to "markerV0".
        num_rnn_layers: Integer. Number of LSTM layers over words. Use 0 for no LSTM. Defaults to 1.
        subtoken_pooling: String. How to pool token embeddings for each word. Defaults to "first".
        embed_label_marker: Boolean. Whether to use the embedding from the marker before each label.
            If False, the embedding from the first label token will be used. Defaults to True.
        dropout: Float between 0 and 1. Dropout rate for all layers after the backbone. Defaults to
            0.4.

    For `fit`, `x` is a list of texts, or `(texts, labels)` with a list of labels per text. `y` is a
    list of spans `{"start", "end", "label"}` per text with character offsets, as for
    `TokenClassifier`. Spans can overlap. If `x` has no labels, all labels in the data are used for
    each text. Labels without a span in the text are negatives. If the data has more than 25 labels,
    only the labels in the text and a random sample of the other labels are used. A word belongs to
    a span if they share a character.

    Call arguments:
        inputs: Dict. The inputs to the model, as returned from the preprocessor. Without
            "word_index", each token is used as a word, and the first token as the only label.

    Returns:
        Float32 tensor of shape (B, W, K, C). Logits for spans with K widths, starting at each word.
        For missing spans, the logit is -1e9. When `predict` is called with texts, a list of arrays
        with shape (words, K, C) is returned.

    Source: Zaratiana et al. 2024, GLiNER: Generalist Model for Named Entity Recognition using
    Bidirectional Transformer.

    Example:
        >>> from encoder_zoo import EntityExtractor
        >>> model = EntityExtractor.from_preset("bert_nano_en_uncased", max_width=4)  # a new head
        >>> texts, spans = ["Anna lives in Rome."], [[(0, 4, "person"), (14, 18, "city")]]
        >>> history = model.fit(texts, spans, verbose=0)
        >>> found = model.extract_entities("Anna sings.", labels=["person"], threshold=0.0)
        >>> sorted(found[0])
        ['end', 'label', 'score', 'start', 'text']
    """

    record = TaskRecord(
        "entity_extractor",
        EntityExtractorPreprocessor,
        head="ForEntityExtraction",
        default_head=gliner.SpanHeadRecord(),
        pipeline_tag="token-classification",
        answers_class=EntityAnswers,
        text_method="extract_entities",
        answer_type=Entity,
        answer_settings=("labels", "thresholds"),
        tuned_settings={"thresholds": (None, "tune_thresholds")},
        folder=gliner.GlinerFolderFormat(),
        only_saved_model="word embeddings from tokens, and an LSTM over the words",
    )
    objective = SpanObjective(
        SpanFocalLoss,
        lambda: [SpanF1()],
        "sigmoid",
        own_metrics={"f1": SpanF1},
        of_examples=True,
        pads_classes=True,
    )

    @validation.validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: EntityExtractorPreprocessor | None = None,
        labels: Sequence[str] | None = None,
        max_width: SpanWidth = 12,
        span_dim: validation.PositiveInt | None = None,
        span_mode: SpanMode = "markerV0",
        num_rnn_layers: validation.NonNegativeInt = 1,
        subtoken_pooling: SubtokenPooling = "first",
        embed_label_marker: bool = True,
        dropout: validation.Rate = 0.4,
        thresholds: confidence.Thresholds | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.labels = validate_labels(labels)
        if self.labels:
            make_label_set(self.labels)
        self.thresholds = thresholds
        self.max_width = max_width
        self.span_dim = span_dim or backbone.hidden_dim
        self.span_mode = span_mode
        self.num_rnn_layers = num_rnn_layers
        self.subtoken_pooling = subtoken_pooling
        self.embed_label_marker = embed_label_marker
        self.dropout = dropout
        self._finish_building()

    @property
    def recurrent_layer(self) -> str | None:
        return "an LSTM" if self.num_rnn_layers else None

    def build_head(self) -> keras.layers.Layer:
        head = SpanHead(
            self.span_dim,
            self.max_width,
            self.span_mode,
            self.num_rnn_layers,
            self.subtoken_pooling,
            self.dropout,
            name="head",
            dtype=self.dtype_policy,
        )
        head.build((None, None, self.backbone.hidden_dim))
        return head

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[EntityExtractorPresetArguments]
    ) -> Self:
        """Load a gliner model, or an encoder with new layers. See `Task.from_preset`.

        Args:
            source: String or path. The preset to load: a name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Keyword arguments to pass to the extractor: `labels=["person", "city"]`,
                `thresholds`, `max_width`. Arguments for a new head: `span_dim`, `span_mode`,
                `num_rnn_layers`, `subtoken_pooling`, `embed_label_marker`. Arguments for the
                preprocessor: `sequence_length`, `max_words`, `doc_stride`, `label_marker`,
                `separator`. Arguments for the backbone, e.g. `dropout` and `dtype`. `added_tokens`
                for the tokenizer. Options for file checks: `verify`, `max_bytes`,
                `allow_nonfinite`.

        Raises:
            ValueError: If the model scores single words instead of spans. See `Task.from_preset`
                for other errors.
        """
        return super().from_preset(source, **arguments)

    @property
    def head_record(self) -> gliner.SpanHeadRecord:
        return gliner.SpanHeadRecord(span_mode=self.span_mode, num_rnn_layers=self.num_rnn_layers)

    # -- the model -----------------------------------------------------------------------------

    def logits_of(self, encoded, inputs, training=None):
        x = encoded["sequence_output"]
        if "word_index" in inputs:
            read = SpanInputs(*(inputs[name] for name in SpanInputs._fields))
        else:
            mask = ops.cast(add_padding_mask(inputs)["padding_mask"], "int32")
            index = (ops.arange(ops.shape(mask)[1], dtype="int32") + 1) * mask
            read = SpanInputs(index, mask, ops.zeros_like(mask[:, :1]))
        return self.head(x, read, training=training)  # (B, W, K, C)

    def compute_output_spec(self, inputs, training=None):
        batch, words = inputs.get("word_mask", inputs["token_ids"]).shape
        labels = inputs["label_positions"].shape[1] if "label_positions" in inputs else 1
        return keras.KerasTensor((batch, words, self.max_width, labels), "float32")

    def list_input_names(self) -> list[str]:
        return [*super().list_input_names(), *SpanInputs._fields]

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        own = {"word_index": (0, length), "word_mask": (0, 1), "label_positions": (-1, length - 1)}
        return {**super().input_ranges(length), **own}

    # -- training ------------------------------------------------------------------------------

    def _adapt_to_data(self, given, training=True) -> None:
        if not training or self.labels is not None or isinstance(given, sources.ArrayData):
            return
        given.check_can_learn_labels()
        x, y = given.x, given.y
        spans = token_labels.collect_labels(x) if given.is_read_in_batches else y
        if not (given.is_read_in_batches and isinstance(given.element[1], dict)):
            spans = token_labels.convert_spans_to_dicts(spans)
        names = {get_class_name(span["label"]) for row in spans for span in row}
        if isinstance(x, tuple) and len(x) > 1:
            names |= {name for row in x[1] for name in row}
        if not names:
            raise ValueError(
                "The data contains no spans, so the labels cannot be learned. Pass labels=[...]."
            )
        if isinstance(given, sources.TextData):  # errors must be raised before the labels are set
            self.preprocessor.read_texts(x)
        self.labels = validate_labels(sorted(names))
        self.preprocessor.attach(self)

    # -- answers -------------------------------------------------------------------------------

    extract_entities = delegate_to_answers(EntityAnswers.extract_entities)

    @validation.validate_arguments
    def signatures(
        self,
        threshold: validation.Probability | confidence.Thresholds | None = None,
        nested: bool = False,
        multi_label: bool = False,
    ) -> dict[str, Callable]:
        """Return the function to export, which runs `extract_entities` on "text" and "labels".

        Args:
            threshold, nested, multi_label: See `extract_entities`. The export keeps the current
                thresholds.

        Returns:
            Dict with a single function. It takes "text" (N,), and "labels" (N, C), or (1, C) for
            the same labels in all texts. Shorter lists of labels are padded with "". It returns
            "count" of shape (N,) with the number of entities per text, and "label", "text",
            "start", "end" and "score" of shape (N, G), with G the maximum number of entities per
            text. Rows are padded with "" and 0.
        """

        run = functools.partial(self, training=False)
        entities = self._answers.make_entities_function(run, threshold, nested, multi_label)
        return {"serving_default": entities}

    @validation.validate_arguments
    @lock_weights
    def evaluate_entities(
        self,
        x: object,
        y: object,
        labels: object = None,
        threshold: validation.Probability | confidence.Thresholds | None = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: validation.PositiveInt | None = None,
    ) -> dict[str, Any]:
        """Compute precision, recall and F1 of `extract_entities`, overall and per label.

        `evaluate` counts all spans above the threshold. This method only counts the spans that
        `extract_entities` returns.

        Args:
            x: List of texts.
            y: Spans of the texts, as for `fit`.
            labels, threshold, nested, multi_label, batch_size: See `extract_entities`. `labels`
                defaults to the task's labels, or to the labels of the spans.

        Returns:
            `{"precision", "recall", "f1", "per_type": {label: {..., "support"}}}`.
        """
        x, true, labels = self._collect_true_entities(x, y, labels)
        options = (threshold, nested, multi_label, batch_size)
        return entity_metrics.score_entities(
            true, entity_metrics.convert_to_triples(self.extract_entities(x, labels, *options))
        )

    @validation.validate_arguments
    @lock_weights
    def tune_thresholds(
        self,
        x: object,
        y: object = None,
        labels: object = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: validation.PositiveInt | None = None,
    ) -> dict[str, float]:
        """Tune the threshold for each label to maximize F1 on held-out texts.

        The thresholds are used in all later answers, unless `threshold` is passed. The thresholds
        of labels that are missing in the data do not change. The thresholds are saved with the
        preset, and reset by the next `fit`.

        Args:
            x, y: Texts and spans, as for `evaluate_entities`. They should not be part of the
                training data.
            labels, nested, multi_label, batch_size: See `evaluate_entities`.

        Returns:
            Dict mapping labels to thresholds. A label without spans keeps 0.5, and a warning is
            logged.

        Example:
            >>> from encoder_zoo import EntityExtractor
            >>> model = EntityExtractor.from_preset("bert_nano_en_uncased", max_width=4)
            >>> spans = [[(0, 4, "person"), (14, 18, "city")]]
            >>> sorted(model.tune_thresholds(["Anna lives in Rome."], spans))
            ['city', 'person']
        """
        options = {"nested": nested, "multi_label": multi_label, "batch_size": batch_size}
        found = confidence.tune_thresholds(self._score_labels(x, y, labels, **options))
        self.thresholds = {**(self.thresholds or {}), **found}
        return found

    def _score_labels(self, x, y=None, labels=None, **options) -> confidence.ScoredLabels:
        """Compute all scores and labels that `tune_thresholds` and `display.thresholds` need.

        Args:
            x, y, labels: See `evaluate_entities`.
            **options: Arguments of `extract_entities`.
        """
        x, true, labels = self._collect_true_entities(x, y, labels)
        sources.check_not_empty(x)
        confidence.check_weights_finite(self)
        # Spans with high scores are selected first, so a threshold only removes selected spans.
        found = self.extract_entities(x, labels, threshold=0.0, **options)
        names, _ = make_label_sets(labels, None, len(x))
        least = self._answers.get_min_scores(None, names)
        pairs = zip(
            *(np.asarray(rows.flat_values).tolist() for rows in (names, least)), strict=True
        )
        least = {name.decode(): value for name, value in pairs}
        return entity_metrics.score_by_type(true, found, list(least), list(least.values()))

    def _collect_true_entities(self, x, y, labels) -> tuple:
        """Return the texts, their entities (label, start, end), and the labels to look for."""
        x, y = sources.read_examples(self, x, y)
        texts = convert_column(convert_to_plain(x))
        rows = token_labels.convert_spans_to_dicts(check_not_missing(y, x))
        rows = [[{**span, "label": get_class_name(span["label"])} for span in row] for row in rows]
        names = sorted({span["label"] for row in rows for span in row})
        *bounds, _ = token_labels.locate_spans(rows, texts, names)
        bounds = (np.asarray(bound.flat_values).tolist() for bound in bounds)
        places = zip(*bounds, strict=True)  # without whitespace at the edges
        true = [{(span["label"], *next(places)) for span in row} for row in rows]
        return x, true, (self.labels or names) if labels is None else labels

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        spans = [[(0, 3, "a"), (2, 3, "c")], [], [(2, 5, "c")], []]
        arguments = {"labels": ["a", "c"], "max_width": 3, "span_dim": 6}
        x = super().tiny_data().x
        return TinyData(arguments, x, spans, lambda task: (x, [["a", "c"]] * 4))
