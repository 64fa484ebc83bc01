"""Evaluate classification with few training examples on BANKING77 and CLINC150.

    python benchmarks/few_shot.py --examples 8 --intents 20 --seeds 0 1 2

This prints accuracy on held-out texts after training all-MiniLM-L6-v2 on 8 examples for each of 20
intents:

- `head`: logistic regression on vectors, without training the encoder
- `few-shot`: `FewShotClassifier`, which trains the encoder on pairs of examples first
- `fine-tuned`: `SequenceClassifier`, fine-tuned on the same examples

Several values can be passed to `--examples`. For BANKING77 the maximum is 35, because its rarest
intent only has 35 examples. For CLINC150 the maximum is 50. Intents and examples are sampled for
each seed. Up to 1,000 texts with these intents are held out. Use `--intents 0` to include all
intents. Set `ENCODER_ZOO_DATA` to the data folder.
"""

import argparse
import csv
import itertools
import json
import time

import keras
import numpy as np
from sources import DATA, MINILM, need_data

import encoder_zoo as ez

MAX_HELD_OUT = 1000
Rows = list[tuple[str, str]]  # (text, intent)


def banking77() -> tuple[Rows, Rows]:
    folder, parts = DATA / "classification" / "banking77", []
    for name in ("train", "test"):
        with open(folder / f"{name}.csv", encoding="utf-8", newline="") as file:
            parts.append([(row["text"], row["category"]) for row in csv.DictReader(file)])
    return parts[0], parts[1]


def clinc150() -> tuple[Rows, Rows]:
    path = DATA / "classification" / "clinc150" / "data_small.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    return [tuple(row) for row in data["train"]], [tuple(row) for row in data["test"]]


SETS = {"BANKING77": banking77, "CLINC150": clinc150}


def draw(
    train: Rows, test: Rows, examples: int, intents: int, rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """Sample intents. Return examples for each intent, and held-out texts."""
    names = sorted({intent for _, intent in train})
    chosen = {*(rng.choice(names, intents, replace=False) if intents else names)}
    few = []
    for name in sorted(chosen):
        of_intent = [row for row in train if row[1] == name]
        few += [of_intent[i] for i in rng.choice(len(of_intent), examples, replace=False)]
    held_out = [row for row in test if row[1] in chosen]
    count = min(MAX_HELD_OUT, len(held_out))
    return few, [held_out[i] for i in rng.choice(len(held_out), count, replace=False)]


def columns(rows: Rows) -> tuple[list[str], list[str]]:
    texts, intents = zip(*rows, strict=True)
    return list(texts), list(intents)


def head(few: Rows, held_out: Rows, options: argparse.Namespace) -> float:
    return _few_shot(few, held_out, epochs=0)


def few_shot(few: Rows, held_out: Rows, options: argparse.Namespace) -> float:
    return _few_shot(few, held_out, epochs=1, pairs_per_text=options.pairs)


def _few_shot(few: Rows, held_out: Rows, **settings: int) -> float:
    classifier = ez.FewShotClassifier.from_preset(MINILM)
    classifier.fit(*columns(few), verbose=0, **settings)
    return classifier.evaluate(*columns(held_out))["accuracy"]


def fine_tuned(few: Rows, held_out: Rows, options: argparse.Namespace) -> float:
    labels = sorted({intent for _, intent in few})
    classifier = ez.SequenceClassifier.from_preset(MINILM, labels=labels)
    classifier.compile(learning_rate=1e-4)
    classifier.fit(*columns(few), epochs=options.epochs, batch_size=16, verbose=0)
    results = classifier.evaluate(*columns(held_out), verbose=0, return_dict=True)
    return results["accuracy"]


WAYS = {"head": head, "few-shot": few_shot, "fine-tuned": fine_tuned}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--examples", type=int, nargs="+", default=[8], help="examples per intent")
    parser.add_argument("--intents", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of each kind per text")
    parser.add_argument("--epochs", type=int, default=20, help="fine-tuning epochs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    need_data("classification")
    for examples, seed, name in itertools.product(options.examples, options.seeds, options.sets):
        rng = np.random.default_rng(seed)
        rows = draw(*SETS[name](), examples, options.intents, rng)
        for way in options.ways:
            keras.utils.set_random_seed(seed)
            start = time.process_time()
            accuracy = WAYS[way](*rows, options)
            seconds = time.process_time() - start
            run = f"{name}, {examples} examples, seed {seed}, {way}"
            print(f"{run}: {accuracy:.3f}, {seconds:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
