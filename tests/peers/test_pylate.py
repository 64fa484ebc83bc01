"""Folders of ours in PyLate, which needs an older sentence-transformers than the other tests.

`ENCODER_ZOO_PYLATE` names a Python interpreter that has it, of a virtual environment with
`pip install pylate`.
"""

import os
import subprocess

import numpy as np
import pytest
from paths import GOLDEN

import encoder_zoo as ez

PYTHON = os.environ.get("ENCODER_ZOO_PYLATE")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.eager,
    pytest.mark.skipif(not PYTHON, reason="ENCODER_ZOO_PYLATE names no Python with PyLate"),
]
TEXTS = ["the cat sat on the mat.", "a", "Good film! It was not bad, it was very good " * 2]
SCRIPT = """
import sys
import numpy as np
from pylate import models

folder, results, *texts = sys.argv[1:]
model = models.ColBERT(folder, device="cpu")
for name, is_query in (("query", True), ("document", False)):
    found = model.encode(texts, is_query=is_query)
    np.savez(f"{results}/{name}.npz", *found)
"""


@pytest.mark.parametrize("source", ["stanford", "pylate", "bert_nano_en_uncased"])
def test_what_is_saved_opens_there(source, tmp_path):
    stored = GOLDEN / "late_interaction" / source
    ours = ez.LateInteraction.from_preset(stored if stored.exists() else source)
    ours.save_to_preset(tmp_path / "ours")
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT, tmp_path / "ours", tmp_path, *TEXTS],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for prompt in ("query", "document"):
        theirs = np.load(tmp_path / f"{prompt}.npz")
        for found, name in zip(ours.embed(TEXTS, prompt), theirs, strict=True):
            np.testing.assert_allclose(found, theirs[name], atol=1e-5)
