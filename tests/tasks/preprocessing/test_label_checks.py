"""Labels are checked by the same rules, in the same words, in memory and inside of `tf.data`."""

import contextlib
import enum
import re

import pandas as pd
import pytest
import tensorflow as tf

from encoder_zoo.common.lazy import use_numpy, xp
from encoder_zoo.tasks.base.classes import validate_labels
from encoder_zoo.tasks.classification.class_labels import (
    convert_class_indices,
    convert_multi_label_targets,
    convert_regression_targets,
    learn_classes,
)
from encoder_zoo.tasks.preprocessing.preprocessor import convert_weights
from encoder_zoo.tasks.question_answering.answers import check_answers
from encoder_zoo.tasks.tagging.token_labels import (
    check_spans,
    check_tags,
    learn_labels,
    log_moved_spans,
)

TEXTS = tf.constant(["In Rome", "Anna, in Rome"])
COUNTS = tf.constant([1, 2], tf.int64)
NAMES, TAGS = ["down", "up"], ["O", "B-LOC", "I-LOC"]
NAN = float("nan")


def spans(*rows):
    """In memory and as tensors."""
    columns = {
        name: tf.ragged.constant([[span[i] for span in row] for row in rows], dtype)
        for i, (name, dtype) in enumerate(
            [("start", tf.int32), ("end", tf.int32), ("label", tf.string)]
        )
    }
    names = ("start", "end", "label")
    return [[dict(zip(names, span, strict=True)) for span in row] for row in rows], columns


def answers(text, start):
    memory = [{"text": ["Rome"], "answer_start": [3]}, {"text": [text], "answer_start": [start]}]
    return memory, {"text": ["Rome", text], "answer_start": [3, start]}


CASES = {
    "name": (
        convert_class_indices,
        (["up", "left"],) * 2,
        (NAMES, 2),
        "Row 1 has the unknown label",
    ),
    "number": (convert_class_indices, ([0, 2],) * 2, (None, 2), "Row 1 has the label 2"),
    "number as name": (
        convert_class_indices,
        ([1, 0],) * 2,
        (["1", "2"], 2),
        "Row 1 has.*label '0'",
    ),
    "rows": (convert_class_indices, ([[1, 0], [1, 1]],) * 2, (None, 2), "Row 1 is.*Expected"),
    "several": (
        convert_multi_label_targets,
        ([[1, 1], [0, 2]],) * 2,
        (None, 2),
        r"Row 1 is \[0, 2\]\.",
    ),
    "targets": (
        convert_regression_targets,
        ([1.0, NAN],) * 2,
        (1,),
        "Row 1 has no label: it is nan",
    ),
    "weights": (convert_weights, ([1.0, NAN],) * 2, (), "Row 1 has the weight nan"),
    "tag": (
        check_tags,
        ([["O"], ["O", "B-DOG"]], tf.ragged.constant([["O"], ["O", "B-DOG"]])),
        (COUNTS, TAGS, 3),
        r"Example 1, word 1: unknown tag 'B-DOG'",
    ),
    "tags": (
        check_tags,
        ([["O"], ["O"]], tf.ragged.constant([["O"], ["O"]])),
        (COUNTS, TAGS, 3),
        "Example 1 has 2 words but 1 tags.",
    ),
    "outside": (
        check_spans,
        spans([], [(9, 14, "LOC")]),
        (TEXTS, TAGS),
        "Example 1: the span from 9 to 14 .* 13 characters",
    ),
    "overlap": (
        check_spans,
        spans([], [(9, 13, "LOC"), (0, 10, "LOC")]),
        (TEXTS, TAGS),
        "Example 1: the spans from 0 to 10 and from 9 to 13 overlap.",
    ),
    "type": (
        check_spans,
        spans([(3, 7, "LOC")], [(0, 4, "PER")]),
        (TEXTS, TAGS),
        r"Example 1: unknown label 'PER'",
    ),
    "answer": (
        check_answers,
        answers("Rom", 2),
        (TEXTS,),
        "Example 1: the answer 'Rom' does not start at character 2 of its context, which "
        "continues with 'na, ",
    ),
}


class Mood(str, enum.Enum):  # noqa: UP042  (its str is "Mood.GOOD", of a StrEnum "good")
    GOOD, BAD = "good", "bad"


class Tag(str, enum.Enum):  # noqa: UP042
    OUTSIDE, BEGIN = "O", "B-PER"


@pytest.mark.parametrize("make", [list, tuple, pd.Series])
def test_enumerations_of_strings_are_their_values(make):
    """NumPy made "Mood" of each, cut to the length of the values."""
    y = make([Mood.GOOD, Mood.BAD, Mood.GOOD])
    assert learn_classes(y) == ["bad", "good"]
    assert convert_class_indices(y, ["bad", "good"], 2).numpy().tolist() == [1, 0, 1]
    rows = make([[Mood.GOOD], []])
    assert learn_classes(rows, multi_label=True) == ["good"]
    assert convert_multi_label_targets(rows, ["bad", "good"], 2).numpy().tolist() == [
        [0, 1],
        [0, 0],
    ]
    assert learn_labels(make([[Tag.OUTSIDE, Tag.BEGIN], []])) == ["O", "B-PER"]
    assert learn_labels(make([[(0, 4, Mood.GOOD)], []])) == ["O", "B-good", "I-good"]
    assert validate_labels([*Mood]) == ["good", "bad"]


@pytest.mark.parametrize("tag", ["O", "NOUN"])
def test_a_single_tag_is_refused(tag):
    """The loss of one class is always 0."""
    with pytest.raises(ValueError, match=f"{tag}.*labels="):
        learn_labels([[tag, tag], [tag]])


def test_enumerations_of_numbers_are_numbers():
    numbers = enum.IntEnum("Numbers", {"ZERO": 0, "ONE": 1})
    assert learn_classes([*numbers]) == 2


@pytest.mark.slow(except_for="^number as")
@pytest.mark.parametrize("case", CASES)
def test_errors_say_the_same_in_memory_and_in_a_dataset(case):
    check, (in_memory, in_graph), arguments, message = CASES[case]
    with pytest.raises(ValueError, match=f"^{message}"):
        check(in_memory, *arguments)
    tensors = [value for value in arguments if tf.is_tensor(value)]
    others = [value for value in arguments if not tf.is_tensor(value)]
    dataset = tf.data.Dataset.from_tensors((in_graph, *tensors))
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(dataset.map(lambda *values: check(*values, *others)))
    # TensorFlow prints quotes with backslashes, so that they are left out.
    assert re.search(message.replace("'", ""), str(error.value).replace(" of the batch", ""))


@pytest.mark.parametrize("context", [contextlib.nullcontext, use_numpy])
def test_moved_spans_are_logged(context, caplog):
    y = spans([(3, 7, "LOC")], [(5, 8, "LOC")])[0]
    with context():
        texts = xp.constant(["In Rome", "Anna, in Rome"])
        checked = check_spans(y, texts, TAGS)
        log_moved_spans(y, checked, texts)
    assert checked["start"].to_list() == [[3], [6]]
    assert "1 of the spans" in caplog.text and "example 1, ' in'" in caplog.text
