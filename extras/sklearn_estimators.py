"""Estimators for scikit-learn, available as `encoder_zoo.sklearn`.

The fitted attribute `model_` is a `SequenceClassifier` or `TextEmbedder`. Pickled estimators
include the weights.

Comments use these letters for shapes: N texts, C classes, D width of a vector.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import (
    Tags,
    check_array,
    check_consistent_length,
    check_random_state,
    column_or_1d,
)
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from encoder_zoo.common import validation
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.classification.sequence_classifier import SequenceClassifier
from encoder_zoo.tasks.embedding.pair_columns import TEXT_COLUMNS
from encoder_zoo.tasks.embedding.text_embedder import TextEmbedder
from encoder_zoo.tasks.preprocessing import given_labels
from encoder_zoo.tasks.preprocessing.columns import split_texts_and_labels


class TextEstimator(BaseEstimator):
    """Base class for text estimators. Parameters are validated in `fit`."""

    def _check_parameters(self) -> None:
        """Validate all parameters."""
        for name, rule in validation.get_rules(type(self).__init__).items():
            validation.check_argument(name, getattr(self, name), rule)

    def _get_preset_arguments(self) -> dict:
        """Return the arguments for `from_preset`."""
        return {} if self.sequence_length is None else {"sequence_length": self.sequence_length}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


class FineTunedEstimator(TextEstimator):
    """Base class for estimators that fine-tune a `SequenceClassifier`."""

    def _fine_tune(self, X, y, sample_weight, **arguments) -> None:
        """Load a model from the preset, and train the model with validated labels.

        Args:
            X: Texts.
            y: Labels for `SequenceClassifier.fit`.
            sample_weight: Optional array with one weight per text.
            **arguments: Model arguments, such as `labels`.
        """
        with use_seed(self.random_state):
            arguments |= self._get_preset_arguments()
            with suppress_new_layer_warning():
                self.model_ = SequenceClassifier.from_preset(self.preset, **arguments)
            self.model_.compile(learning_rate=self.learning_rate)
            self.model_.fit(
                X,
                y,
                self.batch_size,
                self.epochs,
                sample_weight=sample_weight,
                verbose=self.verbose,
            )

    def _check_given(self, X, y, sample_weight) -> np.ndarray | None:
        """Validate parameters and data. Return the sample weights as an array or None."""
        self._check_parameters()
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. Pass "
                "labels as `y`."
            )
        check_consistent_length(X, y)
        given_labels.check_not_missing(y, X)
        if sample_weight is None:
            return None
        weights = check_array(sample_weight, ensure_2d=False, input_name="sample_weight")
        if weights.ndim != 1:
            raise invalid("sample_weight.shape", weights.shape, f"({len(y)},)")
        check_consistent_length(X, weights)
        if not weights.any():
            raise ValueError(
                "`sample_weight` is 0 for all texts. Expected at least one value greater than 0."
            )
        return weights


def flatten_column(y: np.ndarray) -> np.ndarray:
    """Convert labels of shape (N, 1) to (N,), with the same warning as scikit-learn.

    Example:
        >>> flatten_column(np.array([1, 2])).shape, flatten_column(np.array([[1, 2]])).shape
        ((2,), (1, 2))
    """
    return column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y


@contextlib.contextmanager
def suppress_new_layer_warning() -> Iterator[None]:
    """Context manager that hides the warning about new layers, because `fit` trains them."""

    def is_other_warning(record: logging.LogRecord) -> bool:
        return not hasattr(record, "has_new_weights")

    logger = logging.getLogger("encoder_zoo")
    logger.addFilter(is_other_warning)
    try:
        yield
    finally:
        logger.removeFilter(is_other_warning)


@contextlib.contextmanager
def use_seed(random_state: int | np.random.RandomState | None) -> Iterator[None]:
    """Context manager that sets all random seeds, and then restores the Python and NumPy state.

    Args:
        random_state: Integer, `numpy.random.RandomState` or None, as in scikit-learn. If None, the
            seeds will not be set.

    Example:
        >>> with use_seed(0):
        ...     first = random.random()
        >>> with use_seed(0):
        ...     print(random.random() == first)
        True
    """
    if random_state is None:
        yield
        return
    seed = check_random_state(random_state).randint(2**31 - 1)
    states = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(int(seed))
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


MULTI_LABEL = "multi_label_classification"


class TextClassifier(ClassifierMixin, FineTunedEstimator):
    """Scikit-learn estimator to classify texts or text pairs.

    The estimator fine-tunes an encoder. This class works with all scikit-learn tools for
    classifiers, for example `cross_val_score`, `GridSearchCV`, `Pipeline`,
    `CalibratedClassifierCV`, `clone` and `joblib.dump`.

    Args:
        preset: String. See `SequenceClassifier.from_preset`. The default preset is small and works
            offline. Larger presets, such as "all_minilm_l6_en_uncased", are more accurate. Defaults
            to "bert_nano_en_uncased".
        epochs: Integer. The number of epochs. Defaults to 3.
        batch_size: Integer. The batch size for training and prediction. Defaults to 32.
        learning_rate: Optional float. The peak learning rate. If None, the recommended learning
            rate will be used. See `SequenceClassifier.compile`.
        sequence_length: Optional integer. The maximum number of tokens. If None, the maximum model
            length will be used.
        class_weight: Optional dict {class: weight} or "balanced", as in scikit-learn classifiers.
        random_state: Integer, `numpy.random.RandomState` or None. Seed for new layers, shuffling
            and dropout.
        verbose: Training verbosity, as in Keras. Defaults to 0.

    Attributes:
        classes_: Array of shape (C,) with the sorted classes.
        model_: Fine-tuned `SequenceClassifier` with methods such as `classify`,
            `save_to_preset` and `export`.

    Example:
        >>> from encoder_zoo.sklearn import TextClassifier
        >>> classifier = TextClassifier(epochs=1, random_state=0)
        >>> _ = classifier.fit(["Great!", "Awful.", "Nice.", "Bad."], ["up", "down", "up", "down"])
        >>> classifier.classes_.tolist(), classifier.predict(["Good."]).shape
        (['down', 'up'], (1,))
    """

    def __init__(
        self,
        preset: str | os.PathLike = "bert_nano_en_uncased",
        *,
        epochs: validation.PositiveInt = 3,
        batch_size: validation.PositiveInt = 32,
        learning_rate: validation.PositiveFloat | None = None,
        sequence_length: validation.SequenceLength | None = None,
        class_weight: Mapping | str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: validation.Verbosity = 0,
    ):
        self.preset = preset
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.sequence_length = sequence_length
        self.class_weight = class_weight
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TextClassifier:
        """Load the preset and fine-tune it.

        Args:
            X: N texts, as a list, array or table column. Pairs of texts can be passed as a table
                with two columns or as a list of pairs. If `y` is None, `X` must contain rows
                with texts and labels. See `encoder_zoo.read_annotations`.
            y: Array of shape (N,) with one class per text, or of shape (N, C) with values 0 and 1
                if texts can have any number of classes.
            sample_weight: Optional array with shape (N,) and one value per text.

        Returns:
            The estimator.

        Raises:
            ValueError: If `y` only has one class.
        """
        X, y = split_texts_and_labels(X, y, classes=None, several=False)
        weights = self._check_given(X, y, sample_weight)
        given_labels.log_suspicious_labels(y)
        y = flatten_column(check_array(y, ensure_2d=False, dtype=None, input_name="y"))
        check_classification_targets(y)
        if self.class_weight is not None:
            of_classes = compute_sample_weight(self.class_weight, y)
            weights = of_classes if weights is None else weights * of_classes
        if type_of_target(y) == "multilabel-indicator":
            self.classes_ = np.arange(y.shape[1])
            several = {"num_classes": y.shape[1], "problem_type": MULTI_LABEL}
            self._fine_tune(X, y, weights, **several)
            return self
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) == 1:
            only = self.classes_.tolist()[0]
            raise ValueError(
                f"`y` only contains the class {only!r}. Expected at least two classes."
            )
        names = [given_labels.get_class_name(name) for name in self.classes_.tolist()]
        self._fine_tune(X, np.array(names)[numbers.ravel()], weights, labels=names)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class of each text.

        Returns:
            An array of shape (N,). If texts can have any number of classes, an array of shape
            (N, C) with values 0 and 1.
        """
        probabilities = self.predict_proba(X)
        if self.model_.problem_type == MULTI_LABEL:
            return (probabilities >= 0.5).astype(int)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities of shape (N, C), in the order of `classes_`."""
        check_is_fitted(self)
        return self.model_.predict_proba(X, self.batch_size)


class TextRegressor(RegressorMixin, FineTunedEstimator):
    """Scikit-learn estimator to predict values for texts or text pairs.

    The estimator fine-tunes an encoder. The target values are scaled to mean 0 and standard
    deviation 1 for training. Then the output layer is scaled back.

    Args:
        preset, epochs, batch_size, learning_rate, sequence_length, random_state, verbose: See
            `TextClassifier`.

    Attributes:
        model_: Fine-tuned `SequenceClassifier`.

    Example:
        >>> from encoder_zoo.sklearn import TextRegressor
        >>> regressor = TextRegressor(epochs=1, random_state=0)
        >>> _ = regressor.fit(["Great!", "Awful.", "Nice."], [5, 1, 4])
        >>> regressor.predict(["Good."]).shape
        (1,)
    """

    def __init__(
        self,
        preset: str | os.PathLike = "bert_nano_en_uncased",
        *,
        epochs: validation.PositiveInt = 3,
        batch_size: validation.PositiveInt = 32,
        learning_rate: validation.PositiveFloat | None = None,
        sequence_length: validation.SequenceLength | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: validation.Verbosity = 0,
    ):
        self.preset = preset
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.sequence_length = sequence_length
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TextRegressor:
        """Load the preset and fine-tune it.

        Args:
            X: N texts or text pairs. See `TextClassifier.fit`.
            y: Array of shape (N,) with one value per text, or of shape (N, C) with several values.
            sample_weight: Optional array with shape (N,) and one value per text.

        Returns:
            The estimator.
        """
        X, y = split_texts_and_labels(X, y, classes=None, several=False)
        weights = self._check_given(X, y, sample_weight)
        y = flatten_column(check_array(y, ensure_2d=False, dtype="float64", input_name="y"))
        mean = np.average(y, axis=0, weights=weights)
        scale = np.sqrt(np.average((y - mean) ** 2, axis=0, weights=weights))
        scale = np.where(scale > 0, scale, 1.0)
        count = 1 if y.ndim == 1 else y.shape[1]
        arguments = {"problem_type": "regression", "num_classes": count}
        self._fine_tune(X, (y - mean) / scale, weights, **arguments)
        output = self.model_.head.output_dense
        if output.bias is None:
            raise ValueError(
                f"TextRegressor needs an output layer with a bias, which classifiers of the family "
                f"{self.model_.backbone.family.name!r} do not have. Choose a different preset."
            )
        kernel, bias = map(keras.ops.convert_to_numpy, (output.kernel, output.bias))
        output.kernel.assign(kernel * scale)  # (D, C)
        output.bias.assign(bias * scale + mean)
        self._is_single = y.ndim == 1
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict one value per text, shape (N,), or several values per text, shape (N, C)."""
        check_is_fitted(self)
        values = self.model_.predict(X, self.batch_size, verbose=0).astype("float64")
        return values[:, 0] if self._is_single else values


class TextVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TextEstimator):
    """Scikit-learn transformer to convert texts to vectors with a `TextEmbedder`.

    The model is not trained. `fit` only loads the preset.

    Args:
        preset: String. See `TextEmbedder.from_preset`. The default preset is small and works
            offline. Defaults to "bert_nano_en_uncased_embedder".
        batch_size: Integer. The batch size for prediction. Defaults to 32.
        sequence_length: Optional integer. See `TextClassifier`.

    Attributes:
        model_: A `TextEmbedder`.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from encoder_zoo.sklearn import TextVectorizer
        >>> pipeline = make_pipeline(TextVectorizer(), LogisticRegression())
        >>> texts = ["A cat sat.", "Two kittens.", "The bank lends.", "A loan."]
        >>> pipeline.fit(texts, ["pet", "pet", "money", "money"]).predict(["My cat."]).tolist()
        ['pet']
    """

    def __init__(
        self,
        preset: str | os.PathLike = "bert_nano_en_uncased_embedder",
        *,
        batch_size: validation.PositiveInt = 32,
        sequence_length: validation.SequenceLength | None = None,
    ):
        self.preset = preset
        self.batch_size = batch_size
        self.sequence_length = sequence_length

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any = None, y: Any = None) -> TextVectorizer:
        """Load the preset.

        Args:
            X: Optional texts, which are only validated.
            y: Ignored.

        Returns:
            The estimator.
        """
        self._check_parameters()
        if X is not None:
            TEXT_COLUMNS.convert(X)
        self.model_ = TextEmbedder.from_preset(self.preset, **self._get_preset_arguments())
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the embeddings of texts as a float32 array of shape (N, D)."""
        check_is_fitted(self)
        (texts,) = TEXT_COLUMNS.convert(X)
        return self.model_.embed(texts, batch_size=self.batch_size)

    @property
    def _n_features_out(self) -> int:
        """Number of output columns, which scikit-learn uses to create column names."""
        return self.model_.dim or self.model_.embedding_dim
