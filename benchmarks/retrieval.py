"""Evaluate search with BM25, vectors, late interaction and SPLADE, with and without reranking.

    python benchmarks/retrieval.py --seeds 0 1 2 --limit 1280

Except for BM25, each system is a MiniLM model trained on SQuAD questions and paragraphs, both with
this package and with sentence-transformers. The recipe is described in retrieval_sides.py. For each
system, this prints nDCG@10 for 1,334 held-out SQuAD questions and 305 paragraphs, nDCG@10 after
reranking the first 50 results with late interaction (trained on the same side with the same seed),
and training pairs per second. For this package, this also prints nDCG@10 on XQuAD, with 1,190
questions and 240 paragraphs in each of seven languages. MiniLM was only trained on English. Set
`ENCODER_ZOO_DATA` to the data folder. This script requires the extra `peers`.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from embedding_quality import read_squad
from retrieval_sides import SYSTEMS
from sources import DATA, need_data

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval.ranking import rank_texts

OURS, THEIRS = SYSTEMS["vectors"]
RERANKER = "late interaction"
LANGUAGES = ("en", "de", "es", "ru", "el", "ar", "zh")


class StoredVectors:
    """A late interaction reranker that only embeds each question and document once."""

    def __init__(self, model: ez.LateInteraction, questions: list[str], documents: list[str]):
        self.model = model
        self.vectors = dict(zip(documents, model.embed(documents), strict=True))
        self.queries = dict(zip(questions, model.embed(questions, prompt="query"), strict=True))

    def _score_texts(self, query, texts, batch_size):
        vectors = [self.vectors[text] for text in texts]
        return np.asarray(self.model.similarity([self.queries[query]], vectors))[0]

    def rank(self, query, texts, top_k=None):
        return rank_texts(self, query, texts, top_k, None)


def read_xquad(language: str) -> tuple[list[str], list[str], list[int]]:
    """Read questions, paragraphs and the paragraph index for each question."""
    examples = ez.read_squad(DATA / "qa" / "xquad" / f"{language}.json")
    paragraphs = list(dict.fromkeys(e["context"] for e in examples))
    relevant = [paragraphs.index(e["context"]) for e in examples]
    return [e["question"] for e in examples], paragraphs, relevant


def train(systems: Sequence[str], side: str, pairs: tuple, seed: int) -> dict[str, keras.Model]:
    """Train all systems and print training speed."""
    models = {}
    for system in systems:
        if side not in SYSTEMS[system]:
            continue
        models[system], rate = SYSTEMS[system][side](pairs, seed)
        report(side=side, seed=seed, system=system, **{"pairs/s": round(rate, 2)})
    return models


def evaluate(models: dict[str, keras.Model], data: tuple) -> Iterator[tuple[str, dict]]:
    """Yield each system's name and its nDCG@10, with and without late interaction reranking."""
    questions, paragraphs, relevant = data
    indexes = {"BM25": ez.BM25Index(paragraphs)}
    indexes |= {system: model.index(paragraphs) for system, model in models.items()}
    if RERANKER in models:
        reranker = StoredVectors(models[RERANKER], questions, paragraphs)
    for system, index in indexes.items():
        found = {"ndcg@10": index.evaluate(questions, relevant)["ndcg@10"]}
        if RERANKER in models and system != RERANKER:
            after = index.evaluate(questions, relevant, reranker=reranker)
            found["reranked"] = after["ndcg@10"]
        yield system, {name: round(value, 4) for name, value in found.items()}


def report(**results) -> None:
    print(json.dumps(results), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sides", nargs="+", choices=(OURS, THEIRS), default=[OURS, THEIRS])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--languages", nargs="*", choices=LANGUAGES, default=LANGUAGES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="number of training pairs")
    options = parser.parse_args()
    need_data("qa")
    pairs, _, squad = read_squad(options.limit)
    xquad = {f"XQuAD {language}": read_xquad(language) for language in options.languages}
    for seed, side in itertools.product(options.seeds, options.sides):
        models = train(options.systems, side, pairs, seed)
        for name, data in {"SQuAD": squad, **(xquad if side == OURS else {})}.items():
            for system, found in evaluate(models, data):
                report(side=side, seed=seed, data=name, system=system, **found)


if __name__ == "__main__":
    main()
