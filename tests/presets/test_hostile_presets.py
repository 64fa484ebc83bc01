"""Presets that ask for much, contradict themselves, or hold what are no weights."""

import json
import math
import os
import pathlib
import shutil
import struct
import time
import tracemalloc

import h5py
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.presets.files.open_folder import OpenFolder

BERT = {"vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 4}
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]


@pytest.fixture
def bert(golden, tmp_path):
    """BERT as transformers writes it, to be broken; vocab.txt and no tokenizer.json."""
    return shutil.copytree(golden("Bert_ForSequenceClassification").folder, tmp_path / "bert")


@pytest.fixture
def roberta(golden, tmp_path):
    return shutil.copytree(golden("Roberta_ForSequenceClassification").folder, tmp_path / "roberta")


@pytest.fixture
def whole(bert, tmp_path):
    """BERT as it is saved here: a vocabulary in vocab.txt and the same in tokenizer.json."""
    return saved_again(bert, tmp_path / "whole_bert")


@pytest.fixture
def whole_roberta(roberta, tmp_path):
    return saved_again(roberta, tmp_path / "whole_roberta")


def saved_again(folder, target):
    ez.SequenceClassifier.from_preset(folder).save_to_preset(target)
    (target / "encoder_zoo.json").unlink()
    return target


def refusal(folder: pathlib.Path, **arguments) -> str:
    with pytest.raises(ValueError) as caught:
        ez.SequenceClassifier.from_preset(folder, **arguments)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def edit(path: pathlib.Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# -- memory and time -----------------------------------------------------------------------------


def cheap_refusal(folder: pathlib.Path, **arguments) -> str:
    """The error, which must come before any large allocation and any long search."""
    start = time.process_time()
    message = refusal(folder, **arguments)
    assert time.process_time() - start < 10
    tracemalloc.start()
    refusal(folder, **arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300e6
    return message


def promise(file: h5py.File, name: str, shape: tuple[int, ...]) -> None:
    """An array of which the file holds nothing."""
    file.create_dataset(f"layers/{name}", shape, "f4", chunks=tuple(min(n, 1024) for n in shape))


def kerashub(folder: pathlib.Path, hidden: int = 4, **changes) -> pathlib.Path:
    """A preset in KerasHub's format, its arrays promised and not there."""
    (folder / "assets" / "tokenizer").mkdir(parents=True)
    (folder / "assets" / "tokenizer" / "vocabulary.txt").write_text("\n".join(TOKENS))
    tokenizer = {"class_name": "BertTokenizer", "config": {"lowercase": True}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    sizes = {"num_layers": 1, "num_heads": 1, "intermediate_dim": 6 * hidden}
    config = {"vocabulary_size": 9, "hidden_dim": hidden, **sizes, **changes}
    config = {"class_name": "BertBackbone", "config": config}
    (folder / "config.json").write_text(json.dumps(config))
    with h5py.File(folder / "model.weights.h5", "w") as file:
        promise(file, "reversible_embedding/vars/0", (9, hidden))
        promise(file, "position_embedding/vars/0", (16, hidden))
        promise(file, "embedding/vars/0", (2, hidden))
        promise(file, "layer_normalization/vars/0", (hidden,))
    return folder


def test_a_kerashub_preset_cannot_promise_arrays(tmp_path):
    message = cheap_refusal(kerashub(tmp_path / "preset", 8192))
    assert "294912 bytes" in message


def test_arrays_in_one_place_of_a_file_are_counted_each(tmp_path):
    from encoder_zoo.presets.files.hdf5_file import Hdf5File

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["layers/dense/vars/0"] = np.zeros(10_000, "float32")
        for i in range(1, 9):
            file[f"layers/dense/vars/{i}"] = file["layers/dense/vars/0"]
    with (
        open(tmp_path / "a.h5", "rb") as file,
        pytest.raises(ValueError, match=r"arrays.* \d+ bytes"),
    ):
        Hdf5File(file).list_shapes("dense")


def test_a_head_cannot_have_millions_of_classes(tmp_path):
    folder = kerashub(tmp_path / "preset")
    with h5py.File(folder / "model.weights.h5", "w") as file:
        for name in ("reversible_embedding", "position_embedding", "embedding"):
            file[f"layers/{name}/vars/0"] = np.zeros((9, 4), "float32")
    config = {"num_classes": 60_000_000, "dropout": 0.1, "activation": "linear"}
    task = {"class_name": "BertTextClassifier", "config": config}
    (folder / "task.json").write_text(json.dumps(task))
    with h5py.File(folder / "task.weights.h5", "w") as file:
        promise(file, "dense/vars/0", (4, 60_000_000))
    assert "is missing" in cheap_refusal(folder) or "bytes" in cheap_refusal(folder)


def varint(value: int) -> bytes:
    low = []
    while value >= 128:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes([*low, value])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def masked_checksum(content: bytes) -> bytes:
    """CRC-32C, as LevelDB writes it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tf1_index(tensors: dict[str, tuple[int, ...]], dtype: int = 1) -> bytes:
    """The index of a TensorFlow 1 checkpoint: a LevelDB table of names and shapes."""

    def block(entries: list[tuple[bytes, bytes]]) -> bytes:
        rows = [b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in entries]
        starts = [sum(map(len, rows[:i])) for i in range(max(len(rows), 1))]
        return b"".join(rows) + struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))

    content, entries, place = b"", [(b"", field(1, 1) + field(3, field(1, 1)))], 0
    for name, shape in sorted(tensors.items()):
        sizes = b"".join(field(2, field(1, size)) for size in shape)
        where = field(4, place) + field(5, 4 * math.prod(shape))
        entries.append((name.encode(), field(1, dtype) + field(2, sizes) + where))
        place += 4 * math.prod(shape)
    handles = []
    for rows in (entries, []):
        handles.append(varint(len(content)) + varint(len(block(rows))))
        content += block(rows) + b"\0" + masked_checksum(block(rows) + b"\0")
    index = block([(entries[-1][0] + b"\xff", handles[0])])
    handles.append(varint(len(content)) + varint(len(index)))
    content += index + b"\0" + masked_checksum(index + b"\0")
    footer = handles[1] + handles[2]
    return content + footer + bytes(40 - len(footer)) + struct.pack("<Q", 0xDB4775248B80FB57)


def tf1(folder: pathlib.Path, tensors: dict, dtype: int = 1, size: int = 64) -> pathlib.Path:
    folder.mkdir()
    (folder / "bert_model.ckpt.index").write_bytes(tf1_index(tensors, dtype))
    (folder / "bert_model.ckpt.data-00000-of-00001").write_bytes(bytes(size))
    (folder / "bert_config.json").write_text(json.dumps(BERT))
    (folder / "vocab.txt").write_text("\n".join(TOKENS))
    return folder


@pytest.mark.slow
def test_a_tensorflow_checkpoint_cannot_promise_arrays(tmp_path):
    folder = tf1(tmp_path / "promises", {"output_weights": (40_000_000, 4)})
    assert "need 640000000 bytes, but the file only contains 64 bytes" in cheap_refusal(folder)
    os.truncate(folder / "bert_model.ckpt.data-00000-of-00001", 640_000_000)  # holes
    assert "the head has 40000000 classes. Expected at most 1048576" in cheap_refusal(folder)


@pytest.mark.slow(except_for="^too")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a":[' + "[]," * 20_000_000 + "0]}", "bytes. Expected at most 33554432"),
        ('{"a":[' + "[]," * 10_000_000 + "0]}", "would need 1.79 GB of memory"),
        ('{"a":[' + '{"b":0},' * 4_000_000 + "0]}", "GB of memory"),
        ('{"a":"' + "é" * 10**6 + "😀" + "e" * 31_000_000 + '"}', "expected"),
    ],
    ids=["too long", "lists", "objects", "wide characters"],
)
def test_a_configuration_cannot_be_large_in_memory(bert, content, words):
    (bert / "config.json").write_text(content)
    if words == "expected":  # not too large: read, and refused for what it says
        assert "config.json" in cheap_refusal(bert)
    else:
        assert words in cheap_refusal(bert)


@pytest.mark.slow(except_for="^0")
@pytest.mark.parametrize("size", [2**62, 0])
def test_a_shape_of_very_many_sizes_is_refused_at_once(bert, size):
    entry = {"dtype": "F32", "shape": [size] * 100_000, "data_offsets": [0, 8]}
    header = json.dumps({"a": entry}).encode()
    (bert / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert "'a' has an invalid shape [" in cheap_refusal(bert)


def test_a_vocabulary_of_holes_is_not_read(bert):
    os.truncate(bert / "vocab.txt", 3 * 10**9)
    assert "vocab.txt has 3000000000 bytes. Expected at most" in cheap_refusal(bert)


def test_a_vocabulary_of_empty_lines_is_not_read(bert):
    (bert / "vocab.txt").write_text("\n" * 30_000_000)
    assert "vocab.txt has 30000000 tokens. Expected at most 1048576" in cheap_refusal(bert)


def test_of_many_tokens_one_that_is_there_twice_is_found_soon(tmp_path, caplog):
    tokens = [*TOKENS[:5], *(f"w{i}" for i in range(119_994))]
    sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
    ez.BertBackbone(120_000, **sizes).save_to_preset(tmp_path / "preset")
    (tmp_path / "preset" / "vocab.txt").write_text("\n".join([*tokens, tokens[-1]]))
    start = time.process_time()
    ez.BertTokenizer.from_preset(tmp_path / "preset", verify=False)
    assert time.process_time() - start < 30
    assert "'w119993'" in caplog.text


# -- two truths ----------------------------------------------------------------------------------


def lines(path: pathlib.Path, change) -> None:
    text = path.read_text()
    path.write_text("\n".join(change(text.split("\n"))))


@pytest.mark.parametrize(
    "change",
    [
        lambda tokens: tokens[:40],
        lambda tokens: [],
        lambda tokens: [*tokens[:10], *tokens[12:10:-1], *tokens[13:]],
        lambda tokens: [*tokens[:-1], "more"],
    ],
    ids=["cut", "empty", "reordered", "longer"],
)
def test_vocab_txt_must_say_what_tokenizer_json_says(whole, change):
    lines(whole / "vocab.txt", change)
    message = refusal(whole)
    assert "vocab.txt, but" in message and "in tokenizer.json" in message


@pytest.mark.parametrize(
    "change",
    [lambda merges: merges[:-3], lambda merges: [], lambda merges: [merges[0], *merges[:0:-1]]],
    ids=["cut", "empty", "reordered"],
)
def test_merges_txt_must_say_what_tokenizer_json_says(whole_roberta, change):
    lines(whole_roberta / "merges.txt", change)
    message = refusal(whole_roberta)
    assert "merges.txt, but" in message and "in tokenizer.json" in message


def test_vocab_json_must_say_what_tokenizer_json_says(whole_roberta):
    def swap(vocabulary):
        a, b, *_ = [token for token in vocabulary if not token.startswith("<")]
        vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]

    edit(whole_roberta / "vocab.json", swap)
    message = refusal(whole_roberta)
    assert "in vocab.json, but" in message and "in tokenizer.json" in message


def test_an_id_belongs_to_one_token(roberta):
    def repeat(vocabulary):
        a, b, *_ = [token for token in vocabulary if not token.startswith("<")]
        vocabulary[a] = vocabulary[b]

    edit(roberta / "vocab.json", repeat)
    assert "Expected a different id for each token" in refusal(roberta)


def test_a_merge_makes_a_token_of_two(roberta):
    with open(roberta / "merges.txt", "a") as file:
        file.write("q z\n")
    message = refusal(roberta)
    assert "is 'q z', but 'q" in message and "is not in the vocabulary" in message


def test_special_tokens_differ(bert):
    same = dict.fromkeys(["cls_token", "sep_token", "pad_token", "mask_token"], "[CLS]")
    edit(bert / "tokenizer_config.json", lambda config: config.update(same))
    assert "Expected four different tokens" in refusal(bert)


def test_special_tokens_are_named_once(bert):
    (bert / "special_tokens_map.json").write_text(json.dumps({"cls_token": "[SEP]"}))
    edit(bert / "tokenizer_config.json", lambda config: config.update(cls_token="[CLS]"))
    message = refusal(bert)
    assert "cls_token is '[CLS]' in tokenizer_config.json" in message


def test_added_tokens_have_the_vocabularys_ids(whole):
    def move(content):
        content["added_tokens"][0]["id"] += 7

    edit(whole / "tokenizer.json", move)
    assert "in the vocabulary, but" in refusal(whole)


def test_a_vocabulary_cut_short_is_noticed_by_the_configuration(bert):
    lines(bert / "vocab.txt", lambda tokens: tokens[:50])
    assert (
        "has 50 tokens, but vocab_size in config.json is 79. The tokenizer is incomplete"
        in refusal(bert)
    )


def test_the_padding_token_is_the_models(bert):
    edit(bert / "config.json", lambda config: config.update(pad_token_id=3))
    assert "pad_token_id is 3 in config.json, but '[PAD]' has the id 0" in refusal(bert)


@pytest.mark.parametrize(
    "numbers", [{"a": 1, "b": 0}, {"a": 0}, {"a": 0, "b": "x"}, ["a", "b"], {"x": 0, "y": 1}]
)
def test_label2id_is_the_inverse_of_id2label(bert, numbers):
    names = {"0": "a", "1": "b"}
    edit(bert / "config.json", lambda c: c.update(id2label=names, label2id=numbers))
    assert "config.json: label2id is" in refusal(bert)


def test_there_is_a_name_for_every_output(bert):
    names = {str(i): f"class {i}" for i in range(7)}
    edit(bert / "config.json", lambda c: c.update(id2label=names, label2id=None))
    message = refusal(bert)
    assert "config.json: id2label" in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_key_stands_in_a_file_once(bert, name):
    text = (bert / name).read_text().strip()
    (bert / name).write_text(text[:-1] + ', "twice": 1, "twice": 2}')
    assert f"{name} is not readable as JSON: 'twice' occurs twice, as 1 and as 2" in refusal(bert)


def test_a_tensor_stands_in_a_file_once(bert):
    path = bert / "model.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    name, entry = next((n, e) for n, e in json.loads(content[8:end]).items() if n != "__metadata__")
    twice = content[8:end].rstrip()[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}".encode()
    path.write_bytes(len(twice).to_bytes(8, "little") + twice + content[end:])
    message = refusal(bert, verify=False)
    assert "the header is not readable as JSON: '" in message
    assert "' occurs twice. Expected unique names." in message


def test_a_key_that_says_the_same_twice_is_fine(bert):
    text = (bert / "config.json").read_text().strip()
    (bert / "config.json").write_text(text[:-1] + ', "twice": 1, "twice": 1}')
    ez.SequenceClassifier.from_preset(bert)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lowercase", "false"),
        ("strip_accents", 1),
        ("oov_token", None),
        ("split", False),
        ("suffix_indicator", "@@"),
        ("special_tokens_in_strings", True),
        ("special_tokens", ["cat"]),
        ("special_tokens", "[CLS]"),
    ],
)
def test_settings_of_kerashubs_tokenizer_are_applied_or_refused(tmp_path, setting, value):
    from encoder_zoo.extras.formats.kerashub import KerasHubCheckpoint

    folder = kerashub(tmp_path / "preset")
    with h5py.File(folder / "model.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.zeros((4, 4), "float32")
    checkpoint = object.__new__(KerasHubCheckpoint)
    from encoder_zoo.encoders import get_family

    def read() -> None:
        with OpenFolder(folder, ["*.json", "assets/tokenizer/vocabulary.txt"]) as files:
            checkpoint.files = files
            checkpoint.read_tokenizer()

    checkpoint.family = get_family("bert")
    read()
    edit(folder / "tokenizer.json", lambda content: content["config"].update({setting: value}))
    with pytest.raises(ValueError, match=rf"tokenizer.json: config.{setting} is"):
        read()


# -- files read for the attacker -----------------------------------------------------------------


def test_a_card_that_is_a_link_is_not_copied(bert, tmp_path):
    (tmp_path / "secret").write_text("secret")
    classifier = ez.SequenceClassifier.from_preset(bert)
    saved = tmp_path / "saved"
    classifier.save_to_preset(saved)
    (saved / "README.md").unlink()
    (saved / "README.md").symlink_to(tmp_path / "secret")
    mode = (tmp_path / "secret").stat().st_mode
    with pytest.raises(ValueError, match="README.md"):
        classifier.save_to_preset(saved)
    classifier = ez.SequenceClassifier.from_preset(saved, verify=False)
    classifier.save_to_preset(tmp_path / "again")
    assert "secret" not in (tmp_path / "again" / "README.md").read_text()
    assert (tmp_path / "secret").read_text() == "secret"
    assert (tmp_path / "secret").stat().st_mode == mode


def test_the_manifest_cannot_give_the_tokenizer(whole, tmp_path):
    ez.SequenceClassifier.from_preset(whole).save_to_preset(tmp_path / "saved")
    edit(
        tmp_path / "saved" / "encoder_zoo.json",
        lambda content: content["preprocessor"].update(tokenizer="/etc/passwd"),
    )
    again = ez.SequenceClassifier.from_preset(tmp_path / "saved", verify=False)
    assert isinstance(again.preprocessor.tokenizer, ez.BertTokenizer)


# -- weights that are none -----------------------------------------------------------------------

WEIGHT = "bert.encoder.layer.0.output.dense.weight"


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint8", "uint64"])
def test_weights_are_floating_point_numbers(bert, dtype):
    tensors = load_file(bert / "model.safetensors")
    tensors[WEIGHT] = tensors[WEIGHT].astype(dtype)
    save_file(tensors, bert / "model.safetensors")
    message = refusal(bert)
    assert f"'{WEIGHT}' has dtype {dtype}. Expected float16, bfloat16" in message.replace(
        f"'{dtype}'", dtype
    )


@pytest.mark.parametrize("dtype", ["float16", "float64", ml_dtypes.bfloat16])
def test_weights_of_any_precision_are_read(bert, dtype):
    tensors = load_file(bert / "model.safetensors")
    tensors[WEIGHT] = tensors[WEIGHT].astype(dtype)
    save_file(tensors, bert / "model.safetensors")
    ez.SequenceClassifier.from_preset(bert)


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("a", ["F32"], "'a' has the dtype ['F32']"),
        ("a", {"x": 1}, "'a' has the dtype {'x': 1}"),
        ("a", "C64", "'a' has the dtype 'C64'"),
        ("n" * 10**6, "C64", "nnnnn' has the dtype 'C64'"),
        ("a", "F" * 10**6, "has the dtype 'FFFF"),
    ],
    ids=["list", "object", "complex", "long name", "long type"],
)
def test_types_that_are_none_are_refused_in_a_short_line(bert, name, dtype, words):
    entry = {"dtype": dtype, "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({name: entry}).encode()
    (bert / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert words in refusal(bert)


@pytest.mark.slow(except_for="^3e")
@pytest.mark.parametrize("value", [3e38, -1e20, 1e5])
def test_values_that_would_overflow_are_refused_unless_asked(bert, value):
    tensors = load_file(bert / "model.safetensors")
    tensors[WEIGHT] = tensors[WEIGHT].astype("float64")
    tensors[WEIGHT][1, 2] = value
    save_file(tensors, bert / "model.safetensors")
    message = refusal(bert)
    assert "layer.0.output.dense.weight has 1 values" in message
    ez.SequenceClassifier.from_preset(bert, allow_nonfinite=True)


@pytest.mark.parametrize("content", [np.zeros((9, 4), "int32"), np.zeros((9, 4), "c8"), "text"])
def test_arrays_in_h5_are_floating_point_numbers(tmp_path, content):
    folder = kerashub(tmp_path / "preset")
    with h5py.File(folder / "model.weights.h5", "w") as file:
        file["layers/reversible_embedding/vars/0"] = content
    assert "has dtype" in refusal(folder)


def test_variables_of_tensorflow_are_floating_point_numbers(tmp_path, golden):
    from encoder_zoo.extras.formats.tf1 import Tf1Checkpoint

    folder = tf1(tmp_path / "tf1", {"bert/embeddings/word_embeddings": (9, 4)}, dtype=3, size=144)
    with (
        Tf1Checkpoint(OpenFolder(folder, ["*"])) as checkpoint,
        pytest.raises(ValueError, match="word_embeddings'.*int32"),
    ):
        checkpoint.read_tensor("embeddings.word_embeddings.weight")
