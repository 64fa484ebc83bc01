"""Measure what long work survives and costs: kills of trainings, and models made and dropped.

    KERAS_BACKEND=jax python benchmarks/endurance.py kills --times 20
    KERAS_BACKEND=jax python benchmarks/endurance.py memory --models 200

`kills` trains a small classifier with `BackupAndRestore` in a process that is killed at a random
moment of its training, lets another go on to the end, and compares the weights with those of a
training that nobody killed. `memory` opens, trains and asks the bundled model and drops it, again
and again, and prints the resident memory.
"""

import argparse
import gc
import json
import logging
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

TEXTS = ["a good film", "a bad film about a dog", "it was fine", "a dog"] * 16
LABELS = ["good", "bad", "fine", "dog"] * 16
MEASURED = (1, 2, 5, 10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200)  # models before them


def train(folder: pathlib.Path, name: str) -> None:
    """Train with a backup every three steps; a line for each step, and the weights at the end."""
    import keras
    import numpy as np

    import encoder_zoo as ez

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            print(f"step {batch}", flush=True)

    keras.utils.set_random_seed(7)
    classifier = ez.Classifier.from_preset(
        "bert_nano_en_uncased", labels=sorted(set(LABELS)), sequence_length=8
    )
    backup = ez.BackupAndRestore(folder / f"{name}_backup", save_freq=3)
    options = {"batch_size": 8, "epochs": 6, "verbose": 0}
    classifier.fit(TEXTS, LABELS, callbacks=[Log(), backup], **options)
    weights = [keras.ops.convert_to_numpy(weight) for weight in classifier.weights]
    np.savez(folder / f"{name}.npz", *weights)


def kills(times: int) -> None:
    """Print for each kill the step after which it came, and how far apart the weights are."""
    import numpy as np

    backend, draw, most = os.environ.get("KERAS_BACKEND", "tensorflow"), random.Random(0), 0.0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def start(name: str) -> subprocess.Popen:
            command = [sys.executable, __file__, "train", str(folder), name]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        whole = start("whole")
        steps = len(whole.communicate()[0].splitlines())
        expected = list(np.load(folder / "whole.npz").values())
        for number in range(times):
            process, after = start(f"run{number}"), draw.randrange(1, steps)
            for _ in range(after):
                process.stdout.readline()
            time.sleep(draw.random() * 0.05)  # in the middle of a step, or of a backup
            process.send_signal(signal.SIGKILL)
            process.communicate()
            again = start(f"run{number}")
            left = len(again.communicate()[0].splitlines())
            found = list(np.load(folder / f"run{number}.npz").values())
            apart = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
            most = max(most, apart)
            row = {"killed after step": after, "steps again": left, "weights apart": apart}
            print(json.dumps({"backend": backend, **row}), flush=True)
    print(json.dumps({"backend": backend, "kills": times, "weights apart at most": most}))


def memory(models: int) -> None:
    """Print the resident memory after some models, in MB."""
    import keras

    import encoder_zoo as ez

    logging.getLogger("encoder_zoo").setLevel(logging.ERROR)
    for number in range(1, models + 1):
        classifier = ez.Classifier.from_preset(
            "bert_nano_en_uncased", labels=sorted(set(LABELS)), sequence_length=8
        )
        classifier.fit(TEXTS[:8], LABELS[:8], batch_size=4, verbose=0)
        classifier.classify(TEXTS[:8])
        classifier.predict(TEXTS[:8], verbose=0)
        del classifier
        if number in MEASURED or number == models:
            gc.collect()
            pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
            megabytes = round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
            row = {"backend": keras.config.backend(), "models": number, "MB": megabytes}
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="what", required=True)
    parts.add_parser("kills").add_argument("--times", type=int, default=20)
    parts.add_parser("memory").add_argument("--models", type=int, default=200)
    of_train = parts.add_parser("train")  # a process of `kills`
    of_train.add_argument("folder", type=pathlib.Path)
    of_train.add_argument("name")
    arguments = vars(parser.parse_args())
    {"kills": kills, "memory": memory, "train": train}[arguments.pop("what")](**arguments)


if __name__ == "__main__":
    main()
