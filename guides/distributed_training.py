# %% [markdown]
"""
Title: Distributed training
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Train in two processes, and compare the losses with training in one process.
Accelerator: None

    python guides/distributed_training.py

This guide starts two workers on this machine, which share every batch, and one process that trains
by itself. It compares the losses after each step, measures how much faster two workers are on this
machine, and estimates how much data would be sent between many devices. All required data is
included: the preset is in the package, and the review sentences (UCI "Sentiment Labelled
Sentences", CC BY 4.0) are in this folder. Both loss curves are saved to
`guides/output/distributed_training.png`.

The program for a worker is the same as in `text_classification.py`, with two additional lines:

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        classifier = ez.Classifier.from_preset(...)

To run this on your machines:

- Several GPUs in one machine: use `tf.distribute.MirroredStrategy()` in the first line. Only one
  process is needed, without TF_CONFIG.
- Several hosts: start the same program on each host and set `TF_CONFIG` in its environment. Only
  "index" must be different:

    TF_CONFIG='{"cluster": {"worker": ["host0:12345", "host1:12345"]},
                "task": {"type": "worker", "index": 0}}' python train.py

  `batch_size` is the total size for all workers. Each worker reads the same texts and uses a part
  of every batch. Only worker 0 should save the model: `if strategy.cluster_resolver.task_id == 0`.
  If a worker fails, all other workers raise an error within seconds. To continue, start all workers
  again with `fit(..., callbacks=[ez.BackupAndRestore(folder)])`, where the folder must be shared by
  all hosts.
- TPUs: programs need a fixed shape, so pass `sequence_length` to `from_preset`, and use

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)

- JAX: call `keras.distribution.set_distribution(keras.distribution.DataParallel())` before
  `from_preset`. For several processes or hosts, first call
  `keras.distribution.initialize("host0:1234", num_processes=2, process_id=0)`.
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
# Model sizes for the estimate, in millions of weights.
MODELS = {"nano": 1.5, "base": 110, "large": 335}


def read_sentences() -> tuple[list[str], list[str]]:
    """Return shuffled sentences and the names of their labels."""
    with open(HERE / "data" / "sentiment_sentences.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    random.Random(0).shuffle(rows)
    return [row["sentence"] for row in rows], [LABELS[int(row["label"])] for row in rows]


def train(role: str, options: argparse.Namespace) -> None:
    """Train in one process. `role` is "alone" or a worker index."""
    import keras
    import tensorflow as tf

    import encoder_zoo as ez

    # Use one core per process to simulate a machine. Otherwise, one process would use both cores.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    scope = contextlib.nullcontext()
    if role != "alone":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG
        scope = strategy.scope()

    class Clock(keras.callbacks.Callback):
        """Record the loss and the time after every step."""

        losses, times = [], []

        def on_train_batch_end(self, batch, logs=None):
            self.losses.append(float(logs["loss"]))
            self.times.append(time.perf_counter())

    keras.utils.set_random_seed(0)
    texts, labels = read_sentences()
    with scope:
        # Dropout is disabled to compare the losses, because its random numbers are different in
        # each process.
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
        # Skip the first ten steps of the first epoch, because programs are compiled in these steps.
        steps = -(-options.limit // BATCH_SIZE)
        seconds = clock.times[steps - 1] - clock.times[9]
        result = {"losses": clock.losses, "held_out": held_out, "step": seconds / (steps - 10)}
        (OUTPUT / f"distributed_{role}.json").write_text(json.dumps(result))


def start(role: str, arguments: list[str], **environment: str) -> subprocess.Popen:
    """Run this file in a separate process."""
    return subprocess.Popen(
        [sys.executable, __file__, *arguments, "--role", role],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )


def free_addresses(count: int) -> list[str]:
    """Return free ports on this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]


def wait_for(processes: list[subprocess.Popen]) -> None:
    """Wait for all processes. If one of them fails, stop the others and exit."""
    try:
        if any(process.wait(timeout=600) for process in processes):
            sys.exit("A process failed: see above.")
    finally:
        for process in processes:
            process.kill()


def draw(alone: list[float], together: list[float], path: pathlib.Path) -> None:
    """Plot both loss curves in one figure."""
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


def print_estimate() -> None:
    """Print an estimate of the data that each device sends in every step."""
    print("\nEstimate: megabytes sent per step by each of n accelerators, with float32 gradients")
    print("and a ring all-reduce: 2 (n - 1) / n times 4 bytes per weight")
    counts = (2, 8, 64, 256)
    print("   ", "".join(f"{f'n={n}':>10}" for n in counts), f"{'at 25 GB/s, n=256':>22}")
    for name, millions in MODELS.items():
        sent = [2 * (n - 1) / n * 4 * millions for n in counts]
        row = "".join(f"{megabytes:>10,.0f}" for megabytes in sent)
        print(f"{name:>6}{row} {sent[-1] / 25:>18.1f} ms")
    # Token ids and segments are int32, and the mask is one byte, so each token takes 9 bytes.
    for n in (2, 256):
        print(
            f"input, 32 rows of 128 tokens for each of {n}: {n * 32 * 128 * 9 / 1e6:.1f} MB a step"
        )
    print("Texts are tokenized once, before training. Every worker pads the whole batch and uses a")
    print("part of it. The gradients hardly grow with n, but the inputs do.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train in two processes at once, and see that they learn what one would learn."
    )
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=1203, help="number of training sentences")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    OUTPUT.mkdir(exist_ok=True)
    if options.role:
        return train(options.role, options)

    # Start one process, and then two workers, which find each other through TF_CONFIG.
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
    print(f"\n{len(pairs)} steps, {options.limit} sentences, batches of {BATCH_SIZE}")
    print("step   one process   two workers")
    for step in [*range(0, len(pairs) - 1, len(pairs) // 5), len(pairs) - 1]:
        print(f"{step:4}   {pairs[step][0]:11.6f}   {pairs[step][1]:11.6f}")
    print(f"largest difference of the losses: {max(abs(a - b) for a, b in pairs):.1e}")
    print(f"held out: {alone['held_out']} and {together['held_out']}")

    # Both workers run on two cores of the same machine and communicate through TCP.
    print("\nMeasured on this machine, with one thread per process:")
    for name, result in {"one process": alone, "two workers": together}.items():
        rate = BATCH_SIZE / result["step"]
        print(f"{name}: {1000 * result['step']:.0f} ms per step, {rate:.0f} sentences/s")
    print(f"two workers are {alone['step'] / together['step']:.2f} times as fast as one process")
    print_estimate()
    draw(alone["losses"], together["losses"], OUTPUT / "distributed_training.png")
    print(f"\nPicture: {OUTPUT / 'distributed_training.png'}")


if __name__ == "__main__":
    main()
