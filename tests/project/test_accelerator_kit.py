"""The kit for accelerators, at a tiny size on the CPU."""

import json
import subprocess
import sys

import pytest
from paths import ROOT


@pytest.mark.slow
def test_the_kit_measures_training_and_forward_passes_without_tensorflow(tmp_path):
    pytest.importorskip("jax")
    file = tmp_path / "results.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "accelerator.py"), "--tiny"]
    command += ["--models", "BERT-base", "--sides", "encoder_zoo on JAX", "encoder_zoo on torch"]
    command += ["--peak", "0.1", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and "TensorFlow" not in done.stderr, done.stderr
    rows = json.loads(file.read_text())
    assert [(row["length"], row["work"]) for row in rows] == 2 * [
        (length, work) for length in (16, 32) for work in ("forward", "train")
    ]
    assert all(row["tokens_per_second"] > 0 and row["share_of_peak"] > 0 for row in rows), rows
    assert done.stdout.count("| BERT-base |") == len(rows)
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)  # all is there
    assert again.stdout == done.stdout and json.loads(file.read_text()) == rows
