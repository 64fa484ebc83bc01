"""What the guides take for granted about their data."""

import collections
import importlib
import pathlib

import pytest

GUIDES = pathlib.Path(__file__).parents[1] / "guides"


@pytest.fixture
def many_languages(monkeypatch):
    monkeypatch.syspath_prepend(GUIDES)
    return importlib.import_module("many_languages")


def test_xquads_excerpt_is_parallel_and_answers_stand_where_it_says(many_languages):
    train, test = many_languages.read_paragraphs()
    assert not {row["title"] for row in train} & {row["title"] for row in test}
    for rows, count in ((train, 908), (test, 282)):
        assert {len(many_languages.questions(rows, lang)) for lang in ("en", "de", "es")} == {count}
    for language in ("en", "de", "es"):
        examples = many_languages.examples(test, language)
        assert len(examples) == 230
        for example in examples:
            [answer] = example["answers"]
            start = answer["answer_start"]
            assert example["context"][start : start + len(answer["text"])] == answer["text"]


def test_kinds_of_questions(many_languages):
    texts = ["Who won?", "In what year was it?", "Where?", "How many?", "What whole is it?"]
    rows = [{"en": {"questions": texts}}]
    assert many_languages.kinds(rows) == ["person", "time", "place", "number", "other"]


def test_both_pretrainings_read_the_same_texts_as_often(many_languages):
    """Else the guide would compare more text with less."""
    train, _ = many_languages.read_paragraphs()
    texts = [
        collections.Counter(text for pair in make(train) for text in pair)
        for make in (many_languages.neighbours, many_languages.translations)
    ]
    assert texts[0] == texts[1] and sum(texts[0].values()) == 2 * 3 * 908
