"""Tag schemes by hand; windows that own every piece once."""

import pytest
import tensorflow as tf

from encoder_zoo.tasks.preprocessing.windows import make_windows, mark_owned_tokens, merge, take
from encoder_zoo.tasks.tagging.tags import (
    describe_notation,
    find_spans,
    map_subword_tags,
    map_word_tags,
    parse_tags,
    sort_tags,
)

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = [*BIO, "E-PER", "S-PER", "E-LOC", "S-LOC"]
# Names of the letters B, I, E, S and O of each notation, and a pattern of its tags.
NOTATIONS = {
    "BIOES": ("BIESO", "{}-{}"),
    "BILOU": ("BILUO", "{}-{}"),
    "BMES": ("BMESO", "{}-{}"),
    "BMEWO": ("BMEWO", "{}-{}"),
    "B_PER": ("BIESO", "{}_{}"),
    "B_PER of BMES": ("BMESO", "{}_{}"),
    "PER-B": ("BIESO", "{1}-{0}"),
    "PER_B": ("BIESO", "{1}_{0}"),
    "B:PER": ("BIESO", "{}:{}"),
    "B/PER": ("BIESO", "{}/{}"),
    "b-per": ("bieso", "{}-{}"),
    "b-per and O": ("bmesO", "{}-{}"),
    "b_per": ("bmeso", "{}_{}"),
    "per-b": ("bieso", "{1}-{0}"),
}


def written(tags, notation):
    letters, pattern = NOTATIONS[notation]
    names = dict(zip("BIESO", letters, strict=True))
    parts = (tag.partition("-") for tag in tags)
    return [pattern.format(names[p], kind) if kind else names["O"] for p, _, kind in parts]


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("scheme", [BIO, BIOES], ids=["BIO", "BIOES"])
def test_every_notation_is_read_as_hyphens_are(notation, scheme):
    tags = written(scheme, notation)
    parsed, expected = parse_tags(tags), parse_tags(scheme)
    assert parsed.prefixes.tolist() == expected.prefixes.tolist()
    assert parsed.types.tolist() == expected.types.tolist()
    assert parsed.type_names == ["LOC", "PER"]
    assert map_subword_tags(tags).tolist() == map_subword_tags(scheme).tolist()
    assert map_word_tags(tags).tolist() == map_word_tags(scheme).tolist()
    assert sort_tags(tags) == written(sort_tags(scheme), notation)
    line = describe_notation(tags)
    is_usual = set(tags) <= {*BIOES, "L-PER", "U-PER", "L-LOC", "U-LOC"}
    assert (line is None) == is_usual, line
    assert line is None or line.startswith("Tags follow B"), line


@pytest.mark.parametrize(
    "tags, line",
    [
        (
            "O B-PER M-PER E-PER S-PER",
            "Tags follow BMES, such as 'M-PER'. They are converted to BIOES.",
        ),
        ("O B_PER I_PER", "Tags follow BIO, such as 'B_PER'. They are converted to BIO."),
        ("O B-PER I-PER X 0", "Tags follow BIO, but 'X', '0' have no prefix of this scheme."),
        ("O B-PER I_PER", "Tags follow BIO, but 'I_PER' has no prefix of this scheme"),
        ("o b-per", "Tags follow BIO, such as 'b-per'. They are converted to BIO."),
        ("O X-PER Y-PER", "The scheme of the tags is unknown: 'X-PER', 'Y-PER'."),
        ("O BEGIN-PER IN-PER", "The scheme of the tags is unknown: 'BEGIN-PER', 'IN-PER'."),
        ("O PER LOC", "Tags such as 'PER' have no prefixes."),
        ("O I-PER B-PER I-LOC", None),  # IOB1
        ("O I-PER E-PER", None),
        ("NOUN VERB PUNCT", None),
        ("n v o a", None),  # "o" is a part of speech in Chinese tag sets
        ("NN-B", None),
    ],
)
def test_what_is_said_of_a_notation(tags, line):
    found = describe_notation(tags.split())
    assert found is line if line is None else found.startswith(line)


@pytest.mark.parametrize(
    "tags, types",
    [
        ("O vitamin-B", ["vitamin-B"]),
        ("O b-cell t-cell", ["b-cell", "t-cell"]),
        ("O B-PER I-PER U-boat M-16", ["M-16", "PER", "U-boat"]),
        ("O B-B-cell B-T-cell", ["B-cell", "T-cell"]),
        ("O B-PER_B I-PER_B", ["PER_B"]),
        ("NN NN_B", ["NN", "NN_B"]),
    ],
)
def test_types_that_look_like_notations(tags, types):
    assert parse_tags(tags.split()).type_names == types


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
    assert find_spans(tags.split()) == spans


@pytest.mark.parametrize(
    "scheme, tags, spans",
    [
        ("IOB2", "I-A B-A I-A I-B", [("A", 1, 3)]),
        ("IOBES", "B-A I-A S-A B-A E-A I-A E-A", [("A", 2, 3), ("A", 3, 5)]),
        ("IOBES", "B-A I-A U-A B-A L-A I-A L-A", [("A", 2, 3), ("A", 3, 5)]),  # as BILOU
        ("IOB1", "I-A B-A O B-A", [("A", 0, 1), ("A", 1, 2)]),
        ("BMES", "B-A M-A S-A B-A E-A M-A E-A", [("A", 2, 3), ("A", 3, 5)]),
        ("IOE2", "I-A E-A I-A O E-A", [("A", 0, 2), ("A", 4, 5)]),
    ],
)
def test_strict_reading_leaves_ill_formed_spans_out(scheme, tags, spans):
    assert find_spans(tags.split(), scheme) == spans


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="scheme.*'IO'.*IOB2"):
        find_spans(["O"], "IO")


def test_tags_are_sorted_by_type():
    assert sort_tags(["I-B", "S-A", "B-B", "E-A", "B-A", "I-A"]) == [
        *("O", "B-A", "I-A", "E-A", "S-A"),
        *("B-B", "I-B"),
    ]


def test_outside_is_only_added_to_tags_with_prefixes():
    """Otherwise, a part-of-speech tagger has a class that no word has."""
    assert sort_tags(["VERB", "NOUN"]) == ["NOUN", "VERB"]
    assert sort_tags(["VERB", "O", "NOUN"]) == ["O", "NOUN", "VERB"]
    assert sort_tags(["B-A", "VERB"]) == ["O", "B-A", "VERB"]


def test_pieces_of_a_word_take_the_tags_of_a_span():
    tags = ["O", "B-A", "I-A", "E-A", "S-A", "X"]
    names = [[tags[i] for i in row] for row in map_subword_tags(tags)]
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
    only, first, _, last = map_subword_tags(tags).T
    table = map_word_tags(tags)
    assert table[first, last].tolist() == list(range(len(tags)))
    assert table[only, only].tolist() == list(range(len(tags)))


def test_pieces_that_fit_no_word_give_the_first_tag():
    tags = ["O", "B-A", "I-A", "E-A", "S-A"]
    assert map_word_tags(tags)[1, [0, 1, 4]].tolist() == [1, 1, 1]


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
    rows = zip(
        windows.example.numpy(), seen.to_list(), mark_owned_tokens(windows).to_list(), strict=True
    )
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
