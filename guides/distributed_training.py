# %% [markdown]
"""
Title: Distributed training
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Train in two processes at once, and see that they learn what one would learn.
Accelerator: None

    python guides/distributed_training.py

Starts two workers on this machine, which share every batch, and one process that trains alone;
compares their losses step by step; measures what the second worker brings here, and reckons what
many would have to send each other. Everything is on your disk: the preset is in the package, the
review sentences (UCI "Sentiment Labelled Sentences", CC BY 4.0) are beside this file. Afterwards
`guides/output/distributed_training.png` shows both loss curves.

The program of a worker is the one that you know from `text_classification.py`, with two lines more:

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        classifier = ez.Classifier.from_preset(...)

For your own machines:

- Several GPUs in one machine: `tf.distribute.MirroredStrategy()` in that line, one process, no
  TF_CONFIG.
- Several hosts: start the same program on each, with `TF_CONFIG` in its environment, which differs
  in "index" alone:

    TF_CONFIG='{"cluster": {"worker": ["host0:12345", "host1:12345"]},
                "task": {"type": "worker", "index": 0}}' python train.py

  `batch_size` stays that of the whole: each worker reads the same texts and takes its part of every
  batch. Only worker 0 should save: `if strategy.cluster_resolver.task_id == 0`. If a worker dies,
  the others end with an error within seconds; start all of them again. With
  `fit(..., callbacks=[ez.BackupAndRestore(folder)])`, in a folder that all hosts share, they go on
  where they were.
- TPUs: programs of fixed shape, so give `from_preset` a `sequence_length`, and

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)

- JAX: `keras.distribution.set_distribution(keras.distribution.DataParallel())` before
  `from_preset`; in several processes or hosts `keras.distribution.initialize("host0:1234",
  num_processes=2, process_id=0)` before it.
"""

# %%
import argparse
import contextlib
import csv
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
LABELS = ["negative", "positive"]
BATCH_SIZE = 32
# For the reckoning: millions of weights.
MODELS = {"nano": 1.5, "base": 110, "large": 335}


def read_sentences() -> tuple[list[str], list[str]]:
    """Sentences and the names of their labels, shuffled."""
    with open(HERE / "data" / "sentiment_sentences.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    random.Random(0).shuffle(rows)
    return [row["sentence"] for row in rows], [LABELS[int(row["label"])] for row in rows]


def train(role: str, options: argparse.Namespace) -> None:
    """Train in one process; `role` is "alone", or the number of a worker."""
    import keras
    import tensorflow as tf

    import encoder_zoo as ez

    # A core for each process, as if it were a machine: else one process would take both.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    scope = contextlib.nullcontext()
    if role != "alone":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG
        scope = strategy.scope()

    class Clock(keras.callbacks.Callback):
        """The loss of every step, and when it was done."""

        losses, times = [], []

        def on_train_batch_end(self, batch, logs=None):
            self.losses.append(float(logs["loss"]))
            self.times.append(time.perf_counter())

    keras.utils.set_random_seed(0)
    texts, labels = read_sentences()
    with scope:
        # Without dropout, whose random numbers differ from process to process, so that the
        # losses can be compared.
        classifier = ez.Classifier.from_preset(
            options.preset, labels=LABELS, dropout=0.0, attention_dropout=0.0
        )
        classifier.compile(learning_rate=3e-4)
    clock = Clock()
    classifier.fit(
        texts[: options.limit],
        labels[: options.limit],
        validation_data=(texts[-300:], labels[-300:]),
        epochs=options.epochs,
        batch_size=BATCH_SIZE,
        callbacks=[clock],
        verbose=0,
    )
    held_out = classifier.evaluate(texts[-300:], labels[-300:], verbose=0, return_dict=True)
    if role in ("alone", "0"):
        # The steps of the first epoch after the first ten, in which programs are made.
        steps = -(-options.limit // BATCH_SIZE)
        seconds = clock.times[steps - 1] - clock.times[9]
        result = {"losses": clock.losses, "held_out": held_out, "step": seconds / (steps - 10)}
        (OUTPUT / f"distributed_{role}.json").write_text(json.dumps(result))


def start(role: str, arguments: list[str], **environment: str) -> subprocess.Popen:
    """This file again, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, __file__, *arguments, "--role", role],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )


def free_addresses(count: int) -> list[str]:
    """Return free ports of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]


def wait_for(processes: list[subprocess.Popen]) -> None:
    """Ends the program if one of the processes failed, and the others with it."""
    try:
        if any(process.wait(timeout=600) for process in processes):
            sys.exit("A process failed: see above.")
    finally:
        for process in processes:
            process.kill()


def draw(alone: list[float], together: list[float], path: pathlib.Path) -> None:
    """Both loss curves, one over the other."""
    import matplotlib

    matplotlib.use("Agg")  # draws into a file, no screen needed
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(alone, color="#9aa5b1", linewidth=5, label="one process")
    axes.plot(together, color="#1f6feb", linewidth=1.5, label="two workers")
    axes.set(title="Loss, mean of the epoch so far", xlabel="step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def reckon() -> None:
    """Print the data that each accelerator sends in every step, as computed on paper."""
    print("\nOn paper: megabytes that each of n accelerators sends in a step, float32 gradients,")
    print("ring all-reduce: 2 (n - 1) / n times 4 bytes for each weight")
    counts = (2, 8, 64, 256)
    print("   ", "".join(f"{f'n={n}':>10}" for n in counts), f"{'at 25 GB/s, n=256':>22}")
    for name, millions in MODELS.items():
        sent = [2 * (n - 1) / n * 4 * millions for n in counts]
        row = "".join(f"{megabytes:>10,.0f}" for megabytes in sent)
        print(f"{name:>6}{row} {sent[-1] / 25:>18.1f} ms")
    # Token ids and segments are int32, the mask is a byte: 9 bytes for each token.
    for n in (2, 256):
        print(
            f"input, 32 rows of 128 tokens for each of {n}: {n * 32 * 128 * 9 / 1e6:.1f} MB a step"
        )
    print("Every worker reads and pads the whole batch and keeps its part: texts are tokenized")
    print("once, before. The volume of gradients hardly grows with n, that of the input does.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train in two processes at once, and see that they learn what one would learn."
    )
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=1203, help="train on so many sentences")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    OUTPUT.mkdir(exist_ok=True)
    if options.role:
        return train(options.role, options)

    # One process; then two, which find each other through TF_CONFIG.
    arguments = sys.argv[1:]
    print("one process ...", flush=True)
    wait_for([start("alone", arguments)])
    print("two workers ...", flush=True)
    cluster = {"worker": free_addresses(2)}
    tasks = [{"type": "worker", "index": i} for i in range(2)]
    configs = [json.dumps({"cluster": cluster, "task": task}) for task in tasks]
    wait_for([start(str(i), arguments, TF_CONFIG=config) for i, config in enumerate(configs)])

    alone, together = (
        json.loads((OUTPUT / f"distributed_{role}.json").read_text()) for role in ("alone", "0")
    )
    pairs = list(zip(alone["losses"], together["losses"], strict=True))
    print(f"\n{len(pairs)} steps, {options.limit} sentences, {BATCH_SIZE} in a batch")
    print("step   one process   two workers")
    for step in [*range(0, len(pairs) - 1, len(pairs) // 5), len(pairs) - 1]:
        print(f"{step:4}   {pairs[step][0]:11.6f}   {pairs[step][1]:11.6f}")
    print(f"largest difference of the losses: {max(abs(a - b) for a, b in pairs):.1e}")
    print(f"held out: {alone['held_out']} and {together['held_out']}")

    # Two cores of one machine: the workers share its memory, and talk through TCP.
    print("\nMeasured here, one thread for each process:")
    for name, result in {"one process": alone, "two workers": together}.items():
        rate = BATCH_SIZE / result["step"]
        print(f"{name}: {1000 * result['step']:.0f} ms a step, {rate:.0f} sentences/s")
    print(f"speed of two: {alone['step'] / together['step']:.2f} times that of one")
    reckon()
    draw(alone["losses"], together["losses"], OUTPUT / "distributed_training.png")
    print(f"\nPicture: {OUTPUT / 'distributed_training.png'}")


if __name__ == "__main__":
    main()
