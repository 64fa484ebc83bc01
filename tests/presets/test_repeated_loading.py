"""A process that loads again and again stays as large as it was."""

import copy
import gc
import os
import pathlib
import subprocess
import sys
import weakref

import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import all_families
from encoder_zoo.presets import dropped_models

NANO = "bert_nano_en_uncased"
STATUS = pathlib.Path("/proc/self/status")
needs_proc = pytest.mark.skipif(not STATUS.exists(), reason="reads the process's size from /proc")
each_family = pytest.mark.parametrize("family", all_families(), ids=lambda family: family.name)
# One of each kind of tokenizer; the others when the slow tests run.
each_tokenizer = pytest.mark.parametrize(
    "family",
    [
        pytest.param(
            family,
            id=family.name,
            marks=[] if family.name in ("bert", "roberta") else pytest.mark.slow,
        )
        for family in all_families()
    ],
)

# Prints by how many MB the process grew, and by how many open files and threads.
MEASURE = """
import gc, os, sys
import encoder_zoo as ez

source, count, warm_up, answers = sys.argv[1], *map(int, sys.argv[2:])

def load():
    if answers:
        task = ez.SequenceClassifier.from_preset(source, num_classes=2)
        task.classify(["A fine film.", "Unbelievably dull."])
    else:
        ez.BertTokenizer.from_preset(source), ez.Backbone.from_preset(source)

def sizes():
    gc.collect()
    with open("/proc/self/status") as status:
        [kilobytes] = [line.split()[1] for line in status if line.startswith("VmRSS")]
    return int(kilobytes) / 1024, *(len(os.listdir(f"/proc/self/{n}")) for n in ("fd", "task"))

for i in range(warm_up + count):
    if i == warm_up:
        before = sizes()
    load()
    gc.collect()
print(*(after - first for after, first in zip(sizes(), before)))
"""


def growth(source: object, count: int, warm_up: int, answers: bool) -> tuple[float, float, float]:
    """By how many MB, open files and threads a fresh process grows in `count` loads."""
    arguments = [str(source), str(count), str(warm_up), str(int(answers))]
    command = [sys.executable, "-c", MEASURE, *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return tuple(map(float, done.stdout.split()[-3:]))


@needs_proc
@pytest.mark.slow
def test_loading_again_and_again_takes_no_more_memory():
    megabytes, files, threads = growth(NANO, count=10, warm_up=3, answers=False)
    assert megabytes < 7  # 16 if each load keeps its tables and what was compiled for it
    assert (files, threads) == (0, 0)


@needs_proc
@pytest.mark.slow
def test_a_hundred_loads_and_answers_add_at_most_20_mb(minilm):
    for source, count, most in ((NANO, 100, 20), (minilm, 15, 6)):
        megabytes, files, threads = growth(source, count, warm_up=5, answers=True)
        assert megabytes <= most
        assert (files, threads) == (0, 0)


@needs_proc
@pytest.mark.slow
def test_two_hundred_small_models_add_at_most_12_mb(tiny, tmp_path):
    """A thousand added 22.6 MB: less than a fortieth of a megabyte each."""
    bert = next(family for family in all_families() if family.name == "bert")
    task = tiny.task(bert, "SequenceClassifier")
    task.save_to_preset(tmp_path / "tiny")
    megabytes, files, threads = growth(tmp_path / "tiny", 200, warm_up=20, answers=False)
    assert megabytes <= 12
    assert (files, threads) == (0, 0)


@each_tokenizer
def test_a_tokenizer_is_freed_with_the_last_reference(tiny, family):
    gc.collect()
    gc.disable()
    try:
        tokenizer = copy.copy(tiny.tokenizer(family))  # made anew; the fixture keeps its own
        tokenizer.tokenize(["ab ba", "unable"])
        tokenizer.tokenize_with_offsets(["ab ba"])
        parts = [weakref.ref(part) for part in (tokenizer, *tokenizer.submodules)]
        del tokenizer
        assert [part() for part in parts] == [None] * len(parts)
    finally:
        gc.enable()


def test_dropped_models_are_freed_before_the_next_is_loaded(monkeypatch):
    size = ez.Backbone.from_preset(NANO).count_params()
    monkeypatch.setattr(dropped_models, "MOST_WEIGHTS", 2 * size)
    dropped_models._loaded.clear()
    gc.disable()
    try:
        used = ez.Backbone.from_preset(NANO)
        dropped = [weakref.ref(ez.Backbone.from_preset(NANO)) for _ in range(3)]
        assert dropped[0]() is None and dropped[1]() is None
        assert used.count_params() == size
    finally:
        gc.enable()


@each_family
def test_tensorflow_knows_the_variables_of_two_models_by_the_same_names(tiny, family):
    first, second = (tiny.task(family, "SequenceClassifier") for _ in range(2))
    names = [[variable.value.name for variable in task.variables] for task in (first, second)]
    assert names[0] == names[1]
    assert first.backbone.name != second.backbone.name
    assert first.weights[0].path != second.weights[0].path
