# %% [markdown]
"""
Title: Train a ColBERT
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Train late interaction on teacher scores, with the settings from the ModernBERT paper.
Accelerator: GPU

    python guides/train_colbert.py
    python guides/train_colbert.py --squad DATA/qa/squad --preset hf://answerdotai/ModernBERT-base
    python guides/train_colbert.py --ms-marco FOLDER --preset hf://answerdotai/ModernBERT-base

For each query, the data contains a list of passages that were scored by a teacher. The model learns
to predict the same distribution over each list (KL divergence; Clavié 2024, JaColBERTv2.5). Its
scores and the teacher scores are both scaled to a range from 0 to 1. The training settings are
taken from Warner et al. 2024, ModernBERT, section 3.1.2 and appendix E: learning rate 8e-5, batches
of 16 queries, 5 % of warmup, one epoch, and at most 510 tokens per document.

Without arguments, the bundled model is trained for a minute on an excerpt of SQuAD 1.1 (CC BY-SA
4.0) from this folder. In this case, the teacher is an embedder, which compares whole texts.
`--squad` should be a folder with `train.json` and `dev.json` from SQuAD. `--ms-marco` should be a
folder with the files of `lightonai/ms-marco-en-bge` as JSON lines: `train.jsonl` with {"query_id",
"document_ids", "scores"} and 32 documents per query, scored by a reranker; `queries.jsonl` with
{"query_id", "text"}; `documents.jsonl` with {"document_id", "text"}.
"""

# %%
import argparse
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"


# %% [markdown]
"""
## The data

SQuAD does not contain lists of passages. To create them, the teacher searches for similar passages
and scores them.
"""


# %%
def from_squad(options: argparse.Namespace) -> tuple:
    """Return queries, passages and scores for training, and held-out data."""
    if options.squad:
        train, test = (ez.read_squad(options.squad / f"{n}.json") for n in ("train", "dev"))
        train, test = train[: options.limit], test[: options.limit]
    else:
        examples = ez.read_squad(HERE / "data" / "squad_excerpt.json")
        held_back = set(list(dict.fromkeys(e["context"] for e in examples))[::4])
        train = [e for e in examples if e["context"] not in held_back][: options.limit]
        test = [e for e in examples if e["context"] in held_back]
    teacher = ez.TextEmbedder.from_preset(options.teacher)
    questions, contexts = [e["question"] for e in train], [e["context"] for e in train]
    passages = list(dict.fromkeys(contexts))
    ways = min(options.ways, len(passages))
    hits = teacher.index(passages).search(questions, top_k=ways)
    lists, scores = [], []
    for context, found in zip(contexts, hits, strict=True):
        if context not in [hit["text"] for hit in found]:  # replaces the worst passage
            found[-1] = {"text": context, "score": found[0]["score"]}
        lists.append([hit["text"] for hit in found])
        scores.append([hit["score"] for hit in found])
    held_out = list(dict.fromkeys(e["context"] for e in test))
    relevant = [held_out.index(e["context"]) for e in test]
    return (questions, lists, scores), ([e["question"] for e in test], held_out, relevant)


def from_ms_marco(options: argparse.Namespace) -> tuple:
    """Return queries, passages and scores. There is no held-out data."""

    def rows(name: str):
        with open(options.ms_marco / name, encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    chosen = []
    for row in rows("train.jsonl"):
        if options.limit is not None and len(chosen) == options.limit:
            break
        chosen.append(row)
    queries = {row["query_id"]: row["text"] for row in rows("queries.jsonl")}
    wanted = {number for row in chosen for number in row["document_ids"][: options.ways]}
    documents = {
        row["document_id"]: row["text"]
        for row in rows("documents.jsonl")
        if row["document_id"] in wanted
    }
    questions = [queries[row["query_id"]] for row in chosen]
    lists = [[documents[n] for n in row["document_ids"][: options.ways]] for row in chosen]
    return (questions, lists, [row["scores"][: options.ways] for row in chosen]), None


# %% [markdown]
"""
## The training

A batch consists of 16 queries and 16 lists of passages. With `chunk_size`, a batch is computed in
parts of this number of texts. The gradients are the same, but only one part has to fit into memory.
"""


# %%
def main() -> None:
    parser = argparse.ArgumentParser(description="Train a ColBERT on a teacher's scores.")
    parser.add_argument("--preset", default="bert_nano_en_uncased_embedder")
    parser.add_argument("--teacher", default="bert_nano_en_uncased_embedder")
    parser.add_argument("--squad", type=pathlib.Path)
    parser.add_argument("--ms-marco", type=pathlib.Path)
    parser.add_argument("--ways", type=int, help="passages per query (32, or 4 without data)")
    parser.add_argument("--limit", type=int, help="training queries (128 without data)")
    parser.add_argument("--chunk-size", type=int, default=64)
    parser.add_argument("--dtype", default="float32", help="mixed_bfloat16 on a GPU")
    options = parser.parse_args()
    small = not (options.squad or options.ms_marco)
    options.ways = options.ways or (4 if small else 32)
    options.limit = options.limit or (128 if small else None)

    keras.utils.set_random_seed(0)
    train, held_out = (from_ms_marco if options.ms_marco else from_squad)(options)
    questions, lists, scores = train
    print(len(questions), "queries with", len(lists[0]), "passages each")
    model = ez.LateInteraction.from_preset(
        options.preset, dim=128, projections=[], document_length=510, dtype=options.dtype
    )
    if held_out:
        print(f"nDCG@10 before: {model.evaluate_retrieval(*held_out)['ndcg@10']:.3f}")
    model.compile(learning_rate=8e-5, warmup=0.05, chunk_size=options.chunk_size)
    model.fit((questions, lists), scores, epochs=1, batch_size=16, verbose=2)
    if held_out:
        print(f"nDCG@10 after:  {model.evaluate_retrieval(*held_out)['ndcg@10']:.3f}")
    OUTPUT.mkdir(exist_ok=True)
    model.save_to_preset(OUTPUT / "colbert")


# %%
if __name__ == "__main__":
    main()
