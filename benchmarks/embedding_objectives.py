"""Evaluate different ways to train embedders: SimCSE and Matryoshka.

    python benchmarks/embedding_objectives.py simcse  # texts alone, from a bundled encoder
    python benchmarks/embedding_objectives.py squad   # shorter vectors

`simcse` trains `bert_nano_en_uncased` with mean pooling on 20,000 Wikipedia sentences. This prints
Spearman correlations on held-out STS-B pairs before and after training.

`squad` trains MiniLM on SQuAD questions for one epoch, using InfoNCE, and Matryoshka with InfoNCE.
It prints nDCG@10 on held-out questions for several embedding dimensions.

Set `ENCODER_ZOO_DATA` to the data folder.
"""

import argparse
import gzip
import random
import re

import keras
from embedding_quality import read_squad, read_stsb
from sources import DATA, MINILM, need_data

import encoder_zoo as ez

DIMS = (384, 128, 64, 32)
SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def sentences(count: int) -> list[str]:
    """Return Wikipedia sentences, using one sentence per paragraph."""
    rng = random.Random(0)
    with gzip.open(DATA / "text" / "wikipedia_train.txt.gz", "rt", encoding="utf-8") as file:
        found = [rng.choice(SENTENCE_ENDS.split(line.strip())) for line in file if len(line) > 60]
    return rng.sample(found, count)


def simcse(seed: int, limit: int | None) -> None:
    keras.utils.set_random_seed(seed)
    *_, (pairs, scores) = read_stsb()
    embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased", pooling="mean")
    before = embedder.evaluate_similarity(pairs, scores)["spearman"]
    embedder.compile(learning_rate=3e-5)
    embedder.fit(sentences(limit or 20_000), batch_size=64, verbose=0)
    after = embedder.evaluate_similarity(pairs, scores)["spearman"]
    print(f"seed {seed}: Spearman {before:.4f} -> {after:.4f}", flush=True)


def learned(loss: keras.losses.Loss, limit: int | None) -> dict[int, float]:
    """Train on SQuAD and return nDCG@10 for several dimensions."""
    pairs, _, held_out = read_squad(limit)
    embedder = ez.TextEmbedder.from_preset(MINILM)
    embedder.compile(loss=loss, learning_rate=5e-5)
    embedder.fit(pairs, batch_size=64, verbose=0)
    found = {d: embedder.evaluate_retrieval(*held_out, dim=d)["ndcg@10"] for d in DIMS}
    return {dim: round(value, 4) for dim, value in found.items()}


def squad(seed: int, limit: int | None) -> None:
    losses = ez.losses
    for name, loss in (
        ("InfoNCE", losses.InfoNCE()),
        ("Matryoshka", losses.Matryoshka(losses.InfoNCE(), dims=DIMS)),
    ):
        keras.utils.set_random_seed(seed)
        print(f"seed {seed}: {name} {learned(loss, limit)}", flush=True)


WORKS = {"simcse": simcse, "squad": squad}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="number of training pairs or sentences")
    options = parser.parse_args()
    need_data("qa", "pairs", "text")
    for seed in options.seeds:
        WORKS[options.work](seed, options.limit)


if __name__ == "__main__":
    main()
