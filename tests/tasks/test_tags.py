"""Tag schemes by hand; windows that own every piece once."""

import pytest
import tensorflow as tf

from encoder_zoo.tasks.preprocessing.windows import make_windows, merge, owned, take
from encoder_zoo.tasks.token_classification.tags import (
    sorted_tags,
    spans_of_tags,
    subword_tags,
    word_tags,
)


@pytest.mark.parametrize(
    "tags, spans",
    [
        ("B-A I-A O B-A", [("A", 0, 2), ("A", 3, 4)]),
        ("B-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),
        ("I-A I-A B-A I-A", [("A", 0, 2), ("A", 2, 4)]),  # IOB1
        ("I-A I-B", [("A", 0, 1), ("B", 1, 2)]),
        ("B-A I-B I-A", [("A", 0, 1), ("B", 1, 2), ("A", 2, 3)]),
        ("S-A B-A I-A E-A O", [("A", 0, 1), ("A", 1, 4)]),  # IOBES
        ("S-A S-A", [("A", 0, 1), ("A", 1, 2)]),
        ("U-A B-A I-A L-A O U-B", [("A", 0, 1), ("A", 1, 4), ("B", 5, 6)]),  # BILOU
        ("L-band U-boat sea", [("L-band", 0, 1), ("U-boat", 1, 2), ("sea", 2, 3)]),  # plain types
        ("B-A E-A E-A I-A", [("A", 0, 2), ("A", 2, 3), ("A", 3, 4)]),
        ("B-A-B I-A-B", [("A-B", 0, 2)]),  # types may hold hyphens
        ("NOUN NOUN VERB", [("NOUN", 0, 2), ("VERB", 2, 3)]),
        ("", []),
    ],
)
def test_spans(tags, spans):
    assert spans_of_tags(tags.split()) == spans


@pytest.mark.parametrize(
    "scheme, tags, spans",
    [
        ("IOB2", "I-A B-A I-A I-B", [("A", 1, 3)]),
        ("IOBES", "B-A I-A S-A B-A E-A I-A E-A", [("A", 2, 3), ("A", 3, 5)]),
        ("IOBES", "B-A I-A U-A B-A L-A I-A L-A", [("A", 2, 3), ("A", 3, 5)]),  # as BILOU
        ("IOB1", "I-A B-A O B-A", [("A", 0, 1), ("A", 1, 2)]),
    ],
)
def test_strict_reading_leaves_ill_formed_spans_out(scheme, tags, spans):
    assert spans_of_tags(tags.split(), scheme) == spans


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="Unknown scheme 'BIO'. Expected one of IOB1, IOB2, IOBES"):
        spans_of_tags(["O"], "BIO")


def test_tags_are_sorted_by_type():
    assert sorted_tags(["I-B", "S-A", "B-B", "E-A", "B-A", "I-A"]) == [
        *("O", "B-A", "I-A", "E-A", "S-A"),
        *("B-B", "I-B"),
    ]


def test_pieces_of_a_word_take_the_tags_of_a_span():
    tags = ["O", "B-A", "I-A", "E-A", "S-A", "X"]
    names = [[tags[i] for i in row] for row in subword_tags(tags)]
    assert names == [
        ["O", "O", "O", "O"],
        ["B-A", "B-A", "I-A", "I-A"],
        ["I-A", "I-A", "I-A", "I-A"],
        ["E-A", "I-A", "I-A", "E-A"],
        ["S-A", "B-A", "I-A", "E-A"],
        ["X", "X", "X", "X"],
    ]


@pytest.mark.parametrize("letters", ["", "BI", "BIES", "BILU", "BIS", "BE", "IE"])
def test_words_get_their_tags_back_from_their_pieces(letters):
    tags = ["O", *(f"{letter}-{kind}" for kind in "AB" for letter in letters), "X"]
    only, first, _, last = subword_tags(tags).T
    table = word_tags(tags)
    assert table[first, last].tolist() == list(range(len(tags)))
    assert table[only, only].tolist() == list(range(len(tags)))


def test_pieces_that_fit_no_word_give_the_first_tag():
    tags = ["O", "B-A", "I-A", "E-A", "S-A"]
    assert word_tags(tags)[1, [0, 1, 4]].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "capacity, doc_stride", [(1, 0), (4, 0), (4, 1), (5, 3), (7, 2), (100, 30)]
)
def test_every_piece_belongs_to_one_window_with_the_most_context(capacity, doc_stride):
    pieces = tf.ragged.constant([list(range(n)) for n in (0, 1, 4, 5, 6, 23)], dtype=tf.int32)
    windows = make_windows(pieces.row_lengths(), capacity, doc_stride)
    seen = take(pieces, windows)
    assert merge(seen, windows).numpy().tolist() == pieces.flat_values.numpy().tolist()
    assert max(len(row) for row in seen.to_list()) <= capacity
    assert seen.nrows() == len(set(zip(*(f.numpy() for f in windows[:2]), strict=True)))
    rows = zip(windows.example.numpy(), seen.to_list(), owned(windows).to_list(), strict=True)
    context, chosen = {}, {}
    for example, row, mine in rows:
        for place, piece in enumerate(row):
            margin = min(place, len(row) - 1 - place)
            key = int(example), piece
            context[key] = max(margin, context.get(key, 0))
            if mine[place]:
                chosen[key] = margin
    inner = {k for k in chosen if capacity <= k[1] < 23 - capacity}
    assert all(chosen[key] == context[key] for key in inner)
