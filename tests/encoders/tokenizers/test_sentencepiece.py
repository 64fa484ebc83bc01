"""SentencePiece tokenizers against `tokenizers` and `sentencepiece`: stored answers, any text."""

import base64
import functools
import json
import random
import unicodedata

import paths
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from processes import run
from tokenizers import Tokenizer
from tokenizers.normalizers import Precompiled

from encoder_zoo.encoders.tokenizers.graphs.normalizers import make_normalizer
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Unigram
from encoder_zoo.encoders.tokenizers.sentencepiece import (
    AlbertTokenizer,
    CamembertTokenizer,
    DebertaV2Tokenizer,
    XLMRobertaTokenizer,
)
from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords

FOLDER = paths.GOLDEN / "sentencepiece"
GOLDEN = json.loads((FOLDER / "answers.json").read_text(encoding="utf-8"))
TEXTS = GOLDEN["texts"]
CASES = {
    "xlm_roberta": (XLMRobertaTokenizer, "nmt_nfkc", {}),
    "camembert": (CamembertTokenizer, "nmt_nfkc", {}),
    "albert": (AlbertTokenizer, "albert", {}),
    "albert_cased": (AlbertTokenizer, "albert", {"lowercase": False, "keep_accents": True}),
    "bytes": (XLMRobertaTokenizer, "bytes", {}),
    "bpe": (XLMRobertaTokenizer, "bpe", {}),
    "bpe_spaces": (XLMRobertaTokenizer, "bpe_spaces", {}),
}
# letters of the vocabularies, and every kind of character that normalisation treats apart
LETTERS = "aAbeéÉ中豈가각βςΣİ,.'`\"()-▁½ﬁｶﾞ™ \t\n\r\x00\x01\x0b\x1f\x7f\x85\xa0\xad"
LETTERS += "\u0301\u0302\u0323\u0345\u0600\u0903\u200b\u200c\u200d\u2028\u3000\u3099\ufeff\ufffd"
LETTERS += "©®⌚\U0001f3fd\U0001e003"
TEXT = st.text(st.one_of(st.sampled_from(LETTERS), st.characters(exclude_categories=["Cs"])))


def made(name):
    cls, model, options = CASES[name]
    content = (FOLDER / f"{model}.model").read_bytes()
    return cls.from_sentencepiece(content, model, **options)


@pytest.fixture(scope="module")
def made_once():
    return functools.cache(made)


@functools.cache
def library_once(name):
    return library(made(name))


def library(tokenizer):
    """The steps that we write for `tokenizers`, without the special tokens that it looks for."""
    content = json.loads(tokenizer.to_files()["tokenizer.json"])
    silent = [i for i, score in enumerate(tokenizer.scores) if score is None]
    content["added_tokens"] = [t for t in content["added_tokens"] if t["id"] not in silent]
    if tokenizer.merges is None:  # no merge makes them
        for i in silent:
            content["model"]["vocab"][i][0] = f" {tokenizer.id_to_token(i)}"  # no word has a space
    content["post_processor"] = None
    return Tokenizer.from_str(json.dumps(content))


def encoded(tokenizer, texts):
    """[(ids, offsets)] of our tokenizer, whose two ways to the ids must agree."""
    ids, starts, ends = (part.to_list() for part in tokenizer.tokenize_with_offsets(texts))
    assert tokenizer.tokenize(texts).to_list() == ids
    spans = [list(zip(s, e, strict=True)) for s, e in zip(starts, ends, strict=True)]
    return list(zip(ids, spans, strict=True))


@pytest.mark.eager
def test_no_words_have_no_tokens():
    words, none = PackedWords.from_symbols([[7], [8], [7, 8]]), tf.zeros([0], tf.int32)
    model = Unigram(words, [1, 2, 3], [0.0, -2.0, -2.0, -3.0], unknown_id=0)
    tokens = model.encode(tf.constant([7, 8]), none, none)
    assert (len(tokens.ids), tokens.splits.numpy().tolist()) == (0, [0])


@pytest.mark.slow
@pytest.mark.eager
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("xlm_roberta", "albert_cased", "bpe_spaces")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
def test_stored_ids_and_offsets(made_once, name):
    answers = zip(TEXTS, encoded(made_once(name), TEXTS), GOLDEN[name], strict=True)
    for text, ours, expected in answers:
        assert ours == (expected["ids"], [tuple(o) for o in expected["offsets"]]), ascii(text)


def is_plain(text):
    """Whether the two implementations must agree.

    They differ in white space, which without a normalisation is only the space to SentencePiece; in
    graphemes of several characters, of which `tokenizers` asks for the shortest rule and drops the
    rest; and where ways are equally good, as SentencePiece adds up in 32 bits and so rounds.
    """
    categories = {unicodedata.category(c) for c in text.replace(" ", "").replace("▁", "\n")}
    repeats = any(letters * 20 in text for letters in ("x", "ha", "é"))
    return not repeats and not categories & {"Cc", "Cf", "Lm", "Mc", "Me", "Mn", "Zl", "Zp", "Zs"}


@pytest.mark.slow(except_for="^bpe_spaces")
@pytest.mark.eager
@pytest.mark.parametrize(
    ("name", "model"),
    [("xlm_roberta", "nmt_nfkc"), *((name, name) for name in ("bytes", "bpe", "bpe_spaces"))],
)
def test_ids_are_those_of_sentencepiece_too(made_once, name, model):
    expected = GOLDEN["sentencepiece"][model]
    compared = 0
    for text, ours, theirs in zip(TEXTS, encoded(made_once(name), TEXTS), expected, strict=True):
        if is_plain(text):
            assert ours[0] == [3 if i == 0 else i + 1 for i in theirs], ascii(text)
            compared += 1
    assert compared > 15


# A model of pieces with scores, and one of merges; the others when the slow tests run.
@pytest.mark.slow
@given(st.lists(TEXT, min_size=1, max_size=4))
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("xlm_roberta", "bpe") else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
def test_any_text_as_the_library(made_once, name, texts):
    expected = [(e.ids, e.offsets) for e in library_once(name).encode_batch(texts)]
    assert encoded(made_once(name), texts) == expected


@functools.cache
def composing():
    """A tokenizer as transformers 5 makes it of DeBERTa's model, and the library's."""
    config = made("xlm_roberta").get_config()
    names = [name for name in config if name.endswith("_token")]
    options = {name: config[name] for name in ("vocabulary", "scores", *names)}
    tokenizer = DebertaV2Tokenizer(**options, normalize_nfc=True)
    return tokenizer, library(tokenizer)


@pytest.mark.slow
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_any_text_as_the_library_where_it_composes(texts):
    check_composed(texts)


@pytest.mark.slow
def test_every_text_as_the_library_where_it_composes():
    odd = ["a\u2000\u0301 b", "\u00a0", " \u00a0", "e\u0301\u00a0", "x\u00a0\ty\x0bz ", " \x0b a"]
    check_composed([*TEXTS, *odd])
    tokenizer, _ = composing()
    assert DebertaV2Tokenizer.from_config(tokenizer.get_config()).normalize_nfc
    assert "spm.model" not in tokenizer.to_files()
    with pytest.raises(ValueError, match="normalize_nfc.*precompiled_charsmap"):
        DebertaV2Tokenizer(["[UNK]", "a"], [None, -1.0], "AA==", normalize_nfc=True)


def check_composed(texts):
    tokenizer, theirs = composing()
    expected = [(e.ids, e.offsets) for e in theirs.encode_batch(texts)]
    assert encoded(tokenizer, texts) == expected


@pytest.mark.slow
@given(st.lists(st.sampled_from([*LETTERS, " ", " ", "the", "un", "Chat", "``"]), max_size=15))
@pytest.mark.parametrize(
    "name",
    ["xlm_roberta", *(pytest.param(name, marks=pytest.mark.slow) for name in ("albert", "bytes"))],
)
def test_words_between_spaces_as_the_library(made_once, name, parts):
    """One text a time: where another one's marks follow spaces, none would be split at them."""
    text = "".join(parts)
    expected = library_once(name).encode(text)
    assert encoded(made_once(name), [text]) == [(expected.ids, expected.offsets)]


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]


def small(pieces, **options):
    """A tokenizer of XLM-R's kind with pieces {text: score}."""
    front, behind = ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"]
    scores = [None] * 4 + list(pieces.values())
    return XLMRobertaTokenizer([*front, *pieces, *behind], scores, **options)


@pytest.mark.slow
@pytest.mark.eager
@pytest.mark.parametrize("seed", SEEDS)
def test_any_pieces_as_the_library(seed):
    """Also where ways are equally good, as all of these scores are halves."""
    draw = random.Random(seed)
    words = {"".join(draw.choices("ab▁", k=draw.randint(1, 5))) for _ in range(25)}
    tokenizer = small({word: draw.randint(-12, -2) / 2 for word in sorted(words)})
    texts = ["".join(draw.choices("aab b▁c", k=draw.randint(0, 30))) for _ in range(200)]
    texts += ["".join(draw.choices("aabc", k=200)) for _ in range(20)]  # divided, if it may be
    expected = [(e.ids, e.offsets) for e in library(tokenizer).encode_batch(texts)]
    assert encoded(tokenizer, texts) == expected


@pytest.mark.slow(except_for="^0-False")
@pytest.mark.eager
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_merges_as_the_library(seed, keeps):
    """In any order, also of what makes a token in two ways, and over the borders of words."""
    draw = random.Random(seed)
    tokens = list("ab▁")
    merges = {}
    for _ in range(30):
        left, right = draw.choices(tokens, k=2)
        if len(left + right) < 9:
            merges[f"{left} {right}"] = None
            tokens += [left + right] * (left + right not in tokens)
    merges = draw.sample(list(merges), len(merges))
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *tokens, "<mask>"]
    scores = [None] * 4 + [-1.0] * len(tokens)
    tokenizer = XLMRobertaTokenizer(
        vocabulary, scores, merges=merges, remove_extra_whitespaces=not keeps
    )
    texts = ["".join(draw.choices("aab b▁c", k=draw.randint(0, 30))) for _ in range(200)]
    texts += ["".join(draw.choices("aab ", (9, 9, 9, 1), k=900)) for _ in range(5)]  # long words
    expected = [(e.ids, e.offsets) for e in library(tokenizer).encode_batch(texts)]
    assert encoded(tokenizer, texts) == expected


@pytest.mark.eager
def test_the_best_score_is_merged_first_and_then_the_leftmost():
    merges = ["b c", "a b", "ab c"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abc", "bc", "ab", "abc", "<mask>"]
    tokenizer = XLMRobertaTokenizer(tokens, [None] * 4 + [-1.0] * 7, merges=merges)
    pieces = [tokenizer.id_to_token(i) for i in tokenizer.tokenize("abc ab aa xy")]
    assert pieces == ["▁", "a", "bc", "▁", "ab", "▁", "a", "a", "▁", "<unk>"]


@pytest.mark.slow
def test_symbols_of_ones_own_are_found_first(made_once):
    """As transformers converts them; SentencePiece itself puts no space before what follows."""
    tokenizer = made_once("bpe")
    assert [token["content"] for token in tokenizer.added_tokens] == ["<entity>", "C++"]
    ids, starts, ends = tokenizer.tokenize_with_offsets("a <entity>b C++")
    pieces = [tokenizer.id_to_token(i) for i in ids]
    assert pieces == ["▁a", "<entity>", "▁b", "C++"]
    assert list(zip(starts.numpy().tolist(), ends.numpy().tolist(), strict=True)) == [
        (0, 1),
        (2, 10),
        (10, 11),
        (12, 15),
    ]


@pytest.mark.eager
def test_a_merge_makes_no_special_token():
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", "<", "s>", "s", ">", "<mask>"]
    merges = ["s >", "< s>"]
    tokenizer = XLMRobertaTokenizer(tokens, [None] * 4 + [-1.0] * 5, merges=merges)
    assert tokenizer.tokenize("<s>").numpy().tolist() == [4, 5, 6]


@pytest.mark.slow
def test_all_white_space_is_kept_where_the_model_keeps_it(made_once):
    tokenizer = made_once("bpe_spaces")
    texts = ["def f(x):\n    return  x\n\n", "  two  ", "   ", "", "x\t\u00a0\U0001f9ff"]
    expected = [(e.ids, e.offsets) for e in library_once("bpe_spaces").encode_batch(texts)]
    assert encoded(tokenizer, texts) == expected
    again = tokenizer.detokenize(tokenizer.tokenize(texts)).numpy()
    assert [text.decode() for text in again] == texts
    first = tokenizer.tokenize("some words of this kind " * 40, first=5)[:5]
    assert (
        first.numpy().tolist() == tokenizer.tokenize("some words of this kind")[:5].numpy().tolist()
    )


@pytest.mark.eager
def test_neighbouring_unknown_characters_are_one_token():
    ids, starts, ends = small({"▁": -1.0, "a": -2.0}).tokenize_with_offsets("xyaz zz")
    assert ids.numpy().tolist() == [4, 3, 5, 3, 4, 3]
    assert starts.numpy().tolist() == [0, 0, 2, 3, 5, 5]
    assert ends.numpy().tolist() == [1, 2, 3, 4, 6, 7]


@pytest.mark.eager
def test_the_rarest_piece_decides_what_an_unknown_character_costs():
    """An unknown c at -20 - 10 is worth it after -5; at -100 - 10 it is not."""
    pieces = {"▁": -1.0, "a": -20.0, "bc": -20.0, "▁ab": -5.0}
    assert small(pieces).tokenize("abc").numpy().tolist() == [7, 3]
    assert small({**pieces, "rare": -100.0}).tokenize("abc").numpy().tolist() == [4, 5, 6]


@pytest.mark.slow
@pytest.mark.eager
def test_a_text_cannot_forge_structure(made_once):
    for name in CASES:
        tokenizer = made_once(name)
        ids = tokenizer.tokenize("<s> </s> <mask> <pad> [CLS] [SEP] [MASK] <s>NOTUSED").numpy()
        assert not set(ids.tolist()) & (set(tokenizer.special_token_ids) - {3, 1})


@pytest.mark.slow
def test_special_tokens_found_in_text():
    cls, model, _ = CASES["xlm_roberta"]
    content = (FOLDER / f"{model}.model").read_bytes()
    tokenizer = cls.from_sentencepiece(content, special_tokens_in_text=True)
    theirs = Tokenizer.from_str(tokenizer.to_files()["tokenizer.json"])
    texts = ["a <mask> b", "a \n\t<mask>b", " <s> a</s>", "<mask", "\x01<s>\x01b", "<mask><mask>"]
    expected = [e.ids for e in theirs.encode_batch(texts, add_special_tokens=False)]
    assert [ids for ids, _ in encoded(tokenizer, texts)] == expected
    assert encoded(tokenizer, [texts[1]])[0][1] == [(0, 1), (4, 10), (10, 11)]


@pytest.mark.eager
def test_bytes_of_unknown_characters(made_once):
    tokenizer = made_once("bytes")
    tokens = [tokenizer.id_to_token(i) for i in tokenizer.tokenize("\U0001f9ff").numpy()]
    assert tokens[-4:] == ["<0xF0>", "<0x9F>", "<0xA7>", "<0xBF>"]
    assert tokenizer.detokenize(tokenizer.tokenize("a \U0001f9ff b")).numpy().decode() == (
        "a \U0001f9ff b"
    )
    with pytest.raises(ValueError, match="byte_fallback.*<0x00>, <0x01>, <0x02>"):
        small({"a": -1.0}, byte_fallback=True)


@pytest.mark.slow
@pytest.mark.eager
def test_detokenizing_gives_the_normalised_text(made_once):
    tokenizer = made_once("xlm_roberta")
    texts = ["Two  words, ½", ""]
    again = tokenizer.detokenize(tokenizer.tokenize(texts)).numpy().tolist()
    assert again == ["Two words, 1⁄2".encode(), b""]


@pytest.mark.slow
def test_long_words_do_not_take_long(made_once):
    tokenizer = made_once("xlm_roberta")
    texts = ["吾輩は猫である。名前はまだ無い。" * 600, "x" * 3000]
    expected = [(e.ids, e.offsets) for e in library(tokenizer).encode_batch(texts)]
    assert encoded(tokenizer, texts) == expected


@pytest.mark.parametrize("cls", [XLMRobertaTokenizer, CamembertTokenizer, AlbertTokenizer])
def test_configuration_round_trip(cls):
    arguments = {
        "vocabulary": [
            "a",
            "b",
            "c",
            "d",
            "e",
            "▁x",
            *[f"<0x{b:02X}>" for b in range(256)],
            "z",
            "zz",
        ],
        "scores": [None] * 5 + [-1.5] * 258,
        "precompiled_charsmap": base64.b64encode(bytes([4, *[0] * 7])).decode(),
        "byte_fallback": True,
        "special_tokens_in_text": True,
        "start_token": "a",
        "end_token": "b",
        "pad_token": "c",
        "mask_token": "d",
        "unknown_token": "e",
        "uses_segments": cls is not AlbertTokenizer,
        "pair_separators": 3,
        "merges": ["z z"],
        "remove_extra_whitespaces": False,
        "truncation_side": "left",
        "padding_side": "left",
        "model_max_length": 77,
    }
    if cls is AlbertTokenizer:
        arguments |= {"lowercase": False, "keep_accents": True}
    tokenizer = cls(**arguments)
    again = cls.from_config(json.loads(json.dumps(tokenizer.get_config())))
    assert again.get_config() == {**arguments, "added_tokens": [], "post_processor": None}
    assert again.special_token_ids == (0, 1, 2, 3, 4)
    assert again.vocabulary_size == 264


@pytest.mark.slow(only="^scores3")
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([-1.0] * 9, "scores.* 9.* 6 "),
        ([None] * 5 + [float("nan")], r"scores\[5\].*'▁a'.*nan"),
        ([None] * 5 + ["x"], r"scores\[5\].*'▁a'.* 'x'"),
        ([None] * 6, "scores.*None"),
    ],
)
def test_bad_scores_are_named(scores, message):
    with pytest.raises(ValueError, match=message):
        XLMRobertaTokenizer(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "▁a"], scores)


def test_saved_model_keeps_the_tables_of_the_normalizer(made_once, tmp_path):
    charsmap, texts = made_once("xlm_roberta").precompiled_charsmap, ["ﬁ ½ ｶﾞ™", "a b", ""]
    module = tf.Module()
    module.normalize = make_normalizer([{"type": "Precompiled", "precompiled_charsmap": charsmap}])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def normalize(texts):
        chars = module.normalize(decode_characters(texts))
        codes = tf.RaggedTensor.from_row_splits(chars.codes, chars.row_splits)
        return tf.strings.unicode_encode(codes, "UTF-8")

    module.encode = normalize
    tf.saved_model.save(module, str(tmp_path))
    found = tf.saved_model.load(str(tmp_path)).encode(tf.constant(texts)).numpy()
    normalizer = Precompiled(base64.b64decode(charsmap))
    assert [text.decode() for text in found] == list(map(normalizer.normalize_str, texts))


@pytest.mark.matrix
@pytest.mark.slow
def test_saved_model_with_tensorflow_alone(made_once, tmp_path):
    module = tf.Module()
    tokenizer = made_once("albert")
    module.tables = tokenizer.graph
    signature = [tf.TensorSpec([None], tf.string)]
    module.tokenize = tf.function(tokenizer.tokenize, input_signature=signature)
    tf.saved_model.save(module, str(tmp_path))
    texts = [TEXTS[0], "``Ǽ'' e\u0301 ½", ""]
    program = f"""
        import sys
        import tensorflow as tf
        tokenize = tf.saved_model.load({str(tmp_path)!r}).tokenize
        assert not {{"encoder_zoo", "tokenizers", "sentencepiece"}} & set(sys.modules)
        print(tokenize(tf.constant({texts!r})).to_list())
    """
    assert json.loads(run(program)) == made_once("albert").tokenize(texts).to_list()


@pytest.mark.slow
def test_inside_a_dataset(made_once):
    tokenizer = made_once("bytes")
    rows = tf.data.Dataset.from_tensor_slices(TEXTS).batch(7).map(tokenizer.tokenize)
    found = [row for batch in rows for row in batch.to_list()]
    assert found == tokenizer.tokenize(TEXTS).to_list()
