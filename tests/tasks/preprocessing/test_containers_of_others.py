"""Texts and labels in containers of other libraries: taken as lists are, or refused by name."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, list_categories, materialize

pytestmark = pytest.mark.eager
BERT = get_family("bert")
TEXTS, LABELS = ["one two", "three", "four five", "six"], ["a", "b", "a", "b"]
INDICATORS = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
SPARSE = [
    scipy.sparse.csr_matrix,
    scipy.sparse.csr_array,
    scipy.sparse.csc_matrix,
    scipy.sparse.coo_matrix,
    scipy.sparse.coo_array,
]


def classifier(tiny, **arguments):
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(BERT))
    return ez.SequenceClassifier(tiny.backbone(BERT, pooler=True), preprocessor, **arguments)


def several_labels(tiny):
    return classifier(tiny, labels=["a", "b"], problem_type="multi_label_classification")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_indicators_are_the_dense_ones(tiny, kind):
    model = several_labels(tiny)
    sparse = kind(INDICATORS)
    expected = model.evaluate(TEXTS, INDICATORS, verbose=0)
    assert model.evaluate(TEXTS, sparse, verbose=0) == pytest.approx(expected, rel=1e-6)
    assert model.tune_thresholds(TEXTS, sparse) == model.tune_thresholds(TEXTS, INDICATORS)
    history = model.fit(TEXTS, sparse, validation_data=(TEXTS, sparse), verbose=0).history
    assert {"loss", "val_loss"} <= history.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "column",
    [
        pd.Series(LABELS, dtype="category"),
        pd.Categorical(LABELS),
        pd.Index(LABELS),
        pa.array(LABELS).dictionary_encode(),
        pa.chunked_array([LABELS[:1], LABELS[1:]]),
        np.array(LABELS),
        dict(enumerate(LABELS)).values(),
    ],
    ids=lambda column: type(column).__name__,
)
def test_columns_of_labels_and_texts_are_lists(tiny, column):
    model = classifier(tiny)
    model.fit(TEXTS, column, verbose=0)
    assert model.labels == ["a", "b"]
    assert list(convert_to_plain(column)) == LABELS


@pytest.mark.parametrize("labels", [set("abcd"), frozenset("abcd")])
def test_a_set_has_no_order(tiny, labels):
    model = classifier(tiny)
    with pytest.raises(ValueError, match=r"^y is.*order"):
        model.fit(TEXTS, labels, verbose=0)
    with pytest.raises(ValueError, match="texts is.*four five"):
        classifier(tiny, num_classes=2).predict(set(TEXTS), verbose=0)


def test_lazy_tables_are_computed():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"text": TEXTS, "label": LABELS})
    assert materialize(table.lazy()).equals(table)
    assert convert_to_plain(table.lazy()) == {"text": TEXTS, "label": LABELS}


@pytest.mark.parametrize("kind", ["Categorical", "Enum"])
def test_categories_of_polars(tiny, kind):
    polars = pytest.importorskip("polars")
    dtype = polars.Categorical if kind == "Categorical" else polars.Enum(["b", "a"])
    column = polars.Series(LABELS).cast(dtype)
    model = classifier(tiny)
    model.fit(polars.DataFrame({"text": TEXTS}).lazy(), column, verbose=0)
    assert model.labels == (["a", "b"] if kind == "Categorical" else ["b", "a"])
    assert (list_categories(column) is None) == (kind == "Categorical")
