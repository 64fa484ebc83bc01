"""Train MiniLM embeddings with encoder_zoo and sentence-transformers, using the same recipe.

    python benchmarks/embedding_quality.py squad --seeds 0 1 2
    python benchmarks/embedding_quality.py stsb

`squad` trains with InfoNCE on SQuAD questions and paragraphs for one epoch, using batches of 64.
This prints nDCG@10 for held-out questions and their paragraphs. `stsb` trains with CoSENT on scored
pairs for two epochs, using batches of 32. It prints Spearman correlations on held-out pairs.

Both sides use AdamW with learning rate 5e-5, 10 % warmup and linear decay, weight decay 0.01 except
for biases and LayerNorm, and gradient clipping at norm 1. The results are also used for the table
in benchmarks/quality.py. Set `ENCODER_ZOO_DATA` to the data folder. This script requires the extra
`peers`.
"""

import argparse
import json

import keras
from sources import DATA, MINILM, need_data

import encoder_zoo as ez

RECIPES = {"squad": {"epochs": 1, "batch_size": 64}, "stsb": {"epochs": 2, "batch_size": 32}}


def read_squad(limit: int | None = None) -> tuple:
    """Read pairs for training, and held-out questions with their relevant paragraphs."""
    parts = []
    for name in ("train", "dev"):
        examples = ez.read_squad(DATA / "qa" / "squad" / f"{name}.json")
        parts.append(([e["question"] for e in examples], [e["context"] for e in examples]))
    train, (questions, contexts) = parts
    paragraphs = list(dict.fromkeys(contexts))
    relevant = [paragraphs.index(context) for context in contexts]
    return tuple(column[:limit] for column in train), None, (questions, paragraphs, relevant)


def read_stsb(limit: int | None = None) -> tuple:
    """Read pairs with scores from 0 to 1, for training and for evaluation."""
    parts = []
    for name in ("train", "dev"):
        lines = (DATA / "pairs" / "stsb" / f"{name}.tsv").read_text("utf-8").split("\n")[1:]
        rows = [line.split("\t") for line in lines if line]
        pairs = [row[1] for row in rows], [row[2] for row in rows]
        parts.append((pairs, [float(row[0]) / 5 for row in rows]))
    (pairs, scores), held_out = parts
    return tuple(column[:limit] for column in pairs), scores[:limit], held_out


READ = {"squad": read_squad, "stsb": read_stsb}


def measured(embedder: ez.TextEmbedder, held_out: tuple) -> dict[str, float]:
    """Evaluate a model. Return nDCG@10 and recall, or the Spearman correlation."""
    if len(held_out) == 3:
        found = embedder.evaluate_retrieval(*held_out)
        return {name: found[name] for name in ("ndcg@10", "recall@1", "recall@10")}
    return {"Spearman": embedder.evaluate_similarity(*held_out)["spearman"]}


def ours(pairs: tuple, scores: list | None, held_out: tuple, seed: int, options) -> dict:
    """Train with encoder_zoo and return its results."""
    keras.utils.set_random_seed(seed)
    embedder = ez.TextEmbedder.from_preset(MINILM)
    embedder.compile(learning_rate=5e-5)
    embedder.fit(pairs, scores, epochs=options.epochs, batch_size=options.batch_size, verbose=2)
    return measured(embedder, held_out)


def theirs(pairs: tuple, scores: list | None, held_out: tuple, seed: int, options) -> dict:
    """Train with sentence-transformers and return its results."""
    import tempfile

    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses
    from torch_training import torch_steps

    torch.manual_seed(seed)
    model = SentenceTransformer(str(MINILM), device="cpu")
    if scores is None:
        loss = losses.MultipleNegativesRankingLoss(model)
    else:
        loss = losses.CoSENTLoss(model)
    counts = [[len(ids) for ids in model.tokenizer(list(c))["input_ids"]] for c in pairs]
    lengths = [sum(both) for both in zip(*counts, strict=True)]
    for numbers, step in torch_steps(model, lengths, seed, options):
        inputs = [model.preprocess([column[i] for i in numbers]) for column in pairs]
        labels = None if scores is None else torch.tensor([scores[i] for i in numbers])
        step(loss(inputs, labels))
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        return measured(ez.TextEmbedder.from_preset(folder), held_out)


SIDES = {"encoder_zoo": ours, "sentence-transformers": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", choices=READ)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    need_data("qa", "pairs")
    recipe = argparse.Namespace(**RECIPES[options.work])
    for seed in options.seeds:
        for side in options.sides:
            found = SIDES[side](*READ[options.work](options.limit), seed, recipe)
            print(json.dumps({"work": options.work, "side": side, "seed": seed, **found}))


if __name__ == "__main__":
    main()
