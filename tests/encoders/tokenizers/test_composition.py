"""Normal form C, beside Python's own tables."""

import itertools
import random
import sys
import unicodedata

import pytest
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import decode_characters, load_decompositions
from encoder_zoo.encoders.tokenizers.text.composition import (
    UnicodeNormalizer,
    get_composition_tables,
)
from encoder_zoo.encoders.tokenizers.text.normalization import rank_combining_classes

SURROGATES = range(0xD800, 0xE000)  # no text holds them
CODES = [code for code in range(sys.maxunicode + 1) if code not in SURROGATES]


def is_newer(code: int) -> bool:
    """Whether a character changes here, but not yet in the Unicode 9 of `tokenizers`."""
    char = chr(code)
    if unicodedata.normalize("NFD", char) != char:
        return code not in load_decompositions()
    return unicodedata.combining(char) > 0 and code not in rank_combining_classes()


NEWER = [code for code in CODES if is_newer(code)]
KNOWN = sorted(set(CODES) - set(NEWER))


@pytest.fixture(scope="module")
def compose():
    composer = UnicodeNormalizer()

    def compose(texts: list[str]) -> list[str]:
        composed = composer(decode_characters(tf.constant(texts)))
        splits = composed.row_splits.numpy()
        text = "".join(map(chr, composed.codes.numpy()))
        return [text[start:end] for start, end in itertools.pairwise(splits)]

    return compose


def expected(texts: list[str]) -> list[str]:
    return [unicodedata.normalize("NFC", text) for text in texts]


def test_only_characters_of_scripts_added_since_are_left_out():
    assert min(NEWER) == 0x7FD  # of Unicode 11
    assert len(NEWER) < 200


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.slow)])
def codes(request):
    """Code points: those that compose, and some of the others; and all that are known."""
    affected = get_composition_tables().affected.nonzero()[0].tolist()
    some = sorted(set(KNOWN[::16]) | set(affected) & set(KNOWN))
    return KNOWN if request.param == "all" else some


@pytest.mark.matrix
def test_every_code_point_alone(compose, codes):
    texts = [chr(code) for code in codes]
    assert compose(texts) == expected(texts)


@pytest.mark.matrix
def test_every_code_point_decomposed(compose, codes):
    texts = [unicodedata.normalize("NFD", chr(code)) for code in codes]
    assert compose(texts) == expected(texts)


@pytest.mark.matrix
def test_every_code_point_between_a_letter_and_a_mark(compose, codes):
    texts = [f"a{chr(code)}\u0301" for code in codes]
    assert compose(texts) == expected(texts)


@pytest.mark.slow
def test_random_texts_of_characters_that_compose(compose):
    affected = get_composition_tables().affected.nonzero()[0].tolist()
    known = sorted(set(affected) & set(KNOWN))
    hangul = [*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3), 0xAC00]
    rng = random.Random(0)
    pools = [known, [*map(ord, "aeiouAO "), *range(0x300, 0x362)], hangul, KNOWN]
    draws = (rng.choices(rng.choice(pools), k=rng.randrange(12)) for _ in range(20_000))
    texts = ["".join(map(chr, codes)) for codes in draws]
    found = compose(texts)
    assert found == expected(texts)
    assert sum(a != b for a, b in zip(found, texts, strict=True)) > 5_000


def test_a_composed_character_spans_the_first_it_is_made_of():
    chars = UnicodeNormalizer()(decode_characters(tf.constant(["xe\u0301\u0323y", "\u1100\u1161"])))
    assert [chr(code) for code in chars.codes] == ["x", "\u1eb9", "\u0301", "y", "가"]
    assert chars.starts.numpy().tolist()[:2] == [0, 1]
    assert chars.row_splits.numpy().tolist() == [0, 4, 5]
