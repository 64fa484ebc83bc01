"""RobertaTokenizer against the `tokenizers` library: stored answers, and any text."""

import json
import random

import paths
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
from encoder_zoo.encoders.tokenizers.segmentation.bpe import are_safe_in_parallel

pytestmark = pytest.mark.eager

GOLDEN = json.loads((paths.GOLDEN / "tokens.json").read_text(encoding="utf-8"))
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LETTERS = "aab  '''stmdrevl1½²!. \t\n\r\x00\x85\xa0\u2028\u3000é中각😀x\u0301"
TEXT = st.text(st.one_of(st.sampled_from(LETTERS), st.characters(exclude_categories=["Cs"])))


def reference(vocabulary, merges, add_prefix_space=False):
    """The library's own pipeline with the same settings."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=add_prefix_space
    )
    return tokenizer


def encoded(tokenizer, texts):
    """[(ids, offsets)] of our tokenizer."""
    ids, starts, ends = (part.to_list() for part in tokenizer.tokenize_with_offsets(texts))
    spans = [list(zip(s, e, strict=True)) for s, e in zip(starts, ends, strict=True)]
    return list(zip(ids, spans, strict=True))


def as_expected(encodings):
    """[(ids, offsets)] without the special tokens at both ends."""
    return [(e.ids[1:-1], e.offsets[1:-1]) for e in encodings]


def made(merges):
    """A tokenizer with the bytes, the special tokens, and what the merges make."""
    tokens = [*SPECIAL, *make_byte_alphabet()]
    tokens += list(dict.fromkeys(merge.replace(" ", "") for merge in merges))
    return {token: i for i, token in enumerate(tokens)}, merges


@pytest.fixture(scope="module")
def stored():
    return RobertaTokenizer(GOLDEN["vocabulary"], GOLDEN["merges"])


@pytest.fixture(scope="module")
def prefixed():
    return RobertaTokenizer(GOLDEN["vocabulary"], GOLDEN["merges"], add_prefix_space=True)


@pytest.fixture(scope="module")
def finding():
    return RobertaTokenizer(GOLDEN["vocabulary"], GOLDEN["merges"], special_tokens_in_text=True)


@pytest.mark.slow
def test_stored_ids_and_offsets(stored):
    answers = zip(GOLDEN["texts"], encoded(stored, GOLDEN["texts"]), GOLDEN["roberta"], strict=True)
    for text, ours, expected in answers:
        assert ours == (expected["ids"], [tuple(o) for o in expected["offsets"]]), ascii(text)


@pytest.mark.slow
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_any_text_as_the_library(stored, texts):
    theirs = reference(GOLDEN["vocabulary"], GOLDEN["merges"])
    assert encoded(stored, texts) == as_expected(theirs.encode_batch(texts))


@pytest.mark.slow
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_prefix_space_as_the_library(prefixed, texts):
    theirs = reference(GOLDEN["vocabulary"], GOLDEN["merges"], add_prefix_space=True)
    assert encoded(prefixed, texts) == as_expected(theirs.encode_batch(texts))


@pytest.mark.slow
@given(st.lists(st.lists(TEXT, max_size=4), min_size=1, max_size=3))
def test_words_as_the_library(stored, texts):
    theirs = reference(GOLDEN["vocabulary"], GOLDEN["merges"], add_prefix_space=True)
    ids, word = stored.tokenize_words(texts)
    expected = theirs.encode_batch(texts, is_pretokenized=True)
    assert ids.to_list() == [e.ids[1:-1] for e in expected]
    assert word.to_list() == [e.word_ids[1:-1] for e in expected]


@pytest.mark.slow
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_detokenizing_loses_nothing(stored, texts):
    decoded = stored.detokenize(stored.tokenize(texts)).numpy().tolist()
    assert decoded == [text.encode() for text in texts]


def test_newlines_and_contractions(stored):
    tokens = [stored.id_to_token(i) for i in stored.tokenize("a\n\nb's '").numpy()]
    assert tokens == ["a", "Ċ", "Ċ", "b", "'s", "Ġ'"]


MERGES = {
    "runs of one letter": ["a a", "aa aa", "aa a"],
    "a token made in two ways, one learned after its use": ["a b", "b c", "ab c", "abc a", "a bc"],
    "a pair that uses a token made only later": ["ab c", "b c", "a b", "c a", "bc a"],
    "none": [],
}


@pytest.mark.parametrize("name", MERGES)
def test_merges_in_any_order_as_the_library(name):
    vocabulary, merges = made(MERGES[name])
    ours, theirs = RobertaTokenizer(vocabulary, merges), reference(vocabulary, merges)
    draw = random.Random(0)
    texts = ["".join(draw.choices("aaabc", k=draw.randint(0, 40))) for _ in range(300)]
    assert encoded(ours, texts) == as_expected(theirs.encode_batch(texts))


def test_which_pairs_may_be_merged_everywhere_at_once():
    # tokens 1 + 2 make 5 (rank 0); 5 + 3 make 6 (rank 1); 4 + 4 make 5 again (rank 2), too late
    ranks = {1 << 32 | 2: 0, 5 << 32 | 3: 1, 4 << 32 | 4: 2}
    assert are_safe_in_parallel(ranks, [5, 6, 5]).tolist() == [True, True, False]


@pytest.mark.slow(except_for="^257")
@pytest.mark.parametrize("length", [256, 257, 384, 385, 1000, 5000])
def test_long_words_as_the_library(stored, length):
    """Words of more than 256 bytes are encoded in windows that are joined."""
    draw = random.Random(length)
    texts = ["".join(draw.choices("etaoin", k=length)), "a" * length, "ab" * length, "中é" * length]
    texts += ["the" + "x" * length + " and the cat", "".join(draw.choices("=-", k=length))]
    theirs = reference(GOLDEN["vocabulary"], GOLDEN["merges"])
    assert encoded(stored, texts) == as_expected(theirs.encode_batch(texts))


@pytest.mark.slow
def test_long_word_without_a_common_token_in_its_windows():
    """Tokens of 2, 4, ... 256 letters: windows of 256 hold no token of the other ones."""
    merges = [f"{'a' * 2**i} {'a' * 2**i}" for i in range(8)]
    vocabulary, merges = made(merges)
    tokenizer, theirs = RobertaTokenizer(vocabulary, merges), reference(vocabulary, merges)
    texts = ["a" * 1100, "b" + "a" * 3000]
    assert encoded(tokenizer, texts) == as_expected(theirs.encode_batch(texts))


def test_a_text_cannot_forge_structure(stored):
    ids = stored.tokenize("<s> </s> <mask> <pad>").numpy().tolist()
    assert not set(ids) & set(stored.special_token_ids)


def test_special_tokens_found_in_text(finding):
    texts = ["a <mask> b", "a \n\t<mask>b", " <s> a</s>", "x  ", "<mask", "'<mask>'s"]
    ids, starts, ends = finding.tokenize_with_offsets(texts)
    tokens = [[finding.id_to_token(i) for i in row] for row in ids.to_list()]
    assert tokens[0] == ["a", "<mask>", "Ġb"]  # the mask swallows the space before it
    assert tokens[1] == ["a", "<mask>", "b"]
    assert tokens[2] == ["Ġ", "<s>", "Ġa", "</s>"]
    assert tokens[3][0] == "x"
    assert "<mask>" not in tokens[4]
    assert tokens[5] == ["'", "<mask>", "'s"]
    assert (starts[1].numpy().tolist(), ends[1].numpy().tolist()) == ([0, 4, 10], [1, 10, 11])


def test_byte_that_the_vocabulary_lacks_is_unknown():
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, "a", "Ġ"])}
    tokenizer = RobertaTokenizer(vocabulary, [])
    assert tokenizer.tokenize("a b").numpy().tolist() == [5, 6, 3]


@pytest.mark.parametrize("merge", ["ab", "a z", "a", "zz a", ""])
def test_bad_merges_are_named(merge):
    vocabulary, _ = made([])
    with pytest.raises(ValueError, match=r"merges\[0\] is '"):
        RobertaTokenizer(vocabulary, [merge])


def test_configuration_round_trip():
    vocabulary, merges = made(["a b"])
    arguments = {
        "vocabulary": vocabulary,
        "merges": merges,
        "add_prefix_space": True,
        "special_tokens_in_text": True,
        "uses_segments": True,
        "pair_separators": 1,
        "start_token": "<pad>",
        "end_token": "<unk>",
        "pad_token": "<mask>",
        "mask_token": "</s>",
        "unknown_token": "<s>",
        "trim_offsets": False,
        "truncation_side": "left",
        "padding_side": "left",
        "model_max_length": 77,
    }
    tokenizer = RobertaTokenizer(**arguments)
    again = RobertaTokenizer.from_config(json.loads(json.dumps(tokenizer.get_config())))
    assert again.get_config() == {**arguments, "added_tokens": [], "post_processor": None}
    assert again.special_token_ids == (1, 3, 4, 2, 0)


@pytest.mark.matrix
@pytest.mark.slow
def test_saved_model(stored, tmp_path):
    module = tf.Module()
    module.tokenizer = stored.graph
    signature = [tf.TensorSpec([None], tf.string)]
    module.tokenize = tf.function(stored.tokenize, input_signature=signature)
    tf.saved_model.save(module, str(tmp_path))
    texts = ["Hello, wörld! 中文" + "x" * 600, ""]
    again = tf.saved_model.load(str(tmp_path)).tokenize(tf.constant(texts))
    assert again.to_list() == stored.tokenize(texts).to_list()
