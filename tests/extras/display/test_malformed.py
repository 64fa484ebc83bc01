"""Malformed entities, answers and labels are refused by name, before anything is drawn."""

import pytest

from encoder_zoo import display

TEXT = "In Rome"
ENTITY = {"label": "LOC", "start": 3, "end": 7}


@pytest.mark.parametrize(
    "found",
    [
        [[{"start": 3, "end": 7}]],
        [[{"entity_group": "LOC", "start": 3, "end": 7, "word": "Rome"}]],  # of transformers
        [[(3, 7, "LOC")]],
        [[5]],
        [None],
        [5],
    ],
)
def test_entities_are_named_by_their_place(found):
    with pytest.raises(ValueError, match=r"found\[0\].*is "):
        display.entities([TEXT], found)


@pytest.mark.parametrize("change", [{"start": 3.0}, {"end": None}, {"start": "3"}])
def test_bounds_are_integers(change):
    with pytest.raises(ValueError, match="Entity is.*Expected.*start and end"):
        display.entities([TEXT], [[{**ENTITY, **change}]])


@pytest.mark.parametrize("answers", [None, [], 5, [None], ["Rome"], [{"text": "Rome"}]])
def test_answers(answers):
    with pytest.raises(ValueError, match="(answers|Answer) is "):
        display.answer(TEXT, answers)


@pytest.mark.parametrize(
    ("true", "predicted"), [([], []), (["a", None], ["a", "a"]), ([0, 1], ["a", "b"])]
)
def test_labels(true, predicted):
    with pytest.raises(ValueError, match="labels"):
        display.confusion_matrix(true, predicted)
