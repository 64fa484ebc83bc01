"""Tokenizing by the library `tokenizers`, as on JAX and PyTorch, beside TensorFlow's graph."""

import functools
import json

import make_unicode_tables
import paths
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers import tokenizer as engine_choice
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
from encoder_zoo.encoders.tokenizers.steps import BYTE_TOKENS
from encoder_zoo.encoders.tokenizers.text.characters import load_unicode_data

SENTENCEPIECE = paths.GOLDEN / "sentencepiece"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MERGES = ["▁ ▁", "▁▁ ▁▁", "▁ a", "▁ t", "h e", "▁t he", "a b", "ab ab", "b a", "e r", "é é"]
MARKERS = [
    "new york",
    "Ünï",
    {"content": "<e>", "special": True, "lstrip": True, "rstrip": True},
    {"content": "b!", "single_word": True},
    {"content": "\n\n", "normalized": False},
    {"content": "ab", "normalized": False},
]


def wordpiece(**options):
    words = [
        "a",
        "b",
        "##b",
        "中",
        "new",
        "é",
        "##é",
        "cafe",
        "un",
        "##do",
        ".",
        ",",
        "[",
        "¿",
        "e",
    ]
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], **options)


def byte_bpe(cls=ez.RobertaTokenizer, missing=(), **options):
    special = SPECIAL if cls is ez.RobertaTokenizer else wordpiece().get_vocabulary()[:5]
    merges = ["Ġ a", "a b", "Ġa b", "Ġ Ġ", "ĠĠ ĠĠ", "Ã ©", "' s", "Ġ t", "Ġt h", "Ġth e"]
    made = [merge.replace(" ", "") for merge in merges]
    tokens = dict.fromkeys([*special, *make_byte_alphabet(), *made])
    ids = {token: i for i, token in enumerate(tokens) if token not in missing}
    return cls(ids, merges, **options)


def sentencepiece(cls, model, **options):
    content = (SENTENCEPIECE / f"{model}.model").read_bytes()
    return cls.from_sentencepiece(content, model, **options)


def composing(**options):
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁", "▁a", "a", "b", "ab", "▁ab", "é", "中", "e"]
    scores = [None] * 4 + [-2.0 - i / 7 for i in range(9)] + [None]
    return ez.DebertaV2Tokenizer([*tokens, "[MASK]"], scores, normalize_nfc=True, **options)


def gemma(byte_fallback=True, **options):
    letters = dict.fromkeys("".join(MERGES).replace(" ", ""))
    merged = [merge.replace(" ", "") for merge in MERGES]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokens = dict.fromkeys([*special, *(BYTE_TOKENS if byte_fallback else []), *letters, *merged])
    return ez.GemmaTokenizer(list(tokens), MERGES, byte_fallback, **options)


def llama_bpe(**options):
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    tokens = [*special, *make_byte_alphabet(), "ab", "abé", "Ġa", "the"]
    return ez.EuroBertTokenizer({t: i for i, t in enumerate(tokens)}, ["a b", "Ġ a"], **options)


def bertweet(**options):
    words = [
        "hello",
        "hel@@",
        "h@@",
        "e@@",
        "l@@",
        "lo",
        "o",
        "ab",
        "ab@@",
        "b",
        "é@@",
        "🙂",
        "b@@",
    ]
    merges = ["l o</w>", "h e", "he l", "hel lo</w>", "a b", "a b</w>"]
    return ez.BertweetTokenizer(
        ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"], merges, **options
    )


def esm(**options):
    tokens = ["<cls>", "<pad>", "<eos>", "<unk>", "a", "b", "ab", "é", "-", ".", "<n_1>", "<mask>"]
    return ez.EsmTokenizer(tokens, **options)


KINDS = {
    "esm": esm,
    "wordpiece": wordpiece,
    "wordpiece_cased": functools.partial(wordpiece, lowercase=False),
    "wordpiece_accents": functools.partial(
        wordpiece, strip_accents=False, split_chinese_characters=False
    ),
    "byte_bpe": byte_bpe,
    "byte_bpe_prefixed": functools.partial(byte_bpe, add_prefix_space=True),
    "byte_bpe_with_gaps": functools.partial(byte_bpe, missing=("x", "z", "ð")),
    "modern_bpe": functools.partial(byte_bpe, ez.ModernBertTokenizer),
    "llama_bpe": llama_bpe,
    "xlm_roberta": functools.partial(sentencepiece, ez.XLMRobertaTokenizer, "nmt_nfkc"),
    "camembert": functools.partial(sentencepiece, ez.CamembertTokenizer, "nmt_nfkc"),
    "albert": functools.partial(sentencepiece, ez.AlbertTokenizer, "albert"),
    "albert_cased": functools.partial(
        sentencepiece, ez.AlbertTokenizer, "albert", lowercase=False, keep_accents=True
    ),
    "bytes": functools.partial(sentencepiece, ez.XLMRobertaTokenizer, "bytes"),
    "bpe": functools.partial(sentencepiece, ez.XLMRobertaTokenizer, "bpe"),
    "bpe_spaces": functools.partial(sentencepiece, ez.XLMRobertaTokenizer, "bpe_spaces"),
    "nfc": composing,
    "gemma": gemma,
    "gemma_unknown": functools.partial(gemma, False),
    "bertweet": bertweet,
}
OPTIONS = {
    "plain": {},
    "added": {"added_tokens": MARKERS},
    "special": {"special_tokens_in_text": True},
}
USUAL = ("wordpiece-plain", "byte_bpe-special", "gemma-added")


@functools.cache
def made(kind, option):
    return KINDS[kind](**OPTIONS[option])


LETTERS = "aAbeéÉhloth中豈가각βςΣİ,.'`\"()-▁½ﬁｶﾞ™ \t\n\r\x00\x01\x0b\x1f\x7f\x85\xa0\xad🙂[]<>!"
LETTERS += "\u0301\u0302\u0323\u0345\u0600\u0903\u200b\u200c\u200d\u2028\u3000\u3099\ufeff\ufffd"
WORDS = [
    "new york",
    "NEW YORK",
    "Ünï",
    "<e>",
    " <e>  ",
    "b!",
    "\n\n",
    "ab",
    "hello",
    "the",
    "<0x41>",
]
WORDS += [
    "[MASK]",
    "[CLS]",
    "<s>",
    "<mask>",
    "</s>",
    "[UNK]",
    "<unk>",
    "<bos>",
    "unaffable",
    "cafe\u0301",
]
PART = st.one_of(
    st.sampled_from(LETTERS), st.sampled_from(WORDS), st.characters(exclude_categories=["Cs"])
)
# Many at a time: a call of the operations takes longer than its texts.
TEXTS = st.lists(st.lists(PART, max_size=12).map("".join), min_size=12, max_size=24)


def check_equal(tokenizer, texts):
    rows = tf.constant(texts, tf.string)
    ours = [part.to_list() for part in tokenizer.graph.texts_to_tokens(rows)]
    theirs = [part.to_list() for part in tokenizer.library.texts_to_tokens(rows)]
    for i, text in enumerate(texts):
        for part in range(3):
            assert ours[part][i] == theirs[part][i], ascii(text)
    assert tokenizer.library.texts_to_ids(rows).to_list() == ours[0]
    rows = tf.RaggedTensor.from_row_lengths(rows, [len(texts)])
    ours = [part.to_list() for part in tokenizer.graph.words_to_ids(rows)]
    assert [part.to_list() for part in tokenizer.library.words_to_ids(rows)] == ours


CASES = [(kind, option) for kind in KINDS for option in OPTIONS]
EACH = pytest.mark.parametrize(
    ("kind", "option"),
    [
        pytest.param(
            *case,
            id="-".join(case),
            marks=[] if "-".join(case) in USUAL else pytest.mark.slow,
        )
        for case in CASES
    ],
)


@pytest.mark.slow
@EACH
@pytest.mark.eager
@settings(phases=(Phase.explicit, Phase.generate), max_examples=8)  # to shrink takes minutes
@given(TEXTS)
def test_any_text(kind, option, texts):
    check_equal(made(kind, option), texts)


@pytest.mark.matrix
@pytest.mark.slow
def test_tables_are_those_of_the_installed_library():
    measured = json.loads(json.dumps(make_unicode_tables.measure()))
    assert {**measured, "source": load_unicode_data()["source"]} == load_unicode_data()


@pytest.mark.eager
def test_words_of_their_own():
    """Beside letters of Unicode 16 and numbers that are not word characters, too."""
    neighbors = ["\U0001416c", "\u0897", "_", "½", "²", "é", "中", "\u0301", "-"]
    texts = [text for neighbor in neighbors for text in (f"{neighbor}b!", f"b!{neighbor}")]
    check_equal(made("byte_bpe", "added"), texts)


@pytest.mark.slow(except_for="^wordpiece-plain")
@EACH
@pytest.mark.eager
def test_known_texts(kind, option):
    tokenizer = made(kind, option)
    texts = json.loads((SENTENCEPIECE / "answers.json").read_text(encoding="utf-8"))["texts"]
    texts += [*WORDS, " ".join(WORDS), "".join(WORDS), "x" * 300, ""]
    check_equal(tokenizer, texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_nano_en_uncased", "roberta_nano_en"])
def test_vocabularies_of_presets(name):
    cls = {"bert_nano_en_uncased": ez.BertTokenizer}.get(name, ez.RobertaTokenizer)
    tokenizer = cls.from_preset(name)
    lines = (paths.GOLDEN.parents[1] / "guides/data/sentiment_sentences.tsv").read_text()
    check_equal(tokenizer, [line.partition("\t")[0] for line in lines.split("\n")[:300]])


class TestChoice:
    """On TensorFlow the library tokenizes what is small, where it gives what the graph gives."""

    @pytest.fixture(autouse=True)
    def few_bytes(self, monkeypatch):
        monkeypatch.setattr(engine_choice, "LIBRARY_BYTES", 20)

    @pytest.mark.slow
    def test_large_inputs_take_the_graph(self):
        tokenizer = wordpiece()
        small = tokenizer.tokenize(["a b", "cafe"]).to_list()
        assert set(tokenizer._engines) == {"library"}
        assert tokenizer.tokenize(["a b", "cafe"] * 9).to_list() == small * 9
        assert set(tokenizer._engines) == {"library", "graph"}

    @pytest.mark.slow
    def test_graphs_take_the_graph(self):
        tokenizer = wordpiece()
        tf.function(tokenizer.tokenize)(tf.constant(["a b"]))
        assert set(tokenizer._engines) == {"graph"}
