"""Figures of ways to train embedders: SimCSE, Matryoshka, and the order of batches.

    python benchmarks/embedding_objectives.py simcse  # texts alone, from a bundled encoder
    python benchmarks/embedding_objectives.py squad   # shorter vectors, batches in two orders

`simcse`: Spearman's correlation on STS-B's held-out pairs of `bert_nano_en_uncased` with the mean
of its tokens, before and after 20,000 sentences of Wikipedia. `squad`: nDCG@10 of SQuAD's held-out
questions at several widths after one epoch of MiniLM on the others, by InfoNCE with batches of like
lengths and in random order, and by Matryoshka around it. `ENCODER_ZOO_DATA` names the folder of the
data.
"""

import argparse
import dataclasses
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
    """Return sentences of Wikipedia, one of each paragraph."""
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


def learned(loss: keras.losses.Loss, limit: int | None, group_lengths: bool) -> dict[int, float]:
    """Return nDCG@10 at several widths, after training on SQuAD."""
    pairs, _, held_out = read_squad(limit)
    embedder = ez.TextEmbedder.from_preset(MINILM)
    embedder.record = dataclasses.replace(embedder.record, group_lengths=group_lengths)
    embedder.compile(loss=loss, learning_rate=5e-5)
    embedder.fit(pairs, batch_size=64, verbose=0)
    found = {d: embedder.evaluate_retrieval(*held_out, dim=d)["ndcg@10"] for d in DIMS}
    return {dim: round(value, 4) for dim, value in found.items()}


def squad(seed: int, limit: int | None) -> None:
    losses = ez.losses
    for name, loss, group_lengths in (
        ("InfoNCE", losses.InfoNCE(), True),
        ("InfoNCE, batches in random order", losses.InfoNCE(), False),
        ("Matryoshka", losses.Matryoshka(losses.InfoNCE(), dims=DIMS), True),
    ):
        keras.utils.set_random_seed(seed)
        print(f"seed {seed}: {name} {learned(loss, limit, group_lengths)}", flush=True)


WORKS = {"simcse": simcse, "squad": squad}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="pairs of SQuAD, or sentences, to learn from")
    options = parser.parse_args()
    need_data("qa", "pairs", "text")
    for seed in options.seeds:
        WORKS[options.work](seed, options.limit)


if __name__ == "__main__":
    main()
