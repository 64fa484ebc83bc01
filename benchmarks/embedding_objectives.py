"""Figures of ways to train embedders: SimCSE, Matryoshka, and the order of batches.

    python benchmarks/embedding_objectives.py simcse        # texts alone, from a bundled encoder
    python benchmarks/embedding_objectives.py matryoshka    # shorter vectors
    python benchmarks/embedding_objectives.py batches       # of like lengths, or in random order

`simcse`: Spearman's correlation on STS-B's held-out pairs of `bert_nano_en_uncased` with the mean
of its tokens, before and after 20,000 sentences of Wikipedia. `matryoshka` and `batches`: nDCG@10
of SQuAD's held-out questions after one epoch of MiniLM on the others, see
benchmarks/embedding_quality.py. `ENCODER_ZOO_DATA` names the folder of the data.
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
    """Return sentences of Wikipedia, one of each paragraph."""
    rng = random.Random(0)
    with gzip.open(DATA / "text" / "wikipedia_train.txt.gz", "rt", encoding="utf-8") as file:
        found = [rng.choice(SENTENCE_ENDS.split(line.strip())) for line in file if len(line) > 60]
    return rng.sample(found, count)


def simcse(seed: int, limit: int | None) -> None:
    *_, (pairs, scores) = read_stsb()
    embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased", pooling="mean")
    before = embedder.evaluate_similarity(pairs, scores)["spearman"]
    embedder.compile(learning_rate=3e-5)
    embedder.fit(sentences(limit or 20_000), batch_size=64, verbose=2)
    after = embedder.evaluate_similarity(pairs, scores)["spearman"]
    print(f"seed {seed}: Spearman {before:.4f} -> {after:.4f}", flush=True)


def trained(
    loss: keras.losses.Loss, limit: int | None, group_lengths: bool = True
) -> dict[int, float]:
    """Return nDCG@10 at several widths, after training on SQuAD."""
    pairs, _, held_out = read_squad(limit)
    embedder = ez.TextEmbedder.from_preset(MINILM)
    embedder.group_lengths = group_lengths
    embedder.compile(loss=loss, learning_rate=5e-5)
    embedder.fit(pairs, batch_size=64, verbose=2)
    return {dim: embedder.evaluate_retrieval(*held_out, dim=dim)["ndcg@10"] for dim in DIMS}


def matryoshka(seed: int, limit: int | None) -> None:
    for name, loss in (
        ("InfoNCE", ez.losses.InfoNCE()),
        ("Matryoshka", ez.losses.Matryoshka(ez.losses.InfoNCE(), dims=DIMS)),
    ):
        print(f"seed {seed}: {name} {trained(loss, limit)}", flush=True)


def batches(seed: int, limit: int | None) -> None:
    for name, group_lengths in (("of like lengths", True), ("in random order", False)):
        found = trained(ez.losses.InfoNCE(), limit, group_lengths)
        print(f"seed {seed}: {name} {found[DIMS[0]]:.4f}", flush=True)


WORKS = {"simcse": simcse, "matryoshka": matryoshka, "batches": batches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="pairs of SQuAD, or sentences, to learn from")
    options = parser.parse_args()
    need_data("qa", "pairs", "text")
    for seed in options.seeds:
        keras.utils.set_random_seed(seed)
        WORKS[options.work](seed, options.limit)


if __name__ == "__main__":
    main()
