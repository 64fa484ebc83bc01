"""Declared inputs: every container gives the same columns, and errors name what is wrong."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text, TextOrTexts, Texts

TITLES = ["one", "two", "three"]
OPTIONS = [["a", "b"], ["c"], ["d e", "f", "g"]]
NOTES = ["x y", "z", "no"]
INPUTS = Inputs(Text("titles", "title"), Texts("options", "option"), Text("notes", optional=True))
ROWS = list(zip(TITLES, OPTIONS, NOTES, strict=True))


def lists(columns) -> list:
    shown = [c.numpy().tolist() if c.shape.rank == 1 else c.to_list() for c in columns]
    return [
        [[t.decode() for t in v] if isinstance(v, list) else v.decode() for v in c] for c in shown
    ]


@pytest.mark.parametrize(
    "x",
    [
        (TITLES, OPTIONS, NOTES),
        (pd.Series(TITLES), pd.Series(OPTIONS), np.array(NOTES)),
        (tf.constant(TITLES), tf.ragged.constant(OPTIONS), tf.constant(NOTES)),
        ROWS,
        [list(row) for row in ROWS],
        [dict(zip(("title", "options", "notes"), row, strict=True)) for row in ROWS],
        {"notes": NOTES, "options": OPTIONS, "titles": TITLES},
        {"heading": TITLES, "choices": OPTIONS, "remark": NOTES},
        pd.DataFrame({"option": OPTIONS, "title": TITLES, "notes": NOTES}),
        pa.table({"a": TITLES, "b": OPTIONS, "c": NOTES}),
    ],
    ids=lambda x: type(x).__name__,
)
def test_every_container_gives_the_same(x):
    assert lists(INPUTS.convert(x)) == [TITLES, OPTIONS, NOTES]


@pytest.mark.slow
def test_in_a_graph():
    table = {"notes": NOTES, "titles": TITLES, "options": tf.ragged.constant(OPTIONS)}
    for given in (table, (table["titles"], table["options"], table["notes"])):
        dataset = tf.data.Dataset.from_tensor_slices((given,)).batch(3)
        assert lists(next(iter(dataset.map(lambda x: INPUTS.convert(x))))) == [
            TITLES,
            OPTIONS,
            NOTES,
        ]
        specification = INPUTS.get_columns(dataset.element_spec[0])
        assert [spec.shape.rank for spec in specification] == [1, 2, 1]


def test_columns_are_chosen_by_name():
    table = pd.DataFrame({"id": [1, 2, 3], "c": OPTIONS, "a": TITLES})
    assert lists(INPUTS.convert(table, ["a", "c"])) == [TITLES, OPTIONS]
    assert INPUTS.match_names(["x", "y"]) == {"x": "titles", "y": "options"}


def test_optional_repeated_and_either():
    texts = Inputs(Text("texts"), Text("second texts", optional=True))
    assert lists(texts.convert(TITLES)) == [TITLES]
    assert lists(texts.convert(np.array([TITLES, NOTES]).T)) == [TITLES, NOTES]
    for nested in ([[text] for text in TITLES], [(text,) for text in TITLES]):
        with pytest.raises(ValueError, match=r"texts\[0\] is.*nested"):
            texts.convert(nested)
    assert lists(texts.convert([])) == [[]]
    several = Inputs(Text("anchors"), Text("others", optional=True, repeated=True))
    expected = [["q", "r"], ["a", "b"], ["n", "o"], ["m", "p"]]
    assert lists(several.convert((["q", "r"], ["a", "b"], [["n", "m"], ["o", "p"]]))) == expected
    assert lists(several.convert([("q", "a", "n", "m"), ("r", "b", "o", "p")])) == expected
    either = Inputs(Text("queries", "query"), TextOrTexts("texts", "text"))
    assert lists(either.convert((TITLES, NOTES))) == [TITLES, NOTES]
    assert lists(either.convert((TITLES, OPTIONS))) == [TITLES, OPTIONS]


def test_names_that_only_some_columns_have():
    several = Inputs(Text("anchors", "anchor"), Text("others", optional=True, repeated=True))
    table = {"anchor": ["q"], "positive": ["a"], "negative_1": ["n"], "negative_2": ["m"]}
    assert lists(several.convert(table)) == [["q"], ["a"], ["n"], ["m"]]
    with pytest.raises(
        ValueError, match=r"'score' contains numbers.*fit\(\(x\['anchor'\], x\['pos"
    ):
        several.convert({"anchor": ["q"], "positive": ["a"], "score": [0.5]})
    with pytest.raises(ValueError, match="columns 'positive', 'anchor', 'n'"):
        several.convert({"positive": ["a"], "anchor": ["q"], "n": ["n"]})
    texts = Inputs(Text("texts"), Text("second texts", optional=True))
    assert lists(texts.convert({"texts": ["a"], "titles": ["b"]})) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (TITLES, r"Expected \(titles, lists of options\) or \(titles, lists of options, notes\), "),
        ("one", r"a table with these columns. Received: 'one' \(str\)"),
        ((TITLES, OPTIONS, NOTES, NOTES), "Received: 4 columns"),
        (
            (TITLES, OPTIONS[:2]),
            "3 titles, 2 lists of options",
        ),
        ((TITLES, TITLES), r"Row 0 of options is 'one'.*Expected a list of texts for each"),
        ([("one", ["a"]), ("two", ["b"], "c")], "Row 1 of x has 3 entries, .*row 0 has 2"),
        ([("one", ["a"]), "two"], "Row 1 of x is 'two'"),
        (
            [{"title": "one", "options": ["a"]}, {"title": "two"}],
            "Row 1 has no 'options'. Its keys are",
        ),
        ([{"title": "one", "options": ["a"]}, None], "Row 1 is None.*Expected a dict"),
        ({"titles": TITLES, "options": OPTIONS, "answer": NOTES}, "Expected only.* Pass the col"),
        ({"options": OPTIONS, "heading": TITLES}, "columns 'options', 'heading'"),
        ({"heading": [1, 2, 3], "choices": OPTIONS}, "'heading'.*titles"),
    ],
)
def test_errors_say_what_was_expected(x, message):
    with pytest.raises(ValueError, match=message):
        INPUTS.convert(x)
