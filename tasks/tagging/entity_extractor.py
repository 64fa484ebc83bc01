"""The task of entities by their names, which are given with each question: GLiNER.

Comment letters: B batch, L tokens, W words, K widths of spans, C labels, N texts, P candidates.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.validation import (
    NonNegativeInt,
    PositiveInt,
    Probability,
    Rate,
    validate_arguments,
)
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.presets.formats import gliner
from encoder_zoo.presets.formats.gliner import SpanWidth
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.classes import validated_labels
from encoder_zoo.tasks.base.confidence import (
    ScoredLabels,
    Thresholds,
    check_weights_finite,
    tuned_thresholds,
)
from encoder_zoo.tasks.base.missing_answers import Missing
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments, TinyData
from encoder_zoo.tasks.preprocessing.columns import plain
from encoder_zoo.tasks.preprocessing.given_labels import check_given, class_name
from encoder_zoo.tasks.preprocessing.inputs import as_column
from encoder_zoo.tasks.tagging import token_labels
from encoder_zoo.tasks.tagging.entities import Entity
from encoder_zoo.tasks.tagging.entity_answers import EntityAnswers, Labels, label_set, label_sets
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import (
    EntityExtractorPreprocessor,
)
from encoder_zoo.tasks.tagging.entity_metrics import score_entities, scored_entities
from encoder_zoo.tasks.tagging.span_head import (
    SpanF1,
    SpanFocalLoss,
    SpanHead,
    SpanInputs,
    SpanMode,
    SubtokenPooling,
)
from encoder_zoo.tasks.training.loss_inputs import function_of, name_of
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.sources import (
    check_inputs,
    check_labels,
    check_not_empty,
    check_preprocessor,
)
from encoder_zoo.tasks.training.streams import check_no_stream

if TYPE_CHECKING:
    from typing import Self

logger = logging.getLogger("encoder_zoo")


class EntityExtractorPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `EntityExtractor.from_preset`."""

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


class Spans(Objective):
    """Objective of an `EntityExtractor`: whether each span of words is of each label."""

    def resolve_loss(self, loss):
        loss = super().resolve_loss(loss)
        if function_of(loss) is not None:
            raise ValueError(
                f"{name_of(loss)} is a mean over spans, which would count the padding of texts "
                "with fewer spans. Expected ez.SpanFocalLoss(), or a loss that returns the sum "
                "over the spans of each text."
            )
        return loss


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EntityExtractor(Task):
    """Extract entities by their names, which are given with each question: GLiNER.

        model = ez.EntityExtractor.from_preset("hf://urchade/gliner_multi-v2.1")
        model.extract_entities("Zoë met Bob in Paris.", labels=["person", "city"])

    The model reads the labels and a text together, and compares every span of words with every
    label. Entities may be of any kind, and with `nested=True` inside of each other.

    `from_preset` opens folders of the package gliner whose models score spans; and any encoder,
    which gets new layers behind it and needs `fit`. Presets are saved in gliner's form.

    Args:
        backbone: any `Backbone`.
        preprocessor: for raw text.
        labels: default labels; without any, the first `fit` learns them from its spans. They are
            saved with the preset.
        thresholds: {label: score that its entities must be above}, see `tune_thresholds`; 0.5 of
            all others.
        max_width: the most words of an entity.
        span_dim: width of the layers behind the backbone; None is the backbone's.
        span_mode: how the vectors of words become those of spans, see `SpanHead`.
        num_rnn_layers: of an LSTM that reads the words once more; 0 for none.
        subtoken_pooling: how the vectors of a word's tokens become one.
        embed_label_marker: whether a label has the vector of the marker before it, or else of its
            first token.
        dropout: of the layers behind the backbone, in training.

    `fit` takes x as texts, or `(texts, labels)` with a list of labels for each text; and y as for
    `TokenClassifier`, spans that may overlap, `{"start", "end", "label"}` in characters. A text is
    read with its own labels or, without these, with all labels of the data: those that it has no
    span of are its negatives. Of more than 25 labels, it is read with those of its spans and with
    others drawn at random. A span has all words that it shares a character with.

    Call arguments:
        inputs: the preprocessor's outputs. Of prepared inputs without "word_index" each token is a
            word, and the first one the only label.

    Returns:
        (B, W, K, C) float32 logits of the spans of K widths from each of W words, -1e9 where
        there is none. `predict` of texts returns a list with (words, K, C) of each.

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
        text_method="extract_entities",
        answer_type=Entity,
        answer_settings=("labels", "thresholds"),
        tuned_settings={"thresholds": (None, "tune_thresholds")},
        folder=gliner.GlinerFolder(),
        only_saved_model="words of several tokens, and an LSTM over them",
        predicts_lists=True,
    )
    objective = Spans(
        SpanFocalLoss,
        lambda: [SpanF1()],
        "sigmoid",
        own_metrics={"f1": SpanF1},
        of_examples=True,
        pads_classes=True,
    )

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: EntityExtractorPreprocessor | None = None,
        labels: Sequence[str] | None = None,
        max_width: SpanWidth = 12,
        span_dim: PositiveInt | None = None,
        span_mode: SpanMode = "markerV0",
        num_rnn_layers: NonNegativeInt = 1,
        subtoken_pooling: SubtokenPooling = "first",
        embed_label_marker: bool = True,
        dropout: Rate = 0.4,
        thresholds: Thresholds | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.labels = validated_labels(labels)
        if self.labels:
            label_set(self.labels)
        self.thresholds = thresholds
        self.max_width = max_width
        self.span_dim = span_dim or backbone.hidden_dim
        self.span_mode = span_mode
        self.num_rnn_layers = num_rnn_layers
        if num_rnn_layers:
            self.record = dataclasses.replace(self.record, goes_step_by_step="an LSTM")
        self.subtoken_pooling = subtoken_pooling
        self.embed_label_marker = embed_label_marker
        self.dropout = dropout
        self._finish_building()

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
        """Load a model of gliner, or an encoder with new layers; see `Task.from_preset`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `labels=["person", "city"]`, `thresholds`, `max_width`; of a new head
                `span_dim`, `span_mode`, `num_rnn_layers`, `subtoken_pooling`,
                `embed_label_marker`; of the preprocessor `sequence_length`, `max_words`,
                `doc_stride`, `label_marker`, `separator`; `dropout`, `dtype` and others of the
                backbone; `added_tokens` of the tokenizer; `verify`, `max_bytes`,
                `allow_nonfinite` of the checks.

        Raises:
            ValueError: As for `Task.from_preset`, or if the model scores single words instead of
                spans.
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

    def prepared_inputs(self) -> list[str]:
        return [*super().prepared_inputs(), *SpanInputs._fields]

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        own = {"word_index": (0, length), "word_mask": (0, 1), "label_positions": (-1, length - 1)}
        return {**super().input_ranges(length), **own}

    # -- training ------------------------------------------------------------------------------

    def _adapt(self, x, y, training=True) -> None:
        if not training or isinstance(x, dict) or self.labels is not None:
            return
        check_no_stream(x)
        spans = token_labels.span_lists(token_labels.labels_of_dataset(x) if y is None else y)
        names = {class_name(span["label"]) for row in spans for span in row}
        if isinstance(x, tuple) and len(x) > 1:
            names |= {name for row in x[1] for name in row}
        if not names:
            raise ValueError("There are no spans to learn the labels from. Pass labels=[...].")
        self.labels = validated_labels(sorted(names))
        self.preprocessor.attach(self)

    # -- answers -------------------------------------------------------------------------------

    @property
    def _answers(self) -> EntityAnswers:
        settings = self.labels, self.thresholds, self.max_width
        return EntityAnswers(self.preprocessor, self, *settings)

    @overload
    def extract_entities(
        self,
        texts: str,
        labels: Labels | None = None,
        threshold: float | Mapping[str, float] | None = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: int | None = None,
    ) -> list[Entity]: ...
    @overload
    def extract_entities(
        self,
        texts: Iterable[Any],
        labels: Labels | None = None,
        threshold: float | Mapping[str, float] | None = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: int | None = None,
    ) -> list[list[Entity]]: ...
    @overload
    def extract_entities(
        self, texts: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    def extract_entities(
        self,
        texts,
        labels: object = None,
        threshold: Probability | Thresholds | None = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ):
        """Return the entities in texts.

        Texts of any length are read in windows that overlap, see `EntityExtractorPreprocessor`.

        Args:
            texts: a text or a list of texts; or spaCy's `Doc`s.
            labels: names of what to look for, such as ["person", "court"]; or {name: description},
                where the model reads the descriptions; or one of both for each text. None: those
                of the last `fit`.
            threshold: the score that an entity must be above; a number, or {label: number} with
                0.5 for all others. None: those of `tune_thresholds`, else 0.5.
            nested: whether entities may be inside of each other; else no two share a word.
            multi_label: whether the same words may be an entity of several labels.
            batch_size: default 32.
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for an
                answer of None; "error", the default, for an error that names the first of them.

        Returns:
            For every text a list of `{"label", "text", "start", "end", "score"}`, in their order;
            start and end count the characters of the caller's string. For a single text its list
            alone.

        Raises:
            ValueError: If there are no labels, a label occurs more than once, or the labels leave
                no room for a text.
        """
        check_preprocessor(self, texts)
        options = (threshold, nested, multi_label, batch_size, missing)
        return self._answers.extract_entities(texts, labels, *options)

    @validate_arguments
    def signatures(
        self,
        threshold: Probability | Thresholds | None = None,
        nested: bool = False,
        multi_label: bool = False,
    ) -> dict[str, Callable]:
        """Return `extract_entities` of "text" and "labels" for exports.

        Args:
            threshold, nested, multi_label: as for `extract_entities`; thresholds are those of now.

        Returns:
            A function of "text" (N,) and "labels" (N, C), or (1, C) for all texts; where a text has
            fewer labels, the last are "". Its results are "count" (N,), the number of entities of
            every text, and "label", "text", "start", "end" and "score", (N, G) with G the most
            entities of a text; after a text's last entity they are "" and 0.
        """

        run = functools.partial(self, training=False)
        entities = self._answers.trace_entities(run, threshold, nested, multi_label)
        return {"serving_default": entities}

    @validate_arguments
    def evaluate_entities(
        self,
        x: object,
        y: object,
        labels: object = None,
        threshold: Probability | Thresholds | None = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, Any]:
        """Compute precision, recall and F1 of `extract_entities`, and of every label.

        The metric of `evaluate` counts all spans above the threshold; this one those that are
        chosen.

        Args:
            x: texts.
            y: their spans, as for `fit`.
            labels, threshold, nested, multi_label, batch_size: as for `extract_entities`; labels
                None: the task's, or else those of the spans.

        Returns:
            `{"precision", "recall", "f1", "per_type": {label: {..., "support"}}}`.
        """
        x, true, labels = self._true_entities(x, y, labels)
        options = (threshold, nested, multi_label, batch_size)
        return score_entities(true, _triples(self.extract_entities(x, labels, *options)))

    @validate_arguments
    def tune_thresholds(
        self,
        x: object,
        y: object = None,
        labels: object = None,
        nested: bool = False,
        multi_label: bool = False,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Set for each label the score that its entities must be above, by its F1 on some texts.

        The answers use them from now on, unless they are asked with a `threshold`; other labels
        keep theirs. They are saved with the preset, and the next `fit` removes them.

        Args:
            x, y: texts that it was not trained on and their spans, as for `evaluate_entities`.
            labels, nested, multi_label, batch_size: as there.

        Returns:
            {label: threshold}. A label that no text has keeps 0.5, which is logged.

        Example:
            >>> from encoder_zoo import EntityExtractor
            >>> model = EntityExtractor.from_preset("bert_nano_en_uncased", max_width=4)
            >>> spans = [[(0, 4, "person"), (14, 18, "city")]]
            >>> sorted(model.tune_thresholds(["Anna lives in Rome."], spans))
            ['city', 'person']
        """
        options = {"nested": nested, "multi_label": multi_label, "batch_size": batch_size}
        found = tuned_thresholds(self._scored_labels(x, y, labels, **options))
        self.thresholds = {**(self.thresholds or {}), **found}
        return found

    def _scored_labels(self, x, y=None, labels=None, **options) -> ScoredLabels:
        """Return what `tune_thresholds` and `display.thresholds` count, of the same examples.

        Args:
            x, y, labels: as for `evaluate_entities`.
            **options: of `extract_entities`.
        """
        x, true, labels = self._true_entities(x, y, labels)
        check_not_empty(x)
        check_weights_finite(self)
        # Spans are chosen by score, so that those of one threshold are those above it of all.
        found = self.extract_entities(x, labels, threshold=0.0, **options)
        names, _ = label_sets(labels, None, len(x))
        least = self._answers.least_scores(None, names)
        pairs = zip(
            *(np.asarray(rows.flat_values).tolist() for rows in (names, least)), strict=True
        )
        least = {name.decode(): value for name, value in pairs}
        return scored_entities(true, found, list(least), list(least.values()))

    def _true_entities(self, x, y, labels) -> tuple:
        """Return texts, their entities (label, start, end), and the labels to look for."""
        check_inputs(self, x, y)
        x, y = self.batch_maker.separate(x, y)
        texts = as_column(plain(x))
        check_labels(self, x, y)
        rows = token_labels.span_lists(check_given(y, x))
        rows = [[{**span, "label": class_name(span["label"])} for span in row] for row in rows]
        names = sorted({span["label"] for row in rows for span in row})
        *bounds, _ = token_labels.located_spans(rows, texts, names)
        bounds = (np.asarray(bound.flat_values).tolist() for bound in bounds)
        places = zip(*bounds, strict=True)  # without blanks at the edges
        true = [{(span["label"], *next(places)) for span in row} for row in rows]
        return x, true, (self.labels or names) if labels is None else labels

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        spans = [[(0, 3, "a"), (2, 3, "c")], [], [(2, 5, "c")], []]
        arguments = {"labels": ["a", "c"], "max_width": 3, "span_dim": 6}
        x = super().tiny_data().x
        return TinyData(arguments, x, spans, lambda task: (x, [["a", "c"]] * 4))


def _triples(rows: Iterable[Iterable[Mapping]]) -> list[set[tuple[str, int, int]]]:
    """Return the entities of texts as (label, start, end)."""
    return [{(e["label"], e["start"], e["end"]) for e in row} for row in rows]
