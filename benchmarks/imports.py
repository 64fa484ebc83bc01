"""Measure memory and CPU time from process start to the first prediction, step by step.

    KERAS_BACKEND=torch python benchmarks/imports.py
    KERAS_BACKEND=torch python benchmarks/imports.py --first pandas sklearn matplotlib.pyplot jax
    python benchmarks/imports.py --pipeline

Keras imports some packages simply because they are installed. To show how much memory and time each
of them adds, use `--first` to import them before Keras. Times are CPU seconds over all threads.
Memory is read from Linux. Use `--pipeline` to measure a text-classification pipeline in
transformers on torch.
"""

import argparse
import importlib
import os
import pathlib
import time

from sources import MINILM

FRAMEWORKS = {"torch": "torch", "jax": "jax", "tensorflow": "tensorflow"}  # {backend: module}
TEXT = "A good film."


def report(step: str) -> None:
    """Print a table row."""
    status = pathlib.Path("/proc/self/status").read_text()
    [memory] = [line.split()[1] for line in status.split("\n") if line.startswith("VmRSS:")]
    print(f"| {step} | {int(memory) / 1024:.0f} MB | {time.process_time():.1f} s |", flush=True)


def ours(first: list[str]) -> None:
    """Import this package and run a classifier with a random head."""
    for name in (FRAMEWORKS[os.environ.get("KERAS_BACKEND", "tensorflow")], *first, "keras"):
        importlib.import_module(name)
        report(f"`import {name}`")
    from encoder_zoo import SequenceClassifier

    report("the classes of this package are imported")
    model = SequenceClassifier.from_preset(MINILM, num_classes=2)
    report("the model is loaded")
    model.classify(TEXT)
    report("the first answer")


def pipeline() -> None:
    """Import transformers and run a text-classification pipeline."""
    import transformers

    transformers.pipeline("text-classification", model=str(MINILM))(TEXT)
    report("the first answer of transformers' pipeline")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", nargs="+", default=[], help="modules to import before Keras")
    parser.add_argument("--pipeline", action="store_true")
    options = parser.parse_args()
    print("| until | memory | processor |\n|---|---|---|")
    pipeline() if options.pipeline else ours(options.first)


if __name__ == "__main__":
    main()
