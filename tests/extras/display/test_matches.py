"""The picture of late interaction: what each token of a query found."""

import re

import numpy as np
import pytest

import encoder_zoo as ez

PIECES = re.compile(r"\w{1,4}|[^\w\s]")


class Pieces:
    """Tokens of up to four letters, with markers around them, and vectors as one says."""

    def __init__(self, query, document):
        self.vectors = {"query": query, "document": document}

    def embed_with_spans(self, texts, prompt=None):
        [text] = texts
        spans = [(-1, -1), *(m.span() for m in PIECES.finditer(text)), (-1, -1)]
        vectors = np.asarray(self.vectors[prompt], "float32")
        assert len(vectors) == len(spans)
        return [(vectors, np.array(spans))]


def one_hot(numbers, strengths=1.0):
    return (
        np.eye(12)[numbers] * np.reshape(strengths, (-1, 1))
        if np.ndim(strengths)
        else (np.eye(12)[numbers] * strengths)
    )


def test_words_of_pieces():
    # [CLS] rese|t it ? [SEP]; [CLS] To  rest|art , pres|s the butt|on [SEP]
    query = one_hot([0, 1, 2, 3, 4, 11])
    document = one_hot([0, 6, 1, 2, 7, 8, 9, 3, 4, 5, 10], [1, 1, 0.9, 0.6, 1, 1, 1, 0.25, 1, 1, 1])
    picture = ez.display.matches(
        Pieces(query, document), "reset it?", "To restart, press the button"
    )
    assert picture.text.splitlines() == [
        "reset it? (score 3.75)",
        "   0.90  ███████████   rese  restart",
        "   0.60  ███████       t     restart",
        "   0.25  ███           it    the",
        "   1.00  ████████████  ?     button",
        "  2 markers and expansion tokens: 1.00",
        "To [restart reset], press [the it] [button “?”]",
    ]
    assert picture.html.count("<mark") == 3 + 4 + 3  # query, table, document


def test_a_marker_is_no_word():
    picture = ez.display.matches(Pieces(one_hot([2, 0, 5]), one_hot([0, 1, 4])), "who", "Anna")
    assert "   1.00  ████████████  who  (no word)" in picture.text.splitlines()
    assert picture.text.splitlines()[-1] == "Anna"


def test_scores_below_zero_have_no_bar():
    picture = ez.display.matches(Pieces(-one_hot([0, 1, 0]), np.ones((3, 12)) / 3), "who", "Anna")
    assert picture.text.splitlines()[1].split() == ["-0.33", "who", "(no", "word)"]
    assert "width:0.0%" in picture.html


def test_scripts_without_spaces_are_shown_by_token():
    class Letters(Pieces):
        def embed_with_spans(self, texts, prompt=None):
            spans = np.array([(i, i + 1) for i in range(len(texts[0]))])
            return [(np.asarray(self.vectors[prompt], "float32"), spans)]

    model = Letters(one_hot([1, 2]), one_hot([3, 1, 2, 4]))
    assert (
        ez.display.matches(model, "東京", "南東京市").text.splitlines()[-1] == "南[東 東][京 京]市"
    )


def test_texts_are_escaped():
    vectors = one_hot([0, 1, 2, 3, 4])
    picture = ez.display.matches(Pieces(vectors, vectors), "<b>", "a<b>"[1:])
    assert "<b>" not in picture.html.replace("<b>Query</b>", "").replace("<b>Document</b>", "")
    assert "&lt;" in picture.html


@pytest.mark.parametrize("query, document", [(["a"], "b"), ("a", ["b"]), (None, "b")])
def test_one_text_each(query, document):
    with pytest.raises(ValueError, match="(query|document) is.*string"):
        ez.display.matches(None, query, document)
