"""A folder that another process replaces again and again, read meanwhile: one version or none."""

import functools
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
import torch
from safetensors.numpy import load_file

import encoder_zoo as ez
from encoder_zoo.presets.files.open_folder import OpenFolder

VERSIONS = 8
MOST_LOADS = 5000  # so that a writer that hangs is noticed
SLOW = pytest.mark.slow
# Replaces a folder by its versions in turn, until it is killed; says when it has begun.
WRITER = """
import itertools, pathlib, shutil, sys
from encoder_zoo.presets.files.atomic import replacing

target, *versions = map(pathlib.Path, sys.argv[1:])
for i, version in enumerate(itertools.cycle(versions)):
    with replacing(target) as new:
        shutil.copytree(version, new, dirs_exist_ok=True)
    if i == 0:
        print("begun", flush=True)
"""


@pytest.fixture(params=[5, pytest.param(100, marks=SLOW)])
def loads(request):
    """The number of times each format is loaded."""
    return request.param


@pytest.fixture
def replaced(tmp_path):
    """`replaced(folders)`: a folder that a process replaces by copies of these, in turn."""
    processes = []

    def start(folders) -> pathlib.Path:
        target = tmp_path / "latest"
        command = [sys.executable, "-c", WRITER, str(target), *map(str, folders)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout.readline() == "begun\n"
        return target

    yield start
    for process in processes:
        process.kill()
        process.stdout.close()
        process.wait()


def numbered(tiny, name: str, number: int):
    """A classifier of a family whose every weight is a number."""
    from encoder_zoo.encoders import get_family

    family = get_family(name)
    options = {"activation": "gelu_pytorch_tanh", "num_layers": 1}  # one loads faster
    classifier = tiny.task(family, "SequenceClassifier", **options)
    for weight in classifier.weights:
        weight.assign(np.full(weight.shape, number, "float32"))
    return classifier


def held(model) -> list[float]:
    """The different numbers in a model's weights."""
    return sorted({float(v) for weight in model.weights for v in np.unique(weight)})


def test_numbers_tell_versions_apart(tiny):
    assert held(numbered(tiny, "bert", 3)) == [3.0]


def pytorch(folder: pathlib.Path, zipped: bool = True, shards: int = 1) -> None:
    """Writes the weights of a preset as torch.save does, in place of safetensors."""
    (folder / "encoder_zoo.json").unlink()
    tensors = {k: torch.from_numpy(v) for k, v in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    index = {}
    for i in range(shards):
        name = f"pytorch_model-{i + 1:05}-of-{shards:05}.bin" if shards > 1 else "pytorch_model.bin"
        part = {key: tensors[key] for key in [*tensors][i::shards]}
        torch.save(part, folder / name, _use_new_zipfile_serialization=zipped)
        index |= dict.fromkeys(part, name)
    if shards > 1:
        content = json.dumps({"metadata": {}, "weight_map": index})
        (folder / "pytorch_model.bin.index.json").write_text(content)


def tensorflow_1(folder: pathlib.Path) -> None:
    """Writes a preset as Google's BERT was released: bert_config.json and bert_model.ckpt."""
    (folder / "encoder_zoo.json").unlink()
    (folder / "config.json").rename(folder / "bert_config.json")
    names, values = [], []
    for name, value in load_file(folder / "model.safetensors").items():
        is_kernel = value.ndim == 2 and "embeddings" not in name and "classifier" not in name
        name = re.sub(r"LayerNorm.weight$", "LayerNorm.gamma", name)
        name = re.sub(r"LayerNorm.bias$", "LayerNorm.beta", name)
        name = name.replace("classifier.", "output_").replace("_embeddings.weight", "_embeddings")
        name = re.sub(r"\.weight$", ".kernel", name).replace("output_weight", "output_weights")
        names.append(re.sub(r"layer\.(\d+)", r"layer_\1", name).replace(".", "/"))
        values.append(tf.constant(value.T if is_kernel else value))
    (folder / "model.safetensors").unlink()
    prefix = str(folder / "bert_model.ckpt")
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
    )


# Format: how to save it, and how to write it anew.
FORMATS = {
    "safetensors": ({}, None),
    "safetensors shards": ({"shard_bytes": 1000}, None),
    "PyTorch": ({}, pytorch),
    "PyTorch legacy": ({}, functools.partial(pytorch, zipped=False)),
    "PyTorch shards": ({}, functools.partial(pytorch, shards=3)),
    "KerasHub": ({"format": "keras_hub"}, None),
    "TensorFlow 1": ({}, tensorflow_1),
}


def save_versions(tiny, folder: pathlib.Path, format: str) -> list[pathlib.Path]:
    """Saves classifiers in a format, one for each number."""
    options, rewrite = FORMATS[format]
    folders = [folder / f"version{number}" for number in range(1, VERSIONS + 1)]
    for number, version in enumerate(folders, 1):
        numbered(tiny, "bert", number).save_to_preset(version, **options)
        if rewrite:
            rewrite(version)
    return folders


def mixtures(loads: int, load) -> int:
    """Loads again and again, and meets several versions; counts loads with numbers of several."""
    seen = load_until_replaced(loads, lambda: held(load()))
    return sum(len(numbers) > 1 for numbers in seen)


def load_until_replaced(loads: int, load) -> list[list[float]]:
    """The numbers of as many loads, and of more until they are of two versions.

    How often a folder is replaced between two loads is up to the machine and what else it does.
    """
    seen = []
    while len(seen) < loads or len({tuple(numbers) for numbers in seen}) == 1:
        assert len(seen) < MOST_LOADS, "the folder was never replaced"
        seen.append(load())
    return seen


def test_a_folder_is_opened_whole(tmp_path, replaced):
    """Also where it is being deleted: an old version is, as soon as the new one has its place."""
    folders = [tmp_path / f"version{number}" for number in range(VERSIONS)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        for i in range(8):
            (folder / f"{i}.txt").write_text(str(number))
    folder, seen = replaced(folders), set()
    opened = 0
    while opened < 5000 or len(seen) == 1:  # a few of which meet a folder that is being deleted
        assert opened < 10 * MOST_LOADS, "the folder was never replaced"
        opened += 1
        with OpenFolder(folder, ["*.txt"]) as files:
            seen.add("".join(files.read_text(f"{i}.txt") for i in range(8)))
    assert seen <= {str(number) * 8 for number in range(VERSIONS)}


@pytest.mark.parametrize("verify", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize(
    "format",
    [
        name
        if name in ("safetensors", "PyTorch", "TensorFlow 1")
        else pytest.param(name, marks=SLOW)
        for name in FORMATS
    ],
)
def test_every_load_of_a_preset_is_of_one_version(tiny, tmp_path, replaced, loads, format, verify):
    folder = replaced(save_versions(tiny, tmp_path, format))
    loads = loads // 5 if verify else loads
    load = functools.partial(ez.SequenceClassifier.from_preset, folder, verify=verify)
    assert mixtures(loads, load) == 0


def test_a_link_that_leads_to_another_version_each_time(tiny, tmp_path, loads):
    """As a directory of releases has it: `latest` is a link, and a new one takes its place."""
    versions, link = save_versions(tiny, tmp_path, "safetensors"), tmp_path / "latest"
    link.symlink_to(versions[0])
    over = threading.Event()

    def turn() -> None:
        for version in itertools.cycle(versions):
            (tmp_path / "next").symlink_to(version)
            os.replace(tmp_path / "next", link)
            if over.is_set():
                return

    turning = threading.Thread(target=turn)
    turning.start()
    try:
        load = functools.partial(ez.SequenceClassifier.from_preset, link, verify=False)
        assert mixtures(loads, load) == 0
    finally:
        over.set()
        turning.join()


def test_adapters_are_of_one_version(tiny, tmp_path, replaced, loads):
    folders = [tmp_path / f"version{number}" for number in range(1, VERSIONS + 1)]
    for number, folder in enumerate(folders, 1):
        classifier = numbered(tiny, "bert", number)
        classifier.enable_lora(rank=2)
        for weight in classifier.trainable_weights:
            weight.assign(np.full(weight.shape, number, "float32"))
        classifier.save_adapters(folder)
    folder, classifier = replaced(folders), numbered(tiny, "bert", 0)

    def load() -> list[float]:
        classifier.load_adapters(folder)
        return sorted({float(v) for w in classifier.trainable_weights for v in np.unique(w)})

    assert {len(numbers) for numbers in load_until_replaced(loads, load)} == {1}


def test_a_corpus_is_of_one_version_or_says_that_it_was_replaced(tiny, tmp_path, replaced, loads):
    from encoder_zoo.encoders import get_family

    tokenizer = tiny.tokenizer(get_family("bert"))
    folders = [tmp_path / f"version{number}" for number in range(VERSIONS)]
    for letter, folder in zip("abcdefgh", folders, strict=True):
        documents = [[letter] * 20] * 3
        ez.PretrainingCorpus.from_documents(folder, documents, tokenizer, 10, verbose=0)
    folder = replaced(folders)
    expected = {corpus.sha256: corpus for corpus in map(ez.PretrainingCorpus, folders)}
    opened = refused = 0
    while opened < loads or not refused:
        assert opened < MOST_LOADS, "no shard was refused"
        opened += 1
        corpus = ez.PretrainingCorpus(folder)
        right = expected[corpus.sha256]
        for number in range(corpus.num_shards):
            try:
                tokens = corpus.shard(number).tokens
            except ValueError as error:
                assert "was replaced by another corpus since it was opened" in str(error)
                refused += 1
            else:
                np.testing.assert_array_equal(tokens, right.shard(number).tokens)


def test_a_file_that_is_written_to_while_it_is_read_is_noticed(tiny, tmp_path, monkeypatch):
    """As programs do that write a preset's files in place, one after the other."""
    from encoder_zoo.presets.formats import huggingface

    [folder, *_] = save_versions(tiny, tmp_path, "safetensors")
    read = huggingface.HuggingFaceCheckpoint.tensor

    def write_meanwhile(self, name):
        with open(folder / "config.json", "a") as file:
            file.write(" ")
        return read(self, name)

    monkeypatch.setattr(huggingface.HuggingFaceCheckpoint, "tensor", write_meanwhile)
    with pytest.raises(ValueError, match=r"config\.json was changed while it was read"):
        ez.SequenceClassifier.from_preset(folder)


@pytest.mark.slow
def test_an_export_of_two_versions_says_so(tiny, tmp_path, replaced, loads):
    """TensorFlow reads its files one after the other; no answer may be of two versions."""
    folders = [tmp_path / f"version{number}" for number in range(3)]
    for number, folder in enumerate(folders):
        rng = np.random.default_rng(number)
        classifier = numbered(tiny, "bert", 0)
        for weight in classifier.weights:
            weight.assign(0.5 * rng.normal(size=weight.shape))
        classifier.export(folder)

    def answer(folder: pathlib.Path) -> str:
        signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
        answers = signature(text=tf.constant(["a b c"]))
        return str([answers[name].numpy().tolist() for name in sorted(answers)])

    right, folder = {answer(f) for f in folders}, replaced(folders)
    assert len(right) == len(folders)
    loaded = refused = 0
    while loaded < loads // 5 or not refused:
        assert loaded < MOST_LOADS, "no load was refused"
        loaded += 1
        try:
            assert answer(folder) in right
        except (tf.errors.OpError, OSError) as error:
            refused += "was replaced while it was loaded" in str(error)
