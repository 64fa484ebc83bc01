"""Embeddings that MiniLM learns, ours and sentence-transformers', with one recipe.

    python benchmarks/embedding_quality.py squad --seeds 0 1 2
    python benchmarks/embedding_quality.py stsb

`squad`: InfoNCE on the questions and paragraphs of SQuAD, batches of 64, one epoch; nDCG@10 of the
held-out questions among their paragraphs. `stsb`: CoSENT on the scores of pairs, batches of 32, two
epochs; Spearman's correlation on the held-out pairs. Both sides: AdamW, 5e-5 after 10 % warmup,
linear decay, weight decay 0.01 except for biases and LayerNorm, gradients clipped at norm 1.
benchmarks/quality.py puts both into its table. `ENCODER_ZOO_DATA` names the folder of the data.
Needs the extra `peers`.
"""

import argparse
import json

import keras
from sources import DATA, MINILM, need_data

import encoder_zoo as ez

RECIPES = {"squad": {"epochs": 1, "batch_size": 64}, "stsb": {"epochs": 2, "batch_size": 32}}


def read_squad(limit: int | None = None) -> tuple:
    """Return pairs to learn from; questions, paragraphs and the paragraph of each question."""
    parts = []
    for name in ("train", "dev"):
        examples = ez.read_squad(DATA / "qa" / "squad" / f"{name}.json")
        parts.append(([e["question"] for e in examples], [e["context"] for e in examples]))
    train, (questions, contexts) = parts
    paragraphs = list(dict.fromkeys(contexts))
    relevant = [paragraphs.index(context) for context in contexts]
    return tuple(column[:limit] for column in train), None, (questions, paragraphs, relevant)


def read_stsb(limit: int | None = None) -> tuple:
    """Return pairs and their scores from 0 to 1, to learn from and held out."""
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
    """Return nDCG@10 and recall, or Spearman's correlation."""
    if len(held_out) == 3:
        found = embedder.evaluate_retrieval(*held_out)
        return {name: found[name] for name in ("ndcg@10", "recall@1", "recall@10")}
    return {"Spearman": embedder.evaluate_similarity(*held_out)["spearman"]}


def ours(pairs: tuple, scores: list | None, held_out: tuple, seed: int, options) -> dict:
    """Return the measures of one training of ours."""
    keras.utils.set_random_seed(seed)
    embedder = ez.TextEmbedder.from_preset(MINILM)
    embedder.compile(learning_rate=5e-5)
    embedder.fit(pairs, scores, epochs=options.epochs, batch_size=options.batch_size, verbose=2)
    return measured(embedder, held_out)


def theirs(pairs: tuple, scores: list | None, held_out: tuple, seed: int, options) -> dict:
    """Return the measures of one training of sentence-transformers'."""
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
