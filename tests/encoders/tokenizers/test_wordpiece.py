"""BertTokenizer against the `tokenizers` library: stored answers, and any text one can think of."""

import functools
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer

pytestmark = pytest.mark.eager

GOLDEN = json.loads((ROOT / "tests" / "golden" / "tokens.json").read_text(encoding="utf-8"))
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL = [*SPECIAL, *"abcdeé中가각αβςσi,'", "##a", "##b", "##ab", "##é", "##e", "abc", "##\u0301"]
SMALL += ["##\u1161", "\u1100", "##\u11a8", "##σ", "##ς", "<", "##i", "##\u0307", "İ", "ab", "Abc"]

# letters of the small vocabulary, and every kind of character that normalisation treats apart
LETTERS = "aAbcdeéÉ中豈가각αβςσΣİiI,'. \t\n\r\x00\x07\x0b\x0c\x7f"
LETTERS += "\x85\xa0\xad\u200b\u2028\u3000\ufeff\ufffd"
MARKS = "\u0301\u0307\u0323\u0345\u302e\u1baa\U00011127\U00011131\U0001e003\u0344\u1112"
TEXT = st.text(
    st.one_of(st.sampled_from(LETTERS + MARKS), st.characters(exclude_categories=["Cs"]))
)
OPTIONS = [
    {},
    {"lowercase": False, "split_chinese_characters": False},
    {"strip_accents": False},
]


def reference(vocabulary, lowercase=True, strip_accents=None, split_chinese_characters=True):
    """The library's own pipeline with the same settings."""
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=strip_accents,
        handle_chinese_chars=split_chinese_characters,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def encoded(tokenizer, texts):
    """[(ids, offsets)] of our tokenizer, whose two ways to the ids must agree."""
    ids, starts, ends = (part.to_list() for part in tokenizer.tokenize_with_offsets(texts))
    assert tokenizer.tokenize(texts).to_list() == ids
    spans = [list(zip(s, e, strict=True)) for s, e in zip(starts, ends, strict=True)]
    return list(zip(ids, spans, strict=True))


def as_expected(encodings):
    return [(e.ids, e.offsets) for e in encodings]


@pytest.fixture(scope="module")  # traced once
def small():
    return BertTokenizer(SMALL)


@pytest.fixture(scope="module")
def uncased(minilm):
    return BertTokenizer(minilm / "vocab.txt")


@pytest.mark.slow(except_for="^False")
@pytest.mark.parametrize("lowercase", [True, False])
def test_stored_ids_and_offsets(minilm, uncased, lowercase):
    tokenizer = uncased if lowercase else BertTokenizer(minilm / "vocab.txt", lowercase=False)
    stored = GOLDEN["bert_uncased" if lowercase else "bert_cased"]
    for text, ours, expected in zip(
        GOLDEN["texts"], encoded(tokenizer, GOLDEN["texts"]), stored, strict=True
    ):
        assert ours == (expected["ids"], [tuple(o) for o in expected["offsets"]]), ascii(text)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_any_text_as_the_library(options):
    ours, theirs = BertTokenizer(SMALL, **options), reference(SMALL, **options)

    @given(st.lists(TEXT, min_size=1, max_size=4))
    def check(texts):
        assert encoded(ours, texts) == as_expected(theirs.encode_batch(texts))

    check()


@pytest.mark.slow
@given(st.lists(st.lists(TEXT, max_size=4), min_size=1, max_size=3))
def test_words_as_the_library(small, texts):
    ids, word = small.tokenize_words(texts)
    expected = reference(SMALL).encode_batch(texts, is_pretokenized=True)
    assert ids.to_list() == [e.ids for e in expected]
    assert word.to_list() == [e.word_ids for e in expected]


def test_code_points_as_the_library(small):
    """Each one alone between letters, where it may split, vanish, change or stay."""
    codes = [
        *range(0x3400),
        *range(0xA000, 0xAC00),
        *range(0xD7A4, 0xD800),
        *range(0xE000, 0x20000),
    ]
    codes = [*codes[::3], *range(0xAC00, 0xD7A4, 97), *range(0x20000, 0x110000, 997)]
    texts = [f"a{chr(c)}a" for c in codes]
    ours, theirs = small.tokenize(texts), reference(SMALL).encode_batch_fast(texts)
    assert ours.to_list() == [e.ids for e in theirs]


def test_a_text_cannot_forge_structure(small):
    assert not set(small.tokenize("[CLS] [SEP] [MASK]").numpy()) & {0, 2, 3, 4}


def test_special_tokens_found_in_text():
    tokenizer = BertTokenizer(SMALL, special_tokens_in_text=True)
    ids, starts, ends = tokenizer.tokenize_with_offsets(["ab[MASK]c [SEP]", "[MASK", "[mask]"])
    tokens = [[tokenizer.id_to_token(i) for i in row] for row in ids.to_list()]
    assert tokens[0] == ["ab", "[MASK]", "c", "[SEP]"]
    assert starts[0].numpy().tolist() == [0, 2, 8, 10]
    assert ends[0].numpy().tolist() == [2, 8, 9, 15]
    assert not {3, 4} & {i for row in ids.to_list()[1:] for i in row}


def test_special_tokens_do_not_span_texts():
    tokenizer = BertTokenizer(SMALL, special_tokens_in_text=True)
    assert 4 not in tokenizer.tokenize(["[MA", "SK]"]).values.numpy()


def test_overlapping_special_tokens_are_refused():
    with pytest.raises(ValueError, match="'<a<'.*'<b>'"):
        BertTokenizer(
            [*SPECIAL, "<a<", "<b>"],
            special_tokens_in_text=True,
            start_token="<a<",
            end_token="<b>",
        )


def test_shapes(small):
    assert small.tokenize([]).shape.as_list() == [0, None]
    assert small.tokenize(["", "a"]).to_list() == [[], [SMALL.index("a")]]
    assert small.tokenize("a").shape.as_list() == [1]
    assert small.tokenize(["a"]).dtype == tf.int32


@pytest.mark.parametrize(
    "make", [list, tuple, np.array, lambda t: np.array(t, object), tf.constant]
)
def test_kinds_of_input(small, make):
    assert small.tokenize(make(["ab", "é"])).to_list() == small.tokenize(["ab", "é"]).to_list()


def test_pandas_column(small):
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["ab", "é"], index=[7, 3])
    assert small.tokenize(column).to_list() == small.tokenize(["ab", "é"]).to_list()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], r"texts\[1\] is None"),
        (["a", float("nan")], r"texts\[1\] is nan"),
        (np.array(["a", 3], object), r"texts\[1\] is 3"),
        ([["a"]], r"texts\[0\] is \['a'\]"),
        ([b"a", b"caf\xe9"], r"texts\[1\].*byte 3"),
        (tf.constant([b"caf\xe9"]), r"texts\[0\].*byte 3"),
        (7, r"texts is 7"),
        (np.array([[1.0]]), r"texts\[0\] is \[1.0\]"),
        (tf.constant([1]), r"texts.*int32.*\(1,\)"),
        (tf.constant([["a"]]), r"texts.*string.*\(1, 1\)"),
    ],
)
def test_bad_input_is_named(small, texts, message):
    with pytest.raises(ValueError, match=message):
        small.tokenize(texts)


def test_words_that_are_none_are_named(small):
    with pytest.raises(ValueError, match=r"words\[1\] is 'ab'"):
        small.tokenize_words([["a"], "ab"])


def test_lone_surrogate_is_one_dropped_character(small):
    ids, starts, _ = small.tokenize_with_offsets("a\ud800 b")
    assert starts.numpy().tolist() == [0, 3]
    assert len(ids) == 2


def test_unknown_tokens_and_ids_are_named(small):
    with pytest.raises(ValueError, match=r"'abcd'.*'abc'"):
        small.token_to_id("abcd")
    with pytest.raises(ValueError, match=r"token.id.* 99"):
        small.id_to_token(99)
    with pytest.raises(ValueError, match=r"'\[CLS\]'"):
        BertTokenizer(["[UNK]", "a"])


def test_detokenize(small):
    ids = [[2, *small.tokenize("Abc, ab abab").numpy(), 3, 0], [2, 3, 0]]
    assert small.detokenize(ids).numpy().tolist() == [b"abc , ab abab", b""]
    assert small.detokenize([2, 5], skip_special_tokens=False).numpy() == b"[CLS] a"


def test_configuration_round_trip():
    tokens = ["<p>", "<u>", "<c>", "<s>", "<m>", "A", "é"]
    arguments = {
        "vocabulary": tokens,
        "lowercase": False,
        "strip_accents": True,
        "split_chinese_characters": False,
        "special_tokens_in_text": True,
        "start_token": "<c>",
        "end_token": "<s>",
        "pad_token": "<p>",
        "mask_token": "<m>",
        "unknown_token": "<u>",
        "pair_separators": 2,
        "uses_segments": False,
        "clean_text": False,
        "truncation_side": "left",
        "padding_side": "left",
        "model_max_length": 77,
    }
    again = BertTokenizer.from_config(
        json.loads(json.dumps(BertTokenizer(**arguments).get_config()))
    )
    assert again.get_config() == {**arguments, "added_tokens": [], "post_processor": None}
    assert again.special_token_ids == (2, 3, 0, 4, 1)


def test_long_text_and_long_words(small):
    text = "a" * 100_000 + " " + "ab," * 100_000
    ids, _, ends = small.tokenize_with_offsets(text)
    assert ids.shape[0] == 200_001
    assert ids[0] == small.unknown_token_id
    assert ends[0] == 100_000


def test_words_that_are_tokens_as_they_stand():
    long = ["a" * 100, "a" * 101]
    tokenizer = BertTokenizer([*SPECIAL, "cat", "##cat", *"#!", "Cat", "é", "b!", *long])
    texts = ["cat Cat!b! é", "##cat", "[SEP] cat\x0bcat", *long, "", " \t", "ca\x00t"]
    expected = reference(tokenizer.vocabulary).encode_batch(texts)
    assert tokenizer.tokenize(texts).to_list() == [e.ids for e in expected]
    assert [tokenizer.tokenize(text).numpy().tolist() for text in texts] == [
        e.ids for e in expected
    ]


@pytest.mark.slow
def test_ids_as_tensorflow_text(uncased):
    """Its WordPiece is Google's own code; the texts are clean, so that normalisation is trivial."""
    tensorflow_text = pytest.importorskip("tensorflow_text", reason="there is none for Windows")
    rows = (ROOT / "guides/data/sentiment_sentences.tsv").read_text(encoding="utf-8").split("\n")
    texts = [re.sub("[^a-z ]", "", row.split("\t")[-1].lower()) for row in rows]
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(
            uncased.vocabulary, tf.range(uncased.vocabulary_size, dtype=tf.int64)
        ),
        num_oov_buckets=1,
    )
    theirs = tensorflow_text.WordpieceTokenizer(table, token_out_type=tf.int64)
    expected = theirs.tokenize(tf.strings.split(texts)).merge_dims(1, 2).to_list()
    assert sum(map(len, expected)) > 10_000
    assert uncased.tokenize(texts).to_list() == expected
    assert uncased.tokenize_with_offsets(texts)[0].to_list() == expected


@pytest.mark.slow
def test_parallel_pipeline(small):
    texts = [f"ab{'é' * (i % 7)} cde" for i in range(300)]
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(16)
    rows = [r for b in dataset.map(small.tokenize, num_parallel_calls=4) for r in b.to_list()]
    assert rows == small.tokenize(texts).to_list()


@pytest.mark.slow
def test_saved_model(small, tmp_path):
    """That TensorFlow alone opens one is shown in test_export.py."""
    module = tf.Module()
    module.tokenizer = small.graph
    signature = [tf.TensorSpec([None], tf.string)]
    module.wordpiece = tf.function(small.tokenize, input_signature=signature)
    tf.saved_model.save(module, str(tmp_path))
    texts = ["Ab é [MASK]", "", "zz"]
    found = tf.saved_model.load(str(tmp_path)).wordpiece(tf.constant(texts))
    assert found.to_list() == small.tokenize(texts).to_list()


characters_in_graph = tf.function(
    decode_characters,
    input_signature=[tf.TensorSpec([None], tf.string)],  # traced once
)
BYTES = st.lists(st.binary(max_size=6) | st.text(max_size=4).map(lambda t: t.encode("utf-8")))


@given(BYTES)
def test_any_bytes_are_decoded_as_tensorflow_does(texts):
    texts = tf.constant(texts, tf.string, shape=(len(texts),))
    found = characters_in_graph(texts)
    expected = tf.strings.unicode_decode(texts, "UTF-8")
    assert found.codes.numpy().tolist() == expected.values.numpy().tolist()
    assert found.row_splits.numpy().tolist() == expected.row_splits.numpy().tolist()


PARTS = [" a", " b", "ab", " ", "  ", "'s", "\u0301", "é", "中", " x\u0301", "\n", ".", "\x00"]


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=60).map("".join)), st.integers(1, 9))
@settings(max_examples=15)
def test_first_tokens_are_those_of_the_whole_text(small, texts, first):
    for tokenizer in (small, byte_tokenizer()):
        some, all_ = tokenizer.tokenize(texts, first).to_list(), tokenizer.tokenize(texts).to_list()
        assert [ids[:first] for ids in some] == [ids[:first] for ids in all_]


def test_long_texts_are_not_read_to_the_end(small):
    ids = small.tokenize(["ab " * 1000, "ab " * 3, "abc" * 1000], first=10)
    assert ids.row_lengths()[0] < 30 and ids.row_lengths()[1] == 3 and ids.row_lengths()[2] == 1


@functools.cache
def byte_tokenizer():
    """RoBERTa's tokenizer without merges."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *make_byte_alphabet()]
    return RobertaTokenizer({token: i for i, token in enumerate(tokens)}, [])
