"""Token classification, such as named entity recognition and part-of-speech tagging.

Comments use these letters for shapes: B batch, L sequence, D hidden, C tags, P tokens of all texts.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import keras
import numpy as np

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.extras import load_extra
from encoder_zoo.common.validation import (
    PositiveInt,
    Probability,
    Rate,
    Temperature,
    validate_arguments,
)
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import ForeignName
from encoder_zoo.encoders.arrays import gather_array
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import CRF, Head
from encoder_zoo.presets.formats.checkpoint import make_default_labels
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.classes import add_weights_per_class, get_count_and_names
from encoder_zoo.tasks.base.confidence import ScoredLabels, Thresholds, check_weights_finite
from encoder_zoo.tasks.base.explanation import Method
from encoder_zoo.tasks.base.head import get_head_dropout
from encoder_zoo.tasks.base.inference import compute_token_outputs_in_graph
from encoder_zoo.tasks.base.labelled_task import TUNED_SETTINGS, LabelledTask
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.preprocessing.columns import is_doc
from encoder_zoo.tasks.preprocessing.tokenized_texts import has_word_lists
from encoder_zoo.tasks.tagging import entities, entity_metrics, token_labels
from encoder_zoo.tasks.tagging.alignment import SPAN_MARKS
from encoder_zoo.tasks.tagging.crf import CrfLoss, TagTransitions
from encoder_zoo.tasks.tagging.tag_answers import TagAnswers
from encoder_zoo.tasks.tagging.tags import (
    describe_notation,
    find_outside_index,
    find_spans,
    parse_tags,
)
from encoder_zoo.tasks.tagging.token_classifier_preprocessor import TokenClassifierPreprocessor
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.sources import ArrayData, InputData, StreamData

logger = logging.getLogger("encoder_zoo")

MIN_CUT_SHARE = 0.01  # if at least this fraction of spans cut a word, answers consist of tokens
FIRST_BATCHES = 32  # number of batches of a dataset whose spans are checked
TRANSITIONS_RATE = 100.0  # learning rate of the transition scores, relative to other weights


class TokenClassifierPresetArguments(TaskPresetArguments, total=False):
    """Types of the keyword arguments of `TokenClassifier.from_preset`."""

    labels: Sequence[str] | None
    num_classes: int | None
    head: keras.layers.Layer | None
    strategy: Literal["simple", "first", "average", "max", "none"] | None
    doc_stride: int | None
    label_all_tokens: bool
    split_symbols: bool | Literal["outer"]
    valid_tags: bool | None
    temperature: float
    thresholds: Mapping[str, float] | None
    crf: bool


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TokenClassifier(LabelledTask):
    """Classify tokens or words, for named entity recognition or part-of-speech tagging.

    Args:
        backbone: The `Backbone` to use. It does not need a pooler.
        preprocessor: Optional `TokenClassifierPreprocessor` for raw text.
        num_classes: Optional positive integer. Number of tags C. If `labels` is given, this must be
            equal to the number of labels.
        labels: Optional list of strings. Tag names, which are saved with the preset. If any name is
            an integer, integers in `y` will be read as names instead of tag indices. If neither
            `labels` nor `num_classes` is given, the labels will be learned from the data on the
            first call to `fit`.
        dropout: Optional float between 0 and 1. Dropout rate to apply before the output layer. If
            None, the rate of the backbone will be used.
        strategy: Optional string. Default strategy for `extract_entities` and exports, which is
            saved with the preset. With any strategy except "first", training labels all tokens. If
            None, "simple" is used until `fit` sets the strategy to "first", or to "average" if all
            tokens are labelled. If at least 1% of all spans begin or end inside a word, `fit`
            labels all tokens, and sets the strategy to "simple".
        valid_tags: Optional boolean. Whether to return only valid tag sequences in answers and
            exports (e.g. no I-PER after B-LOC). If True, the most probable valid sequence is
            returned. If None, False is used until `fit` sets `valid_tags` to True for training data
            with valid tag sequences (IOB2 and IOBES, also called BIO and BILOU, but not IOB1). The
            setting is saved with the preset.
        head: Optional Keras layer. Custom head that maps token embeddings (B, L, D) to logits (B,
            L, C). This layer is saved in `.keras` files. In presets, only the weights are stored.
            Use `from_preset(folder, head=...)` to load them into the same layer. If None, the head
            of the family will be used.
        split_symbols: Boolean or "outer". Whether to split words at symbols in answers. For
            example, the period in "London." is then a separate word. True splits at all symbols, as
            in training on spans. "outer" keeps symbols between letters, e.g. the hyphen in
            "Rhein-Main", as in training on words. False keeps the words of the vocabulary. `fit`
            sets the value, and it is saved with the preset. Defaults to False.
        temperature: Positive float. Value by which the logits are divided when scores are computed.
            `calibrate` sets it. Defaults to 1.0.
        thresholds: Optional dict mapping entity types to minimum scores (see `tune_thresholds`). If
            None, all entities will be returned.
        crf: Boolean. Whether to add a linear-chain conditional random field (CRF), which learns
            scores of tag pairs. If True, the most probable tag sequence is returned, and a score is
            the marginal probability of the tag. transformers does not support CRFs, and finds no
            head in such a preset. Defaults to False.

    For `fit` and `evaluate`, `x` can be a list of texts, lists of words, or texts with spans. Texts
    with spans can be passed as a spaCy `Doc`, `(text, {"entities"})`, or `{"text", "spans"}` as in
    Prodigy. `x` can also be a `tf.data.Dataset` (see `Task.fit`). In this case, words and tags can
    be passed as vectors or ragged batches.

    For texts, `y` should be a list of non-overlapping spans per text. Each span can be a dict
    `{"start", "end", "label"}` with character offsets, a tuple with these values, or a spaCy
    `Span`. For lists of words or `Doc` objects, `y` should be a list with a tag per word, by name
    or index. Error messages will point to the example, e.g. "Example 3 has 7 words but 6 tags."

    Call arguments:
        inputs: Dict. The inputs to the model, as returned from the preprocessor.

    Returns:
        Float32 tensor of shape (B, L, C). The logits.

    Raises:
        ValueError: If `labels` and `num_classes` disagree.

    Source: Devlin et al. 2019, BERT, section 5.3.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=False)
        >>> classifier = TokenClassifier(backbone, labels=["O", "B-PER", "I-PER"])
        >>> tuple(classifier({"token_ids": np.array([[2, 7, 3]])}).shape)
        (1, 3, 3)
    """

    record = TaskRecord(
        "token_classifier",
        TokenClassifierPreprocessor,
        head="ForTokenClassification",
        pipeline_tag="token-classification",
        peft_type="TOKEN_CLS",
        answers_class=TagAnswers,
        text_method="extract_entities",
        answer_type=entities.Entity,
        answer_settings=(
            "strategy",
            "valid_tags",
            "split_symbols",
            "temperature",
            "thresholds",
            "crf",
        ),
        tuned_settings=TUNED_SETTINGS,
        distilled_settings=("strategy", "valid_tags", "split_symbols", "label_all_tokens"),
        has_classes=True,
        labels_tokens=True,
        learns_soft_labels=True,
    )
    if not TYPE_CHECKING:  # editors must not suggest this name
        classification_report = ForeignName("evaluate_entities(x, y)")

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: TokenClassifierPreprocessor | None = None,
        num_classes: PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        dropout: Rate | None = None,
        strategy: entities.Strategy | None = None,
        valid_tags: bool | None = None,
        head: keras.layers.Layer | None = None,
        split_symbols: bool | Literal["outer"] = False,
        temperature: Temperature = 1.0,
        thresholds: Thresholds | None = None,
        crf: bool = False,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        if crf and head is not None:
            raise ValueError(
                "crf=True requires the default head of the family. Remove head=... or crf=True."
            )
        self.crf = crf
        self.transitions: TagTransitions | None = None
        self.dropout = get_head_dropout(self.head_record, backbone, dropout)
        self.strategy = strategy
        self.valid_tags = valid_tags
        self.split_symbols = split_symbols
        self.temperature = temperature
        self.thresholds = thresholds
        self._set_head(head)
        self._set_classes(num_classes, labels)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[TokenClassifierPresetArguments]
    ) -> Self:
        """Load a token classifier, or an encoder with a new head. See `Task.from_preset`.

        Args:
            source: String or path. The preset to load: a name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Keyword arguments of the token classifier: `labels=["O", "B-PER",
                "I-PER"]`, `num_classes`, `head`, `strategy`, `valid_tags`, `split_symbols`,
                `temperature`, `thresholds`, `crf`. Arguments for the preprocessor:
                `sequence_length`, `doc_stride`, `label_all_tokens`. Arguments for the backbone,
                e.g. `dropout` and `dtype`. `added_tokens` for the tokenizer. Options for file
                checks: `verify`, `max_bytes`, `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def tiny_data(cls) -> TinyData:
        spans = [[(0, 1, "X"), (4, 6, "X")], [], [(2, 5, "X")], []]
        return TinyData({"labels": ["O", "B-X", "I-X"]}, super().tiny_data().x, spans)

    @property
    def recurrent_layer(self) -> str | None:
        return "a CRF" if self.crf else None

    def build_head(self) -> keras.layers.Layer | None:
        if self.crf and self.num_classes is not None:
            self.transitions = TagTransitions(self.num_classes, name="transitions")
            self.transitions.build()
        return super().build_head()

    @property
    def head_record(self) -> Head:
        record = super().head_record
        # The weights get other names, so that software without CRFs does not load the head.
        return dataclasses.replace(record, output=CRF, has_crf=True) if self.crf else record

    def logits_of(self, encoded, inputs, training=None):
        return self.head(encoded["sequence_output"], training=training)  # (B, L, C)

    def compute_output_spec(self, inputs, training=None):
        self._check_can_predict()
        return keras.KerasTensor((*inputs["token_ids"].shape, self.num_classes), "float32")

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return {**super().input_ranges(length), SPAN_MARKS: (0, 2**16)}

    @property
    def objective(self) -> Objective:
        # The loss is a mean over labelled tokens because their number differs between examples.
        loss = functools.partial(
            keras.losses.SparseCategoricalCrossentropy,
            from_logits=True,
            reduction="mean_with_sample_weight",
        )
        transitions = self.transitions.weights if self.transitions else ()
        if self.transitions is not None:
            loss = functools.partial(CrfLoss, self.transitions)
        own = {"accuracy": functools.partial(entity_metrics.TokenAccuracy, name="accuracy")}
        if self.labels is not None and find_outside_index(self.labels) is not None:
            own["f1"] = functools.partial(entity_metrics.EntityF1, self.labels)
        return Objective(
            loss,
            lambda: [make() for make in own.values()],
            "softmax",
            self.num_classes,
            self.labels,
            own,
            of_tokens=True,
            learning_rate_shares={id(weight): TRANSITIONS_RATE for weight in transitions},
            class_weighting=add_weights_per_class,
        )

    def _adapt_to_data(self, given, training=True) -> None:
        if not training:
            self._warn_if_thresholds_unused("evaluate_entities")
            return
        self._learn_labels(given, find_labels)
        line = describe_notation(self.labels) if self.labels else None
        if line and line not in self.graphs.reported:
            self.graphs.reported.add(line)
            logger.warning(line)

    def _prepare_training(self, given, data) -> bool:
        super()._prepare_training(given, data)
        if self.preprocessor is None or isinstance(given, ArrayData):
            return False
        labelled_all = self.preprocessor.label_all_tokens
        of_spans = has_spans(given)
        self.split_symbols = True if of_spans else "outer"
        cut_share = measure_cut_spans(self.preprocessor, given) if of_spans else 0.0
        self.strategy = choose_strategy(self.strategy, labelled_all, cut_share)
        self.preprocessor.label_all_tokens = labelled_all or self.strategy != "first"
        if self.valid_tags is None and of_spans:
            self.valid_tags = True
        elif self.valid_tags is None and given.y is not None:
            tags = token_labels.check_labels(given.x, given.y, self.labels, self.num_classes)
            allowed = entities.make_transitions(parse_tags(self.tag_names))
            self.valid_tags = entities.is_possible(tags, allowed)
        return self.preprocessor.label_all_tokens != labelled_all

    # -- answers -----------------------------------------------------------------------------------

    strategy: entities.Strategy | None
    valid_tags: bool | None

    @property
    def tag_scores(self) -> list[np.ndarray] | None:
        """The transition scores of the CRF, or None without a CRF."""
        weights = self.transitions and self.transitions.weights
        return weights and [gather_array(weight) for weight in weights]

    extract_entities = delegate_to_answers(TagAnswers.extract_entities)

    @validate_arguments
    def signatures(
        self,
        strategy: entities.Strategy | None = None,
        threshold: Probability | Thresholds | None = None,
    ) -> dict[str, Callable]:
        """Return the function to export, which runs `extract_entities` on "text".

        Args:
            strategy, threshold: See `extract_entities`.

        Returns:
            Dict with a single function. This function returns "count" of shape (N,) with the number
            of entities per text, and "label", "text", "start", "end" and "score" of shape (N, G),
            with G the maximum number of entities per text. Rows are padded with "" and 0.
        """
        token_logits = functools.partial(self, training=False)
        run = functools.partial(compute_token_outputs_in_graph, self, token_logits)
        return {"serving_default": self._answers.make_entities_function(run, strategy, threshold)}

    predict_tags = delegate_to_answers(TagAnswers.predict_tags)

    @overload
    def explain(
        self,
        texts: str,
        strategy: entities.Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> list[entities.EntityExplanation]: ...
    @overload
    def explain(
        self,
        texts: Iterable[Any],
        strategy: entities.Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> list[list[entities.EntityExplanation]]: ...
    @overload
    def explain(self, texts: object, *, missing: Literal["none"], **options: Any) -> list[Any]: ...
    @validate_arguments
    @lock_weights
    @skips_missing("texts")
    def explain(
        self,
        texts,
        strategy: entities.Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ):
        """Extract entities, and compute the contribution of each word to them.

        The result can be displayed with `ez.display.explanation`.

        Args:
            texts: Texts, as for `extract_entities`.
            strategy: Optional string. See `extract_entities`.
            method: String. See `SequenceClassifier.explain`. Defaults to "integrated_gradients".
            batch_size: Optional positive integer. Batch size, in gradients. If None, 32 will be
                used.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            List of entities per text, as returned from `extract_entities`, with "texts", "words",
            "logit" and "baseline" added to each entity (see `SequenceClassifier.explain`). For
            "logit", the highest logit of the label's tags is taken for each token, and averaged
            over the tokens of the entity. With the strategy "first", only the first token of each
            word is used. If a text is split into several windows, the words are taken from the
            window with the entity. If a single text is passed, a single list will be returned.

        Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, section 3.
        """
        if isinstance(texts, str) or is_doc(texts):
            return self.explain([texts], strategy, method, batch_size)[0]
        strategy = strategy or self._answers.best_strategy
        return load_extra("explain_entities")(self, texts, strategy, method, batch_size)

    @validate_arguments
    @lock_weights
    def evaluate_entities(
        self, x: object, y: object, scheme: str | None = None, batch_size: PositiveInt | None = None
    ) -> dict[str, Any]:
        """Compute the precision, recall and F1 of entities, in total and per entity type.

        This method can be used to evaluate `predict_tags` and `extract_entities` on whole texts of
        any length. The metric in `evaluate` is based on the same tag sequences, but is computed for
        each window separately, without thresholds. It ignores words without tokens, so an entity
        that begins or ends with such a word can only be found there.

        Args:
            x: Lists of words, or texts.
            y: Tags of the words, or spans of the texts, as for `fit`.
            scheme: Optional string. Tagging scheme. With "IOB1", "IOB2" or "IOBES", only
                well-formed entities are counted.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.

        Returns:
            `{"precision", "recall", "f1", "per_type": {type: {..., "support"}}}`.
        """
        self._check_can_predict()
        x, y = self.batch_maker.separate(x, y)
        if has_word_lists(x):
            true, names = self._find_true_tags(x, y), self.tag_names
            return entity_metrics.score_tags(
                true, self.predict_tags(x, batch_size), scheme, tag_set=names
            )
        true = self._collect_true_entities(x, y)
        found = self.extract_entities(x, self._answers.counting_strategy, batch_size)
        return entity_metrics.score_entities(true, entity_metrics.convert_to_triples(found))

    def _find_true_tags(self, x, y) -> list[list[str]]:
        """Check the tags of words, and convert them to names."""
        tags = token_labels.check_labels(x, y, self.labels, self.num_classes)
        return [[self.tag_names[tag] for tag in row] for row in tags.to_list()]

    def _compute_held_out_logits(self, x, y, batch_size) -> tuple[np.ndarray, np.ndarray]:
        if self.crf:
            raise ValueError(
                "`calibrate` does not support crf=True, because CRF scores depend on whole "
                "sequences. Use `tune_thresholds`."
            )
        tokens, logits = self._answers.compute_logits(x, batch_size)
        labels, labelled, _ = self.preprocessor.align_labels(x, tokens, y)
        labels, labelled = np.asarray(labels), np.asarray(labelled)
        return logits[labelled], np.eye(self.num_classes)[labels[labelled]]

    def _score_labels(self, x, y=None, batch_size=None) -> ScoredLabels:
        x, y = self._check_held_out("tune_thresholds", x, y)
        check_weights_finite(self)
        answers = self._answers
        found = self.extract_entities(x, answers.counting_strategy, batch_size, threshold=0.0)
        names, least = answers.get_entity_names("simple"), answers.get_min_scores(None, "simple")
        least = np.zeros(len(names)) if least is None else least
        return entity_metrics.score_by_type(self._collect_true_entities(x, y), found, names, least)

    def _collect_true_entities(self, x, y) -> list[set[tuple[str, int, int]]]:
        """Return the entities (type, start, end), with character offsets."""
        if not has_word_lists(x):
            spans = token_labels.check_labels(x, y, self.labels, self.num_classes)
            names = parse_tags(self.tag_names).type_names
            rows = zip(*(spans[name].to_list() for name in ("label", "start", "end")), strict=True)
            return [{(names[k], s, e) for k, s, e in zip(*row, strict=True)} for row in rows]
        names, found = self.tag_names, []
        for words, tags in zip(x, self._find_true_tags(x, y), strict=True):
            ends = np.cumsum([len(word) + 1 for word in words]) - 1
            starts = np.append(0, ends + 1)
            spans = find_spans(tags, tag_set=names)
            found.append({(kind, int(starts[s]), int(ends[e - 1])) for kind, s, e in spans})
        return found

    @property
    def tag_names(self) -> list[str]:
        """The labels, or LABEL_0, LABEL_1 and so on if the tags have no names."""
        return self.labels or make_default_labels(self.num_classes)


def choose_strategy(strategy: str | None, labels_all: bool, cut_share: float) -> str:
    """Return the strategy of the answers, so that they can match the spans in the training data.

    With any strategy except "first", all tokens are labelled.

    Args:
        strategy: Optional string. The given strategy.
        labels_all: Boolean. Whether all tokens are labelled with any strategy.
        cut_share: Float. Fraction of spans that cut a word.

    Example:
        >>> choose_strategy(None, False, 0.0), choose_strategy(None, True, 0.0)
        ('first', 'average')
    """
    if cut_share >= MIN_CUT_SHARE and strategy in (None, "simple", "none"):
        if strategy is None or not labels_all:
            logger.warning(
                "%.3g%% of the spans begin or end inside a word of the tokenizer. All "
                "tokens are labelled, and answers consist of tokens (strategy='simple').",
                100 * cut_share,
            )
        return strategy or "simple"
    if cut_share and strategy != "simple":
        logger.warning(
            "%.3g%% of the spans begin or end inside a word of the tokenizer. Answers "
            "consist of whole words and cannot match these spans. Use from_preset(..., "
            "strategy='simple', label_all_tokens=True) for answers that consist of tokens.",
            100 * cut_share,
        )
    strategy = strategy or ("average" if labels_all else "first")
    if strategy != "first" and not labels_all:
        logger.warning("All tokens are labelled because strategy=%r requires it.", strategy)
    return strategy


def measure_cut_spans(preprocessor: TokenClassifierPreprocessor, given: InputData) -> float:
    """Return the fraction of spans that begin or end inside a word.

    For datasets and streams, only the first batches are checked.
    """
    if not given.is_read_in_batches:
        parts = [(given.x, given.y)]
    elif isinstance(given, StreamData):
        parts = (batch[:2] for batch in given.x.peek(BATCH_SIZE, FIRST_BATCHES))
    else:
        seen = preprocessor.batch_examples(given.x, BATCH_SIZE).take(FIRST_BATCHES)
        parts = (keras.utils.unpack_x_y_sample_weight(batch)[:2] for batch in seen)
    shares = [preprocessor.measure_cut_spans(x, y) for x, y in parts]
    return float(np.mean(shares)) if shares else 0.0


def has_spans(given: InputData) -> bool:
    """Return whether the data contains texts with spans instead of words with tags."""
    x, y, _ = given.element
    if given.is_read_in_batches:
        return isinstance(y, dict) or (isinstance(x, list) and not has_word_lists(x))
    return not has_word_lists(x)


def find_labels(given: InputData) -> list[str] | int:
    """Return the names of the tags in the training data, or the number of tags."""
    if given.y is None:
        return token_labels.learn_labels(token_labels.collect_labels(given.x))
    learned = token_labels.learn_labels(given.y)
    if not isinstance(given, ArrayData):
        # Raise errors for invalid tags before the head is built.
        count, names = get_count_and_names(learned)
        token_labels.check_labels(given.x, given.y, names, count)
    return learned
