"""Fine-tune MiniLM on SQuAD and compute exact match and F1, with encoder_zoo and transformers.

    python benchmarks/question_answering.py --epochs 2 --seeds 0 1 2
    python benchmarks/question_answering.py --transformers

Both sides use AdamW with learning rate 5e-5, 10 % warmup and linear decay, weight decay 0.01 except
for biases and LayerNorm, and gradient clipping at norm 1. Rows have 384 tokens and overlap by 128
tokens. Each batch has 16 rows of similar length. Use `--transformers` to train both sides. This
requires the extra `peers`.

To provide the data, set `ENCODER_ZOO_DATA` to a folder with `qa/squad/{train,dev}.json` in SQuAD
format. With `--data squad_v2`, `qa/squad_v2/...` will be used.
"""

import argparse
import time

import keras
import numpy as np
from sources import DATA, MINILM, need_data
from token_classification import report

import encoder_zoo as ez
from encoder_zoo.tasks.question_answering.squad import compute_squad_scores, compute_squad_v2_scores

LENGTH, STRIDE = 384, 128
SCORES = ("exact_match", "f1", "best_exact_match", "best_f1")


def read(name: str, limit: int | None) -> tuple[list[dict], list[dict]]:
    """Read training questions (limited, but from all articles) and held-out questions."""
    train, dev = (ez.read_squad(DATA / "qa" / name / f"{n}.json") for n in ("train", "dev"))
    return (train[:: -(-len(train) // limit)] if limit else train), dev


def ours(train: list[dict], dev: list[dict], seed: int, options) -> dict[str, float]:
    """Train with encoder_zoo. Return its scores and rows per second."""
    keras.utils.set_random_seed(seed)
    model = ez.SpanQA.from_preset(MINILM, window_length=LENGTH, doc_stride=STRIDE)
    rows = len(model.preprocess(train)["example"])
    start = time.perf_counter()
    model.fit(train, epochs=options.epochs, batch_size=options.batch_size, verbose=2)
    speed = options.epochs * rows / (time.perf_counter() - start)
    scores = model.evaluate_answers(dev)
    return {**{name: scores[name] for name in SCORES if name in scores}, "speed": speed}


def theirs(train: list[dict], dev: list[dict], seed: int, options) -> dict[str, float]:
    """Train with transformers on torch. See `ours`."""
    import torch
    import transformers
    from torch_training import torch_steps

    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    model = transformers.BertForQuestionAnswering.from_pretrained(MINILM)
    rows = encoded(tokenizer, train)
    labels = torch.tensor(
        [label(rows, k, train[i]) for k, i in enumerate(rows["overflow_to_sample_mapping"])]
    )
    start = time.perf_counter()
    for numbers, step in torch_steps(model, list(map(len, rows["input_ids"])), seed, options):
        first, last = labels[numbers].T
        inputs = batch_of(tokenizer, rows, numbers)
        step(model(**inputs, start_positions=first, end_positions=last).loss)
    speed = options.epochs * len(labels) / (time.perf_counter() - start)
    return {**their_scores(model.eval(), tokenizer, dev), "speed": speed}


def encoded(tokenizer, examples: list[dict]):
    """Tokenize questions with their contexts, split into several rows."""
    return tokenizer(
        [e["question"].strip() for e in examples],
        [e["context"] for e in examples],
        truncation="only_second",
        max_length=LENGTH,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )


def batch_of(tokenizer, rows, numbers) -> dict:
    """Create inputs for a batch of rows, padded to the longest row."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    return tokenizer.pad({n: [rows[n][i] for i in numbers] for n in names}, return_tensors="pt")


def their_scores(model, tokenizer, dev: list[dict]) -> dict[str, float]:
    """Compute scores for the best span in all rows for each question."""
    import torch

    rows, best, null = encoded(tokenizer, dev), {}, [np.inf] * len(dev)
    order = sorted(range(len(rows["input_ids"])), key=lambda k: len(rows["input_ids"][k]))
    with torch.inference_mode():
        for i in range(0, len(order), 32):
            outputs = model(**batch_of(tokenizer, rows, order[i : i + 32]))
            logits = zip(outputs.start_logits.numpy(), outputs.end_logits.numpy(), strict=True)
            for k, (starts, ends) in zip(order[i : i + 32], logits, strict=True):
                score, begin, end = best_span(rows, k, starts, ends)
                sample = rows["overflow_to_sample_mapping"][k]
                null[sample] = min(null[sample], starts[0] + ends[0])
                if score > best.get(sample, (-np.inf,))[0]:
                    best[sample] = score, dev[sample]["context"][begin:end]
    guesses = [best[i][1] for i in range(len(dev))]
    right = [[a["text"] for a in e["answers"]] for e in dev]
    if all(right):
        scores = compute_squad_scores(guesses, right)
    else:
        differences = [null[i] - best[i][0] for i in range(len(dev))]
        scores = compute_squad_v2_scores(guesses, right, differences, 0.0)
    return {name: scores[name] for name in SCORES if name in scores}


def label(rows, k: int, example: dict) -> list[int]:
    """Return start and end columns for the answer in row k, or (0, 0)."""
    if not example["answers"]:
        return [0, 0]
    offsets = rows["offset_mapping"][k]
    inside = [j for j, segment in enumerate(rows.sequence_ids(k)) if segment == 1]
    answer = example["answers"][0]
    begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    if offsets[inside[0]][0] > begin or offsets[inside[-1]][1] < end:
        return [0, 0]
    first = max(j for j in inside if offsets[j][0] <= begin)
    return [first, min(j for j in inside if offsets[j][1] >= end)]


def best_span(rows, k: int, starts, ends) -> tuple[float, int, int]:
    """Return score and character range for the best span between the 20 best starts and ends."""
    inside = [j for j, segment in enumerate(rows.sequence_ids(k)) if segment == 1]
    spans = [
        (starts[i] + ends[j], i, j)
        for i in sorted(inside, key=lambda i: -starts[i])[:20]
        for j in sorted(inside, key=lambda j: -ends[j])[:20]
        if i <= j < i + 30
    ]
    if not spans:
        return -np.inf, 0, 0
    score, first, last = max(spans)
    offsets = rows["offset_mapping"][k]
    return score, offsets[first][0], offsets[last][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", choices=["squad", "squad_v2"], default="squad")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="maximum training questions")
    parser.add_argument("--transformers", action="store_true", help="also train transformers")
    options = parser.parse_args()
    need_data(f"qa/{options.data}")

    train, dev = read(options.data, options.limit)
    sides = {"encoder_zoo": ours, **({"transformers": theirs} if options.transformers else {})}
    for name, side in sides.items():
        report(name, [side(train, dev, seed, options) for seed in options.seeds])


if __name__ == "__main__":
    main()
