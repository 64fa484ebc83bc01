"""Each side of a benchmark pays for itself alone, and both have like batches."""

import argparse
import importlib
import subprocess
import sys

import pytest
from paths import ROOT

pytestmark = pytest.mark.peers

BENCHMARKS = ROOT / "benchmarks"


def test_the_side_of_transformers_pays_for_no_import_of_ours():
    code = "import speed_torch, sys; print({'keras', 'tensorflow', 'encoder_zoo'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "set()\n", done.stderr


def test_their_batches_too_hold_sentences_with_like_numbers_of_tokens(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = importlib.import_module("token_classification")
    training = importlib.import_module("torch_training")
    grouped_by = []

    def no_steps(model, lengths, seed, options):
        grouped_by.append(lengths)
        return []

    monkeypatch.setattr(training, "torch_steps", no_steps)
    words, tags = [["unaffable"], ["a", "cat"]], [["O"], ["O", "O"]]
    options = argparse.Namespace(preset=benchmark.MINILM, epochs=1)
    benchmark.theirs((words, tags), {}, 0, options)
    assert grouped_by == [[5, 4]]  # [CLS] una ##ffa ##ble [SEP], [CLS] a cat [SEP]
