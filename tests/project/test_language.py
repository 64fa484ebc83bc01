"""The English of each folder and of the pages moves no further from that of other packages."""

import importlib.util
import json

import pytest
from paths import ROOT


@pytest.fixture(scope="module")
def language():
    spec = importlib.util.spec_from_file_location("language", ROOT / "docs" / "language.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_distance_of_no_folder_grows(language):
    recorded = json.loads(language.RECORD.read_text("utf-8"))
    measured = language.measure()
    assert recorded.keys() == measured.keys()
    grown = {name: d for name, d in measured.items() if d > recorded[name] + language.TOLERANCE}
    assert not grown, f"Print the phrases with docs/language.py --phrases. Recorded: {recorded}."


def test_sentences_of_the_reference_are_closer_than_sentences_that_nobody_writes(language):
    plain = "Computes the loss of each example. If `mask` is None, all tokens are used."
    odd = "Of those the loss: of which none is where it is; but for these, so many behind it."
    reference = language.read_reference()

    def texts(sentence):
        return language.count_trigrams([sentence] * 3)

    assert language.distance(texts(plain), reference) < language.distance(texts(odd), reference)


def test_the_distance_is_that_of_jensen_and_shannon(language):
    scipy = pytest.importorskip("scipy.spatial.distance")
    ours = language.Counter({"the * of": 3, "of the *": 5, "* is *": 4})
    theirs = language.Counter({"the * of": 7, "* is *": 3, "if the *": 6})
    keys = sorted(ours | theirs)
    expected = scipy.jensenshannon([ours[k] for k in keys], [theirs[k] for k in keys], base=2)
    assert language.distance(ours, theirs) == pytest.approx(expected**2)


def test_code_and_link_targets_are_no_prose(language):
    code = "```python\nif those: of\n```"
    page = f"See [the page](of/those.md).\n\n{code}\n\n| a of b | `none of those` |"
    counts = language.count_trigrams(language.page_texts(page))
    assert counts == {"* the *": 1, "the * .": 1, "a of *": 1}


def test_examples_of_docstrings_are_no_prose(language):
    source = '"""Compute the loss.\n\n>>> if those: of\n"""\n# if the mask is None\n'
    counts = language.count_trigrams(language.python_texts(source))
    assert counts == {"* the *": 1, "the * .": 1, "if the *": 1, "the * is": 1, "* is none": 1}
