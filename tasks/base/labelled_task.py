"""Base class for tasks with classes. Their labels are passed, loaded, or learned in `fit`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import keras
import numpy as np

from encoder_zoo.common.configuration import get_argument_names
from encoder_zoo.common.model_configuration import serialize_value
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.family import CustomHeadRecord, Head
from encoder_zoo.presets.formats.checkpoint import Checkpoint, map_weights
from encoder_zoo.tasks.base import classes, confidence
from encoder_zoo.tasks.base.answers import Answers
from encoder_zoo.tasks.base.head import CustomHead, make_head
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.preprocessing.given_labels import log_suspicious_labels
from encoder_zoo.tasks.training import sources

logger = logging.getLogger("encoder_zoo")


TUNED_SETTINGS = {"temperature": (1.0, "calibrate"), "thresholds": (None, "tune_thresholds")}


class LabelledTask(Task):
    """Base class for tasks whose head has one output for each class.

    If neither the labels nor the number of classes is given, the first call to `fit` learns the
    labels and builds the head. A subclass must implement `_compute_held_out_logits` for `calibrate`
    and `_score_labels`, which returns `ScoredLabels`, for `tune_thresholds`.

    Attributes:
        labels: Optional list of strings. Class names.
        num_classes: Optional integer. Number of classes C. None until the classes are known.
        temperature, thresholds: See `calibrate` and `tune_thresholds`.
        given_head: Optional Keras layer. Custom head. If None, the family's head is used.
    """

    temperature: float = 1.0
    thresholds: Mapping[str, float] | None = None
    given_head: keras.layers.Layer | None = None

    def _set_classes(self, num_classes: int | None, labels: Sequence[str] | None) -> None:
        """Set the classes, and build the head when the number of classes is known."""
        self.labels = classes.validate_labels(labels)
        self.num_classes = classes.resolve_num_classes(num_classes, self.labels)
        self._finish_building()

    def _set_head(self, head: keras.layers.Layer | None) -> None:
        """Set a custom head, which is used instead of the family's head."""
        if head is not None and not isinstance(head, keras.layers.Layer):
            raise invalid("head", head, "a Keras layer", TypeError)
        # When the classes are known, Keras tracks the layer in `head`. It must not be tracked
        # twice.
        object.__setattr__(self, "given_head", head)

    def build_head(self) -> keras.layers.Layer | None:
        if self.num_classes is None:
            return None
        of_tokens = self.objective.of_tokens
        if self.given_head is None:
            return make_head(
                self.head_record,
                self.backbone,
                self.num_classes,
                self.dropout,
                self.dtype_policy,
                of_tokens=of_tokens,
            )
        head = CustomHead(self.given_head, name="head", dtype=self.dtype_policy)
        head.build((None, *[None] * of_tokens, self.backbone.hidden_dim))
        if head.units != self.num_classes:
            raise ValueError(
                f"`head` has {head.units} outputs, but the task has {self.num_classes} classes. "
                "Expected one output for each class."
            )
        return head

    @property
    def head_record(self) -> Head:
        record = super().head_record
        if self.given_head is None:
            return record
        return CustomHeadRecord.from_record(record, len(self.head.weights) if self.head else 0)

    def get_config(self) -> dict:
        config = super().get_config()
        return {**config, "head": serialize_value(self.given_head)} if "head" in config else config

    def _check_can_predict(self) -> None:
        if self.head is None:
            raise ValueError(
                f"This {type(self).__name__} has no labels yet. Pass labels=[...] or num_classes, "
                "or call fit to learn the labels from the data."
            )

    def load_weights(self, filepath, *args, **kwargs) -> None:
        """Load weights from a file, like `keras.Model.load_weights`.

        Raises:
            ValueError: If the file contains weights of another model, or if the labels of this
                model are not known yet.
        """
        self._check_can_predict()
        try:
            super().load_weights(filepath, *args, **kwargs)
        except ValueError as error:
            raise ValueError(
                f"The weights in {filepath} do not match this {type(self).__name__} with "
                f"{self.num_classes} outputs. Create the model with the labels of the saved model, "
                "or load a whole model that was saved with .save('model.keras') or save_to_preset. "
                f"Error in Keras: {error}"
            ) from error

    def call(self, inputs, training=None):
        self._check_can_predict()
        return super().call(inputs, training)

    @property
    def _answers(self) -> Answers:
        self._check_can_predict()
        return super()._answers

    # -- training ------------------------------------------------------------------------------

    def _learn_labels(
        self, given: sources.InputData, labels_in: Callable[[sources.InputData], list[str] | int]
    ) -> None:
        """Learn the labels from the training data and build the head, if the labels are unknown.

        Args:
            given: `InputData` with inputs and labels.
            labels_in: Function from `given` to the class names or the number of classes.
        """
        if self.objective.activation != "linear":  # not a regression
            log_suspicious_labels(given.y)
        if self.num_classes is not None:
            return
        given.check_can_learn_labels()
        self._set_classes(*classes.get_count_and_names(labels_in(given)))
        for name, weight in map_weights(self, self.head_record.tensors).items():
            if name in self.kept_weights:
                weight.assign(self.kept_weights[name])
        self._compile_again()  # create the metrics for the learned labels

    def _warn_if_thresholds_unused(self, method: str) -> None:
        """Log a warning that the metrics in `evaluate` do not use the thresholds.

        Args:
            method: String. Name of the method that uses the thresholds.
        """
        if self.thresholds is not None:
            logger.warning(
                "The metrics in `evaluate` do not use the thresholds of this %s. To evaluate its "
                "predictions, use `%s`.",
                type(self).__name__,
                method,
            )

    # -- confidence ----------------------------------------------------------------------------

    @validate_arguments
    @lock_weights
    def calibrate(
        self, x: object, y: object = None, batch_size: PositiveInt | None = None
    ) -> confidence.Calibration:
        """Calibrate the scores. For example, 80% of the answers with score 0.8 should be correct.

        This method searches for the temperature with the lowest cross-entropy on held-out examples.
        All later predictions divide the logits by this temperature, which changes the scores but
        not the best class. The temperature is saved with the preset, and the next `fit` resets it
        to 1. The logits from `predict` and from exports that take token ids do not change.

        Args:
            x, y: Examples in memory with labels, as for `fit`. They should not be part of the
                training data.
            batch_size: Optional positive integer. Number of examples per batch. If None, 32 is
                used.

        Returns:
            Dict with the keys "temperature", "loss_before", "loss", "error_before" and "error". The
            losses are mean cross-entropies, and the errors are expected calibration errors (see
            `compute_calibration_error`). For taggers, losses and errors are measured on words or
            labelled tokens.

        Raises:
            ValueError: If the task is a regression, or if there are no labels.

        Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> classifier = SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
            >>> texts = ["A great film.", "A dull film.", "Great, if you like to sleep."]
            >>> found = classifier.calibrate(texts, ["positive", "negative", "negative"])
            >>> found["loss"] <= found["loss_before"]
            True
        """
        x, y = self._check_held_out("calibrate", x, y)
        logits, targets = self._compute_held_out_logits(x, y, batch_size)
        found = confidence.find_calibration(logits, targets, self.objective.activation)
        self.temperature = found["temperature"]
        return found

    @validate_arguments
    @lock_weights
    def tune_thresholds(
        self, x: object, y: object = None, batch_size: PositiveInt | None = None
    ) -> dict[str, float]:
        """Set the threshold of each label to the score with the highest F1 on held-out texts.

        All later predictions use the thresholds, unless a `threshold` is passed. The thresholds are
        saved with the preset, and the next `fit` removes them. `evaluate_classes` and
        `evaluate_entities` also use them, but the metrics in `evaluate` do not. To also calibrate
        the scores, call `calibrate` first.

        Args:
            x, y: Examples in memory with labels, as for `fit`. They should not be part of the
                training data.
            batch_size: Optional positive integer. Number of examples per batch. If None, 32 is
                used.

        Returns:
            Dict mapping labels to thresholds. It contains all labels of a multi-label classifier,
            the second label of a binary classifier, or the entity types of a tagger. A label
            without examples gets the default threshold 0.5, with a warning.

        Raises:
            ValueError: If the task is not a binary classifier, a multi-label classifier or a
                tagger, or if there are no labels.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> classifier = SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
            >>> texts = ["A great film.", "A dull film.", "Great, if you like to sleep."]
            >>> list(classifier.tune_thresholds(texts, ["positive", "negative", "negative"]))
            ['positive']
        """
        self.thresholds = confidence.tune_thresholds(self._score_labels(x, y, batch_size))
        return dict(self.thresholds)

    def _check_held_out(self, method: str, x, y) -> tuple:
        """Check the held-out examples and their labels, and return them.

        Args:
            method: String. Method name in error messages.
            x, y: Examples in memory with labels.
        """
        self._check_can_predict()
        if self.objective.activation == "linear":
            raise ValueError(
                f"`{method}` requires classes, but this {type(self).__name__} predicts numbers. "
                "Use a task that predicts classes."
            )
        if hasattr(x, "element_spec"):
            raise invalid("x", x, f"examples in memory for {method}, not a dataset")
        return sources.read_examples(self, x, y)

    def _compute_held_out_logits(
        self, x, y, batch_size: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute the logits and targets of M labelled texts or tokens, both with shape (M, C)."""
        raise NotImplementedError

    # -- checkpoints ---------------------------------------------------------------------------

    @classmethod
    def read_checkpoint_arguments(cls, checkpoint: Checkpoint, given: Mapping) -> dict:
        config, stored = checkpoint.config, super().read_checkpoint_arguments(checkpoint, {})
        problem = config.get("problem_type") or "single_label_classification"
        is_other = given.get("head") is not None or given.get("problem_type", problem) != problem
        kept = cls._compare_classes(config, given)
        if is_other or kept != "all":
            # The stored thresholds belong to the checkpoint's classes.
            of_classes = {"temperature": 1.0, "thresholds": None, "abstain_below": None}
            known = cls.record.answer_settings
            stored |= {name: value for name, value in of_classes.items() if name in known}
        if not cls._has_task_head(config):
            return {**stored, **given}
        if kept == "all":
            names = classes.read_labels(config)
            stored["labels"] = None if classes.has_default_labels(names) else names
            stored["num_classes"] = len(names)
        if "problem_type" in get_argument_names(cls) and kept:
            stored["problem_type"] = config.get("problem_type") or get_default_problem(
                config, given
            )
        return {**stored, **given}

    @staticmethod
    def _compare_classes(config: dict, arguments: Mapping) -> Literal["all", "some"] | None:
        """Compare the given classes with the outputs of a checkpoint.

        Returns:
            "all" if all outputs are kept in their order, because the classes are equal or are only
            new names for the same number of outputs. "some" if the labels differ, but at least one
            label is in the checkpoint. None if no output can be kept.
        """
        names, labels = (
            classes.read_labels(config),
            classes.validate_labels(arguments.get("labels")),
        )
        if labels is None:
            return "all" if arguments.get("num_classes") in (None, len(names)) else None
        shared = not classes.has_default_labels(names) and classes.has_shared_labels(labels, names)
        if labels == names or (len(labels) == len(names) and not shared):
            return "all"
        return "some" if shared else None

    @classmethod
    def _has_task_head(cls, config: dict) -> bool:
        """Return whether config.json describes a checkpoint for this task."""
        [architecture, *_] = config.get("architectures") or [""]
        return architecture.endswith(cls.record.head)

    def explain_head_mismatch(self, config: dict, arguments: dict) -> str | None:
        """Explain why the head of a checkpoint does not match this task, or return None."""
        if self.num_classes is None:
            return "the labels will be learned from the data"
        names = classes.read_labels(config)
        if not self._has_task_head(config) or not self._has_renamed_labels(names):
            return None
        takes_some = not self.head_record.has_crf  # a CRF has scores for pairs of tags
        if takes_some and classes.has_shared_labels(self.labels, names):
            return None
        if takes_some and len(self.labels) == len(names):
            logger.warning(
                "The head of %s is kept. Its classes %s are renamed to %s.",
                type(self).__name__,
                names,
                self.labels,
            )
            return None
        return f"its labels are {names}, not {self.labels}"

    def find_kept_classes(self, config: dict) -> list[int | None] | None:
        has_own = self.given_head is not None or self.head_record.has_crf
        if has_own or not self._has_task_head(config):
            return None
        names = classes.read_labels(config)
        if not (self._has_renamed_labels(names) and classes.has_shared_labels(self.labels, names)):
            return None
        return classes.find_label_rows(self.labels, names)

    def _has_renamed_labels(self, names: list[str]) -> bool:
        """Return whether the labels differ from the checkpoint's labels, in names or order.

        Default names such as LABEL_0 in the checkpoint do not count as different.
        """
        return bool(self.labels) and not classes.has_default_labels(names) and names != self.labels


def get_default_problem(config: dict, given: Mapping) -> str:
    """Infer the problem type of a classifier if it is missing in config.json.

    Args:
        config: Dict. Contents of config.json.
        given: Dict. Arguments that were passed to `from_preset`.
    """
    if len(classes.read_labels(config)) > 1:
        return "single_label_classification"
    if not given.get("problem_type"):
        logger.warning(
            "config.json has one class and no `problem_type`. The model is loaded as a "
            "regression, as in training with transformers. To apply a sigmoid, as in the "
            "transformers pipeline, pass problem_type='multi_label_classification'."
        )
    return "regression"
