"""Classification of texts or pairs of texts, and regression.

Comments use these letters for shapes: B batch, K windows of a text, D hidden, C classes.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, Unpack, overload

import keras
import numpy as np
from keras import ops

from encoder_zoo.common import validation
from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.extras import load_extra
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import CANDIDATE, combine_texts
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.classes import (
    add_weights_per_class,
    apply_label_weights,
    compute_label_weights,
)
from encoder_zoo.tasks.base.confidence import Thresholds, check_abstention
from encoder_zoo.tasks.base.explanation import Attributions, Method
from encoder_zoo.tasks.base.head import check_pooler, compute_text_logits, get_head_dropout
from encoder_zoo.tasks.base.inference import compute_text_outputs_in_graph
from encoder_zoo.tasks.base.labelled_task import TUNED_SETTINGS, LabelledTask
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.classification import class_labels
from encoder_zoo.tasks.classification.class_answers import (
    OTHER_ANSWERS,
    ClassAnswers,
    LabelScore,
    ProblemType,
    is_single_input,
)
from encoder_zoo.tasks.classification.class_scores import ClassScoresMixin
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor,
)
from encoder_zoo.tasks.classification.window_pooling import WindowPooling, pool_logits, pool_windows
from encoder_zoo.tasks.losses.crossentropy import ClassCrossentropy, LabelCrossentropy
from encoder_zoo.tasks.preprocessing.batch_shapes import add_candidate_ranges
from encoder_zoo.tasks.preprocessing.checks import check_same_length
from encoder_zoo.tasks.training.data import Source
from encoder_zoo.tasks.training.metrics import ClassAccuracy, ClassScore
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.sources import ArrayData, InputData, TextData

logger = logging.getLogger("encoder_zoo")


class ClassifierPresetArguments(TaskPresetArguments, total=False):
    """Types of the keyword arguments of `SequenceClassifier.from_preset`."""

    labels: Sequence[str | int] | None
    num_classes: int | None
    head: keras.layers.Layer | None
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"]
    window_length: int | None
    doc_stride: int
    window_pooling: Literal["mean", "max"]
    temperature: float
    thresholds: Mapping[str, float] | None
    abstain_below: float | None
    text_columns: Sequence[str] | None


def _average_label_weights(x, y, y_pred, sample_weight) -> tuple:
    """Average label weights (B, C) to weights (B,), because metrics use one weight per example."""
    if sample_weight is not None and len(sample_weight.shape) == 2:
        sample_weight = ops.mean(sample_weight, axis=-1)
    return y, y_pred, sample_weight


UNLIKELY = 0.05


def report_split(objective: Objective, examples: dict, held_out: dict) -> None:
    """Log a warning for classes that only occur in the examples held out by `validation_split`."""
    if "labels" not in examples:
        return
    several = objective.activation == "sigmoid"
    parts = [part["labels"].numpy() for part in (examples, held_out)]
    seen, wanted = (class_labels.list_classes(part, several) for part in parts)
    first, last = map(len, parts)
    names = objective.labels or range(objective.num_classes)
    unseen = [repr(names[i]) for i in wanted - seen]
    if unseen:
        logger.warning(
            "`validation_split` holds out the last %d of %d texts. They include all texts with "
            "the labels %s, so these labels are missing in the training data. Shuffle texts and "
            "labels before `fit`.",
            last,
            first + last,
            ", ".join(sorted(unseen)),
        )
    elif not several and len(wanted) == 1 < len(seen):
        [only] = wanted
        classes = [part.argmax(axis=1) if part.ndim == 2 else part for part in parts]
        share = np.mean(np.concatenate(classes) == only)
        if share**last < UNLIKELY:  # the probability of such a split if the texts were shuffled
            logger.warning(
                "`validation_split` holds out the last %d of %d texts, which all have the label "
                "%r. Shuffle texts and labels before `fit`.",
                last,
                first + last,
                names[only],
            )


def add_weights_per_label(
    objective: Objective, data: Source, class_weight: Mapping | str, loss: object
) -> Source:
    """Add a weight for every label to the data. See `Objective.add_class_weights`."""
    if not isinstance(loss, LabelCrossentropy):
        raise ValueError(
            f"class_weight is {quote(class_weight)}, but a multi-label classifier only supports "
            "`class_weight` with loss='auto'. Use loss='auto' or `sample_weight`."
        )
    labels = objective.labels, objective.num_classes
    weights = compute_label_weights(class_weight, *labels, data.read_one_pass)
    return data.change_weights(apply_label_weights, weights)


OBJECTIVES = {
    "single_label_classification": Objective(
        functools.partial(ClassCrossentropy, from_logits=True),
        lambda: [ClassAccuracy(name="accuracy")],
        "softmax",
        inputs_of_metrics=_average_label_weights,
        class_weighting=add_weights_per_class,
        split_report=report_split,
    ),
    "multi_label_classification": Objective(
        functools.partial(LabelCrossentropy, from_logits=True),
        # For rare labels, the accuracy is high even if no label is predicted.
        lambda: [
            keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy"),
            ClassScore("f1", "macro", "sigmoid"),
        ],
        "sigmoid",
        inputs_of_metrics=_average_label_weights,
        class_weighting=add_weights_per_label,
        split_report=report_split,
    ),
    "regression": Objective(
        keras.losses.MeanSquaredError, lambda: [keras.metrics.RootMeanSquaredError()], "linear"
    ),
}


class Explanation(Attributions):
    """A label of a text or pair, its score, and the contribution of each word to its logit."""

    label: str | int
    score: float


Label = Annotated[
    str | int, validation.Rule(lambda v: type(v) in (str, int), "the name or index of a class")
]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SequenceClassifier(ClassScoresMixin, LabelledTask):
    """Classify texts or pairs of texts, or predict numbers from them (regression).

    Args:
        backbone: The `Backbone` to use. BERT needs a backbone with a pooler.
        preprocessor: Optional `SequenceClassifierPreprocessor` for raw text.
        num_classes: Optional positive integer. Number of classes C. If `labels` is given, this must
            be equal to the number of labels.
        labels: Optional list of strings. Class names, which are saved with the preset. Integers are
            converted to strings. If any name is an integer, integers in `y` will be read as names
            instead of class indices. If neither `labels` nor `num_classes` is given, the labels
            will be learned from `y` on the first call to `fit`.
        problem_type: String. The type of problem to solve. Use "single_label_classification" for a
            single class per text, "multi_label_classification" for any number of classes, or
            "regression". Defaults to "single_label_classification".
        dropout: Optional float between 0 and 1. Dropout rate to apply before the output layer. If
            None, the rate of the backbone will be used.
        window_pooling: String, "mean" or "max". How to pool the logits of the windows of a long
            text, for training and answers. It is used if the preprocessor has a `window_length`.
            Defaults to "mean".
        head: Optional Keras layer. Custom head that maps features (B, D) to logits (B, C), such as
            `keras.Sequential([...])`. This layer is saved in `.keras` files. In presets, only the
            weights are stored. Use `from_preset(folder, head=...)` to load them into the same
            layer. If None, the head of the family will be used.
        temperature: Positive float. Value to divide the logits by when computing scores. This is
            set by `calibrate`. Defaults to 1.0.
        thresholds: Optional dict mapping labels to minimum scores (see `tune_thresholds`). If None,
            0.5 will be used for multi-label classifiers, and the best class will be returned for
            binary classifiers.
        abstain_below: Optional float between 0 and 1. Minimum score for returning an answer. If the
            best class has a lower score, None will be returned as the label. If None, all texts
            will be answered.

    For `fit`, `y` should contain a class per text, by name or index, or a row with class
    probabilities, e.g. a one-hot vector. For "multi_label_classification", it should contain a list
    of names or a row with 0s and 1s per text. For "regression", it should contain a float or a row
    of floats per text. Error messages name the row and the label.

    Call arguments:
        inputs: Dict. The inputs to the model, as returned from the preprocessor.

    Returns:
        Float tensor of shape (B, C). The logits, or the predicted values for regression.

    Raises:
        ValueError: If `labels` and `num_classes` disagree, or if there is only one class and the
            task is neither a regression nor a multi-label classifier.

    Source: Devlin et al. 2019, BERT, section 4.1. The head of RoBERTa, which has a tanh layer
    instead of the pooler, follows the code of Liu et al. 2019.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16)
        >>> classifier = SequenceClassifier(backbone, num_classes=3)
        >>> keras.ops.shape(classifier({"token_ids": np.array([[2, 7, 3]])}))
        (1, 3)
    """

    record = TaskRecord(
        "sequence_classifier",
        SequenceClassifierPreprocessor,
        head="ForSequenceClassification",
        pipeline_tag="text-classification",
        peft_type="SEQ_CLS",
        answers_class=ClassAnswers,
        text_method="classify",
        answer_type=LabelScore,
        answer_settings=("window_pooling", "temperature", "thresholds", "abstain_below"),
        tuned_settings=TUNED_SETTINGS,
        has_classes=True,
        packs_batches=True,
        learns_soft_labels=True,
    )

    @validation.validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: SequenceClassifierPreprocessor | None = None,
        num_classes: validation.PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        problem_type: ProblemType = "single_label_classification",
        dropout: validation.Rate | None = None,
        window_pooling: WindowPooling = "mean",
        head: keras.layers.Layer | None = None,
        temperature: validation.Temperature = 1.0,
        thresholds: Thresholds | None = None,
        abstain_below: validation.Probability | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.problem_type = problem_type
        self.window_pooling = window_pooling
        self.temperature = temperature
        self.thresholds = thresholds
        self.abstain_below = abstain_below
        check_abstention(abstain_below, OTHER_ANSWERS.get(problem_type))
        check_pooler(self, "classifier")
        self.dropout = get_head_dropout(self.head_record, backbone, dropout)
        if labels is None and num_classes is None and problem_type == "regression":
            num_classes = 1
        self._set_head(head)
        self._set_classes(num_classes, labels)
        if self.num_classes == 1 and problem_type == "single_label_classification":
            raise ValueError(
                f"problem_type is {problem_type!r}, but there is only one class. Use "
                "'multi_label_classification' for a single class (yes or no), or 'regression'."
            )
        if thresholds is not None and self.num_classes is not None:
            self._answers.get_min_scores(thresholds)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[ClassifierPresetArguments]
    ) -> Self:
        """Load a classifier, or an encoder with a new head. Works like `Task.from_preset`.

        Args:
            source: String or path. The preset to load: a name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Keyword arguments to pass to the classifier: `labels=["bad", "good"]`,
                `num_classes`, `head`, `problem_type`, `window_pooling`, `temperature`,
                `thresholds`, `abstain_below`. Arguments for the preprocessor: `sequence_length`,
                `window_length`, `doc_stride`, `text_columns`. Arguments for the backbone, e.g.
                `dropout` and `dtype`. `added_tokens` for the tokenizer. Options for file checks:
                `verify`, `max_bytes`, `allow_nonfinite`.

        Raises:
            ValueError: If the preset does not exist or its files do not match.
            TypeError: If an argument is unknown.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def tiny_data(cls) -> TinyData:
        labels = ["O", "B-X", "I-X"]
        return TinyData({"labels": labels}, super().tiny_data().x, [*labels, "O"])

    def call(self, inputs, training=None):
        if CANDIDATE + "token_ids" not in inputs:
            return super().call(inputs, training)  # (B, C)
        windows = combine_texts(inputs)  # (B * K, L)
        if windows.get("padding_mask") is None:
            windows["padding_mask"] = ops.ones_like(windows["token_ids"])
        count = 1 + ops.shape(inputs[CANDIDATE + "token_ids"])[1]
        logits = super().call(windows, training)  # (B * K, C)
        return pool_logits(logits, windows["padding_mask"], count, self.window_pooling)

    def logits_of(self, encoded, inputs, training=None):
        return compute_text_logits(self, encoded, inputs, training)  # (B, C)

    def compute_output_spec(self, inputs, training=None):
        self._check_can_predict()
        return keras.KerasTensor((inputs["token_ids"].shape[0], self.num_classes), "float32")

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return add_candidate_ranges(super().input_ranges(length))

    @property
    def objective(self) -> Objective:
        classes = {"num_classes": self.num_classes, "labels": self.labels}
        return dataclasses.replace(OBJECTIVES[self.problem_type], **classes)

    def _adapt_to_data(self, given, training=True) -> None:
        if training:
            self._learn_labels(given, self._find_labels)
        else:
            self._warn_if_thresholds_unused("evaluate_classes")

    def _find_labels(self, given: InputData) -> list[str] | int:
        if given.is_read_in_batches:
            return class_labels.learn_classes(
                class_labels.collect_labels(given.x, self.preprocessor), self._is_multi_label
            )
        learned = class_labels.learn_classes(given.y, self._is_multi_label)
        # Errors must be raised before the head is built for these labels.
        check_same_length(given.x, given.y)
        if isinstance(given, TextData) and self.preprocessor is not None:
            self.preprocessor.read_texts(given.x)
        if isinstance(given, ArrayData) and not isinstance(learned, int):
            raise ValueError(
                f"The classes in `y` are {quote(learned)}. Preprocessed inputs require consecutive "
                "indices that start at 0. Convert `y`, or pass labels=[...] or `num_classes`."
            )
        return learned

    # -- answers -----------------------------------------------------------------------------------

    def _compute_held_out_logits(self, x, y, batch_size) -> tuple[np.ndarray, np.ndarray]:
        logits, classes = self.predict(x, batch_size, verbose=0), self.num_classes
        targets = class_labels.convert_targets(y, self.problem_type, self.labels, classes)
        targets = np.asarray(targets)
        targets = np.eye(classes)[targets] if targets.ndim == 1 else targets
        if len(targets) != len(logits):
            raise invalid("The length of `y`", len(targets), f"{len(logits)}, one label per text")
        return logits, targets

    # -- logits of texts -----------------------------------------------------------------------

    def _compute_logits_in_graph(self, texts: tuple) -> xp.Tensor:
        """Compute the logits (N, C) of texts or pairs inside a `tf.function`."""
        if not self.preprocessor.pools_windows:
            examples, index = self.preprocessor.encode(texts), None
        else:
            examples = self.preprocessor.encode_windows(texts)
            index = examples.pop("text_index")
        logits = compute_text_outputs_in_graph(self, examples, self.num_classes)
        return logits if index is None else pool_windows(logits, index, self.window_pooling)

    def signatures(self) -> dict[str, Callable]:
        """Return the functions to export, which compute the scores of all classes.

        The default signature takes "text", and the signature "pairs" takes "first" and "second".

        Returns:
            Dict mapping names to functions. Each function returns "label", strings of shape (N, C)
            sorted by score, and "score" of shape (N, C). For regression, only "score" is returned.
            Classes without a name are returned as indices. If `thresholds` are set, the first label
            of two is the label that `classify` returns. For several labels per text, "answered" of
            shape (N, C) is True for all labels that `classify` returns. If `abstain_below` is set,
            "abstains" of shape (N,) is True for texts for which `classify` returns no label.
        """
        answer = self._answers.make_classify_function(self._compute_logits_in_graph)
        return {
            "serving_default": lambda text: answer(text),
            "pairs": lambda first, second: answer(first, second),
        }

    @overload
    def explain(
        self,
        texts: str | tuple[str, str],
        label: str | int | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> Explanation: ...
    @overload
    def explain(
        self,
        texts: Iterable[Any],
        label: str | int | None = None,
        method: Method = "integrated_gradients",
        batch_size: int | None = None,
    ) -> list[Explanation]: ...
    @overload
    def explain(self, texts: object, *, missing: Literal["none"], **options: Any) -> list[Any]: ...
    @validation.validate_arguments
    @lock_weights
    @skips_missing("texts")
    def explain(
        self,
        texts,
        label: Label | None = None,
        method: Method = "integrated_gradients",
        batch_size: validation.PositiveInt | None = None,
        missing: Missing = "error",
    ):
        """Compute the contribution of each word to a label's logit.

        The result can be displayed with `ez.display.explanation`.

        Args:
            texts: Texts, as for `classify`.
            label: Optional string or integer. Name or index of the class to explain. If None, the
                class with the highest score will be used for each text.
            method: String. The attribution method to use. With "integrated_gradients", the gradient
                of the logit is integrated along a path from the masked text to the original text.
                The attributions then sum to the difference between the two logits, up to 0.001. The
                number of gradients starts at 14 and grows until this accuracy is reached. With
                "gradient_x_input", the gradient is only computed at the original text. This is
                faster, but the attributions do not sum to the difference. Defaults to
                "integrated_gradients".
            batch_size: Optional positive integer. Batch size, in gradients. If None, 32 will be
                used.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            `{"label", "score", "texts", "words", "logit", "baseline"}` for each text. "texts"
            contains the text, or both texts for a pair. Each word is a dict `{"part", "text",
            "start", "end", "attribution"}`, with "start" and "end" as character offsets into the
            text with index "part". Words beyond the maximum length are omitted. If a text has
            several windows, the attributions are pooled like the logits. "baseline" is the logit
            for the masked text. If a single text or pair is passed, a single explanation will be
            returned.

        Raises:
            ValueError: If `label` is not one of the classes.

        Source: Sundararajan et al. 2017, Axiomatic Attribution for Deep Networks, section 3.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> classifier = SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
            >>> found = classifier.explain("A great film.")
            >>> found["label"], max(found["words"], key=lambda word: word["attribution"])["text"]
            ('positive', 'great')
        """
        explain = load_extra("explain_labels")
        if is_single_input(texts):
            texts = tuple([part] for part in texts) if isinstance(texts, tuple) else [texts]
            return explain(self, texts, label, method, batch_size)[0]
        return explain(self, texts, label, method, batch_size)
