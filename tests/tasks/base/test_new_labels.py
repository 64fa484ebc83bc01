"""A checkpoint opened with other labels keeps the weights of those that it has."""

import logging

import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez

TASKS = ["SequenceClassification", "TokenClassification"]
OLD = ["O", "B-PER", "I-PER"]


def opened(golden, kind, **arguments):
    cls = ez.SequenceClassifier if kind.startswith("Seq") else ez.TokenClassifier
    return cls.from_preset(golden(f"Bert_For{kind}").folder, **arguments)


@pytest.mark.slow(except_for="^labels2-TokenClassification")
@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(
    "labels", [[*OLD, "B-LOC"], ["I-PER", "O", "B-PER"], ["B-LOC", "B-PER", "O"], ["I-PER", "O"]]
)
def test_outputs_of_the_old_labels_are_the_same(golden, kind, labels, caplog):
    inputs = golden(f"Bert_For{kind}").inputs
    before = ops.convert_to_numpy(opened(golden, kind)(inputs))
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        task = opened(golden, kind, labels=labels)
    after = ops.convert_to_numpy(task(inputs))
    for i, label in enumerate(labels):
        expected = before[..., OLD.index(label)] if label in OLD else np.zeros_like(after[..., i])
        np.testing.assert_allclose(after[..., i], expected, atol=1e-6)
    said = [record.getMessage() for record in caplog.records]
    if "B-LOC" in labels:
        [line] = said
        assert "'B-LOC' is new" in line
    else:
        assert said == []


@pytest.mark.matrix
@pytest.mark.slow
def test_a_head_with_a_hidden_layer(golden):
    folder = golden("Roberta_ForSequenceClassification").folder
    old = ez.SequenceClassifier.from_preset(folder)
    new = ez.SequenceClassifier.from_preset(folder, labels=[*old.labels, "more"])
    texts = ["the cat sat", "a dog"]
    np.testing.assert_allclose(
        new.predict(texts, verbose=0)[:, :-1], old.predict(texts, verbose=0), atol=1e-6
    )


def test_the_kind_of_problem_is_kept(golden, tmp_path):
    folder = golden("Bert_Model").folder
    kind = "multi_label_classification"
    ez.Classifier.from_preset(folder, labels=["a", "b"], problem_type=kind).save_to_preset(tmp_path)
    assert ez.Classifier.from_preset(tmp_path, labels=["a", "b", "c"]).problem_type == kind
    assert ez.Classifier.from_preset(tmp_path, labels=["x", "y"]).problem_type == kind


@pytest.mark.slow
def test_it_learns_the_new_label(golden):
    task = opened(golden, "SequenceClassification", labels=[*OLD, "B-LOC"])
    task.compile(learning_rate=1e-2, run_eagerly=True)
    texts = ["the cat sat", "a dog ran"]
    task.fit(texts, ["B-LOC", "O"], epochs=8, verbose=0)
    assert task.classify(texts)[0]["label"] == "B-LOC"


@pytest.mark.slow
def test_labels_of_a_fit_that_failed_are_forgotten(golden):
    task = ez.SequenceClassifier.from_preset(golden("Bert_Model").folder)
    with pytest.raises(ValueError, match="3 texts.*2 labels"):
        task.fit(["a", "b", "c"], ["x", "y"])
    with pytest.raises(ValueError, match="1 texts.*2 labels"):
        task.fit((["a"], ["b"]), ["x", "y"])
    task.compile(run_eagerly=True)
    task.fit(["a", "b"], ["up", "down"], verbose=0)
    assert task.labels == ["down", "up"]
