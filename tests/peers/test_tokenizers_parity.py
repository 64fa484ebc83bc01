"""Ids and offsets equal to transformers' fast tokenizers on whole corpora."""

import gzip
import json
import random
import unicodedata

import pytest

from encoder_zoo.encoders.tokenizers.byte_bpe import ModernBertTokenizer, RobertaTokenizer
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
transformers = pytest.importorskip("transformers")
BATCH = 2000
FAMILIES = {
    "bert uncased": {"lowercase": True},
    "bert cased": {"lowercase": False},
    "bert uncased with accents": {"lowercase": True, "strip_accents": False},
    "bert cased without accents": {"lowercase": False, "strip_accents": True},
    "bert whole Chinese words": {"lowercase": True, "split_chinese_characters": False},
    "roberta": {"add_prefix_space": False},
    "roberta add_prefix_space": {"add_prefix_space": True},
    "modernbert": {"added_tokens": [" " * i for i in range(24, 1, -1)]},
}
THEIR_NAMES = {
    "lowercase": "do_lower_case",
    "split_chinese_characters": "tokenize_chinese_chars",
}


def sst2(data):
    lines = (data / "sst2" / "train.tsv").read_text(encoding="utf-8").split("\n")[1:]
    return [line.split("\t")[1] for line in lines if line]


def xquad(data):
    texts = []
    for path in sorted((data / "qa" / "xquad").glob("*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                texts.append(paragraph["context"])
                texts += [question["question"] for question in paragraph["qas"]]
    return texts


def multilingual(data):
    return (data / "multilingual" / "lines.txt").read_text(encoding="utf-8").split("\n")


def wikipedia(data):
    with gzip.open(data / "text" / "wikipedia_train.txt.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for _, line in zip(range(5000), file, strict=False)]


def random_unicode(_):
    """Strings over all assigned planes; a third of the characters are marks, spaces or ASCII."""
    draw = random.Random(0)
    assigned = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cs", "Cn")]
    pools = [
        assigned,
        assigned,
        [c for c in assigned if ord(c) < 0x3000],
        [c for c in assigned if unicodedata.combining(c)],
        [chr(c) for c in range(128)],
        list("\t\n\r \x00\x85\xa0\u200b\u2028\u3000"),
    ]
    return [
        "".join(draw.choice(draw.choice(pools)) for _ in range(draw.randint(0, 25)))
        for _ in range(100_000)
    ]


def every_code_point(_):
    words = [f"a{chr(c)}a" for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    return [" ".join(words[i : i + 64]) for i in range(0, len(words), 64)]


CORPORA = [sst2, xquad, multilingual, wikipedia, random_unicode, every_code_point]


def tokenizers(family, data, minilm, folder):
    """Ours and transformers', from the same vocabulary with the same options."""
    options = FAMILIES[family]
    their_options = {THEIR_NAMES.get(name, name): value for name, value in options.items()}
    if family.startswith("bert"):
        path = minilm / "vocab.txt"
        return BertTokenizer(path, **options), transformers.BertTokenizer(
            str(path), **their_options
        )
    if family == "modernbert":
        return modernbert_tokenizers(data, **options)
    gpt2 = json.loads((data / "bpe" / "encoder.json").read_text(encoding="utf-8"))
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *gpt2, "<mask>"]
    vocabulary, merges = folder / "vocab.json", data / "bpe" / "vocab.bpe"
    vocabulary.write_text(json.dumps({t: i for i, t in enumerate(tokens)}), encoding="utf-8")
    return RobertaTokenizer(vocabulary, merges, **options), transformers.RobertaTokenizer(
        str(vocabulary), str(merges), **their_options
    )


def modernbert_tokenizers(data, added_tokens):
    """ModernBERT's steps over GPT-2's vocabulary, with tokens for several spaces."""
    library = pytest.importorskip("tokenizers")
    gpt2 = json.loads((data / "bpe" / "encoder.json").read_text(encoding="utf-8"))
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    vocabulary = {token: i for i, token in enumerate([*gpt2, *special])}
    lines = (data / "bpe" / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    merges = [tuple(line.split(" ")) for line in lines if line]
    fast = library.Tokenizer(library.models.BPE(vocabulary, merges))
    fast.normalizer = library.normalizers.NFC()
    fast.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.add_tokens([library.AddedToken(token, normalized=True) for token in added_tokens])
    ours = ModernBertTokenizer(vocabulary, data / "bpe" / "vocab.bpe", added_tokens=added_tokens)
    return ours, transformers.PreTrainedTokenizerFast(tokenizer_object=fast)


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.__name__)
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_offsets(family, corpus, data, minilm, tmp_path):
    ours, theirs = tokenizers(family, data, minilm, tmp_path)
    texts = corpus(data)
    wrong_ids, wrong_offsets = [], []
    for i in range(0, len(texts), BATCH):
        batch = texts[i : i + BATCH]
        ids, starts, ends = (part.to_list() for part in ours.tokenize_with_offsets(batch))
        assert ours.tokenize(batch).to_list() == ids
        expected = theirs(
            batch,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
        )
        for j, text in enumerate(batch):
            spans = list(zip(starts[j], ends[j], strict=True))
            if ids[j] != expected["input_ids"][j]:
                wrong_ids.append(text)
            elif spans != [tuple(o) for o in expected["offset_mapping"][j]]:
                wrong_offsets.append(text)
    print(
        f"\n{family} | {corpus.__name__} | {len(texts)} texts | {len(wrong_ids)} id mismatches | "
        f"{len(wrong_offsets)} offset mismatches"
    )
    assert (wrong_ids, wrong_offsets) == ([], [])
