"""Added tokens and texts that would be read letter by letter are refused by name."""

import pytest

import encoder_zoo as ez

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "it"]


@pytest.mark.parametrize("added", ["<z>", b"<z>", {"<z>": 9}, 5, [5], [None], [["<z>"]]], ids=repr)
def test_added_tokens_are_a_list(added):
    with pytest.raises(ValueError, match=r"added_tokens(\[0\])? is "):
        ez.BertTokenizer(TOKENS, added_tokens=added)
    with pytest.raises(ValueError, match=r"added_tokens(\[0\])? is "):
        ez.Tokenizer.from_preset("bert_nano_en_uncased", added_tokens=added)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "albert"])
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "`texts`.*words"),
        (["", " \n"], "`texts`.*words"),
        (["one two three", None], r"texts\[1\] is None"),
        ([["one"]], r"texts\[0\] is "),
        ("one", "texts is 'one'"),
        (5, "texts is 5"),
    ],
)
def test_texts_of_a_vocabulary(family, texts, message):
    pytest.importorskip("sentencepiece")
    with pytest.raises(ValueError, match=message) as error:
        ez.train_vocabulary(texts, 300, family=family)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, -1, 2**21, 10**12, 1.5])
def test_sizes_of_a_vocabulary(size):  # the library ends the process if it has too little memory
    with pytest.raises(ValueError, match="vocabulary_size is "):
        ez.train_vocabulary(["one two"], size)
