"""The task of entities by their names, which are given with each question: GLiNER.

Comment letters: B batch, L tokens, W words, K widths of spans, C labels, N texts, P candidates.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.lazy import array_ops, in_numpy
from encoder_zoo.common.validation import (
    NonNegativeInt,
    PositiveInt,
    Probability,
    Rate,
    validate_arguments,
)
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.presets.formats import gliner
from encoder_zoo.presets.formats.gliner import SpanWidth
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.classes import label_indices, validated_labels
from encoder_zoo.tasks.base.confidence import (
    DEFAULT_THRESHOLD,
    ScoredLabels,
    Thresholds,
    check_weights_finite,
    threshold_of_each,
    tuned_thresholds,
)
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.records import padded_columns, records
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments, TinyData
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.columns import is_doc, plain
from encoder_zoo.tasks.preprocessing.given_labels import check_given, class_name
from encoder_zoo.tasks.preprocessing.inputs import as_column
from encoder_zoo.tasks.preprocessing.preprocessor import as_valid_text
from encoder_zoo.tasks.tagging import token_labels
from encoder_zoo.tasks.tagging.entities import Entity
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import (
    EntityExtractorPreprocessor,
    SpanWindows,
    WordsOfTexts,
)
from encoder_zoo.tasks.tagging.entity_metrics import score_entities, scored_entities
from encoder_zoo.tasks.tagging.span_decoding import (
    Candidates,
    choose,
    choose_in_graph,
    entity_columns,
    in_texts,
    of_texts,
)
from encoder_zoo.tasks.tagging.span_head import (
    SpanF1,
    SpanFocalLoss,
    SpanHead,
    SpanInputs,
    SpanMode,
    SubtokenPooling,
)
from encoder_zoo.tasks.training.batch_loss import BatchLoss
from encoder_zoo.tasks.training.inference import example_outputs
from encoder_zoo.tasks.training.loss_inputs import function_of, name_of
from encoder_zoo.tasks.training.sources import (
    check_inputs,
    check_not_empty,
    check_preprocessor,
)
from encoder_zoo.tasks.training.streams import check_no_stream

if TYPE_CHECKING:
    from typing import Self

logger = logging.getLogger("encoder_zoo")

Labels = Sequence[str] | Mapping[str, str] | Sequence[Sequence[str] | Mapping[str, str]]


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
        folder=gliner.GlinerFolder(),
        only_saved_model="words of several tokens, and an LSTM over them",
        predicts_lists=True,
        pads_classes=True,
    )
    output_activation = "sigmoid"

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
            _label_set(self.labels)
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
        with self.distribution.scope():
            self.head = SpanHead(
                self.span_dim,
                max_width,
                span_mode,
                num_rnn_layers,
                subtoken_pooling,
                dropout,
                name="head",
                dtype=self.dtype_policy,
            )
            self.head.build((None, None, backbone.hidden_dim))
        self._finish_building()

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

    def resolve_loss(self, loss, default):
        loss = super().resolve_loss(loss, default)
        if function_of(loss) is not None:
            raise ValueError(
                f"{name_of(loss)} is a mean over spans, which would count the padding of texts "
                "with fewer spans. Expected ez.SpanFocalLoss(), or a loss that returns the sum "
                "over the spans of each text."
            )
        return loss

    def make_batch_loss(self, loss):
        return BatchLoss(loss, of_examples=True)

    def default_loss(self) -> keras.losses.Loss:
        return SpanFocalLoss()

    def default_metrics(self) -> list:
        return [SpanF1()]

    def metric_by_name(self, name: str):
        return SpanF1() if name == "f1" else super().metric_by_name(name)

    def _separate(self, x, y) -> tuple:
        if isinstance(x, tuple):
            return x, y
        return token_labels.separated(x, y)

    def _before_training(self, x, y) -> None:
        if self.thresholds:
            self.thresholds = None
            logger.warning(
                "The thresholds belong to the weights before this training. Call tune_thresholds "
                "again."
            )

    def _adapt(self, x, y) -> None:
        if isinstance(x, dict) or self.labels is not None:
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

    def _predict_texts(self, x, batch_size, predict) -> list[np.ndarray]:
        x, labels = x if isinstance(x, tuple) else (x, None)
        with self._quickly():
            texts = as_column(plain(x))
            _, prompts = label_sets(labels, self.labels, len(texts))
            words, read, examples = self._read(texts, prompts)
            lengths = np.asarray(words.starts.row_lengths())
            widths = np.asarray(prompts.row_lengths())
            shapes = [(n, self.max_width, c) for n, c in zip(lengths, widths, strict=True)]
            outputs = [np.full(shape, MASKED_LOGIT, "float32") for shape in shapes]
            every = self._candidates(examples, batch_size, -np.inf)
            found = in_texts(every, words, read)
            for row, start, end, label, score in zip(*map(np.asarray, found), strict=True):
                outputs[row][start, end - start, label] = score
        return outputs

    def _quickly(self) -> contextlib.AbstractContextManager:
        """Return a context in which texts are prepared in NumPy, where that is the same."""
        same = self.preprocessor.tokenizer.library_is_equal
        return in_numpy() if same else contextlib.nullcontext()

    def _read(self, texts, labels) -> tuple[WordsOfTexts, SpanWindows, dict]:
        """Return the words of texts, the windows that they are read in, and their examples."""
        prepares = self.preprocessor
        words = prepares.words(texts)
        examples, read = prepares.examples(words, prepares.prompts(labels))
        return words, read, examples

    def _candidates(self, examples: dict, batch_size, least: float) -> Candidates:
        """Return the spans of windows with a logit above the least, with logits as their scores."""
        parts = []
        for indices, outputs in example_outputs(self, examples, batch_size):
            outputs = np.asarray(outputs)  # (B, W, K, C)
            real = outputs > max(least, MASKED_LOGIT / 2)
            row, start, width, label = np.nonzero(real)
            parts.append((indices[row], start, start + width, label, outputs[real]))
        fields = zip(*parts, strict=True) if parts else [[np.zeros(0, np.int64)]] * 5
        window, *rest = (np.concatenate(list(field)) for field in fields)
        order = np.argsort(window, kind="stable")
        kinds = (np.int64, np.int32, np.int32, np.int32, np.float32)
        return Candidates(
            *(
                array_ops.constant(field[order].astype(kind))
                for field, kind in zip((window, *rest), kinds, strict=True)
            )
        )

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
    @skips_missing("texts", beside="labels")
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
        if isinstance(texts, str) or is_doc(texts):
            # A single text has a single set of labels.
            options = (threshold, nested, multi_label, batch_size)
            return self.extract_entities([texts], labels, *options)[0]
        check_preprocessor(self, texts)
        with self._quickly():
            texts = as_column(plain(texts))
            names, prompts = label_sets(labels, self.labels, len(texts))
            if not len(texts):
                return []
            prepares = self.preprocessor
            prepares.check_prompts(map(bytes.decode, np.asarray(prompts.flat_values).tolist()))
            if isinstance(threshold, Mapping):  # of labels that are asked for
                known = dict.fromkeys(np.asarray(names.flat_values).tolist())
                threshold_of_each(threshold, [name.decode() for name in known], DEFAULT_THRESHOLD)
            least = self._least_scores(threshold, names)
            words, read, examples = self._read(texts, prompts)
            lowest = np.min(least.flat_values)
            with np.errstate(divide="ignore"):  # of 0 and 1
                lowest = np.log(lowest) - np.log1p(-lowest)
            found = in_texts(self._candidates(examples, batch_size, lowest), words, read)
            found = found._replace(score=array_ops.sigmoid(found.score))
            found = choose(_above(found, least), nested, multi_label)
            return records(entity_columns(found, words, texts, names))

    def _least_scores(
        self, given: float | Mapping[str, float] | None, names: array_ops.RaggedTensor
    ) -> array_ops.RaggedTensor:
        """Return the threshold of each label of each text, ragged (N, None) float32.

        Args:
            given: see `extract_entities`.
            names: ragged (N, None) strings, the labels of each text.
        """
        given = self.thresholds or {} if given is None else given
        known = given if isinstance(given, Mapping) else {}
        others = DEFAULT_THRESHOLD if isinstance(given, Mapping) else given
        values = array_ops.constant([*known.values(), others], array_ops.float32)
        found = array_ops.unique(names.flat_values)
        index = label_indices(found.y, [*map(str, known)])
        index = array_ops.where(index < 0, len(known), index)
        return names.with_values(array_ops.gather(array_ops.gather(values, index), found.idx))

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

        def entities(text, labels):
            text = as_valid_text(text)
            count = array_ops.size(text, array_ops.int64)
            names = array_ops.RaggedTensor.from_tensor(labels, padding="")
            times = array_ops.where(names.nrows() == 1, count, 1)
            rows = array_ops.repeat(array_ops.range(names.nrows()), times)
            names = array_ops.gather(names, rows)
            least = self._least_scores(threshold, names)
            words, read, examples = self._read(text, names)
            lowest = array_ops.reduce_min(least.flat_values)
            found = in_texts(self._candidates_in_graph(examples, lowest), words, read)
            found = choose_in_graph(_above(found, least), nested, multi_label)
            return padded_columns(entity_columns(found, words, text, names))

        entities.takes_other_shapes = True
        entities.ranks = {"labels": 2}
        return {"serving_default": entities}

    def _candidates_in_graph(self, examples: dict, least: array_ops.Tensor) -> Candidates:
        """Return the spans of windows with a score above the least, inside `tf.function`."""
        counts = examples["word_count"], examples["label_positions"].row_lengths()
        words, labels = (array_ops.cast(n, array_ops.int64) for n in counts)  # (M,)

        def scores(examples):
            inputs = self.preprocessor.collate(examples)
            logits = self(inputs, training=False)  # (B, W, K, C)
            is_label = (inputs["label_positions"] >= 0)[:, None, None]
            real = inputs["word_mask"][:, :, None, None] & is_label
            real = array_ops.broadcast_to(real, array_ops.shape(logits))
            return array_ops.sigmoid(array_ops.boolean_mask(logits, real))[:, None]

        sizes = words * labels * self.max_width
        found = in_graph_batches(scores, examples, sizes, 1)  # ragged (M, None, 1)
        score = found.values[:, 0]
        chosen = array_ops.where(score > least)[:, 0]
        window = array_ops.gather(found.value_rowids(), chosen)
        cell = chosen - array_ops.gather(found.row_starts(), window)
        number = array_ops.gather(labels, window)
        start, width = cell // (number * self.max_width), cell // number % self.max_width
        fields = (array_ops.cast(v, array_ops.int32) for v in (start, start + width, cell % number))
        return Candidates(window, *fields, array_ops.gather(score, chosen))

    @validate_arguments
    @reads_weights
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
    @reads_weights
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
        least = self._least_scores(None, names)
        pairs = zip(
            *(np.asarray(rows.flat_values).tolist() for rows in (names, least)), strict=True
        )
        least = {name.decode(): value for name, value in pairs}
        return scored_entities(true, found, list(least), list(least.values()))

    def _true_entities(self, x, y, labels) -> tuple:
        """Return texts, their entities (label, start, end), and the labels to look for."""
        check_inputs(self, x, y)
        x, y = self._separate(x, y)
        texts = as_column(plain(x))
        self._check_labels(x, y)
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
        return TinyData(arguments, super().tiny_data().x, spans)

    def tiny_questions(self) -> tuple:
        return self.tiny_data().x, [["a", "c"]] * 4


def _triples(rows: Iterable[Iterable[Mapping]]) -> list[set[tuple[str, int, int]]]:
    """Return the entities of texts as (label, start, end)."""
    return [{(e["label"], e["start"], e["end"]) for e in row} for row in rows]


def _above(found: Candidates, least: array_ops.RaggedTensor) -> Candidates:
    """Return the candidates of texts whose score is above the threshold of their label."""
    return found.masked(found.score > of_texts(least, found.row, found.label))


def label_sets(
    labels: Labels | None, default: Sequence[str] | None, count: int
) -> tuple[array_ops.RaggedTensor, array_ops.RaggedTensor]:
    """Return the names of the labels of each text, and what the model reads of them.

    Args:
        labels: see `EntityExtractor.extract_entities`.
        default: in place of None.
        count: N.

    Returns:
        Two ragged (N, None) strings.

    Raises:
        ValueError: If there are no labels, a label is empty or occurs more than once, or there are
            more lists of labels than texts, or fewer.

    Example:
        >>> names, prompts = label_sets({"PER": "a person"}, None, 2)
        >>> names.to_list(), prompts.to_list()
        ([[b'PER'], [b'PER']], [[b'a person'], [b'a person']])
    """
    labels = default or () if labels is None else labels
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    unordered = isinstance(labels, str | bytes | set | frozenset)
    if unordered or not isinstance(labels, Collection):
        raise invalid("labels", labels, "a list of names such as ['person', 'city']")
    if not labels:
        raise ValueError(
            "There are no labels to look for. Pass labels=[...], the names of entities such as "
            "'person'."
        )
    several = not isinstance(labels, Mapping) and _is_set(next(iter(labels)))
    if several and len(labels) != count:
        raise ValueError(
            f"There are {count} texts and {len(labels)} lists of labels. Expected one list for "
            "each text."
        )
    for i, given in enumerate(labels if several else ()):
        if not _is_set(given):
            raise invalid(f"labels[{i}]", given, "a list of names")
    sets = [_label_set(given) for given in labels] if several else [_label_set(labels)] * count
    lengths = [len(names) for names, _ in sets]
    lengths = array_ops.constant(lengths, array_ops.int64)
    flat = ([text for pair in sets for text in pair[i]] for i in range(2))
    strings = (array_ops.constant(values, array_ops.string) for values in flat)
    return tuple(array_ops.RaggedTensor.from_row_lengths(values, lengths) for values in strings)


def _is_set(labels: object) -> bool:
    """Return whether these are the labels of a text, not a label."""
    return isinstance(labels, Collection) and not isinstance(labels, str | bytes)


def _label_set(given: Sequence[str] | Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of labels, checked, and what the model reads of them."""
    names = list(given)
    prompts = [*given.values()] if isinstance(given, Mapping) else names
    if not names:
        raise ValueError("There are no labels to look for in one of the texts. Leave it out.")
    for kind, values in (("labels", names), ("The descriptions of labels", prompts)):
        for i, value in enumerate(values):
            if not isinstance(value, str) or not value.strip():
                raise invalid(f"{kind}[{i}]", value, "a name such as 'person', a string")
            check_writable(value, f"{kind}[{i}]")
            if value in values[:i]:
                raise ValueError(f"{kind} has {value!r} twice. Expected each once.")
    return names, prompts
