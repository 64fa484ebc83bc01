"""Late interaction that MiniLM learns, ours and sentence-transformers', with one recipe.

    python benchmarks/late_interaction.py --seeds 0 1 2

Contrastive training on the questions and paragraphs of SQuAD, batches of 32, one epoch; nDCG@10 of
the 1,334 held-out questions among their 305 paragraphs, and pairs per second of the training, after
one step that is not counted. Both sides: a new projection to 128 numbers, markers, queries of 32
tokens with expansion, documents of 180, MaxSim with scale 1, AdamW, 5e-5 after 10 % warmup, linear
decay, weight decay 0.01 except for biases and LayerNorm, gradients clipped at norm 1. Batches of
both are of pairs with like numbers of tokens. `ENCODER_ZOO_DATA` names the folder of the data.
Needs the extra `peers`.
"""

import argparse
import json
import string
import tempfile
import time

import keras
from embedding_quality import read_squad
from sources import MINILM, need_data

import encoder_zoo as ez

RECIPE = argparse.Namespace(epochs=1, batch_size=32)
QUERY_LENGTH, DOCUMENT_LENGTH, WIDTH = 32, 180, 128


def measured(model: ez.LateInteraction, held_out: tuple) -> dict[str, float]:
    """Return nDCG@10 and recall."""
    found = model.evaluate_retrieval(*held_out)
    return {name: round(found[name], 4) for name in ("ndcg@10", "recall@1", "recall@10")}


def ours(pairs: tuple, held_out: tuple, seed: int) -> dict:
    """Return the measures of one training of ours."""
    keras.utils.set_random_seed(seed)
    model = ez.LateInteraction.from_preset(
        MINILM, dim=WIDTH, query_length=QUERY_LENGTH, document_length=DOCUMENT_LENGTH
    )
    model.compile(learning_rate=5e-5)
    marks = []
    timer = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: marks.append(time.perf_counter())
    )
    size = RECIPE.batch_size
    model.fit(pairs, epochs=RECIPE.epochs, batch_size=size, callbacks=[timer], verbose=2)
    return {"pairs/s": rate(marks, len(pairs[0])), **measured(model, held_out)}


def rate(marks: list[float], count: int) -> float:
    """Return pairs per second between the ends of the first and the last step."""
    if len(marks) < 2:
        return float("nan")
    return round((count * RECIPE.epochs - RECIPE.batch_size) / (marks[-1] - marks[0]), 2)


def their_model():
    """Return a new MultiVectorEncoder with the markers as tokens of their own."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    expansion = {"strategy": "fixed", "attend": False, "length": QUERY_LENGTH}
    encoder = Transformer(str(MINILM), document_length=DOCUMENT_LENGTH, query_expansion=expansion)
    tokens = {"additional_special_tokens": ["[Q] ", "[D] "]}
    encoder.tokenizer.add_special_tokens(tokens)
    encoder.model.resize_token_embeddings(len(encoder.tokenizer))
    options = {"activation_function": torch.nn.Identity(), "module_input_name": "token_embeddings"}
    dense = Dense(encoder.get_embedding_dimension(), WIDTH, bias=False, **options)
    torch.nn.init.trunc_normal_(dense.linear.weight, std=0.02)  # as ours
    mask = MultiVectorMask(list(string.punctuation))
    modules = [encoder, dense, mask, Normalize(module_input_name="token_embeddings")]
    prompts = {"query": "[Q] ", "document": "[D] "}
    return MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu")


def theirs(pairs: tuple, held_out: tuple, seed: int) -> dict:
    """Return the measures of one training of sentence-transformers'."""
    import torch
    from sentence_transformers.multi_vector_encoder import losses
    from torch_training import torch_steps

    torch.manual_seed(seed)
    model = their_model()
    loss = losses.MultiVectorMultipleNegativesRankingLoss(model)
    counts = [[len(ids) for ids in model.tokenizer(list(c))["input_ids"]] for c in pairs]
    lengths = [sum(both) for both in zip(*counts, strict=True)]
    marks, tasks = [], ("query", "document")
    for numbers, step in torch_steps(model, lengths, seed, RECIPE):
        inputs = [
            {
                **model.preprocess(
                    [column[i] for i in numbers], prompt=model.prompts[task], task=task
                ),
                "task": task,
            }
            for column, task in zip(pairs, tasks, strict=True)
        ]
        step(loss(inputs))
        marks.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        found = measured(ez.LateInteraction.from_preset(folder), held_out)
    return {"pairs/s": rate(marks, len(pairs[0])), **found}


SIDES = {"encoder_zoo": ours, "sentence-transformers": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="pairs to learn from, and held-out questions")
    options = parser.parse_args()
    need_data("qa")
    pairs, _, (questions, paragraphs, relevant) = read_squad(options.limit)
    held_out = questions[: options.limit], paragraphs, relevant[: options.limit]
    for seed in options.seeds:
        for side in options.sides:
            found = SIDES[side](pairs, held_out, seed)
            print(json.dumps({"side": side, "seed": seed, **found}), flush=True)


if __name__ == "__main__":
    main()
