"""Texts and labels in containers of other libraries: taken as lists are, or refused by name."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import tensorflow as tf
from processes import run

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy
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


def test_ragged_tensors_of_another_library_are_lists():
    with use_numpy():  # as on JAX and PyTorch
        assert materialize(tf.ragged.constant([["one"], []])) == [[b"one"], []]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_ragged_tensors_are_taken_on_every_backend(backend):
    code = """
        import numpy as np
        import tensorflow as tf

        import encoder_zoo as ez
        from encoder_zoo.encoders import get_family
        from encoder_zoo.testing import tiny

        words, tags = [["a", "b"], ["c"]], [["O", "B-X"], ["O"]]
        ragged, ragged_tags = tf.ragged.constant(words), tf.ragged.constant(tags)
        rows = tf.data.Dataset.from_tensor_slices((ragged, ragged_tags))
        tagger = tiny.task(get_family("bert"), ez.TokenClassifier)
        expected = np.concatenate(tagger.predict(words, verbose=0))
        for x in (ragged, rows, rows.ragged_batch(2), tf.data.Dataset.from_tensors(ragged)):
            found = np.concatenate(tagger.predict(x, verbose=0))
            np.testing.assert_allclose(found, expected, atol=1e-5)
        assert tagger.predict_tags(ragged) == tagger.predict_tags(words)
        loss = tagger.evaluate(words, tags, verbose=0)[0]
        assert abs(tagger.evaluate(ragged, ragged_tags, verbose=0)[0] - loss) < 1e-4
        tagger.fit(ragged, ragged_tags, verbose=0)
        chooser = tiny.task(get_family("bert"), ez.MultipleChoice)
        x = ["a"], [["b", "c"]]
        found = chooser.predict((x[0], tf.ragged.constant(x[1])), verbose=0)
        np.testing.assert_allclose(found, chooser.predict(x, verbose=0), atol=1e-5)
        print("equal")
    """
    assert run(code, KERAS_BACKEND=backend).split() == ["equal"]


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
