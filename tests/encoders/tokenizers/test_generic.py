"""A tokenizer.json whose steps fit no named class, step by step.

The truth is the library `tokenizers`, which reads the same file. In memory every file is followed.
TensorFlow's graphs give equal ids and offsets, or refuse the step by its name.
"""

import json
import pathlib
import pickle
import re
import sys

import pytest
import tensorflow as tf
from tokenizers import Tokenizer
from tokenizers import normalizers as normalizers_of
from tokenizers import pre_tokenizers as words_of

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers.comparison import create_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.generic import GenericTokenizer
from encoder_zoo.encoders.tokenizers.graphs import normalizers
from encoder_zoo.encoders.tokenizers.graphs import words as graph_words
from encoder_zoo.encoders.tokenizers.steps import (
    BYTE_TOKENS,
    GPT2_WORDS,
    LLAMA_WORDS,
    make_split_step,
)
from encoder_zoo.encoders.tokenizers.text.precompiled import CharacterMap

sys.path.append(str(pathlib.Path(__file__).parent))
from test_library import byte_bpe, sentencepiece
from test_steps import TEXTS

pytestmark = pytest.mark.eager

ROOT = pathlib.Path(__file__).parents[3]
OTHERS = {"NORMALIZERS", "Normalizer", "PreTokenizer", "Sequence"}  # no steps of texts

ROLES = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
WORDS = ["a", "b", "ab", "##b", "12345", "cafe", "café", "the", "▁a", "▁the", "1", ".", "中", "new"]
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "pair": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "special_tokens": {
        "<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
        "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
    },
}


def model(kind):
    """The model of a file. Bytes of characters show what a normalizer does to any of them."""
    ids = {token: i for i, token in enumerate([*SPECIAL, *WORDS])}
    if kind == "bytes":
        return json.loads(byte_bpe().to_files()["tokenizer.json"])["model"]
    if kind == "Unigram":
        pieces = [[token, 0.0] for token in [*SPECIAL, *BYTE_TOKENS]]
        pieces += [[word, -2.0 - i / 7] for i, word in enumerate(["▁", *WORDS])]
        return {"type": kind, "unk_id": 3, "vocab": pieces, "byte_fallback": True}
    own = {"type": kind, "vocab": ids, "unk_token": "<unk>"}
    if kind == "BPE":
        letters = {c: len(ids) + i for i, c in enumerate("hetrk") if c not in ids}
        merges = [["a", "b"]]
        return {**own, "vocab": {**ids, **letters}, "merges": merges, "fuse_unk": False}
    if kind == "BPE of words with ends":
        ends = {f"{c}</w>": len(ids) + i for i, c in enumerate(["a", "b", "é", "ab"])}
        merges = [["a", "b"], ["a", "b</w>"]]
        own |= {"type": "BPE", "end_of_word_suffix": "</w>", "fuse_unk": True}
        return {**own, "vocab": {**ids, **ends}, "merges": merges}
    prefixed = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {**own, **(prefixed if kind == "WordPiece" else {})}


def step(kind, **fields):
    return {"type": kind, **fields}


BYTE_LEVEL = step("ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
SPLIT_BYTES = {**BYTE_LEVEL, "use_regex": False}
METASPACE = step("Metaspace", replacement="▁", prepend_scheme="always", split=True)
CHARSMAP = sentencepiece(ez.XLMRobertaTokenizer, "nmt_nfkc").precompiled_charsmap
SPLIT = step("WhitespaceSplit")
BERT = step("BertPreTokenizer")


def split(pattern, behavior="Isolated", kind="Regex", invert=False):
    return step("Split", pattern={kind: pattern}, behavior=behavior, invert=invert)


def before(*steps, model="bytes", words=(BYTE_LEVEL,)):
    """The case of a normalizer."""
    return model, list(steps), list(words)


def words(*steps, model="WordLevel"):
    """The case of a pre-tokenizer."""
    return model, [], list(steps)


LOWER, NFC, NFKD, MARKS = (step(name) for name in ("Lowercase", "NFC", "NFKD", "StripAccents"))
STRIP = step("Strip", strip_left=True, strip_right=True)
BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
COMPOSING = [step("Replace", pattern={"Regex": r"\s{2,}|[\n\r\t]"}, content=" "), NFC]
COMPOSING += [step("Strip", strip_left=False, strip_right=True)]


def replace(content, **pattern):
    return step("Replace", pattern=pattern, content=content)


BERT_STEP = step("BertNormalizer", clean_text=True, handle_chinese_chars=True, lowercase=True)
BERT_STEP["strip_accents"] = None
DONE = {
    "no step": before(),
    "NFC": before(NFC),
    "Lowercase": before(LOWER),
    "StripAccents": before(MARKS),
    "NFKD StripAccents": before(NFKD, MARKS),
    "Precompiled": before(step("Precompiled", precompiled_charsmap=CHARSMAP)),
    "Replace": before(replace("bb", String="a")),
    "Replace text": before(replace("éa", String="ab")),
    "Replace regex": before(replace(" ", Regex=" {2,}")),
    "Replace nothing": before(replace("", Regex=r"[\p{N}.]+|\s")),
    "Replace class": before(replace("_", Regex=r"[^\w\s]|\d+?")),
    "NFD": before(step("NFD")),
    "NFKC": before(step("NFKC")),
    "NFKD": before(NFKD),
    "NFD twice": before(step("NFD"), step("NFD")),
    "NFKC Lowercase NFD": before(step("NFKC"), LOWER, step("NFD")),
    "NFD NFC": before(step("NFD"), NFC),
    "NFKD NFC": before(NFKD, NFC),
    "Lowercase NFC": before(LOWER, NFC),
    "StripAccents NFKD": before(MARKS, NFKD),
    "Prepend": before(step("Prepend", prepend="▁")),
    "Prepend twice": before(step("Prepend", prepend="ab"), step("Prepend", prepend="c")),
    "Strip": before(STRIP),
    "Strip left": before({**STRIP, "strip_right": False}),
    "Strip right twice": before(*[{**STRIP, "strip_left": False}] * 2),
    "Prepend Strip": before(step("Prepend", prepend=" "), STRIP),
    "BertNormalizer": before(BERT_STEP),
    "BertNormalizer NFKC": before(
        {**BERT_STEP, "strip_accents": False, "clean_text": False}, step("NFKC")
    ),
    "NFC BertNormalizer": before(NFC, {**BERT_STEP, "lowercase": False, "strip_accents": True}),
    "DeBERTa": before(*COMPOSING),
    "GPT-2's words": words(make_split_step(GPT2_WORDS), SPLIT_BYTES, model="bytes"),
    "Llama's words": words(make_split_step(LLAMA_WORDS), SPLIT_BYTES, model="bytes"),
    "other words": words(make_split_step(r"\p{L}+|\p{N}"), SPLIT_BYTES, model="bytes"),
    "Digits ByteLevel": words(step("Digits", individual_digits=True), BYTE_LEVEL, model="bytes"),
    "prefixed words": words(SPLIT, {**BYTE_LEVEL, "add_prefix_space": True}, model="bytes"),
    "BertPreTokenizer": words(BERT, model="WordPiece"),
    "Lowercase BertPreTokenizer": ("WordPiece", [LOWER], [BERT]),
    "BertPreTokenizer twice": words(BERT, BERT, model="WordPiece"),
    "Whitespace": words(step("Whitespace"), model="WordPiece"),
    "WhitespaceSplit": words(SPLIT, model="WordPiece"),
    "no words": words(model="WordPiece"),
    **{
        f"Punctuation {name}": words(SPLIT, step("Punctuation", behavior=name))
        for name in BEHAVIORS
    },
    "Digits": words(SPLIT, step("Digits", individual_digits=True), model="WordPiece"),
    "Digits together": words(step("Digits", individual_digits=False)),
    "CharDelimiterSplit": words(step("CharDelimiterSplit", delimiter="-")),
    "UnicodeScripts": words(step("UnicodeScripts")),
    "UnicodeScripts of words": words(step("UnicodeScripts"), SPLIT, step("UnicodeScripts")),
    **{f"Split {name}": words(split("a", name, "String")) for name in BEHAVIORS},
    **{
        f"Split regex {name} {invert}": words(split(r"[a-e]{2}|\d+|\s", name, invert=invert))
        for name in BEHAVIORS
        for invert in (False, True)
    },
    "Split alternatives": words(split(r"a|ab|(?:\W\S)+?b", invert=True)),
    "Split twice": words(split("ab"), split("b", "MergedWithNext")),
    "Digits Whitespace": words(step("Digits", individual_digits=False), step("Whitespace")),
    "Whitespace Digits": words(step("Whitespace"), step("Digits", individual_digits=False)),
    "WordLevel": words(step("Whitespace")),
    "WordLevel of normalized": ("WordLevel", [step("NFKC"), LOWER], [BERT]),
    "BPE": words(step("Whitespace"), model="BPE"),
    "BPE of texts": words(model="BPE"),
    "BPE suffix": words(step("Whitespace"), model="BPE of words with ends"),
    "Metaspace": words(SPLIT, METASPACE, model="Unigram"),
    "Metaspace alone": words(METASPACE, model="Unigram"),
    "Metaspace first": words({**METASPACE, "prepend_scheme": "first"}, model="Unigram"),
    "Metaspace first of words": words(
        SPLIT, {**METASPACE, "prepend_scheme": "first"}, model="Unigram"
    ),
    "Strip Metaspace first": ("Unigram", [STRIP], [{**METASPACE, "prepend_scheme": "first"}]),
    "Metaspace never": words({**METASPACE, "prepend_scheme": "never"}, model="Unigram"),
    "Metaspace unsplit": words({**METASPACE, "split": False}, model="Unigram"),
    "Metaspace sign": words({**METASPACE, "replacement": "_"}, model="Unigram"),
    "Metaspace twice": words(METASPACE, METASPACE, model="Unigram"),
    "DeBERTa Metaspace": ("Unigram", COMPOSING, [METASPACE]),
    "Prepend Replace": ("BPE", [step("Prepend", prepend="▁"), replace("▁", String=" ")], []),
    "Replace Prepend": ("BPE", [replace("▁", String=" "), step("Prepend", prepend="▁")], []),
}
REFUSED = {
    "Nmt": before(step("Nmt")),
    "ByteLevel before": before(step("ByteLevel"), model="WordLevel", words=(SPLIT,)),
    "FixedLength": words(step("FixedLength", length=3)),
    "Replace before": before(replace(" ", Regex=r" (?=\.)")),
    "Replace ends": before(replace("", Regex=r"\s+$")),
    "Split empty": words(split("a*")),
    "Split ahead": words(split(r"\w+(?!b)")),
    "Split behind": words(split(r"(?<=a)b")),
    "Split possessive": words(split("a++b")),
    "Split case": words(split("(?i:ab)")),
    "Split set": words(split("[a-z&&[^b]]")),
    "Split property": words(split(r"\p{Lu}")),
    "Split border": words(split(r"\b")),
    "words of bytes": words(BYTE_LEVEL, step("Whitespace"), model="bytes"),
    "characters of bytes": words(BYTE_LEVEL, model="WordPiece"),
}
# {name: (model, normalizers, pre-tokenizers, whether the graph has them)}
CASES = {name: (*case, True) for name, case in DONE.items()}
CASES |= {name: (*case, False) for name, case in REFUSED.items()}


def file(kind, before, words):
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": before},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": words},
        "post_processor": TEMPLATE,
        "decoder": None,
        "model": model(kind),
    }


def made(case):
    """Both tokenizers of a case: ours, and the library's."""
    content = json.dumps(file(*CASES[case][:3]))
    return GenericTokenizer(content), Tokenizer.from_str(content)


def expected(library, texts):
    encodings = library.encode_batch(texts, add_special_tokens=False)
    return [[[i, *span] for i, span in zip(e.ids, e.offsets, strict=True)] for e in encodings]


def found(parts):
    rows = [part.to_list() for part in parts]
    return [list(map(list, zip(*row, strict=True))) for row in zip(*rows, strict=True)]


def check_engines(case, texts):
    ours, library = made(case)
    rows, truth = tf.constant(texts), expected(library, texts)
    engines = [ours.library]
    if CASES[case][3]:
        engines.append(ours.graph)
    else:
        with pytest.raises(
            ValueError, match=r"tokenizer\.json: (normalizer|pre_tokenizer|model) is.*exports"
        ):
            _ = ours.graph
    for engine in engines:
        for text, mine, theirs in zip(
            texts, found(engine.texts_to_tokens(rows)), truth, strict=True
        ):
            assert mine == theirs, (case, engine, ascii(text))
        assert engine.texts_to_ids(rows).to_list() == [[i for i, *_ in row] for row in truth]


# One case of each step. The others are slow.
USUAL = "no step|NFKC|Replace regex|Prepend|Strip|BertNormalizer|other words|Digits ByteLevel"
USUAL += "|Lowercase BertPreTokenizer|Whitespace|WhitespaceSplit|Punctuation Contiguous|Digits"
USUAL += "|CharDelimiterSplit|UnicodeScripts|Split regex MergedWithNext True|BPE|BPE suffix"
USUAL += "|Metaspace first|Nmt|Split ahead|Split property|words of bytes"


@pytest.mark.slow(except_for=f"^({USUAL})$")
@pytest.mark.parametrize("case", CASES)
def test_a_step_is_equal_in_each_engine_or_refused_by_name(case):
    check_engines(case, TEXTS)


def test_a_new_step_is_one_function(monkeypatch):
    """The library has this step. The graph needs a function that marks the starts of words."""

    def split_length(step):
        def apply(split):
            at = tf.range(tf.size(split.begins))
            word = tf.cumsum(tf.cast(split.begins, tf.int32)) - 1
            return split._replace(begins=(at - tf.gather(split.starts, word)) % step["length"] == 0)

        return apply

    steps = {**graph_words.PRE_TOKENIZERS, "FixedLength": split_length}
    monkeypatch.setattr(graph_words, "PRE_TOKENIZERS", steps)
    monkeypatch.setitem(CASES, "toy", (*words(SPLIT, step("FixedLength", length=2)), True))
    check_engines("toy", TEXTS)


def step_types(cases, part):
    return {step["type"] for case in cases.values() for step in case[part]}


@pytest.mark.parametrize(
    ("row", "part", "names"), [("normalizer", 1, normalizers_of), ("pre_tokenizer", 2, words_of)]
)
def test_the_page_lists_the_steps_of_each_engine(row, part, names):
    """The cases above prove what it says, and every step of the library is in it."""
    page = (ROOT / "docs/pages/topics/presets.md").read_text("utf-8")
    [cells] = [
        line.split("|")[2:4] for line in page.splitlines() if line.startswith(f"| `{row}` |")
    ]
    both, refused = (set(re.findall("`(.+?)`", cell)) for cell in cells)
    assert both == step_types(DONE, part)
    assert refused == step_types(REFUSED, part) - both
    assert both | refused == {name for name in dir(names) if name[0].isupper()} - OTHERS


# Cases whose steps have tables of characters.
TABLES = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "NFKD StripAccents", "Precompiled", "Strip"]
TABLES += ["BertNormalizer", "Replace class", "GPT-2's words", "Llama's words", "other words"]
TABLES += ["Whitespace", "WhitespaceSplit", "Punctuation Isolated", "Digits", "UnicodeScripts"]
TABLES += ["Split alternatives", "Metaspace", "BPE"]


@pytest.mark.slow
@pytest.mark.parametrize("case", TABLES)
def test_every_character(case):
    letters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    check_engines(case, ["a".join(letters[i : i + 50]) for i in range(0, len(letters), 50)])


# -- opened from files ---------------------------------------------------------------------------


def opened(content, **settings):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **ROLES, **settings}
    contents = {"tokenizer.json": content, "tokenizer_config.json": settings}
    return create_tokenizer(ez.BertTokenizer, TokenizerFiles("folder", contents))


@pytest.mark.slow
def test_it_is_saved_and_opened_again(tmp_path):
    content = file("WordPiece", [step("Lowercase")], [step("Whitespace")])
    content["added_tokens"] = [
        {"id": 19, "content": "new york", "special": False, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    ]
    ours = opened(content)
    ours.save_to_preset(tmp_path / "saved")
    again = ez.Tokenizer.from_preset(tmp_path / "saved")
    library = Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    text = "The new york ab 12345!"
    ids = library.encode(text, add_special_tokens=False).ids
    assert type(again) is GenericTokenizer and 19 in ids
    copy = pickle.loads(pickle.dumps(ours))
    for tokenizer in (ours, again, copy):
        assert tokenizer.tokenize(text).numpy().tolist() == ids
        assert tokenizer.id_to_token(19) == "new york" and tokenizer.vocabulary_size == 20
    more = ez.Tokenizer.from_preset(tmp_path / "saved", added_tokens=["zebra"])
    assert more.tokenize("a zebra").numpy().tolist() == [5, 20]
    inputs = ez.SequenceClassifierPreprocessor(again)((["ab"], ["a"]))
    pair = library.encode("ab", "a")
    assert inputs["token_ids"].numpy().tolist() == [pair.ids]


def test_a_named_class_with_other_steps_is_refused():
    """Its class in transformers would not follow the file."""
    bert = step("BertNormalizer", clean_text=True, handle_chinese_chars=True, lowercase=True)
    content = file("WordPiece", [bert], [step("Whitespace")])
    with pytest.raises(ValueError, match="pre_tokenizer is.*Whitespace"):
        opened(content, tokenizer_class="BertTokenizer")


def test_large_inputs_are_tokenized_in_memory_where_the_graph_lacks_a_step():
    ours, library = made("Nmt")
    assert ours.tokenize(TEXTS).to_list() == [
        e.ids for e in library.encode_batch(TEXTS, add_special_tokens=False)
    ]
    with pytest.raises(ValueError, match=r"'Nmt'.*tf\.data, exports"):
        _ = ours.graph


def sequence(*steps):
    return step("Sequence", decoders=list(steps))


def replaced(old, new):
    return step("Replace", pattern={"String": old}, content=new)


STRIPPED = step("Strip", content=" ", start=1, stop=0)


@pytest.mark.parametrize(
    ("decoder", "tokens", "text"),
    [
        (None, ["the", "cafe"], "the cafe"),
        (step("WordPiece", prefix="##", cleanup=True), ["a", "##b", "the"], "ab the"),
        (METASPACE, ["▁a", "b", "▁the"], "ab the"),
        (step("BPEDecoder", suffix="e"), ["a", "the"], "ath"),
        (step("WordPiece", prefix="##", cleanup=True), ["the", ".", "a"], "the. a"),
        (step("Strip", content="b", start=0, stop=1), ["ab", "ab"], "aa"),
        (sequence(replaced("▁", " "), step("Fuse")), ["▁a", "▁the", "▁"], " a the "),
        (sequence(replaced("▁", " "), step("Fuse"), STRIPPED), ["▁a", "b", "▁the"], "ab the"),
        (sequence(replaced("a", "xy"), replaced("y", "b")), ["a", "ab"], "xbxbb"),
        (sequence(step("ByteFallback"), step("Fuse"), STRIPPED), ["<0xC3>", "<0xA9>", "▁a"], "é▁a"),
    ],
)
def test_the_decoder_spells_the_tokens(decoder, tokens, text):
    content = {**file("WordLevel", [], [step("Whitespace")]), "decoder": decoder}
    for token in [*BYTE_TOKENS, "▁"]:
        content["model"]["vocab"].setdefault(token, len(content["model"]["vocab"]))
    ours = GenericTokenizer(json.dumps(content))
    ids = [ours.token_to_id(token) for token in tokens]
    assert ours.detokenize(ids).numpy().decode() == text
    assert Tokenizer.from_str(json.dumps(content)).decode(ids) == text


# -- a step that is new in the graph --------------------------------------------------------------


def test_a_step_is_added_to_the_graph(monkeypatch):
    controls = [*range(1, 9), 11, *range(14, 32), 127, 143, 159]  # which "Nmt" removes
    spaces = [9, 10, 12, 13, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD]

    def nmt(step):
        return CharacterMap({**{c: [] for c in controls}, **{c: [32] for c in spaces}})

    monkeypatch.setitem(normalizers.NORMALIZERS, "Nmt", nmt)
    monkeypatch.setitem(CASES, "Nmt", (*CASES["Nmt"][:3], True))
    check_engines("Nmt", TEXTS)


def test_a_file_without_a_template_is_refused_for_that(tmp_path):
    """The steps before it differ from every named class, but that is no reason to refuse them."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    file = json.loads(ez.BertTokenizer(tokens).to_files()["tokenizer.json"])
    file |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: post_processor.*\[CLS\] \$A \[SEP\]\.$"
    ):
        ez.Tokenizer.from_preset(tmp_path)
