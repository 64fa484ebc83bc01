"""The base of the estimators of `encoder_zoo.sklearn`: parameters, checks, training.

Comment letters: N texts, C classes.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator

import keras
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import (
    Tags,
    check_array,
    check_consistent_length,
    check_random_state,
    column_or_1d,
)

from encoder_zoo.common.validation import check_argument, rules_of
from encoder_zoo.tasks.classification.sequence_classifier import SequenceClassifier
from encoder_zoo.tasks.preprocessing.given_labels import check_given


class TextEstimator(BaseEstimator):
    """Base of the estimators: their parameters are checked by `fit`, and they take texts."""

    def _check_parameters(self) -> None:
        """Raise a ValueError for a parameter that does not pass its rule."""
        for name, rule in rules_of(type(self).__init__).items():
            check_argument(name, getattr(self, name), rule)

    def _preset_arguments(self) -> dict:
        """Return the parameters that `from_preset` takes."""
        return {} if self.sequence_length is None else {"sequence_length": self.sequence_length}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


class FineTunedEstimator(TextEstimator):
    """Base of the estimators that fine-tune a `SequenceClassifier`."""

    def _fine_tune(self, X, y, sample_weight, **arguments) -> None:
        """Load a new model from the preset, and train it on checked labels.

        Args:
            X: texts.
            y: labels as `SequenceClassifier.fit` takes them.
            sample_weight: one number per text, or None.
            **arguments: of the model, such as its labels.
        """
        with seeded(self.random_state):
            arguments |= self._preset_arguments()
            with without_advice():
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
        """Check the parameters and the data's lengths; return the sample weights as an array."""
        self._check_parameters()
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        check_consistent_length(X, y)
        check_given(y, X)
        if sample_weight is None:
            return None
        weights = check_array(sample_weight, ensure_2d=False, input_name="sample_weight")
        if weights.ndim != 1:
            raise ValueError(f"sample_weight has the shape {weights.shape}. Expected ({len(y)},).")
        check_consistent_length(X, weights)
        if not weights.any():
            raise ValueError("sample_weight is zero for all texts. Expected some greater than 0.")
        return weights


def one_column(y: np.ndarray) -> np.ndarray:
    """Return labels (N, 1) as (N,), with scikit-learn's warning; others unchanged.

    Example:
        >>> one_column(np.array([1, 2])).shape, one_column(np.array([[1, 2]])).shape
        ((2,), (1, 2))
    """
    return column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """Leave out the warning that new layers are to be trained, as that is what comes next."""

    def is_other(record: logging.LogRecord) -> bool:
        return "Fine-tune before use" not in record.getMessage()

    logger = logging.getLogger("encoder_zoo")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


@contextlib.contextmanager
def seeded(random_state: int | np.random.RandomState | None) -> Iterator[None]:
    """Fix Keras's random numbers inside the block, and leave Python's and NumPy's as they were.

    Args:
        random_state: as scikit-learn's estimators take it; with None nothing is fixed.

    Example:
        >>> with seeded(0):
        ...     first = random.random()
        >>> with seeded(0):
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
