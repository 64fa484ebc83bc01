"""A folder that another process replaces again and again, read meanwhile: one version or none."""

import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
import tensorflow as tf
import torch
from safetensors.numpy import load_file

import encoder_zoo as ez
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder

T = TypeVar("T")
VERSIONS = 8
MAX_OPENINGS = 50_000  # so that a writer that hangs is noticed
# Replaces a folder by its versions in turn, until it is killed; says when it has begun.
WRITER = """
import itertools, pathlib, shutil, sys
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
from encoder_zoo.presets.files.manifest import write_manifest

target, *versions = map(pathlib.Path, sys.argv[1:])
for i, version in enumerate(itertools.cycle(versions)):
    with replace_folder(target, FolderKind("a copy", bool, "copied.json")) as new:
        shutil.copytree(version, new, dirs_exist_ok=True)
        write_manifest(new, {}, "copied.json")
    if i == 0:
        print("begun", flush=True)
"""


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


BEFORE_FILES: list[Callable[[], None]] = []  # what is called before a file is opened


@functools.cache
def watch_files() -> None:
    """Has Python tell of each file that it opens and each folder that it lists, from now on."""

    def tell(event: str, _) -> None:
        if event in ("open", "os.listdir") and BEFORE_FILES:
            BEFORE_FILES[-1]()

    sys.addaudithook(tell)


def results_with(change: Callable[[], None], load: Callable[[], T]) -> list[T]:
    """Loads again and again: the first result with a change before the first file is opened, the
    second with one before the second file, until a load opens no more files."""
    watch_files()
    load()  # opens what Python imports
    results, changed = [], True
    while changed:
        changed, left = False, len(results)

        def count_down() -> None:
            nonlocal left, changed
            if left == 0:
                changed = True
                hidden = BEFORE_FILES.pop()
                change()
                BEFORE_FILES.append(hidden)
            left -= 1

        BEFORE_FILES.append(count_down)
        try:
            results.append(load())
        finally:
            BEFORE_FILES.clear()
    return results


def replacing_by(folders: list[pathlib.Path]) -> tuple[pathlib.Path, Callable[[], None]]:
    """A folder with the first version, and what replaces it by a copy of the next, again and again.

    The old version is deleted.
    """
    target, turn = folders[0].with_name("latest"), itertools.cycle(folders)

    def change() -> None:
        with replace_folder(target, FolderKind("a copy", bool, "copied.json")) as new:
            shutil.copytree(next(turn), new, dirs_exist_ok=True)
            write_manifest(new, {}, "copied.json")

    change()
    return target, change


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


@pytest.mark.slow
@pytest.mark.matrix
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
        assert opened < MAX_OPENINGS, "the folder was never replaced"
        opened += 1
        with OpenFolder(folder, ["*.txt"]) as files:
            seen.add("".join(files.read_text(f"{i}.txt") for i in range(8)))
    assert seen <= {str(number) * 8 for number in range(VERSIONS)}


@pytest.mark.slow
@pytest.mark.parametrize("verify", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "format",
    [
        name
        if name in ("safetensors", "PyTorch", "TensorFlow 1")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in FORMATS
    ],
)
def test_every_load_of_a_preset_is_of_one_version(tiny, tmp_path, format, verify):
    folder, change = replacing_by(save_versions(tiny, tmp_path, format))
    load = functools.partial(ez.SequenceClassifier.from_preset, folder, verify=verify)
    found = results_with(change, lambda: held(load()))
    assert {len(numbers) for numbers in found} == {1}
    assert len({tuple(numbers) for numbers in found}) > 1, "the folder was never replaced"


@pytest.mark.slow
def test_a_link_that_leads_to_another_version_each_time(tiny, tmp_path):
    """As a directory of releases has it: `latest` is a link, and a new one takes its place."""
    versions, link = save_versions(tiny, tmp_path, "safetensors"), tmp_path / "latest"
    turn = itertools.cycle(versions)

    def change() -> None:
        (tmp_path / "next").symlink_to(next(turn))
        os.replace(tmp_path / "next", link)

    change()
    load = functools.partial(ez.SequenceClassifier.from_preset, link, verify=False)
    assert {len(numbers) for numbers in results_with(change, lambda: held(load()))} == {1}


@pytest.mark.slow
def test_adapters_are_of_one_version(tiny, tmp_path):
    folders = [tmp_path / f"version{number}" for number in range(1, VERSIONS + 1)]
    for number, folder in enumerate(folders, 1):
        classifier = numbered(tiny, "bert", number)
        classifier.enable_lora(rank=2)
        for weight in classifier.trainable_weights:
            weight.assign(np.full(weight.shape, number, "float32"))
        classifier.save_adapters(folder)
    (folder, change), classifier = replacing_by(folders), numbered(tiny, "bert", 0)

    def load() -> list[float]:
        classifier.load_adapters(folder)
        return sorted({float(v) for w in classifier.trainable_weights for v in np.unique(w)})

    assert {len(numbers) for numbers in results_with(change, load)} == {1}


@pytest.mark.slow
def test_a_corpus_is_of_one_version_or_says_that_it_was_replaced(tiny, tmp_path):
    from encoder_zoo.encoders import get_family

    tokenizer = tiny.tokenizer(get_family("bert"))
    folders = [tmp_path / f"version{number}" for number in range(VERSIONS)]
    for letter, folder in zip("abcdefgh", folders, strict=True):
        documents = [[letter] * 20] * 3
        ez.PretrainingCorpus.from_documents(folder, documents, tokenizer, 10, verbose=0)
    folder, change = replacing_by(folders)
    expected = {corpus.sha256: corpus for corpus in map(ez.PretrainingCorpus, folders)}

    def read() -> int:
        """The number of shards that were refused."""
        corpus = ez.PretrainingCorpus(folder)
        right, refused = expected[corpus.sha256], 0
        for number in range(corpus.num_shards):
            try:
                tokens = corpus.open_shard(number).tokens
            except ValueError as error:
                assert "replaced" in str(error)
                refused += 1
            else:
                np.testing.assert_array_equal(tokens, right.open_shard(number).tokens)
        return refused

    assert {0, 1} <= set(results_with(change, read))


@pytest.mark.slow
def test_a_file_that_is_written_to_while_it_is_read_is_noticed(tiny, tmp_path, monkeypatch):
    """As programs do that write a preset's files in place, one after the other."""
    from encoder_zoo.presets.formats import huggingface

    [folder, *_] = save_versions(tiny, tmp_path, "safetensors")
    read = huggingface.HuggingFaceCheckpoint.read_tensor

    def write_meanwhile(self, name):
        with open(folder / "config.json", "a") as file:
            file.write(" ")
        return read(self, name)

    monkeypatch.setattr(huggingface.HuggingFaceCheckpoint, "read_tensor", write_meanwhile)
    with pytest.raises(ValueError, match=r"config\.json was changed"):
        ez.SequenceClassifier.from_preset(folder)


@pytest.mark.matrix
@pytest.mark.slow
def test_an_export_of_two_versions_says_so(tiny, tmp_path, replaced):
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
    while loaded < 20 or not refused:
        assert loaded < MAX_OPENINGS, "no load was refused"
        loaded += 1
        try:
            assert answer(folder) in right
        except (tf.errors.OpError, OSError) as error:
            refused += "replaced" in str(error)


def test_a_file_that_may_not_be_read_is_named_with_its_folder(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(PermissionError) as caught:
        OpenFolder(tmp_path, ["*.json"])
    assert caught.value.filename == str(path)
