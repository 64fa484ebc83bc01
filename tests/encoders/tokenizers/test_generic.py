"""A tokenizer.json whose steps fit no named class, step by step.

The truth is the library `tokenizers`, which reads the same file. In memory every file is followed.
TensorFlow's graphs give equal ids and offsets, or refuse the step by its name.
"""

import json
import pathlib
import pickle
import sys

import pytest
import tensorflow as tf
from tokenizers import Tokenizer

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.generic import GenericTokenizer
from encoder_zoo.encoders.tokenizers.graphs import normalizers
from encoder_zoo.encoders.tokenizers.steps import BYTE_TOKENS, GPT2_WORDS, LLAMA_WORDS, split_at
from encoder_zoo.encoders.tokenizers.text.precompiled import CharacterMap

sys.path.append(str(pathlib.Path(__file__).parent))
from test_library import byte_bpe, sentencepiece
from test_steps import TEXTS

pytestmark = pytest.mark.eager

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


# (model, normalizers, pre-tokenizers, whether the graph has them)
CASES = {
    "no step": ("bytes", [], [BYTE_LEVEL], True),
    "NFC": ("bytes", [step("NFC")], [BYTE_LEVEL], True),
    "Lowercase": ("bytes", [step("Lowercase")], [BYTE_LEVEL], True),
    "StripAccents": ("bytes", [step("StripAccents")], [BYTE_LEVEL], True),
    "NFKD StripAccents": ("bytes", [step("NFKD"), step("StripAccents")], [BYTE_LEVEL], True),
    "Precompiled": ("bytes", [step("Precompiled", precompiled_charsmap=CHARSMAP)], [BYTE_LEVEL], 1),
    "Replace": (
        "bytes",
        [step("Replace", pattern={"String": "a"}, content="bb")],
        [BYTE_LEVEL],
        True,
    ),
    "Replace regex": (
        "bytes",
        [step("Replace", pattern={"Regex": " {2,}"}, content=" ")],
        [BYTE_LEVEL],
        False,
    ),
    "NFD": ("bytes", [step("NFD")], [BYTE_LEVEL], False),
    "NFKC": ("bytes", [step("NFKC")], [BYTE_LEVEL], False),
    "NFKD": ("bytes", [step("NFKD")], [BYTE_LEVEL], False),
    "Nmt": ("bytes", [step("Nmt")], [BYTE_LEVEL], False),
    "Prepend": ("bytes", [step("Prepend", prepend="▁")], [BYTE_LEVEL], False),
    "Strip": ("bytes", [step("Strip", strip_left=True, strip_right=True)], [BYTE_LEVEL], False),
    "Lowercase NFC": ("bytes", [step("Lowercase"), step("NFC")], [BYTE_LEVEL], False),
    "GPT-2's words": ("bytes", [], [split_at(GPT2_WORDS), SPLIT_BYTES], True),
    "Llama's words": ("bytes", [], [split_at(LLAMA_WORDS), SPLIT_BYTES], True),
    "other words": ("bytes", [], [split_at(r"\p{L}+|\p{N}"), SPLIT_BYTES], False),
    "Digits ByteLevel": ("bytes", [], [step("Digits", individual_digits=True), BYTE_LEVEL], False),
    "BertPreTokenizer": ("WordPiece", [], [BERT], True),
    "Lowercase BertPreTokenizer": ("WordPiece", [step("Lowercase")], [BERT], False),
    "Whitespace": ("WordPiece", [], [step("Whitespace")], False),
    "WhitespaceSplit": ("WordPiece", [], [SPLIT], False),
    "Punctuation": ("WordPiece", [], [SPLIT, step("Punctuation", behavior="Isolated")], False),
    "Punctuation removed": ("WordLevel", [], [step("Punctuation", behavior="Removed")], False),
    "Digits": ("WordPiece", [], [SPLIT, step("Digits", individual_digits=True)], False),
    "Digits together": ("WordLevel", [], [step("Digits", individual_digits=False)], False),
    "CharDelimiterSplit": ("WordLevel", [], [step("CharDelimiterSplit", delimiter="-")], False),
    "UnicodeScripts": ("WordLevel", [], [step("UnicodeScripts")], False),
    "Split": ("WordLevel", [], [split("a", "MergedWithNext", "String")], False),
    "WordLevel": ("WordLevel", [], [step("Whitespace")], False),
    "BPE": ("BPE", [], [step("Whitespace")], False),
    "Metaspace": ("Unigram", [], [SPLIT, METASPACE], True),
    "Metaspace alone": ("Unigram", [], [METASPACE], False),
    "Metaspace first": ("Unigram", [], [{**METASPACE, "prepend_scheme": "first"}], False),
    "Metaspace never": ("Unigram", [], [{**METASPACE, "prepend_scheme": "never"}], False),
    "Metaspace unsplit": ("Unigram", [], [{**METASPACE, "split": False}], False),
}


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
            ValueError, match=r"tokenizer\.json: (normalizer|pre_tokenizer|model) is .*exports"
        ):
            _ = ours.graph
    for engine in engines:
        for text, mine, theirs in zip(
            texts, found(engine.tokens_of_texts(rows)), truth, strict=True
        ):
            assert mine == theirs, (case, engine, ascii(text))
        assert engine.ids_of_texts(rows).to_list() == [[i for i, *_ in row] for row in truth]


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_equal_in_each_engine_or_refused_by_name(case):
    check_engines(case, TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_character(case):
    letters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    check_engines(case, ["a".join(letters[i : i + 50]) for i in range(0, len(letters), 50)])


# -- opened from files ---------------------------------------------------------------------------


def opened(content, **settings):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **ROLES, **settings}
    contents = {"tokenizer.json": content, "tokenizer_config.json": settings}
    return ez.BertTokenizer.from_files(TokenizerFiles("folder", contents))


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
    with pytest.raises(ValueError, match="pre_tokenizer is .*Whitespace"):
        opened(content, tokenizer_class="BertTokenizer")


def test_large_inputs_are_tokenized_in_memory_where_the_graph_lacks_a_step():
    ours, library = made("Whitespace")
    assert ours.tokenize(TEXTS).to_list() == [
        e.ids for e in library.encode_batch(TEXTS, add_special_tokens=False)
    ]
    with pytest.raises(ValueError, match=r"'Whitespace'.*tf\.data, exports"):
        _ = ours.graph


@pytest.mark.parametrize(
    ("decoder", "tokens", "text"),
    [
        (None, ["the", "cafe"], "the cafe"),
        (step("WordPiece", prefix="##", cleanup=True), ["a", "##b", "the"], "ab the"),
        (METASPACE, ["▁a", "b", "▁the"], "ab the"),
        (step("BPEDecoder", suffix="e"), ["a", "the"], "ath"),
    ],
)
def test_the_decoder_spells_the_tokens(decoder, tokens, text):
    content = {**file("WordLevel", [], [step("Whitespace")]), "decoder": decoder}
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
