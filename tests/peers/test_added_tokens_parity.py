"""Ids and spans of texts with added tokens, equal to those of `tokenizers` and transformers."""

import json
import random

import pytest

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
from encoder_zoo.encoders.tokenizers.sentencepiece import AlbertTokenizer, XLMRobertaTokenizer

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

# Overlapping ones, parts of others, white space, what normalisation changes, every option.
ADDED = [
    "abc",
    "Ef",
    "中",
    "  ",
    "i j",
    "d国",
    {"content": "cd", "normalized": False},
    {"content": "cde", "special": True},
    {"content": "gh", "single_word": True},
    {"content": "é", "single_word": True},
    {"content": "<m>", "lstrip": True, "special": True},
    {"content": "<n>", "rstrip": True, "special": True},
    {"content": "[x]", "lstrip": True, "rstrip": True},
]
ATOMS = [
    *("abc", "cd", "cde", "Ef", "ef", "EF", "gh", " gh ", "GH", "<m>", " <m>", "<n> ", "中", "  "),
    *(" ", "i j", "I J", "é", "É", "e\u0301", "[x]", "d国", "\t", "\n", *"abcdeghij", "国", "ab"),
    *(
        ".",
        ",",
        "!",
        "-",
        "_",
        "中国",
        "\u3000",
        "\u00a0",
        "\u0301",
        "1",
        "ß",
        "\u200d",
        "Ⓐ",
        "\x00",
    ),
]
PIECES = ["▁a", "▁", *"bacdefghij1.", "ab", "▁ab", "cd", "中", "国", "é", "▁gh", "gh"]
SCORES = [-1.0 - 0.37 * i for i in range(len(PIECES))]


def wordpiece(**options):
    words = [*"abcdefghij中国.,!-é", *(f"##{c}" for c in "abcdefghij"), "ab", "abc", "##cd"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return ez.BertTokenizer([*special, *words], added_tokens=ADDED, **options)


def byte_bpe(**options):
    names = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
        *make_byte_alphabet(),
        "ab",
        "Ġa",
        "Ġab",
        "cd",
    ]
    vocabulary = {name: i for i, name in enumerate(names)}
    merges = ["a b", "Ġ a", "Ġ ab", "c d"]
    return ez.RobertaTokenizer(vocabulary, merges, added_tokens=ADDED, **options)


def xlm_roberta():
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *PIECES, "<mask>"]
    return XLMRobertaTokenizer(tokens, [*[None] * 4, *SCORES, None], added_tokens=ADDED)


def albert():
    tokens = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *PIECES]
    return AlbertTokenizer(tokens, [*[None] * 5, *SCORES], added_tokens=ADDED)


TOKENIZERS = {
    "bert uncased": wordpiece,
    "bert cased": lambda: wordpiece(lowercase=False),
    "bert uncased with accents": lambda: wordpiece(strip_accents=False),
    "bert whole Chinese words": lambda: wordpiece(split_chinese_characters=False),
    "roberta": byte_bpe,
    "roberta add_prefix_space": lambda: byte_bpe(add_prefix_space=True),
    "xlm-roberta": xlm_roberta,
    "albert": albert,
}


def random_texts(count: int) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(ATOMS, k=draw.randint(0, 12))) for _ in range(count)]


def without_roles(tokenizer) -> "tokenizers.Tokenizer":
    """The library's tokenizer of the same files, for which [SEP] in a text is text, as here."""
    content = json.loads(tokenizer.to_files()["tokenizer.json"])
    names = {token["content"] for token in tokenizer.added_tokens}
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] in names]
    return tokenizers.Tokenizer.from_str(json.dumps(content))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_spans_are_those_of_tokenizers(name):
    ours = TOKENIZERS[name]()
    texts = random_texts(20_000)
    expected = without_roles(ours).encode_batch(texts, add_special_tokens=False)
    ids, starts, ends = (part.to_list() for part in ours.tokenize_with_offsets(texts))
    assert ours.tokenize(texts).to_list() == ids
    wrong = [t for t, own, e in zip(texts, ids, expected, strict=True) if own != e.ids]
    spans = [list(zip(*pair, strict=True)) for pair in zip(starts, ends, strict=True)]
    misplaced = [t for t, own, e in zip(texts, spans, expected, strict=True) if own != e.offsets]
    print(f"\n{name}: {len(texts)} texts, {len(wrong)} id and {len(misplaced)} span mismatches")
    assert (wrong, misplaced) == ([], [])


@pytest.mark.parametrize("name", ["bert uncased", "roberta", "xlm-roberta", "albert"])
def test_transformers_opens_our_files_with_equal_ids(name, tmp_path):
    ours = TOKENIZERS[name]()
    for file, content in ours.to_files().items():
        is_text = isinstance(content, str)
        (tmp_path / file).write_bytes(content.encode("utf-8") if is_text else content)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = random_texts(2_000)
    assert theirs(texts, add_special_tokens=False)["input_ids"] == ours.tokenize(texts).to_list()


@pytest.mark.parametrize("name", ["bert uncased", "roberta"])
def test_we_open_what_transformers_adds(name, tmp_path, golden):
    family = {"bert uncased": "Bert", "roberta": "Roberta"}[name]
    theirs = transformers.AutoTokenizer.from_pretrained(golden(f"{family}_Model").folder)
    theirs.add_tokens(["abc", transformers.AddedToken("gh", single_word=True)])
    theirs.add_special_tokens({"additional_special_tokens": ["<m>"]})
    model = transformers.AutoModel.from_pretrained(golden(f"{family}_Model").folder)
    model.resize_token_embeddings(len(theirs))
    model.save_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    ours = ez.SequenceClassifier.from_preset(tmp_path, num_classes=2).preprocessor.tokenizer
    texts = random_texts(2_000)
    assert theirs(texts, add_special_tokens=False)["input_ids"] == ours.tokenize(texts).to_list()
