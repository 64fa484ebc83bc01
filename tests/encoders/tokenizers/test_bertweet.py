"""BERTweet's tokenizer against ids that transformers 5.23 made of the same files.

They were made by `transformers.BertweetTokenizer("vocab.txt", "bpe.codes")(TEXTS,
add_special_tokens=False)["input_ids"]`, from the files that `FILES` holds.
"""

import json

import pytest

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers.comparison import create_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles

pytestmark = pytest.mark.eager

TOKENS = ["hello", "hel@@", "h@@", "e@@", "l@@", "lo", "o", "ab", "ab@@", "b", "é@@", "🙂", "b@@"]
MERGES = ["l o</w>", "h e", "he l", "hel lo</w>", "a b", "a b</w>"]
FILES = {
    "vocab.txt": "".join(f"{token} 9\n" for token in TOKENS),
    "bpe.codes": "".join(f"{merge} 9\n" for merge in MERGES),
}
TEXTS = [
    "hello lo o",
    "hello\nhello \nab",
    "\n\thelab\0b\u3000🙂🙂",
    "heo a éb \u0301 👩\u200d👩 \x1cb\x85",
    "",
    "ab" * 200,
]
GOLDEN = [
    [4, 9, 10],
    [5, 8, 3, 3, 4, 11],
    [5, 12, 3, 13, 3, 15],
    [3, 10, 3, 14, 13, 3, 3, 3, 3, 13],
    [],
    [12] * 199 + [11],
]


@pytest.fixture(scope="module")
def tokenizer():
    return create_tokenizer(ez.BertweetTokenizer, TokenizerFiles("preset", FILES))


def test_ids_are_those_of_transformers(tokenizer):
    assert tokenizer.tokenize(TEXTS).to_list() == GOLDEN


def test_spans_are_the_pieces_own_characters(tokenizer):
    ids, starts, ends = (part.to_list() for part in tokenizer.tokenize_with_offsets(TEXTS))
    assert ids == GOLDEN
    for text, *row in zip(TEXTS, ids, starts, ends, strict=True):
        for token_id, start, end in zip(*row, strict=True):
            if token_id != tokenizer.unknown_token_id:
                assert text[start:end] == tokenizer.id_to_token(token_id).removesuffix("@@")


def test_it_reads_what_it_writes(tokenizer):
    files = tokenizer.to_files()
    said = {"tokenizer_config.json": json.loads(files.pop("tokenizer_config.json"))}
    again = create_tokenizer(ez.BertweetTokenizer, TokenizerFiles("preset", {**files, **said}))
    assert again.get_config() == tokenizer.get_config()
    assert type(tokenizer).from_config(tokenizer.get_config()).tokenize(TEXTS).to_list() == GOLDEN
    assert tokenizer.mask_token_id == 4 + len(TOKENS)


def test_sides_and_the_maximum_length_are_kept_in_its_files(tokenizer, tmp_path):
    options = {"truncation_side": "left", "padding_side": "left", "model_max_length": 7}
    options["special_tokens_in_text"] = True
    changed = ez.BertweetTokenizer(**{**tokenizer.get_config(), **options})
    changed.save_to_preset(tmp_path / "saved")
    again = ez.BertweetTokenizer.from_preset(tmp_path / "saved")
    assert again.get_config() == changed.get_config()


def test_special_tokens_in_a_text_are_text_unless_asked_for(tokenizer):
    assert not {0, 1, 2, 17} & set(tokenizer.tokenize("<s> </s> <mask> <pad>").numpy())
    config = {**tokenizer.get_config(), "special_tokens_in_text": True}
    reads = ez.BertweetTokenizer(**config)
    assert reads.tokenize("hello<mask>\nhello").numpy().tolist() == [4, 17, 4]
    assert reads.detokenize([0, 4, 6, 10, 2]).numpy() == b"hello ho"


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("vocab.txt", "a\n", r"vocab.txt: line 1 is 'a'"),
        ("vocab.txt", "a 1\na 1\n", r"vocabulary.*'a'"),
        ("bpe.codes", "a b\n", r"bpe.codes: line 1 is 'a b'"),
        ("bpe.codes", "a b 1", r"bpe.codes.*line break"),
        ("tokenizer_config.json", {"normalization": True}, r"normalization is True"),
    ],
)
def test_files_that_would_give_other_ids_are_refused(name, content, error):
    with pytest.raises(ValueError, match=error):
        create_tokenizer(ez.BertweetTokenizer, TokenizerFiles("preset", {**FILES, name: content}))
