"""The text side works without a framework: it loads neither Keras nor a backend."""

import subprocess
import sys

import pytest
from paths import ROOT

# Each with what needs Keras: a dataset, and the training of a student by its teacher.
ROOMS = {
    "encoders/tokenizers/*.py": set(),
    "encoders/tokenizers/files/*.py": set(),
    "tasks/preprocessing/*.py": {"tasks.preprocessing.array_batches"},
    "tasks/retrieval/*.py": set(),
    "extras/annotations/*.py": set(),
    "tasks/*/*_preprocessor.py": {"tasks.distillation.distillation_preprocessor"},
    "tasks/tagging/*s.py": {"tasks.tagging.entity_metrics"},
    "tasks/*/*answers.py": set(),
    "tasks/base/c*.py": set(),
    "tasks/serving/*.py": {
        f"tasks.serving.{name}" for name in ("cpu_model", "export", "export_folder", "model_files")
    },
}

SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"encoder_zoo.{name}")
print(*sys.modules.keys() & {"keras", "tensorflow", "jax", "torch"})
"""


@pytest.mark.slow(only=r"^(tasks/\*/\*answers\.py)$")
@pytest.mark.parametrize("pattern", ROOMS)
def test_a_room_loads_without_a_framework(pattern):
    paths = [path.relative_to(ROOT).with_suffix("") for path in ROOT.glob(pattern)]
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths} - ROOMS[pattern]
    assert names
    command = [sys.executable, "-c", SCRIPT, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


ENCODE = """
import sys
import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy
with use_numpy():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat"]
    preprocessor = ez.SequenceClassifierPreprocessor(ez.BertTokenizer(tokens))
    print(preprocessor(["A cat", "a"])["token_ids"].tolist())
print(*sys.modules.keys() & {"keras", "tensorflow", "jax", "torch"})
"""


def test_texts_are_encoded_without_a_framework():
    command = [sys.executable, "-c", ENCODE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[[2, 5, 6, 3], [2, 5, 3, 0]]", ""]


@pytest.mark.slow
def test_texts_are_answered_without_a_framework():
    script = ROOT / "tests" / "project" / "answering.py"
    subprocess.run([sys.executable, str(script)], check=True)
