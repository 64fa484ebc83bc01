"""Keras's callbacks know of every metric of ours whether a higher value is better."""

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.tasks.question_answering.squad import AnswerF1, SpanExactMatch
from encoder_zoo.tasks.ranking.reranker import NDCG, PairAccuracy
from encoder_zoo.tasks.tagging.entity_metrics import EntityF1, TokenAccuracy
from encoder_zoo.tasks.tagging.span_head import SpanF1
from encoder_zoo.tasks.training.metrics import (
    AUC,
    AveragePrecision,
    ClassAccuracy,
    ClassScore,
    Matthews,
    MeanOfLoss,
    OfLogits,
    Pearson,
    Perplexity,
    Spearman,
)
from encoder_zoo.tasks.training.objective import METRIC_NAMES

HIGHER, LOWER = keras.ops.greater, keras.ops.less
OURS = [
    (AUC(), HIGHER),
    (AveragePrecision(), HIGHER),
    (ClassAccuracy(), HIGHER),
    (ClassScore(), HIGHER),
    (EntityF1(["O", "B-PER"]), HIGHER),
    (Matthews(), HIGHER),
    (MeanOfLoss(keras.losses.huber), LOWER),
    (NDCG(), HIGHER),
    (OfLogits(keras.metrics.AUC(), "softmax"), HIGHER),
    (OfLogits(keras.metrics.CategoricalCrossentropy(), "softmax"), LOWER),
    (PairAccuracy(), HIGHER),
    (Pearson(), HIGHER),
    (Perplexity(), LOWER),
    (SpanExactMatch(), HIGHER),
    (SpanF1(), HIGHER),
    (AnswerF1(), HIGHER),
    (Spearman(), HIGHER),
    (TokenAccuracy(), HIGHER),
]


def comparison(model, name):
    """Return how an `EarlyStopping` compares values, without training."""
    for part in model.metrics:
        if hasattr(part, "build"):
            part.build(np.zeros((2, 1)), np.zeros((2, 2)))
    stopping = keras.callbacks.EarlyStopping(monitor=f"val_{name}")
    stopping.set_model(model)
    stopping._set_monitor_op()
    return stopping.monitor_op


def subclasses(kind):
    return {kind, *(below for child in kind.__subclasses__() for below in subclasses(child))}


@pytest.mark.parametrize("metric, expected", OURS, ids=lambda value: getattr(value, "name", ""))
def test_which_values_are_better(metric, expected):
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(loss="mse", metrics=[metric])
    assert comparison(model, metric.name) is expected


def test_no_metric_is_missing_here():
    kinds = subclasses(keras.metrics.Metric)
    ours = {kind for kind in kinds if kind.__module__.startswith("encoder_zoo.")}
    assert {kind.__name__ for kind in ours} - {"SpanMetric", "ExactMetric", "ClassRanking"} == {
        type(m).__name__ for m, _ in OURS
    }


@pytest.mark.parametrize(
    "name",
    ["accuracy", *(n for n in METRIC_NAMES if n not in ("perplexity", "pearson", "spearman"))],
)
def test_metrics_by_name(name):
    model = ez.SequenceClassifier(ez.BertBackbone(20, 1, 1, 4, 8), num_classes=2)
    model.compile(metrics=[name])
    assert comparison(model, name) is HIGHER


def trained(model, y, metrics, names):
    """Fit with an `EarlyStopping` of each name, and return how they compare values."""
    model.compile(metrics=metrics)
    x = {"token_ids": np.full((2, 3), 7)}
    stopping = [keras.callbacks.EarlyStopping(monitor=f"val_{name}") for name in names]
    model.fit(x, y, validation_data=(x, y), callbacks=stopping, verbose=0)
    return [each.monitor_op for each in stopping]


@pytest.mark.slow
def test_training_on_texts_ends_well():
    model = ez.SequenceClassifier(ez.BertBackbone(20, 1, 1, 4, 8), num_classes=2)
    names = ["accuracy", "f1", "mse"]
    assert trained(model, np.array([0, 1]), names, names) == [HIGHER, HIGHER, LOWER]


@pytest.mark.slow
def test_training_on_words_ends_well():
    backbone = ez.BertBackbone(20, 1, 1, 4, 8, pooler=False)
    model = ez.TokenClassifier(backbone, labels=["O", "B-X"])
    y = np.array([[0, 1, 0], [1, 0, 0]])
    assert trained(model, y, None, ["accuracy", "f1"]) == [HIGHER, HIGHER]
