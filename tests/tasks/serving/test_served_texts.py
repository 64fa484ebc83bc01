"""What a batch of a server may hold, of all signatures: empty texts, none, a single text."""

import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.tasks.serving import export

ARGUMENTS = {
    "SequenceClassifier": {"num_classes": 2},
    "TokenClassifier": {"labels": ["O", "B-A", "I-A"]},
    "SpanQA": {},
    "MaskedLM": {},
    "EntityExtractor": {"labels": ["a", "b"], "max_width": 3},
    "TextEmbedder": {},
    "LateInteraction": {},
    "SparseEncoder": {},
    "Reranker": {},
    "MultipleChoice": {},
}
# Like SparseEncoder, its number of outputs depends on the texts. `.ci/run` always runs it.
LATE = pytest.param("LateInteraction", marks=pytest.mark.slow(every=True))
NAMES = [LATE if name == "LateInteraction" else name for name in ARGUMENTS]
ALONE = ["a cat [MASK] sleeps", "the law of taxes [MASK]"]
EMPTY = ["", "  ", "\u200b", "\x00"]


def column(name: str, texts: list[str]) -> tf.Tensor:
    if name == "labels":
        return tf.constant([["a", "b"]])
    if name == "choices":
        return tf.reshape(tf.constant([[t, t and "else"] for t in texts], tf.string), (-1, 2))
    return tf.constant(texts, tf.string, shape=(len(texts),))


def answers(function, texts):
    names = [spec.name for spec in function.input_signature]
    found = function(**{name: column(name, texts) for name in names})
    return {name: values.numpy() for name, values in found.items()}


@pytest.mark.slow(except_for="SparseEncoder|LateInteraction")
@pytest.mark.parametrize("name", NAMES)
def test_every_batch_is_answered(name):
    task = getattr(ez, name).from_preset("bert_nano_en_uncased", **ARGUMENTS[name])
    for served in task.signatures().values():
        function = export._make_text_function(served, tf.no_op)
        expected = answers(function, ALONE)
        mixed = answers(function, [EMPTY[0], ALONE[0], EMPTY[1], ALONE[1], *EMPTY[2:]])
        for key, values in mixed.items():
            assert len(values) == 6
            others = values[[1, 3]]
            if values.dtype.kind == "f":
                assert np.isfinite(values).all()
            if values.ndim > 1:  # padded to the longest row of the batch
                others = others[tuple(slice(n) for n in expected[key].shape)]
            if values.dtype.kind == "f":
                np.testing.assert_allclose(others, expected[key], atol=2e-5)
            elif name != "SparseEncoder":  # whose terms of nearly equal weights may change places
                np.testing.assert_array_equal(others, expected[key])
        assert all(len(values) == 0 for values in answers(function, []).values())


@pytest.mark.slow(except_for="SparseEncoder")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("TextEmbedder", {"similarity_function": "euclidean"}),
        ("TextEmbedder", {"similarity_function": "manhattan"}),
        ("LateInteraction", {}),
        ("SparseEncoder", {}),
    ],
)
def test_an_index_answers_every_batch(name, options, tmp_path):
    task = getattr(ez, name).from_preset("bert_nano_en_uncased", **options)
    texts = ["A cat sleeps.", "Tax law.", "\u200b"]
    index = task.index(texts)
    index.export(tmp_path / "1", top_k=2)
    search = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    found = search(query=tf.constant(["", "Tax law.", "\u200b"]))
    assert found["index"].shape == (3, 2)
    assert np.isfinite(found["score"].numpy()).all()
    [alone] = index.search(["Tax law."], top_k=2)
    assert found["index"][1].numpy().tolist()[:1] == [alone[0]["index"]]
    assert search(query=tf.constant([], tf.string))["index"].shape == (0, 2)
    single = search(query=tf.constant("Tax law."))  # a batch of one
    np.testing.assert_array_equal(single["index"], found["index"][1:2])


@pytest.mark.slow
def test_a_single_text_is_a_batch_of_one(tmp_path):
    task = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
    task.export(tmp_path / "1")
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    for name, inputs in (("serving_default", ["text"]), ("pairs", ["first", "second"])):
        single = signatures[name](**{each: tf.constant("a cat") for each in inputs})
        batch = signatures[name](**{each: tf.constant(["a cat"]) for each in inputs})
        for key, values in batch.items():
            np.testing.assert_array_equal(single[key], values)
