"""What a new user does first: a split of a sorted table, a preprocessor in `tf.data`."""

import logging

import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.encoders import get_family, list_families
from encoder_zoo.tasks import list_tasks
from encoder_zoo.testing import tiny


def classifier(labels):
    family = get_family("bert")
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
    return ez.SequenceClassifier(tiny.backbone(family), preprocessor, labels=labels)


ANSWERING = [cls for cls in (*list_tasks(), ez.FewShotClassifier) if cls.record.text_method]


@pytest.mark.slow(except_for="SequenceClassifier|FewShotClassifier|SpanQA")
@pytest.mark.parametrize("cls", ANSWERING, ids=lambda cls: cls.__name__)
def test_texts_for_a_task_without_a_preprocessor(cls):
    family = next(family for family in list_families() if cls.supports(family))
    task, arguments = tiny.task(family, cls), cls.tiny_data().arguments
    if cls is ez.FewShotClassifier:
        arguments = {**arguments, "labels": ["x", "y"]}
    bare = cls(task.backbone, **arguments)
    with pytest.raises(ValueError, match=f"this {cls.__name__} has no preprocessor"):
        getattr(bare, cls.record.text_method)(*task.tiny_questions())


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (
            ["x"] * 10 + ["y"] * 10,
            ["the last 5 of 20 texts, which all have the label 'y'", "Shuffle"],
        ),
        (["x"] * 12 + ["y"] * 4 + ["z"] * 4, ["labels 'z'"]),
        (["x", "y"] * 10, None),
        (["y", "x", *["y"] * 18], None),  # nine in ten are "y" anyway
    ],
)
def test_a_split_of_a_sorted_table(labels, words, caplog):
    task = classifier(["x", "y", "z"])
    held_out = {"labels": tf.constant([["x", "y", "z"].index(label) for label in labels])}
    count = 4 if "z" in labels else 5
    parts = [{"labels": held_out["labels"][:-count]}, {"labels": held_out["labels"][-count:]}]
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        task.objective.report_split(*parts)
    if words is None:
        assert not caplog.messages
    else:
        [line] = caplog.messages
        assert all(word in line for word in words)


@pytest.mark.slow
def test_fit_says_it(caplog):
    task = classifier(["x", "y"])
    texts = ["a b", "c d", "e f", "g h"] * 5
    task.fit(texts, ["x"] * 10 + ["y"] * 10, validation_split=0.25, verbose=0)
    assert sum("all have the label 'y'" in line for line in caplog.messages) == 1


PREPARED = ["SequenceClassifier", "Reranker", "TextEmbedder", "MaskedLM", "SparseEncoder"]


@pytest.mark.slow(except_for="^SequenceClassifier")
@pytest.mark.parametrize("name", PREPARED)
def test_a_preprocessor_in_a_dataset_prints_nothing(name, capsys, caplog):
    """AutoGraph would print the lines of this package that it cannot convert."""
    task = tiny.task(get_family("bert"), getattr(ez, name))
    data, tokenizer = task.tiny_data(), task.preprocessor.tokenizer
    dataset = tf.data.Dataset.from_tensors(data.x if data.y is None else (data.x, data.y))
    texts = tf.data.Dataset.from_tensors(["a b", "c"])
    caplog.set_level(logging.WARNING, "tensorflow")
    found = [
        *dataset.map(task.preprocessor),
        *dataset.map(lambda *given: task.preprocessor(*given)),
        *texts.map(tokenizer),
        *texts.map(lambda texts: tokenizer.tokenize_with_offsets(texts)),
    ]
    assert len(found) == 4
    printed = capsys.readouterr()
    assert "AutoGraph" not in printed.out + printed.err + caplog.text
