"""Data in Markdown, YAML, HTML, Python and log lines: a parser finds it whole and nothing else."""

import ast
import html.parser
import json
import logging
import types

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from encoder_zoo.common.escaping import (
    escape_html,
    escape_line,
    escape_markdown,
    escape_python,
    escape_unencodable,
    escape_yaml,
)
from encoder_zoo.extras.display.marks import answer, entities, explanation
from encoder_zoo.extras.display.picture import Picture
from encoder_zoo.presets.files.json_data import encode_json
from encoder_zoo.presets.model_card import TRANSFORMERS, Description, Usage, make_card
from encoder_zoo.presets.origin import Origin

FRAGMENTS = [
    *("`", "```", "~~~", "|", "\\", "\\|", "*a*", "__b__", "_", "#", "---", "- ", "1. ", "> "),
    *("[x](y)", "![x](y)", "<b>", "</p>", "<script>alert(1)</script>", "<!--", "-->", "&amp;"),
    *("&#60;", "https://a.de", "www.a.de", "a@b.de", ":smile:", "$x$", "@me", "{a}", "{}", "{0}"),
    *("'", '"', '"""', "\n", "\r", "\r\n", "\t", " ", "  ", "\n\n", "\n---\n", ": ", " #", "%s"),
    *("\x00", "\x1b[31m", "\x7f", "\x85", "\xa0", "\u2028", "\u202e", "\ufeff", "\ud800", "\udcff"),
    *("😀", "é", "null", "no", "~", "!", "?", "LABEL", "__import__('os')", "\\n", "\\x60", "%"),
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
    st.text(st.characters(codec=None), max_size=12),
)


def many(test):
    """Some dozens of examples; 5,000 among the slow tests."""

    @pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.slow)])
    def run(count):
        hypothesis.settings(max_examples=count, deadline=None)(hypothesis.given(TEXTS)(test))()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def card_of(text: str) -> str:
    backbone = types.SimpleNamespace(
        family=types.SimpleNamespace(name="bert"),
        num_layers=1,
        num_heads=1,
        hidden_dim=2,
        vocabulary_size=9,
        origin=Origin(),
    )
    usage = Usage("fill-mask", "MaskedLM", TRANSFORMERS, "AutoModel", "")
    return make_card(text, Description(backbone, usage, {text: 0.5}, labels=(text, "B")))


def lines(text: str) -> int:
    return len(f"{text}.".splitlines())


@pytest.mark.matrix
@many
def test_fields_of_a_card_are_read_back_by_yaml(text):
    front = card_of(text).split("\n---\n")[0].removeprefix("---\n")
    found = yaml.safe_load(front)
    assert found.get("metrics") == (None if text == "loss" else [text])
    assert set(found) == {"library_name", "pipeline_tag", "metrics", "tags"} - (
        {"metrics"} if text == "loss" else set()
    )


@pytest.mark.matrix
@many
def test_code_of_a_card_opens_the_folder_and_does_nothing_else(text):
    card = card_of(text)
    body = card.split("\n---\n", 1)[1]  # in the YAML before it they are text
    blocks = body.split("```python\n")[1:]
    assert len(blocks) == 2 and body.count("```") == 4
    for block in blocks:
        tree = ast.parse(block.split("```")[0])
        assert [type(statement) for statement in tree.body[1:]] == [ast.Assign]
        [argument] = tree.body[1].value.args
        assert argument.value == text
    assert ast.literal_eval(escape_python(text)) == text and lines(escape_python(text)) == 1
    assert yaml.safe_load(escape_yaml(text)) == text


@pytest.mark.matrix
@many
def test_markdown_of_a_card_shows_names_as_they_are(text):
    """Escaped, it holds no character to which Markdown or HTML gives a meaning."""
    escaped = escape_markdown(text)
    assert html.unescape(escaped) == escape_unencodable(text) or "&#12;" in escaped
    assert not set(escaped.replace("&#", "")) & set("\\`*[]<>|~$@{}\n\r\t")
    for line in (f"\n# {escaped}\n", f"\n| {escaped} | 0.5 |\n", f"Labels: {escaped}, B."):
        assert line in card_of(text)


@pytest.mark.peers
@many
def test_markdown_is_read_back_by_a_parser(text):
    import markdown_it

    # Parsers take these for white space at the ends, or replace them.
    text = "".join(c for c in text if c == "\n" or c.isprintable() or c in "\t ")
    parser = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    tokens = parser.parse(card_of(text).split("\n---\n", 1)[1])
    inline = [token for token in tokens if token.type == "inline"]
    for wanted in (escape_unencodable(text), f"Labels: {escape_unencodable(text)}, B."):
        found = ["".join(c.content for c in token.children) for token in inline]
        assert wanted in found
    kinds = {child.type for token in inline for child in token.children}
    assert kinds <= {"text", "text_special", "softbreak"}
    assert sum(token.type == "tr_open" for token in tokens) == 2


class Page(html.parser.HTMLParser):
    """The texts and tags of HTML."""

    def __init__(self, page: str):
        super().__init__()
        self.texts, self.tags, self.others = [], [], []
        self.feed(page)
        self.close()

    def handle_data(self, data):
        self.texts.append(data)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, *[name for name, _ in attributes]))

    def handle_comment(self, data):
        self.others.append(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def pictures(text: str) -> list[Picture]:
    row = {"label": text, "start": 0, "end": len(text), "score": 0.5}
    word = {"part": 0, "text": text, "start": 0, "end": len(text), "attribution": 1.0}
    why = {"label": text, "score": 0.5, "texts": [text], "words": [word], "logit": 1.0}
    return [
        entities(text, [row]),
        entities(text, [row], [{**row, "label": "other"}]),
        answer(text, {"text": text, "start": 0, "end": len(text), "score": 0.5}, f"{text}?"),
        explanation({**why, "baseline": 0.0}),
    ]


@pytest.mark.matrix
@many
def test_html_of_pictures_holds_texts_and_labels_whole_and_no_tags_of_theirs(text):
    for picture, plain in zip(pictures(text), pictures("x"), strict=True):
        found, expected = Page(picture.html), Page(plain.html)
        assert escape_unencodable(text) in "".join(found.texts)
        if text:
            assert found.tags == expected.tags and not found.others
        picture.html.encode()
        assert not set(picture.text) & {"\x1b", "\x00", "\r", "\x85", "\u2028"}
    assert html.unescape(escape_html(text)) == escape_unencodable(text)


@pytest.mark.matrix
@many
def test_a_line_of_the_log_stays_one_line(text):
    records = []
    logger = logging.getLogger("encoder_zoo")
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    try:
        logger.warning("The label %s is new, %r, %s.", text, text, ValueError(text))
    finally:
        logger.removeHandler(handler)
    said = records[0].getMessage()
    assert lines(said) == 1 and "\x1b" not in said
    assert said.startswith(f"The label {escape_line(text)} is new, {text!r}, ")


@pytest.mark.parametrize("label", ["!important", "?", "!!", "?!x"])
def test_a_label_that_begins_with_a_sign_is_shown_whole(label):
    picture = entities("Rome", [{"label": label, "start": 0, "end": 4}])
    assert picture.text == f"[Rome {label}]" and f">{label}</small>" in picture.html


def test_what_utf_8_cannot_hold_is_not_written_as_settings():
    for setting in ({"prompts": {"query": "a \udc80"}}, {"\ud800": 1}, ["b", "\ud83d"]):
        with pytest.raises(ValueError, match=r"A setting.*'\\ud"):
            encode_json(setting)
    assert json.loads(encode_json({"a": "\U0001f600"})) == {"a": "\U0001f600"}
