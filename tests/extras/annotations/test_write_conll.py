"""Sentences that are written as CoNLL are read again as they were."""

import pytest

import encoder_zoo as ez

WORDS = [
    ["#", "Berlin", "ist"],
    ["New York", "\u00a0x", "-DOCSTART"],
    ["# text", "a"],
    ["東京", "#a=b"],
]
TAGS = [["O", "B-LOC", "O"], ["B-LOC", "O", "O"], ["O", "O"], ["B-LOC", "O"]]


def test_words_and_tags_are_read_again(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("another file\n")
    ez.write_conll(path, WORDS, TAGS)
    assert ez.read_conll(path) == (WORDS, TAGS)
    assert path.read_bytes().count(b"\r") == 0


@pytest.mark.parametrize(
    ("words", "tags", "name"),
    [
        ([["a"]], [["O"], ["O"]], "words.*has 1.*tags.*has 2"),
        ([["a", "b"]], [["O"]], r"words\[0\]"),
        (["ab"], [["O", "O"]], r"words\[0\]"),
        ([[]], [[]], r"words\[0\]"),
        ([["a\tb"]], [["O"]], r"words\[0\]\[0\]"),
        ([["a"], ["b\n"]], [["O"], ["O"]], r"words\[1\]\[0\]"),
        ([[" "]], [["O"]], r"words\[0\]\[0\]"),
        ([["a"]], [[1]], r"tags\[0\]\[0\]"),
        ([["a"]], [[""]], r"tags\[0\]\[0\]"),
        ([["a "]], [["O"]], r"words\[0\]\[0\]"),
        ([["a"]], [[" O"]], r"tags\[0\]\[0\]"),
        ([["a", "b\ud800"]], [["O", "O"]], r"words\[0\]\[1\]"),
        ([["-DOCSTART-"]], [["O"]], r"words\[0\]\[0\]"),
        ([["a"], None], [["O"], None], r"words\[1\]"),
        (None, [["O"]], "words"),
    ],
)
def test_what_could_not_be_read_again_is_refused(tmp_path, words, tags, name):
    with pytest.raises(ValueError, match=name):
        ez.write_conll(tmp_path / "train.conll", words, tags)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [None, 5, "a\0b"])
def test_what_is_no_path(path):
    with pytest.raises(ValueError, match="path is "):
        ez.write_conll(path, [["a"]], [["O"]])
