"""The text side works without a framework: it loads neither Keras nor a backend."""

import os
import subprocess
import sys

import pytest
from paths import ROOT

FRAMEWORKS = {"keras", "tensorflow", "jax", "torch"}
OF_KERAS = {"tasks.preprocessing.array_batches"}  # a dataset of Keras
ROOMS = ["encoders/tokenizers/*.py", "encoders/tokenizers/files/*.py", "tasks/preprocessing/*.py"]
ROOMS += ["tasks/retrieval/*.py"]

SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"encoder_zoo.{name}")
print(*sys.modules.keys() & {"keras", "tensorflow", "jax", "torch"})
"""


def names(pattern: str) -> list[str]:
    found = [p.relative_to(ROOT).with_suffix("") for p in ROOT.glob(pattern)]
    parts = [".".join(p.parts).removesuffix(".__init__") for p in found]
    return sorted(set(parts) - OF_KERAS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_loads_without_a_framework(room):
    modules = names(room)
    assert len(modules) > 5
    command = [sys.executable, "-c", SCRIPT, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.split() == []


TOKENIZE = """
import sys
import encoder_zoo as ez
from encoder_zoo.common.lazy import in_numpy
with in_numpy():
    tokenizer = ez.Tokenizer.from_preset(sys.argv[1])
    print(tokenizer(["A cat sleeps."]).to_list())
assert "keras" not in sys.modules and "tensorflow" not in sys.modules
"""
