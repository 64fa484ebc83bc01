"""A folder that another process replaces again and again, read meanwhile: one version or none."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import encoder_zoo as ez

VERSIONS = 8
# Replaces a folder by its versions in turn, until it is killed.
WRITER = """
import itertools, pathlib, shutil, sys
from encoder_zoo.presets.files.atomic import replacing

target, *versions = map(pathlib.Path, sys.argv[1:])
for version in itertools.cycle(versions):
    with replacing(target) as new:
        shutil.copytree(version, new, dirs_exist_ok=True)
    print(version.name, flush=True)
"""


@pytest.fixture
def loads(slow_too):
    """How many times each format is loaded."""
    return 300 if slow_too else 20


@pytest.fixture
def replaced(tmp_path):
    """`replaced(folders)`: a folder that a process replaces by copies of these, in turn."""
    processes = []

    def start(folders) -> pathlib.Path:
        target = tmp_path / "latest"
        command = [sys.executable, "-c", WRITER, str(target), *map(str, folders)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        processes[-1].stdout.readline()  # the first version is there
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
    classifier = tiny.task(family, "SequenceClassifier", activation="gelu_pytorch_tanh")
    for weight in classifier.weights:
        weight.assign(np.full(weight.shape, number, "float32"))
    return classifier


def held(model) -> list[float]:
    """The different numbers in a model's weights."""
    return sorted({float(v) for weight in model.weights for v in np.unique(weight)})


def test_numbers_tell_versions_apart(tiny):
    assert held(numbered(tiny, "bert", 3)) == [3.0]


def save_versions(tiny, folder: pathlib.Path, family: str, **options) -> list[pathlib.Path]:
    folders = [folder / f"version{number}" for number in range(1, VERSIONS + 1)]
    for number, version in enumerate(folders, 1):
        numbered(tiny, family, number).save_to_preset(version, **options)
    return folders


FORMATS = {
    "safetensors": {},
    "shards": {"shard_bytes": 1000},
    "keras_hub": {"format": "keras_hub"},
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_every_load_is_of_one_version(tiny, tmp_path, replaced, loads, format, verify):
    folder = replaced(save_versions(tiny, tmp_path, "bert", **FORMATS[format]))
    seen = [held(ez.SequenceClassifier.from_preset(folder, verify=verify)) for _ in range(loads)]
    mixtures = [numbers for numbers in seen if len(numbers) > 1]
    assert not mixtures
    assert len({numbers[0] for numbers in seen}) > 1  # it was replaced
