"""Llama 3's words and EuroBERT's tokenizer, beside the library `tokenizers`."""

import json
import random

import pytest
import tensorflow as tf
from paths import CHECKPOINTS
from tokenizers import Tokenizer as Library

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet

CHARACTERS = [*"aSstRevlLdſéK'''!?_-", "\u0301", *"12½٣", *"    \n\n\r\t\u00a0\u3000\u2028漢🙂"]
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]


@pytest.fixture(scope="module")
def library():
    return Library.from_file(str(CHECKPOINTS / "EuroBert_Model" / "tokenizer.json"))


@pytest.fixture(scope="module")
def tokenizer():
    return ez.EuroBertTokenizer.from_preset(CHECKPOINTS / "EuroBert_Model")


def random_texts(number: int) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(CHARACTERS, k=rng.randint(0, 14))) for _ in range(number)]


def assert_alike(tokenizer, library, texts: list[str]) -> None:
    ids, starts, ends = (part.to_list() for part in tokenizer.tokenize_with_offsets(texts))
    found = library.encode_batch(texts, add_special_tokens=False)
    assert ids == [encoding.ids for encoding in found]
    spans = [list(zip(*both, strict=True)) for both in zip(starts, ends, strict=True)]
    assert spans == [encoding.offsets for encoding in found]


@pytest.mark.slow
def test_words_are_those_of_the_pattern(tokenizer, library):
    texts = [
        "I'll say 12345 words,  don't you?\r\n\n  YES 'S 's!\n",
        "it'ſ  \t'LL \n x\n\n\ny !\n\r ! \n",
        "",
        "   ",
        "naïve e\u0301a ...abc 3.14159 漢字 🙂🙂",
        *random_texts(1000),
    ]
    assert_alike(tokenizer, library, texts)


@pytest.mark.slow
def test_a_word_that_is_a_token_is_one_whatever_the_merges_make():
    long = "Ġ" + "tokenization" * 2  # too long for the table of words
    tokens = [*SPECIAL, *make_byte_alphabet(), "ab", "abc", "Ġt", long]
    tokenizer = ez.EuroBertTokenizer({t: i for i, t in enumerate(tokens)}, ["a b", "Ġ t"])
    library = Library.from_str(tokenizer.to_files()["tokenizer.json"])
    texts = ["abc", "abcd ab", " " + "tokenization" * 2, "x" + "tokenization" * 2 + "abc"]
    texts += ["tokenization" * 2, " " + "tokenization" * 2 + "s abc  t"]
    assert_alike(tokenizer, library, texts)
    assert tokenizer.tokenize(texts[2]).numpy().tolist() == [len(tokens) - 1]
    in_graph = tf.function(tokenizer.tokenize)(tf.constant(texts))
    assert in_graph.to_list() == tokenizer.tokenize(texts).to_list()


@pytest.mark.slow
def test_the_end_token_pads_and_no_token_is_written_twice(tokenizer):
    assert tokenizer.pad_token_id == tokenizer.end_token_id == 1
    library = Library.from_str(tokenizer.to_files()["tokenizer.json"])
    assert list(library.get_added_tokens_decoder()) == [0, 1, 2]
    read = ez.EuroBertTokenizer(
        **{**tokenizer.get_config(), "special_tokens_in_text": True},
    )
    assert read.tokenize("<|mask|><|end_of_text|>").numpy().tolist() == [2, 1]


@pytest.mark.eager
@pytest.mark.parametrize(
    "change",
    [
        {"model": {"ignore_merges": False}},
        {"pre_tokenizer": {"pattern": {"Regex": r"\w+"}}},
    ],
)
def test_other_words_are_of_another_class(change, tokenizer, tmp_path):
    files = tokenizer.to_files()
    content = json.loads(files["tokenizer.json"])
    content["model"].update(change.get("model", {}))
    content["pre_tokenizer"]["pretokenizers"][0].update(change.get("pre_tokenizer", {}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="contains a GenericTokenizer"):
        ez.EuroBertTokenizer.from_preset(tmp_path)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    expected = library.encode("1234 tokenization's", add_special_tokens=False).ids
    ours = ez.Tokenizer.from_preset(tmp_path).tokenize("1234 tokenization's")
    assert ours.numpy().tolist() == expected
