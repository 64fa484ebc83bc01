"""The module of the estimators in joblib's files of release 0.3.0."""

from encoder_zoo.extras.sklearn_estimators import TextClassifier as TextClassifier
from encoder_zoo.extras.sklearn_estimators import TextRegressor as TextRegressor
from encoder_zoo.extras.sklearn_estimators import TextVectorizer as TextVectorizer
