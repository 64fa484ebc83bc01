"""A preset comes from a stranger: what is broken or hostile in it is refused by name.

The numbers are those of the cases that the project promises to handle.
"""

import json
import os
import pathlib
import random
import re
import shutil
import sys
import time

import h5py
import numpy as np
import pytest
from processes import run
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez

FAMILIES = ["Bert", "Roberta"]


@pytest.fixture
def copied(golden, tmp_path):
    """A checkpoint as transformers writes it, to be broken."""
    folder = tmp_path / "preset"
    shutil.copytree(golden("Bert_ForSequenceClassification").folder, folder)
    return folder


@pytest.fixture
def saved(golden, tmp_path):
    """A preset as we write it, to be broken."""
    classifier = ez.SequenceClassifier.from_preset(golden("Bert_ForSequenceClassification").folder)
    classifier.save_to_preset(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def kerashub_folder(tmp_path):
    """The JSON and h5 files of a KerasHub preset, as far as they are read before refusing."""
    folder = tmp_path / "kerashub"
    folder.mkdir()
    config = {
        "module": "keras_hub.src.models.bert.bert_backbone",
        "class_name": "BertBackbone",
        "config": {"vocabulary_size": 9, "num_layers": 1, "num_heads": 2, "hidden_dim": 4},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def edit(path: pathlib.Path, **changes) -> None:
    """Changes some fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(folder: pathlib.Path, cls=None, **arguments) -> str:
    """The error with which a preset is refused; it must be one readable text."""
    with pytest.raises(ValueError) as caught:
        (cls or ez.Backbone).from_preset(folder, **arguments)
    message = str(caught.value)
    assert "Traceback" not in message and len(message) < 2000
    return message


@pytest.fixture
def opened():
    """The paths that Python opens from here on."""
    paths = []
    active = [True]

    def hook(event, arguments):
        if active and event == "open" and isinstance(arguments[0], str | os.PathLike):
            paths.append(os.fspath(arguments[0]))

    sys.addaudithook(hook)
    yield paths
    active.clear()


# -- code ----------------------------------------------------------------------------------------


def hostile_package(folder: pathlib.Path, monkeypatch) -> pathlib.Path:
    """A package in the working directory that leaves a mark when it is imported."""
    mark = folder / "it_ran"
    (folder / "evil").mkdir()
    (folder / "evil" / "__init__.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nclass BertBackbone: pass\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return mark


@pytest.mark.slow(except_for="^config")
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "encoder_zoo.json"])
def test_case_01_a_module_in_any_json_is_never_imported(saved, name, tmp_path, monkeypatch):
    mark = hostile_package(tmp_path, monkeypatch)
    edit(saved / name, module="evil", registered_name="evil>BertBackbone")
    ez.SequenceClassifier.from_preset(saved, verify=False)  # ignored: it is only data
    assert not mark.exists() and "evil" not in sys.modules


def test_case_01_a_module_beside_a_valid_class_name_is_never_imported(
    kerashub_folder, tmp_path, monkeypatch
):
    mark = hostile_package(tmp_path, monkeypatch)
    edit(kerashub_folder / "config.json", module="evil")
    assert "model.weights.h5" in refusal(kerashub_folder)  # goes on to the weights, without it
    edit(kerashub_folder / "config.json", module="os", class_name="system")
    assert "config.json: class_name is 'system'. Expected one of" in refusal(kerashub_folder)
    assert not mark.exists() and "evil" not in sys.modules


def test_case_02_a_nested_module_in_the_working_directory_does_not_run(
    kerashub_folder, tmp_path, monkeypatch
):
    mark = hostile_package(tmp_path, monkeypatch)
    nested = {"module": "evil", "class_name": "BertBackbone", "config": {}}
    config = json.loads((kerashub_folder / "config.json").read_text())["config"]
    edit(kerashub_folder / "config.json", config={**config, "dtype": nested, "hidden_dim": nested})
    refusal(kerashub_folder)
    assert not mark.exists() and "evil" not in sys.modules


@pytest.mark.slow(except_for=r"^TFSMLayer-tokenizer\.json$")
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("layer", ["Lambda", "TFSMLayer", "TorchModuleWrapper"])
def test_case_03_layers_that_run_code_are_refused_anywhere(saved, name, layer):
    edit(saved / name, extra=[{"deep": {"class_name": layer, "config": {}}}])
    message = refusal(saved, verify=False)
    assert f"{name}: extra[0].deep.class_name is '{layer}'" in message


def test_case_04_a_tokenizer_of_another_class_is_refused(saved, kerashub_folder):
    edit(saved / "tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer")
    message = refusal(saved, ez.SequenceClassifier, verify=False)
    assert "tokenizer_config.json: tokenizer_class is 'BertJapaneseTokenizer'" in message
    assert "AlbertTokenizer, BartTokenizer, BertTokenizer" in message


# -- places outside ------------------------------------------------------------------------------

BAD_NAMES = ["../secret", "/etc/passwd", "..\\secret", "a/b", "C:secret", "x\0y", "..", ""]


@pytest.mark.slow(except_for=r"^/etc/passwd$")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_case_05_file_names_that_leave_the_folder_are_refused(saved, name, opened):
    manifest = json.loads((saved / "encoder_zoo.json").read_text())
    files = {**manifest["files"], name: {"bytes": 1, "sha256": "0" * 64}}
    edit_with_digest(saved / "encoder_zoo.json", files=files)
    (saved.parent / "secret").write_text("secret")
    opened.clear()
    message = refusal(saved)
    assert f"encoder_zoo.json: files is {name!r}" in message
    assert not [path for path in opened if "secret" in path or "passwd" in path]


def edit_with_digest(path: pathlib.Path, **changes) -> None:
    """As a hostile author does it, who knows how the checksum is made."""
    import hashlib

    manifest = {**json.loads(path.read_text()), **changes}
    del manifest["sha256"]
    text = json.dumps(manifest, sort_keys=True)
    path.write_text(json.dumps({**manifest, "sha256": hashlib.sha256(text.encode()).hexdigest()}))


@pytest.mark.parametrize("name", [*BAD_NAMES, 7, None])
def test_case_06_a_shard_index_that_points_outside_is_refused(copied, name, opened):
    tensors = load_file(copied / "model.safetensors")
    (copied / "model.safetensors").rename(copied.parent / "secret")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refusal(copied)
    assert f"model.safetensors.index.json: weight_map is {name!r}" in message
    assert not [path for path in opened if "secret" in path or "passwd" in path]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_case_07_links_out_of_the_folder_are_refused(copied, name, opened):
    (copied / name).rename(copied.parent / "secret")
    (copied / name).symlink_to("../secret")
    message = refusal(copied)
    assert f"{copied / name} is a link to" in message
    assert not [path for path in opened if path.endswith((name, "secret"))]


@pytest.mark.slow
def test_case_07_links_inside_the_folder_are_fine(copied, golden):
    (copied / "model.safetensors").rename(copied / "weights")
    (copied / "model.safetensors").symlink_to("weights")
    expected = ez.Backbone.from_preset(golden("Bert_ForSequenceClassification").folder)
    for ours, right in zip(
        ez.Backbone.from_preset(copied).get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, right)


@pytest.mark.parametrize("kind", ["external link", "soft link", "external storage", "group"])
def test_case_08_h5_links_are_refused(kerashub_folder, kind):
    outside = kerashub_folder.parent / "outside.h5"
    with h5py.File(outside, "w") as file:
        file["secret"] = np.zeros((2, 4), "float32")
    place = "layers/embedding/vars/0"
    with h5py.File(kerashub_folder / "model.weights.h5", "w") as file:
        file["layers/reversible_embedding/vars/0"] = np.zeros((9, 4), "float32")
        file["layers/position_embedding/vars/0"] = np.zeros((8, 4), "float32")
        file["soft"] = np.zeros((2, 4), "float32")
        if kind == "external link":
            file[place] = h5py.ExternalLink(str(outside), "/secret")
        elif kind == "soft link":
            file[place] = h5py.SoftLink("/soft")
        elif kind == "external storage":
            raw = kerashub_folder.parent / "raw"
            raw.write_bytes(bytes(32))
            file.create_dataset(place, (2, 4), "f4", external=[(str(raw), 0, 32)])
        else:
            del file["layers"]
            file["layers"] = h5py.ExternalLink(str(outside), "/")
    message = refusal(kerashub_folder)
    assert "model.weights.h5: 'layers" in message
    assert "is a link" in message or "stored in another file" in message


# -- sizes and damage ----------------------------------------------------------------------------


@pytest.mark.slow(except_for=r"^num_hidden_layers-1000000$")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**6),
        ("vocab_size", 4 * 10**9),
        ("max_position_embeddings", 10**8),
        ("intermediate_size", 10**12),
    ],
)
def test_case_09_sizes_beyond_the_weights_are_refused_at_once(copied, field, value):
    ez.Backbone.from_preset(copied)  # what is imported is imported
    edit(copied / "config.json", **{field: value})
    start = time.process_time()
    assert f"config.json: {field} is {value}" in refusal(copied)
    assert time.process_time() - start < 2


def test_case_09_an_impossible_safetensors_header_is_refused_at_once(copied):
    weights = copied / "model.safetensors"
    weights.write_bytes((2**63).to_bytes(8, "little") + weights.read_bytes()[8:])
    start = time.process_time()
    message = refusal(copied)
    assert f"{weights}: " in message and "9223372036854775808" in message
    assert time.process_time() - start < 2


def test_case_09_weights_beyond_the_budget_are_refused_before_they_are_allocated(copied):
    config = json.loads((copied / "config.json").read_text())
    rows = 10**9  # 32 GB in a file that takes no room on the disk
    shape = {"dtype": "F32", "shape": [rows, 8], "data_offsets": [0, rows * 32]}
    header = json.dumps({"bert.embeddings.word_embeddings.weight": shape}).encode()
    with open(copied / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + rows * 32)
    edit(copied / "config.json", **{**config, "vocab_size": rows, "num_hidden_layers": 1})
    start = time.process_time()
    message = refusal(copied)
    assert time.process_time() - start < 2
    assert "num_hidden_layers is 1" in message or "GB" in message


def test_the_budget_can_be_raised(copied):
    message = refusal(copied, max_bytes=1000)
    assert "config.json: " in message
    needed = int(re.search(r"max_bytes=(\d+)", message)[1])
    ez.Backbone.from_preset(copied, max_bytes=needed)


@pytest.mark.slow(except_for=r"^copied-0$")
@pytest.mark.parametrize("share", [0, 0.5, 0.999])
@pytest.mark.parametrize("which", ["copied", "saved"])
def test_case_10_cut_off_weights_are_named_with_both_sizes(which, share, request):
    weights = request.getfixturevalue(which) / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, int(size * share))
    message = refusal(weights.parent)
    assert f"{weights} is truncated: the file has {int(size * share)} bytes" in message
    if which == "saved" or share:  # without a checksum an empty file says nothing of its size
        assert str(size) in message


@pytest.mark.slow
def test_case_11_every_flipped_bit_is_noticed_or_harmless(saved):
    files = sorted(saved.iterdir())
    whole = {path: path.read_bytes() for path in files}
    weights = ez.SequenceClassifier.from_preset(saved).get_weights()
    rng = random.Random(0)
    noticed = 0
    for _ in range(200):
        path = rng.choices(files, [len(whole[path]) for path in files])[0]
        bit = rng.randrange(8 * len(whole[path]))
        damaged = bytearray(whole[path])
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            loaded = ez.SequenceClassifier.from_preset(saved)
        except ValueError as error:
            noticed += 1
            assert path.name in str(error)
        else:
            assert path.name == "README.md"
            for a, b in zip(weights, loaded.get_weights(), strict=True):
                np.testing.assert_array_equal(a, b)
        path.write_bytes(whole[path])
    assert noticed > 180  # the model card is the rest


@pytest.mark.slow(except_for="^copied")
@pytest.mark.parametrize("which", ["copied", "saved"])
def test_case_12_every_missing_file_is_named(which, request):
    folder = request.getfixturevalue(which)
    optional = {"README.md", "encoder_zoo.json", "expected.npz"}
    if which == "copied":
        optional.add("tokenizer_config.json")  # without it the settings are guessed
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        path.unlink()
        if path.name in optional:
            ez.SequenceClassifier.from_preset(folder)
        else:
            with pytest.raises((ValueError, FileNotFoundError), match=path.name):
                ez.SequenceClassifier.from_preset(folder)
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.txt"])
def test_case_13_a_git_lfs_pointer_is_recognised(copied, name):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
    (copied / name).write_text(pointer)
    message = refusal(copied)
    assert f"{copied / name} is a Git LFS pointer" in message and "git lfs pull" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("null", "NoneType"),
        ("[1]", "list"),
        ("{", "JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "encoder_zoo.json"])
def test_case_14_json_that_is_none_is_refused(copied, name, text, words):
    (copied / name).write_text(text)
    message = refusal(copied)
    assert str(copied / name) in message and words in message


def test_case_15_a_vocabulary_longer_than_the_embedding_is_refused(copied):
    with open(copied / "vocab.txt", "a") as file:
        file.write("one\ntoo\nmany\n")
    message = refusal(copied, ez.SequenceClassifier)
    assert "vocab_size in config.json is 79" in message


def test_case_15_duplicate_tokens_are_reported_and_the_last_counts(copied, caplog):
    tokens = (copied / "vocab.txt").read_text().split("\n")
    tokens[10] = tokens[20]
    (copied / "vocab.txt").write_text("\n".join(tokens))
    classifier = ez.SequenceClassifier.from_preset(copied)
    assert repr(tokens[20]) in caplog.text
    assert classifier.preprocessor.tokenizer.token_to_id(tokens[20]) == 20


@pytest.mark.slow(only=r"^(nan)$")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_case_16_weights_that_are_no_numbers_are_refused_unless_asked(copied, value):
    tensors = load_file(copied / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.bias"
    tensors[name][3] = value
    save_file(tensors, copied / "model.safetensors")
    message = refusal(copied)
    assert "encoder.layer.1.output.dense.bias has 1 values" in message
    backbone = ez.Backbone.from_preset(copied, allow_nonfinite=True)
    np.testing.assert_equal(np.array(backbone.blocks[1].output_dense.bias)[3], value)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="asks Linux for the memory")
def test_case_20_loading_again_and_again_does_not_fill_the_memory(tmp_path):
    backbone = ez.BertBackbone(
        60_000, num_layers=1, num_heads=1, hidden_dim=8, intermediate_dim=8, pooler=False
    )
    backbone.save_to_preset(tmp_path / "preset")
    weights = (tmp_path / "preset" / "model.safetensors").stat().st_size
    # In a process of its own, where nothing else takes memory, and with plain arrays: TensorFlow
    # keeps some 35 KB for each variable that ever was, whoever made it.
    program = f"""
import gc, resource
import encoder_zoo as ez

def memory():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

for cycle in range(105):
    if cycle == 5:
        before = memory()
    ez.Backbone.from_preset({str(tmp_path / "preset")!r})
    if cycle % 5 == 0:
        gc.collect()
print(memory() - before)
"""
    assert int(run(program, KERAS_BACKEND="numpy")) < 100 * weights / 10


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "has 4 bytes"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, "invalid shape"),
        ({"a": {"dtype": "X", "shape": [2], "data_offsets": [0, 8]}}, "has the dtype 'X'"),
        ({"a": {"shape": [2]}}, "malformed"),
        ({"a": 3}, "malformed"),
        (
            {n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in "ab"},
            "starts at byte 0. Expected byte 8",
        ),
    ],
)
def test_a_safetensors_header_that_contradicts_itself_is_refused(copied, header, words):
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    (copied / "model.safetensors").write_bytes(content)
    assert words in refusal(copied)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "768"),
        ("hidden_size", True),
        ("num_attention_heads", 3),
        ("hidden_dropout_prob", 1.5),
        ("layer_norm_eps", 0),
        ("hidden_act", "lambda x: x"),
        ("hidden_act", ["gelu"]),
        ("id2label", {"0": "a", "2": "b"}),
        ("architectures", "BertModel"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("embedding_size", 4),
        ("pad_token_id", 1000),
        ("quantization_config", {"load_in_8bit": True}),
        ("model_type", "t5"),
        ("model_type", ["bert"]),
    ],
)
def test_fields_that_cannot_be_are_refused_by_name(copied, field, value):
    edit(copied / "config.json", **{field: value})
    named = "hidden_size" if field == "num_attention_heads" else field
    assert f"{copied / 'config.json'}: {named} is " in refusal(copied)


@pytest.mark.slow(except_for=r"^format-2$")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("learning_rate", "fast"),
        ("learning_rate", -1.0),
        ("preprocessor", {"thresholds": {"a": {"b": 1}}}),
        ("files", ["config.json"]),
        ("files", {"config.json": "abc"}),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(saved, field, value):
    edit_with_digest(saved / "encoder_zoo.json", **{field: value})
    assert f"encoder_zoo.json: {field}" in refusal(saved)
