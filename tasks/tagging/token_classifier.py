"""Token classification: named entities, parts of speech.

Comment letters: B batch, L sequence, D hidden, C tags, P tokens of all texts.
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

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.extras import extra
from encoder_zoo.common.validation import (
    PositiveInt,
    Probability,
    Rate,
    Temperature,
    validate_arguments,
)
from encoder_zoo.common.wording import ForeignName
from encoder_zoo.encoders.arrays import whole_array
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import CRF, Head
from encoder_zoo.presets.formats.checkpoint import default_labels
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.classes import count_and_names
from encoder_zoo.tasks.base.confidence import (
    ScoredLabels,
    Thresholds,
    check_weights_finite,
)
from encoder_zoo.tasks.base.explanation import Method
from encoder_zoo.tasks.base.head import head_dropout
from encoder_zoo.tasks.base.labelled_task import TUNED_SETTINGS, ClassObjective, LabelledTask
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.preprocessing.columns import is_doc
from encoder_zoo.tasks.preprocessing.tokenized_texts import is_words
from encoder_zoo.tasks.tagging import entity_metrics, token_labels
from encoder_zoo.tasks.tagging.alignment import SPAN_MARKS
from encoder_zoo.tasks.tagging.crf import CrfLoss, TagTransitions
from encoder_zoo.tasks.tagging.entities import (
    Entity,
    EntityExplanation,
    Strategy,
    is_possible,
    transitions,
)
from encoder_zoo.tasks.tagging.tag_answers import TagAnswers
from encoder_zoo.tasks.tagging.tags import notation_line, outside_index, parse_tags, spans_of_tags
from encoder_zoo.tasks.tagging.token_classifier_preprocessor import TokenClassifierPreprocessor
from encoder_zoo.tasks.training.inference import token_outputs_in_graph
from encoder_zoo.tasks.training.sources import check_preprocessor

if TYPE_CHECKING:
    from typing import Self

logger = logging.getLogger("encoder_zoo")

MANY_CUT = 0.01  # share of spans inside of words, from which on answers are made of tokens
FIRST_BATCHES = 32  # of a dataset, whose spans are looked at
TRANSITIONS_RATE = 100.0  # learning rate of scores of pairs of tags, over that of the others


class TokenClassifierPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `TokenClassifier.from_preset`."""

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
            "first", or "average" if all tokens are labelled; "simple" if 1% of the spans or more
            begin or end inside of a word, where `fit` labels all tokens. With a strategy other than
            "first", `fit` also labels all tokens. It is saved with the preset.
        valid_tags: whether answers and exports have only sequences of tags that can be, such as no
            I-PER after B-LOC: the most probable of these. None: no, until `fit` sets it to whether
            the tags that it learns are such sequences (IOB2 and IOBES, also called BIO and BILOU,
            but not IOB1). It is saved with the preset.
        head: a Keras layer instead of the family's head, from the vectors of tokens (B, L, D) to
            logits (B, L, C). It is saved in `.keras` files; a preset holds its weights, which
            `from_preset(folder, head=...)` loads into an equal layer.
        split_symbols: whether answers cut the words of texts at symbols, so that the stop of
            "London." is a word of its own. True cuts at all of them, as spans are learned; "outer"
            not at one between letters, such as the hyphen of "Rhein-Main", as words are learned;
            False keeps the words of the vocabulary. `fit` sets it, and it is saved with the preset.
        temperature: by which logits are divided before they become scores; `calibrate` sets it.
        thresholds: {type of entity: least score}, see `tune_thresholds`; None: all are answered.
        crf: whether to learn scores of pairs of tags beside the logits, a linear-chain conditional
            random field: answers are the tags of the most probable sequence, and scores their
            probabilities in it. transformers has no such model, and finds no head in its presets.

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
        ValueError: If `labels` and `num_classes` disagree.

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

    record = TaskRecord(
        "token_classifier",
        TokenClassifierPreprocessor,
        head="ForTokenClassification",
        pipeline_tag="token-classification",
        peft_type="TOKEN_CLS",
        text_method="extract_entities",
        answer_type=Entity,
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
        predicts_lists=True,
        learns_soft_labels=True,
    )
    _logged_notation: str | None = None
    if not TYPE_CHECKING:  # so that editors do not offer it
        classification_report = ForeignName("evaluate_entities(x, y)")

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
        split_symbols: bool | Literal["outer"] = False,
        temperature: Temperature = 1.0,
        thresholds: Thresholds | None = None,
        crf: bool = False,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        if crf and head is not None:
            raise ValueError("crf=True uses the family's head. Leave out head=... or crf.")
        self.crf = crf
        if crf:
            self.record = dataclasses.replace(self.record, goes_step_by_step="a CRF")
        self.transitions: TagTransitions | None = None
        self.dropout = head_dropout(self.head_record, backbone, dropout)
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
        """Load a token classifier, or an encoder with a new head; see `Task.from_preset`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `labels=["O", "B-PER", "I-PER"]`, `num_classes`, `head`, `strategy`,
                `valid_tags`, `split_symbols`, `temperature`, `thresholds`, `crf`; of the
                preprocessor `sequence_length`, `doc_stride`, `label_all_tokens`; `dropout`,
                `dtype` and others of the backbone; `added_tokens` of the tokenizer; `verify`,
                `max_bytes`, `allow_nonfinite` of the checks.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def tiny_data(cls) -> TinyData:
        spans = [[(0, 1, "X"), (4, 6, "X")], [], [(2, 5, "X")], []]
        return TinyData({"labels": ["O", "B-X", "I-X"]}, super().tiny_data().x, spans)

    def build_head(self) -> keras.layers.Layer | None:
        if self.crf and self.num_classes is not None:
            self.transitions = TagTransitions(self.num_classes, name="transitions")
            self.transitions.build()
        return super().build_head()

    @property
    def head_record(self) -> Head:
        record = super().head_record
        # Under names of its own: who does not know the transitions must not take the logits alone.
        return dataclasses.replace(record, output=CRF, has_crf=True) if self.crf else record

    def learning_rate_shares(self) -> dict[int, float]:
        weights = self.transitions.weights if self.transitions else ()
        return {id(weight): TRANSITIONS_RATE for weight in weights}

    def logits_of(self, encoded, inputs, training=None):
        return self.head(encoded["sequence_output"], training=training)  # (B, L, C)

    def compute_output_spec(self, inputs, training=None):
        self._check_labels_known()
        return keras.KerasTensor((*inputs["token_ids"].shape, self.num_classes), "float32")

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return {**super().input_ranges(length), SPAN_MARKS: (0, 2**16)}

    @property
    def objective(self) -> ClassObjective:
        # Over labelled tokens: examples have different numbers of them.
        loss = functools.partial(
            keras.losses.SparseCategoricalCrossentropy,
            from_logits=True,
            reduction="mean_with_sample_weight",
        )
        if self.transitions is not None:
            loss = functools.partial(CrfLoss, self.transitions)
        own = {"accuracy": functools.partial(entity_metrics.TokenAccuracy, name="accuracy")}
        if self._marks_entities:
            own["f1"] = functools.partial(entity_metrics.EntityF1, self.labels)
        return ClassObjective(
            loss,
            lambda: [make() for make in own.values()],
            "softmax",
            self.num_classes,
            self.labels,
            own,
            of_tokens=True,
        )

    @property
    def _marks_entities(self) -> bool:
        return self.labels is not None and outside_index(self.labels) is not None

    def _adapt(self, x, y, training=True) -> None:
        if not training:
            return
        self._learn_labels(x, y, labels_in_data)
        line = notation_line(self.labels) if self.labels else None
        if line and line != self._logged_notation:
            logger.warning(line)
            self._logged_notation = line

    def _before_training(self, x, y, data) -> bool:
        super()._before_training(x, y, data)
        if self.preprocessor is None or isinstance(x, dict):
            return False
        labelled_all = self.preprocessor.label_all_tokens
        self.split_symbols = True if token_labels.has_spans(x) else "outer"
        self._set_resolution(x, y)
        if self.valid_tags is None:
            self.valid_tags = self._are_valid(x, y)
        return self.preprocessor.label_all_tokens != labelled_all

    def _set_resolution(self, x, y) -> None:
        """Set whether all tokens are labelled, and the strategy, such that the answers have the
        resolution of what is learned."""
        prepares = self.preprocessor
        share = self._share_of_cut_spans(x, y) if token_labels.has_spans(x) else 0.0
        if share >= MANY_CUT and self.strategy in (None, "simple", "none"):
            if self.strategy is None or not prepares.label_all_tokens:
                logger.warning(
                    "%.3g%% of the spans begin or end inside of a word of the tokenizer. All "
                    "tokens are labelled, and answers are made of tokens (strategy='simple').",
                    100 * share,
                )
            self.strategy, prepares.label_all_tokens = self.strategy or "simple", True
        elif share and self.strategy != "simple":
            logger.warning(
                "%.3g%% of the spans begin or end inside of a word of the tokenizer. Answers are "
                "made of whole words and cannot be the same. from_preset(..., strategy='simple', "
                "label_all_tokens=True) makes them of tokens.",
                100 * share,
            )
        if self.strategy is None:
            self.strategy = "average" if prepares.label_all_tokens else "first"
        if self.strategy != "first" and not prepares.label_all_tokens:
            prepares.label_all_tokens = True
            logger.warning(
                "All tokens are labelled, as the answers of strategy=%r need them.", self.strategy
            )

    def _share_of_cut_spans(self, x, y) -> float:
        """Return the share of spans inside of words; of a dataset in its first batches."""
        if not hasattr(x, "element_spec"):
            return self.preprocessor.share_of_cut_spans(x, y)
        seen = self.preprocessor.batched(x, BATCH_SIZE).take(FIRST_BATCHES)
        parts = (keras.utils.unpack_x_y_sample_weight(element)[:2] for element in seen)
        shares = [self.preprocessor.share_of_cut_spans(*part) for part in parts]
        return float(np.mean(shares)) if shares else 0.0

    def _are_valid(self, x, y) -> bool | None:
        """Return whether the tags of `fit` are sequences that can be; None if that is not known."""
        if token_labels.has_spans(x):
            return True
        if y is None:
            return None
        tags = token_labels.check_labels(x, y, self.labels, self.num_classes)
        allowed = transitions(parse_tags(self.tag_names))
        return is_possible(tags.flat_values, tags.value_rowids(), allowed)

    # -- answers -----------------------------------------------------------------------------------

    strategy: Strategy | None
    valid_tags: bool | None

    @property
    def _answers(self) -> TagAnswers:
        self._check_labels_known()
        weights = None if self.transitions is None else self.transitions.weights
        scores = weights and [whole_array(weight) for weight in weights]
        names = ("strategy", "valid_tags", "split_symbols", "temperature", "thresholds")
        settings = {name: getattr(self, name) for name in names}
        return TagAnswers(self.preprocessor, self, self.tag_names, **settings, tag_scores=scores)

    @overload
    def extract_entities(
        self,
        texts: str,
        strategy: Strategy | None = None,
        batch_size: int | None = None,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[Entity]: ...
    @overload
    def extract_entities(
        self,
        texts: Iterable[Any],
        strategy: Strategy | None = None,
        batch_size: int | None = None,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[list[Entity]]: ...
    @overload
    def extract_entities(
        self, texts: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    def extract_entities(
        self,
        texts,
        strategy: Strategy | None = None,
        batch_size: PositiveInt | None = None,
        threshold: Probability | Thresholds | None = None,
        missing: Missing = "error",
    ):
        """Return the entities in texts.

        Args:
            texts: a text or a list of texts; or lists of words; or spaCy's `Doc`s, as texts.
            strategy: how tokens become entities. "simple": each token has its tag, and neighbours
                of one entity are joined. "first", "average", "max": a word has the tag of its
                first token, of its tokens' mean, or of its most probable token. "none": every
                tagged token by itself. None: the task's, which `fit` sets; "simple" before the
                first `fit`. Words are those of the vocabulary, cut at symbols as they were learned:
                see `split_symbols`.
            batch_size: default 32.
            threshold: leaves out the entities with a lower score; a number, or {type: number}.
                None: those of `tune_thresholds`, if there are any.
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for an
                answer of None; "error", the default, for an error that names the first of them.

        Returns:
            For every text a list of `{"label", "text", "start", "end", "score"}`; start and end
            count the characters of the caller's string, or of the words with one space between
            them. For a single text its list alone.

        Raises:
            ValueError: If `strategy` is unknown.

        Source: the strategies are those of transformers' `TokenClassificationPipeline`.
        """
        check_preprocessor(self, texts)
        return self._answers.extract_entities(texts, strategy, batch_size, threshold, missing)

    @validate_arguments
    def signatures(
        self,
        strategy: Strategy | None = None,
        threshold: Probability | Thresholds | None = None,
    ) -> dict[str, Callable]:
        """Return `extract_entities` of "text" for exports.

        Args:
            strategy, threshold: as for `extract_entities`.

        Returns:
            A function whose results are "count" (N,), the number of entities of every text, and
            "label", "text", "start", "end" and "score", (N, G) with G the most entities of a
            text; after a text's last entity they are "" and 0.
        """
        token_logits = functools.partial(self, training=False)
        run = functools.partial(token_outputs_in_graph, self, token_logits)
        return {"serving_default": self._answers.trace_entities(run, strategy, threshold)}

    @validate_arguments
    def predict_tags(
        self,
        words: object,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> list[list[str]]:
        """Return the tag of every word, as `seqeval.metrics` takes them: of its first token, or of
        all its tokens if these were labelled.

        Args:
            words: lists of words, or spaCy's `Doc`s.
            batch_size: default 32.
            missing: What rows without words get, such as None. "none" is for an answer of None;
                "error", the default, for an error that names the first of them.

        Returns:
            For every list of words as many tags; a word without a token has the tag O.

        Raises:
            ValueError: If `words` are texts and not lists of words.
        """
        check_preprocessor(self, words)
        return self._answers.predict_tags(words, batch_size, missing)

    @overload
    def explain(
        self,
        texts: str,
        strategy: Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> list[EntityExplanation]: ...
    @overload
    def explain(
        self,
        texts: Iterable[Any],
        strategy: Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> list[list[EntityExplanation]]: ...
    @overload
    def explain(self, texts: object, *, missing: Literal["none"], **options: Any) -> list[Any]: ...
    @validate_arguments
    @skips_missing("texts")
    def explain(
        self,
        texts,
        strategy: Strategy | None = None,
        method: Method = "integrated_gradients",
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ):
        """Return the entities in texts, and which words speak for each of them.

        `ez.display.explanation` draws the answer.

        Args:
            texts: as for `extract_entities`.
            strategy: as for `extract_entities`.
            method: as for `SequenceClassifier.explain`.
            batch_size: how many gradients are computed at once; default 32.
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for an
                answer of None; "error", the default, for an error that names the first of them.

        Returns:
            For every text a list of entities, as `extract_entities` gives them, each with "texts",
            "words", "logit" and "baseline" as of `SequenceClassifier.explain`. The logit is the
            mean, over the entity's tokens, of that of the best tag of its label; with the strategy
            "first" over the first token of each word. Of a text in several windows the words are
            those of the entity's window. For a single text its list alone.

        Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, section 3.
        """
        if isinstance(texts, str) or is_doc(texts):
            return self.explain([texts], strategy, method, batch_size)[0]
        strategy = strategy or self._answers.best_strategy
        return extra("explain_entities")(self, texts, strategy, method, batch_size)

    @validate_arguments
    def evaluate_entities(
        self, x: object, y: object, scheme: str | None = None, batch_size: PositiveInt | None = None
    ) -> dict[str, Any]:
        """Compute entity precision, recall and F1 over whole texts, however long, and of every
        type.

        The metric of `evaluate` finds the same sequences of tags, but sees one window at a time and
        no thresholds. `evaluate_entities` scores the results of `predict_tags` and
        `extract_entities`.

        Args:
            x: lists of words, or texts.
            y: tags of the words, or spans of the texts, as for `fit`.
            scheme: for tags: None, or "IOB1", "IOB2", "IOBES" to count well-formed entities only.
            batch_size: default 32.

        Returns:
            `{"precision", "recall", "f1", "per_type": {type: {..., "support"}}}`.
        """
        self._check_labels_known()
        x, y = self.batch_maker.separate(x, y)
        if is_words(x):
            true, names = self._true_tags(x, y), self.tag_names
            return entity_metrics.score_tags(
                true, self.predict_tags(x, batch_size), scheme, tag_set=names
            )
        true = self._true_entities(x, y)
        found = [
            {(e["label"], e["start"], e["end"]) for e in row}
            for row in self.extract_entities(x, self._answers.joining_strategy, batch_size)
        ]
        return entity_metrics.score_entities(true, found)

    def _true_tags(self, x, y) -> list[list[str]]:
        """Return the tags of words by name, checked."""
        tags = token_labels.check_labels(x, y, self.labels, self.num_classes)
        return [[self.tag_names[tag] for tag in row] for row in tags.to_list()]

    def _held_out_logits(self, x, y, batch_size) -> tuple[np.ndarray, np.ndarray]:
        if self.crf:
            raise ValueError(
                "calibrate divides the logits of each tag by itself, and with crf=True scores are "
                "those of whole sequences. Use tune_thresholds."
            )
        tokens, logits = self._answers.find_logits(x, batch_size)
        labels, labelled, _ = self.preprocessor.labels_of(x, tokens, y)
        labels, labelled = np.asarray(labels), np.asarray(labelled)
        return logits[labelled], np.eye(self.num_classes)[labels[labelled]]

    def _scores_of_examples(self, x, y, batch_size) -> ScoredLabels:
        check_weights_finite(self)
        answers = self._answers
        found = self.extract_entities(x, answers.joining_strategy, batch_size, threshold=0.0)
        names, least = answers.entity_names("simple"), answers.least_scores(None, "simple")
        least = np.zeros(len(names)) if least is None else least
        return entity_metrics.scored_entities(self._true_entities(x, y), found, names, least)

    def _true_entities(self, x, y) -> list[set[tuple[str, int, int]]]:
        """Return the entities (type, start, end) of texts, or of words with a space between them,
        in characters."""
        if not is_words(x):
            spans = token_labels.check_labels(x, y, self.labels, self.num_classes)
            names = parse_tags(self.tag_names).type_names
            rows = zip(*(spans[name].to_list() for name in ("label", "start", "end")), strict=True)
            return [{(names[k], s, e) for k, s, e in zip(*row, strict=True)} for row in rows]
        names, found = self.tag_names, []
        for words, tags in zip(x, self._true_tags(x, y), strict=True):
            ends = np.cumsum([len(word) + 1 for word in words]) - 1
            starts = np.append(0, ends + 1)
            spans = spans_of_tags(tags, tag_set=names)
            found.append({(kind, int(starts[s]), int(ends[e - 1])) for kind, s, e in spans})
        return found

    @property
    def tag_names(self) -> list[str]:
        """Return the labels; LABEL_0, LABEL_1 and so on if they have no names."""
        return self.labels or default_labels(self.num_classes)


def labels_in_data(x, y) -> list[str] | int:
    """Return the tags that occur in the data of `fit` by name, or their number."""
    if y is None:
        return token_labels.learn_labels(token_labels.labels_of_dataset(x))
    learned = token_labels.learn_labels(y)
    if not isinstance(x, dict):
        # Errors in them must be raised before the head is built for them.
        count, names = count_and_names(learned)
        token_labels.check_labels(x, y, names, count)
    return learned
