"""A tokenizer.json of static embeddings cannot panic, hang or take all memory."""

import base64
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import encoder_zoo as ez
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer
from encoder_zoo.encoders.tokenizers.library import check_normalizer_growth

MODEL = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, "unk_token": "<unk>"}
FILE = {"version": "1.0", "added_tokens": [], "model": MODEL}


def replace(old: str, new: str, kind: str = "String") -> dict:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def in_turn(*steps: dict) -> dict:
    return {"type": "Sequence", "normalizers": list(steps)}


@pytest.mark.parametrize(
    "normalizer",
    [
        in_turn(*[replace("a", "a" * 1000)] * 3),
        in_turn(*[replace("a", "aa")] * 40),
        in_turn(replace("a", "b" * 100), replace("b", "c" * 100)),
        in_turn(*[replace(".", "aa", "Regex")] * 10),
        in_turn(*[replace("", "aa")] * 10),
        in_turn(in_turn(replace("ab", "ab" * 300)), replace("ab", "ab" * 300)),
        in_turn(replace("a", "b" * 400), {"type": "NFKC"}),
    ],
)
def test_normalizers_that_lengthen_texts(normalizer):
    with pytest.raises(ValueError, match="^tokenizer.json: the normalizer can increase the length"):
        FileTokenizer(json.dumps({**FILE, "normalizer": normalizer}))


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        {"type": "NFKC"},
        {"type": "BertNormalizer", "lowercase": True},
        # model2vec puts spaces around every punctuation mark.
        in_turn(
            {"type": "BertNormalizer"},
            *[replace(mark, f" {mark} ") for mark in "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~"],
            replace(r"\s+", " ", "Regex"),
            {"type": "Strip"},
        ),
        in_turn(replace("``", '"'), replace("''", '"'), {"type": "NFKD"}),  # ALBERT, XLNet
    ],
)
def test_normalizers_in_use(normalizer):
    check_normalizer_growth(normalizer)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////AAAA"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}},
        {"normalizer": 5},
        {"normalizer": {"type": "Sequence"}},
        {"normalizer": {"type": "Sequence", "normalizers": [5]}},
        {"normalizer": {"type": "Replace"}},
        {"model": 5},
        {"model": {}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 5}},
    ],
)
def test_files_that_the_library_does_not_read(change):
    with pytest.raises(ValueError, match="tokenizer.json"):
        FileTokenizer(json.dumps({**FILE, **change}))


@pytest.mark.parametrize("content", ["", "[]", "5", "null", "{", "[" * 100_000])
def test_files_that_are_no_json_object(content):
    with pytest.raises(ValueError, match="tokenizer.json"):
        FileTokenizer(content)


def test_the_strings_of_a_precompiled_normalizer_are_measured():
    content = b"\4\0\0\0" + bytes(4) + b"a" * 1000 + b"\0"
    step = {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(content).decode(),
    }
    with pytest.raises(ValueError, match="normalizer can increase the length.* 1000"):
        check_normalizer_growth(step)


@pytest.mark.parametrize("content", [b"\4\0\0\0\xff\xff\xff\xffabc\0", bytes(6)])
def test_a_precompiled_normalizer_that_fails_at_texts(content):
    charsmap = base64.b64encode(content).decode()
    normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    tokenizer = FileTokenizer(json.dumps({**FILE, "normalizer": normalizer}))
    with pytest.raises(ValueError, match="A text cannot be read: PanicException"):
        tokenizer.compute_ids(["abc"])


def test_a_panic_of_the_library_is_an_error():
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    tokenizer = FileTokenizer(json.dumps({**FILE, "pre_tokenizer": {**split, "invert": False}}))
    for tokenize in (tokenizer.compute_ids, tokenizer.tokenize_with_offsets):
        with pytest.raises(ValueError, match="A text cannot be read: PanicException"):
            tokenize(["a" * 40 + "b"])


def test_a_mapping_does_not_make_a_large_table_of_a_small_one(tmp_path):
    arrays = {
        "embeddings": np.zeros((1, 8000), "float32"),
        "mapping": np.zeros(200_000, "int64"),
    }
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text(json.dumps(FILE))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    with pytest.raises(ValueError, match=r"mapping.* 32000 bytes to 6400000000 bytes"):
        ez.TextEmbedder.from_preset(tmp_path)
