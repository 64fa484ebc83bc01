"""scikit-learn estimators for text classification, regression and embeddings.

The estimators are imported on first use, because scikit-learn is an optional dependency.

Example:
    >>> from encoder_zoo.sklearn import TextClassifier
    >>> TextClassifier(epochs=2).get_params()["epochs"]
    2
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from encoder_zoo.extras.sklearn_estimators import TextClassifier as TextClassifier
    from encoder_zoo.extras.sklearn_estimators import TextRegressor as TextRegressor
    from encoder_zoo.extras.sklearn_estimators import TextVectorizer as TextVectorizer

__all__ = ["TextClassifier", "TextRegressor", "TextVectorizer"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'encoder_zoo.sklearn' has no attribute '{name}'")
    try:
        importlib.import_module("sklearn")  # raise the error before importing Keras
    except ModuleNotFoundError as error:
        raise ImportError(
            f"encoder_zoo.sklearn.{name} needs scikit-learn, which is not installed: "
            "`pip install scikit-learn`."
        ) from error
    from encoder_zoo.extras import sklearn_estimators

    return getattr(sklearn_estimators, name)


def __dir__() -> list[str]:
    return __all__
