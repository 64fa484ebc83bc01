"""SPLADE learned on SQuAD, ours and sentence-transformers', with one recipe.

    python benchmarks/sparse_retrieval.py --seeds 0 1 2

From MiniLM's encoder, with a new head of a masked language model over its own token embedding: it
has none of its own, so that the first steps of both sides go into the head. InfoNCE with FLOPS on
questions and paragraphs, whose weights rise with the square of the steps for a third of them;
batches of 32, paragraphs up to 128 tokens. AdamW, 5e-5 after 10 % warmup, linear decay, weight
decay 0.01 except for biases and LayerNorm, gradients clipped at norm 1. Prints nDCG@10 of the
held-out questions among their paragraphs, the mean numbers of terms, and pairs in a second of
training. `ENCODER_ZOO_DATA` names the folder of the data. Needs the extra `peers`.
"""

import argparse
import json
import logging
import pathlib
import tempfile
import time

import keras
from embedding_quality import read_squad
from sources import MINILM, need_data

import encoder_zoo as ez

LENGTH = 128
RECIPE = argparse.Namespace(epochs=1, batch_size=32)
WEIGHTS = {"query_weight": 5e-5, "document_weight": 1e-3}
MEASURES = ("ndcg@10", "recall@10", "question_terms", "passage_terms", "flops")


def beginning(seed: int) -> ez.SparseEncoder:
    """Return the encoder with a new head, the same for both sides."""
    keras.utils.set_random_seed(seed)
    logging.getLogger("encoder_zoo").setLevel("ERROR")  # that the head is new
    return ez.SparseEncoder.from_preset(MINILM, max_length=LENGTH)


def measured(encoder: ez.SparseEncoder, held_out: tuple, seconds: float, pairs: int) -> dict:
    """Return the measures of a trained encoder, and how fast it was trained."""
    found = encoder.evaluate_retrieval(*held_out)
    return {**{n: found[n] for n in MEASURES}, "pairs/s": pairs * RECIPE.epochs / seconds}


def ours(pairs: tuple, held_out: tuple, seed: int) -> dict:
    encoder = beginning(seed)
    encoder.compile(loss=ez.losses.SPLADE(**WEIGHTS), learning_rate=5e-5)
    start = time.perf_counter()
    encoder.fit(pairs, epochs=RECIPE.epochs, batch_size=RECIPE.batch_size, verbose=2)
    return measured(encoder, held_out, time.perf_counter() - start, len(pairs[0]))


def theirs(pairs: tuple, held_out: tuple, seed: int) -> dict:
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder import losses
    from torch_training import torch_steps

    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        beginning(seed).save_to_preset(folder)
        model = SparseEncoder(folder, device="cpu")
    loss = losses.SpladeLoss(
        model,
        losses.SparseMultipleNegativesRankingLoss(model),
        document_regularizer_weight=0.0,
        query_regularizer_weight=0.0,
    )
    counts = [[len(ids) for ids in model.tokenizer(list(c))["input_ids"]] for c in pairs]
    lengths = [sum(min(n, LENGTH) for n in both) for both in zip(*counts, strict=True)]
    rising = RECIPE.epochs * -(-len(lengths) // RECIPE.batch_size) // 3
    start = time.perf_counter()
    for i, (numbers, step) in enumerate(torch_steps(model, lengths, seed, RECIPE)):
        share = min(1.0, i / max(rising, 1)) ** 2
        loss.query_regularizer_weight = share * WEIGHTS["query_weight"]
        loss.document_regularizer_weight = share * WEIGHTS["document_weight"]
        inputs = [model.preprocess([column[i] for i in numbers]) for column in pairs]
        step(sum(loss(inputs, None).values()))
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        model.eval().save(folder)
        encoder = ez.SparseEncoder.from_preset(pathlib.Path(folder))
    return measured(encoder, held_out, seconds, len(pairs[0]))


SIDES = {"encoder_zoo": ours, "sentence-transformers": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="pairs to learn from, and questions held out")
    options = parser.parse_args()
    need_data("qa")
    pairs, _, (questions, paragraphs, relevant) = read_squad(options.limit)
    held_out = questions[: options.limit], paragraphs, relevant[: options.limit]
    for seed in options.seeds:
        for side in options.sides:
            found = SIDES[side](pairs, held_out, seed)
            print(json.dumps({"work": "splade", "side": side, "seed": seed, **found}), flush=True)


if __name__ == "__main__":
    main()
