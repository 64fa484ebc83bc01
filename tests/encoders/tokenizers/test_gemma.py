"""Gemma's tokenizer beside the library `tokenizers`, on its own files."""

import json
import random

import pytest
from tokenizers import Tokenizer as Library

from encoder_zoo.encoders.tokenizers.comparison import create_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.gemma import GemmaTokenizer
from encoder_zoo.encoders.tokenizers.steps import BYTE_TOKENS

pytestmark = pytest.mark.eager

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
MERGES = ["▁ ▁", "▁▁ ▁▁", "▁ a", "▁ t", "h e", "▁t he", "a b", "ab ab", "b a", "e r", "é é"]
MARKERS = ["\n", "\n\n", "\n\n\n", "\t", "<h1>", "</h1>"]
TEXTS = [
    *("", " ", "  ", " a", "a  b", "the there", " the\n\nhe", "<h1>a b</h1>", "ééé", "a\u0301"),
    *("▁a ▁ a", "<0x41>", "\x00a\r\n", "漢字🙂🙂", "\u00a0a\u3000b", "     ababab " * 40),
]


def made(byte_fallback: bool) -> GemmaTokenizer:
    made_of = dict.fromkeys("".join(MERGES).replace(" ", ""))
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = dict.fromkeys([*SPECIAL, *(BYTE_TOKENS if byte_fallback else []), *made_of, *merged])
    return GemmaTokenizer(list(tokens), MERGES, byte_fallback, added_tokens=MARKERS)


@pytest.mark.slow(except_for="^True")
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_ids_and_spans_are_those_of_the_library(byte_fallback):
    ours = made(byte_fallback)
    library = Library.from_str(ours.to_files()["tokenizer.json"])
    rng = random.Random(0)
    noise = ["".join(rng.choices("ab  ▁the\n\té漢<h1>/", k=rng.randint(0, 30))) for _ in range(500)]
    texts = [*TEXTS, *noise]
    expected = library.encode_batch(texts, add_special_tokens=False)
    ids, starts, ends = (part.to_list() for part in ours.tokenize_with_offsets(texts))
    assert ids == ours.tokenize(texts).to_list() == [e.ids for e in expected]
    spans = [list(zip(*pair, strict=True)) for pair in zip(starts, ends, strict=True)]
    assert spans == [e.offsets for e in expected]
    decoded = [text.decode() for text in ours.detokenize(ids).numpy()]
    known = [i for i, e in enumerate(expected) if ours.unknown_token_id not in e.ids]
    assert [decoded[i] for i in known] == [library.decode(expected[i].ids) for i in known]
    assert len(known) == len(texts) if byte_fallback else len(known) > 50
    files = {name: json.loads(text) for name, text in ours.to_files().items()}
    again = create_tokenizer(GemmaTokenizer, TokenizerFiles("", files))
    assert again.get_config() == ours.get_config()


@pytest.mark.slow
def test_words_each_follow_a_space():
    ids, words = made(False).tokenize_words([["a", "the", "b"]])
    whole = made(False).tokenize(" a the b")
    assert ids.to_list() == [whole.numpy().tolist()]
    assert words.to_list() == [[0, 1, 2, 2]]


@pytest.mark.slow(only=r"^(pre_tokenizer-step2)$")
@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "▁"}),
        ("normalizer", None),
        ("pre_tokenizer", {"type": "Whitespace"}),
    ],
)
def test_other_steps_are_followed_as_the_library_does(part, step):
    files = {name: json.loads(text) for name, text in made(False).to_files().items()}
    files["tokenizer.json"][part] = step
    library = Library.from_str(json.dumps(files["tokenizer.json"]))
    ours = create_tokenizer(GemmaTokenizer, TokenizerFiles("", files))
    expected = library.encode("a the  b", add_special_tokens=False).ids
    assert ours.tokenize("a the  b").numpy().tolist() == expected


def test_a_template_that_repeats_the_start_token_is_read():
    """As transformers writes it for tokenizers with `add_bos_token`."""
    files = {name: json.loads(text) for name, text in made(False).to_files().items()}
    start, text, end = (
        {kind: {"id": name, "type_id": 0}}
        for kind, name in (("SpecialToken", "<bos>"), ("Sequence", "A"), ("SpecialToken", "<eos>"))
    )
    second = [
        {kind: {"id": name, "type_id": 1}}
        for kind, name in (("SpecialToken", "<bos>"), ("Sequence", "B"), ("SpecialToken", "<eos>"))
    ]
    step = files["tokenizer.json"]["post_processor"]
    step |= {"single": [start, text, end], "pair": [start, text, end, *second]}
    library = Library.from_str(json.dumps(files["tokenizer.json"]))
    template = TokenizerFiles("", files).get_template()
    names = [name for _, name, _ in template.get_parts(is_pair=False)]
    assert names == ["<bos>", "A", "<eos>"]
    assert library.encode("a").tokens == ["<bos>", "a", "<eos>"]
    parts = [(name, segment) for _, name, segment in template.get_parts(is_pair=True)]
    assert parts == [*((name, 0) for name in names), ("<bos>", 1), ("B", 1), ("<eos>", 1)]
    assert [segment for _, segment in parts] == library.encode("a", "a").type_ids
