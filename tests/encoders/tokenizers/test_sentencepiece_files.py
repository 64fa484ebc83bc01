"""SentencePiece's model files and tokenizer.json, read and written; broken and hostile ones."""

import json
import math
import random
import struct

import pytest
import sentencepiece
from paths import GOLDEN
from tokenizers import Tokenizer

from encoder_zoo.encoders.tokenizers import (
    ALBERT_SENTENCEPIECE,
    CAMEMBERT_SENTENCEPIECE,
    DEBERTA_SENTENCEPIECE,
    XLM_SENTENCEPIECE,
)
from encoder_zoo.encoders.tokenizers.comparison import create_tokenizer
from encoder_zoo.encoders.tokenizers.files.sentencepiece_model import (
    BYTE,
    CONTROL,
    UNKNOWN,
    UNUSED,
    Piece,
    SentencePieceModel,
    read_model,
    serialize_model,
)
from encoder_zoo.encoders.tokenizers.sentencepiece import DebertaV2Tokenizer
from encoder_zoo.encoders.tokenizers.text.charsmap import read_charsmap
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.formats.stored_tokenizer import read_tokenizer_files

pytestmark = pytest.mark.eager

FOLDER = GOLDEN / "sentencepiece"
CASES = {
    "xlm": (XLM_SENTENCEPIECE, "nmt_nfkc"),
    "camembert": (CAMEMBERT_SENTENCEPIECE, "nmt_nfkc"),
    "albert": (ALBERT_SENTENCEPIECE, "albert"),
    "bytes": (XLM_SENTENCEPIECE, "bytes"),
    "bpe": (CAMEMBERT_SENTENCEPIECE, "bpe"),
    "bpe_spaces": (XLM_SENTENCEPIECE, "bpe_spaces"),
}
TEXTS = ["``Élan vital'', e\u0301 ½ の", "", " a\t\U0001f9ff"]
TINY = SentencePieceModel([Piece("<unk>", 0.0, UNKNOWN), Piece("▁a", -1.0), Piece("b", -2.0)])


def content(model):
    return (FOLDER / f"{model}.model").read_bytes()


def written(tokenizer, folder):
    for name, part in tokenizer.to_files().items():
        (folder / name).write_bytes(part.encode() if isinstance(part, str) else part)


def read(record, folder):
    with OpenFolder(folder, ["*"]) as files:
        return create_tokenizer(record.load(), read_tokenizer_files(files, record))


@pytest.mark.parametrize("model", ["nmt_nfkc", "albert", "bytes", "bpe", "bpe_spaces"])
def test_the_model_is_read_as_by_its_own_library(model):
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(content(model))
    ours = read_model(content(model), model)
    assert [(p.text, p.score, p.kind) for p in ours.pieces] == [
        (p.piece, p.score, p.type) for p in proto.pieces
    ]
    assert ours.precompiled_charsmap == proto.normalizer_spec.precompiled_charsmap
    assert ours.byte_fallback == proto.trainer_spec.byte_fallback
    assert ours.model_type == proto.trainer_spec.model_type
    assert ours.remove_extra_whitespaces == proto.normalizer_spec.remove_extra_whitespaces


@pytest.mark.slow(only="^(camembert|xlm)")
@pytest.mark.parametrize("name", CASES)
def test_written_files_read_back(tmp_path, name):
    record, model = CASES[name]
    (tmp_path / record.files[0]).write_bytes(content(model))
    tokenizer = read(record, tmp_path)
    written(tokenizer, tmp_path)
    assert read(record, tmp_path).get_config() == tokenizer.get_config()  # by tokenizer.json
    (tmp_path / "tokenizer.json").unlink()
    assert read(record, tmp_path).get_config() == tokenizer.get_config()  # by the model


SLOW = ("albert", "bpe", "camembert", "bytes", "bpe_spaces")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES]
)
def test_both_libraries_read_the_same_ids(tmp_path, name):
    record, model = CASES[name]
    (tmp_path / record.files[0]).write_bytes(content(model))
    tokenizer = read(record, tmp_path)
    written(tokenizer, tmp_path)
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = [e.ids for e in library.encode_batch(TEXTS, add_special_tokens=False)]
    assert tokenizer.tokenize(TEXTS).to_list() == expected
    pair = library.encode("a", "b").ids
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    first, second = (tokenizer.tokenize(text).numpy().tolist() for text in "ab")
    assert pair == [start, *first, *[end] * tokenizer.pair_separators, *second, end]
    again = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / record.files[0]))
    original = sentencepiece.SentencePieceProcessor(model_proto=content(model))
    assert again.encode(TEXTS) == original.encode(TEXTS)


def test_pieces_that_no_model_holds_are_written_to_tokenizer_json_alone(tmp_path):
    cls = XLM_SENTENCEPIECE.load()
    tokenizer = cls(["<pad>", "<s>", "</s>", "<unk>", "<mask>", "▁a"], [None] * 5 + [-1.0])
    assert "sentencepiece.bpe.model" not in tokenizer.to_files()
    written(tokenizer, tmp_path)
    assert read(XLM_SENTENCEPIECE, tmp_path).get_config() == tokenizer.get_config()


def test_a_truncated_file_is_an_error_or_a_shorter_model():
    whole = serialize_model(TINY)
    for size in range(len(whole)):
        try:
            assert len(read_model(whole[:size], "m").pieces) <= 3
        except ValueError as error:
            assert "m: " in str(error)


def test_any_changed_byte_is_an_error_or_another_model():
    whole = bytearray(serialize_model(TINY._replace(precompiled_charsmap=b"\0" * 9)))
    draw = random.Random(0)
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        try:
            read_model(bytes(broken), "m")
        except ValueError as error:
            assert str(error).startswith("m: ")


def field(number, payload):
    return bytes([number << 3 | 2, len(payload)]) + payload


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b"", "m: the model contains no pieces"),
        (b"\x0a\xff\xff\xff\xff\x0f", r"m: .*byte 6.*4294967295"),
        (b"\x0a" + b"\xff" * 11, "m: .*integer.*byte 1"),
        (b"\x0b", "m: wire type 3 at byte 1"),
        (b"\x08\x01", "m: .*field 1 is 0"),
        (b"\x0a", "m: .*byte 1.*integer"),
        (field(1, b"\x0a\x01\xff"), r"m: pieces\[0\]\.piece is.*UTF-8"),
        (field(1, b"\x10\x01"), r"m: pieces\[0\].*score is 0"),
        (field(1, b"\x0a\x01a\x18\x09"), r"m: pieces\[0\]\.type is 9"),
        (
            field(1, b"\x0a\x01a\x15" + struct.pack("<f", math.nan)),
            r"m: pieces\[0\]\.score is nan",
        ),
        (field(1, b""), r"m: pieces\[0\]\.piece"),
        (
            serialize_model(TINY._replace(pieces=[*TINY.pieces, Piece("b")])),
            r"m: .*pieces\[3\].*'b'",
        ),
        (field(1, b"\x0a\x01a"), "m: 0.*type 2"),
    ],
)
def test_broken_models_are_refused_by_field(broken, message):
    with pytest.raises(ValueError, match=message):
        read_model(broken, "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": 3}, "m: model_type.*3"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix.*True"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix.*False"),
        ({"escape_whitespaces": False}, "escape_whitespaces.*False"),
        (
            {"pieces": [*TINY.pieces, Piece("old", -3.0, UNUSED)]},
            r"m: pieces\[3\].*'old'.* 5",
        ),
        ({"byte_fallback": True}, "byte_fallback.*<0x00>"),
        ({"precompiled_charsmap": b"\1\0\0"}, "precompiled_charsmap.* 3 bytes"),
    ],
)
def test_what_would_change_ids_is_refused(change, message):
    special = [Piece(token, 0.0, CONTROL) for token in ("<pad>", "[CLS]", "[SEP]", "[MASK]")]
    pieces = change.pop("pieces", TINY.pieces)
    model = TINY._replace(pieces=[*pieces, *special], **change)
    with pytest.raises(ValueError, match=message):
        ALBERT_SENTENCEPIECE.load().from_sentencepiece(serialize_model(model), "m")


def charsmap(units, text):
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + text


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b"", "^c.* 0 bytes"),
        (struct.pack("<I", 400) + b"\0" * 8, "c: .* 400 bytes.* 8"),
        # "a" leads to a value behind the text
        (
            charsmap(
                [2 << 10, 0, 0, 1 << 31 | 7, *[0] * 92, 0, 0, 0, 96 << 10 | 1 << 8 | 97], b"\0"
            ),
            "c: .*b'a'",
        ),
        # every byte leads back to the root
        (
            charsmap([256 << 10, *[0] * 255, *[c << 10 | c for c in range(256)]], b"\0"),
            "c: .*units",
        ),
    ],
)
def test_broken_charsmaps_are_refused(broken, message):
    with pytest.raises(ValueError, match=message):
        read_charsmap(broken, "c")


def test_any_changed_charsmap_is_an_error_or_another():
    whole = read_model(content("albert"), "albert").precompiled_charsmap
    assert read_charsmap(whole, "c")["½"] == "1/2"
    draw = random.Random(0)
    for _ in range(500):
        broken = bytearray(whole)
        for _ in range(draw.randint(1, 9)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        try:
            read_charsmap(bytes(broken), "c")
        except ValueError as error:
            assert str(error).startswith("c: ")


def set_in(*path, value):
    def change(content):
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_in("model", "type", value="WordLevel"), "model.type is 'WordLevel'"),
        (set_in("normalizer", value={"type": "NFC"}), "normalizer is {'type': 'NFC'}"),
        (set_in("normalizer", value=None), "normalizer is null"),
        (
            set_in("pre_tokenizer", value={"type": "Metaspace", "prepend_scheme": "first"}),
            "pre_tokenizer is.*'first'",
        ),
        (set_in("pre_tokenizer", value={"type": "Whitespace"}), "pre_tokenizer is.*Whitespace"),
        (set_in("model", "vocab", 9, value=["a", math.nan]), "NaN"),
        (set_in("model", "vocab", 9, value=["a"]), r"model.vocab\[9\] is \['a'\]"),
        (set_in("model", "vocab", 9, value=["<pad>", -1]), r"model.vocab\[9\].*'<pad>'"),
        (set_in("model", "vocab", value=[]), "model.vocab"),
        (set_in("model", "unk_id", value=10**9), "model.unk_id is 1000000000"),
        (
            set_in("added_tokens", value=[{"id": 2**40, "content": "x"}]),
            "added_tokens.*1099511627776",
        ),
    ],
)
def test_other_tokenizer_json_is_refused(tmp_path, change, message):
    record, model = CASES["albert"]
    written(record.load().from_sentencepiece(content(model)), tmp_path)
    path = tmp_path / "tokenizer.json"
    changed = json.loads(path.read_text(encoding="utf-8"))
    change(changed)
    path.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read(record, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_in("model", "merges", value="a b"), "model.merges.*'a b'"),
        (set_in("model", "merges", 3, value=["a"]), r"model.merges\[3\] is \['a'\]"),
        (set_in("model", "merges", 0, value="▁qqq x"), r"merges\[0\] is '▁qqq x'"),
        (
            set_in("model", "dropout", value=0.1),
            "model.dropout is 0.1",
        ),
        (set_in("model", "vocab", value=[]), "model.vocab"),
        (set_in("model", "vocab", "▁", value=2**40), "model.vocab.*1099511627776"),
    ],
)
def test_other_byte_pair_encodings_are_refused(tmp_path, change, message):
    record, model = CASES["bpe"]
    written(record.load().from_sentencepiece(content(model)), tmp_path)
    path = tmp_path / "tokenizer.json"
    changed = json.loads(path.read_text(encoding="utf-8"))
    change(changed)
    path.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read(record, tmp_path)


@pytest.mark.slow(except_for=r"^bpe-change2$")
@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("bpe", set_in("model", "unk_token", value=None)),
        ("bpe", set_in("model", "fuse_unk", value=False)),
        ("bpe", set_in("model", "ignore_merges", value=True)),
        ("bpe", set_in("pre_tokenizer", value={"type": "Whitespace"})),
        ("bpe_spaces", set_in("pre_tokenizer", value={"type": "WhitespaceSplit"})),
    ],
)
def test_other_byte_pair_encodings_are_followed(tmp_path, model, change):
    record, model = CASES[model]
    written(record.load().from_sentencepiece(content(model)), tmp_path)
    path = tmp_path / "tokenizer.json"
    changed = json.loads(path.read_text(encoding="utf-8"))
    change(changed)
    path.write_text(json.dumps(changed), encoding="utf-8")
    library = Tokenizer.from_file(str(path))
    expected = [e.ids for e in library.encode_batch(TEXTS, add_special_tokens=False)]
    assert read(record, tmp_path).tokenize(TEXTS).to_list() == expected


def test_merges_that_scores_do_not_order_are_written_to_tokenizer_json_alone():
    cls = XLM_SENTENCEPIECE.load()
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "aa", "aaa", "<mask>"]
    scores = [None] * 4 + [-2.0, -2.0, 0.0, -1.0, None]
    whole = ["a a", "aa a", "a aa"]
    assert "sentencepiece.bpe.model" in cls(tokens, scores, merges=whole).to_files()
    other = cls(tokens, scores, merges=["a a", "a aa", "aa a"])
    assert "sentencepiece.bpe.model" not in other.to_files()


@pytest.mark.slow
def test_older_ways_to_write_the_same_steps(tmp_path):
    """As the converters of transformers 3 and of later versions write XLM-R's."""
    record, model = CASES["xlm"]
    tokenizer = record.load().from_sentencepiece(content(model))
    written(tokenizer, tmp_path)
    path = tmp_path / "tokenizer.json"
    changed = json.loads(path.read_text(encoding="utf-8"))
    [step] = changed["normalizer"]["normalizers"]
    space = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}
    for normalizer, before in (
        (step, {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]}),
        (
            {
                "type": "Sequence",
                "normalizers": [
                    step,
                    {"type": "Strip", "strip_left": False, "strip_right": True},
                    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
                ],
            },
            {**space, "prepend_scheme": "always"},
        ),
    ):
        changed |= {"normalizer": normalizer, "pre_tokenizer": before}
        path.write_text(json.dumps(changed), encoding="utf-8")
        assert read(record, tmp_path).get_config() == tokenizer.get_config()


@pytest.mark.parametrize("name", CASES)
def test_segments_are_an_input_where_the_family_has_them(name):
    record, model = CASES[name]
    tokenizer = record.load().from_sentencepiece(content(model))
    config = json.loads(tokenizer.to_files()["tokenizer_config.json"])
    segments = ["input_ids", "token_type_ids", "attention_mask"]
    plain = ["input_ids", "attention_mask"] if model.startswith("bpe") else None
    assert config.get("model_input_names") == (segments if name == "albert" else plain)


def test_no_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"spiece.model.*tokenizer.json"):
        read(ALBERT_SENTENCEPIECE, tmp_path)


def test_a_broken_model_in_a_folder_is_named(tmp_path):
    (tmp_path / "spiece.model").write_bytes(content("albert")[:1000])
    with pytest.raises(ValueError, match=r"spiece.model: .*byte"):
        read(ALBERT_SENTENCEPIECE, tmp_path)


def test_byte_pieces_keep_their_type():
    record, model = CASES["bytes"]
    tokenizer = record.load().from_sentencepiece(content(model))
    again = read_model(tokenizer.to_files()["sentencepiece.bpe.model"], "again")
    assert sum(piece.kind == BYTE for piece in again.pieces) == 256


@pytest.mark.slow
def test_what_transformers_5_saves_of_deberta_is_read_as_it_says(tmp_path):
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁", "a", "é", "▁a", "[MASK]"]
    scores = [*[None] * 4, -1.0, -1.1, -1.2, -1.3, None]
    written(DebertaV2Tokenizer(tokens, scores, normalize_nfc=True), tmp_path)
    tokenizer = read(DEBERTA_SENTENCEPIECE, tmp_path)
    assert tokenizer.normalize_nfc
    # A space that does not break is a character; two of any kind are one space.
    assert tokenizer.tokenize("e\u0301\u00a0a \u00a0a").numpy().tolist() == [4, 6, 3, 5, 7]
    path = tmp_path / "tokenizer.json"
    library = Tokenizer.from_file(str(path))
    assert library.encode("e\u0301\u00a0a \u00a0a").ids == [1, 4, 6, 3, 5, 7, 2]
    other = json.loads(path.read_text())
    other["pre_tokenizer"]["pretokenizers"].insert(0, {"type": "WhitespaceSplit"})
    path.write_text(json.dumps(other))
    expected = Tokenizer.from_file(str(path)).encode("a\u2003b a").ids[1:-1]
    assert read(DEBERTA_SENTENCEPIECE, tmp_path).tokenize("a\u2003b a").numpy().tolist() == expected
