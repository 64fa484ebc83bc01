"""Paths of the weights in `.keras` files, which later releases must be able to load.

`python tests/tasks/base/test_saved_weights.py --write` adds the paths of a new family or task to
`tests/recorded/keras_weights.txt`. Without one of its lines, earlier files cannot be loaded.
Keras uses the class name for layers in a list, so renaming such a class changes its path.
"""

import pathlib
import re
import sys
import tempfile

import h5py
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.testing import tiny

RECORD = pathlib.Path(__file__).parents[2] / "recorded" / "keras_weights.txt"
TASKS = [
    *("TokenClassifier", "SpanQA", "MaskedLM", "TextEmbedder", "LateInteraction", "SparseEncoder"),
    *("Reranker", "MultipleChoice", "Pretraining", "EntityExtractor"),
]


def list_paths() -> list[str]:
    """List the paths of all families and tasks, without numbers at the end of a name."""
    models = [(family, "SequenceClassifier") for family in FAMILIES]
    models += [("bert", task) for task in TASKS] + [("electra", "ReplacedTokenDetection")]
    return sorted({path for names in models for path in _list_model_paths(*names)})


def _list_model_paths(family: str, task: str) -> set[str]:
    found = set()

    def add(name: str, value) -> None:
        if isinstance(value, h5py.Dataset):
            found.add(re.sub(r"_\d+/", "/", name))

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.weights.h5"
        tiny.task(get_family(family), getattr(ez, task)).save_weights(path)
        with h5py.File(path) as file:
            file.visititems(add)
    return found


@pytest.mark.slow(every=True)
def test_weights_have_the_paths_of_earlier_releases():
    assert list_paths() == RECORD.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("Usage: python tests/tasks/base/test_saved_weights.py --write")
    RECORD.write_text("\n".join(list_paths()) + "\n", encoding="utf-8")
