"""Compare entity F1 on CoNLL-2003 or WNUT-17 after fine-tuning with encoder_zoo and transformers.

    python benchmarks/token_classification.py --data conll2003 --epochs 3 --seeds 0 1 2
    python benchmarks/token_classification.py --data wnut17 --epochs 5 --transformers
    python benchmarks/token_classification.py --preset bert_nano_en_uncased --epochs 6

Both sides use AdamW with learning rate 5e-5 (in this package, the preset's default), 10 % warmup
and linear decay, weight decay 0.01 except for biases and LayerNorm, gradient clipping at norm 1,
and batches of 32 sentences grouped by length. The first token in each word has the word's tag. Use
`--transformers` to train both sides. This requires the extra `peers`.

To provide the data, set `ENCODER_ZOO_DATA` to a folder with `ner/conll2003/{train,testa}.conll` and
`ner/wnut17/{train,dev,test}.conll`. Each line contains a word, a tab and an IOB2 tag. Sentences are
followed by a blank line.
"""

import argparse
import time

import keras
import numpy as np
from sources import DATA, MINILM, need_data

import encoder_zoo as ez
from encoder_zoo.tasks.tagging.entity_metrics import score_tags

HELD_OUT = {"conll2003": ["testa"], "wnut17": ["dev", "test"]}


def read(name: str, limit: int | None, held_out: int | None = None) -> tuple:
    """Read (words, tags) for training, and a dict {name: (words, tags)} with held-out sets."""
    folder = DATA / "ner" / name
    train = tuple(rows[:limit] for rows in ez.read_conll(folder / "train.conll"))
    others = {n: ez.read_conll(folder / f"{n}.conll") for n in HELD_OUT[name]}
    return train, {n: tuple(part[:held_out] for part in rows) for n, rows in others.items()}


def ours(train, held_out: dict, seed: int, options) -> dict[str, float]:
    """Train with encoder_zoo. Return entity F1 for all held-out sets, and sentences per second."""
    keras.utils.set_random_seed(seed)
    classifier = ez.TokenClassifier.from_preset(options.preset, crf=options.crf)
    start = time.perf_counter()
    classifier.fit(*train, epochs=options.epochs, batch_size=options.batch_size, verbose=2)
    speed = options.epochs * len(train[0]) / (time.perf_counter() - start)
    scores = {f"{n} F1": classifier.evaluate_entities(*rows)["f1"] for n, rows in held_out.items()}
    return {**scores, "speed": speed}


def theirs(train, held_out: dict, seed: int, options) -> dict[str, float]:
    """Train with transformers on torch. See `ours`."""
    import torch
    import transformers
    from torch_training import torch_steps

    torch.manual_seed(seed)
    words, tags = train
    names = sorted({tag for row in tags for tag in row})
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.preset)
    model = transformers.BertForTokenClassification.from_pretrained(
        options.preset, num_labels=len(names)
    )

    start = time.perf_counter()
    rows = tokenizer(words, is_split_into_words=True, truncation=True)["input_ids"]
    for batch, step in torch_steps(model, [len(ids) for ids in rows], seed, options):
        chosen = [words[i] for i in batch], [tags[i] for i in batch]
        inputs, labels = labelled(tokenizer, names, *chosen)
        step(model(**inputs, labels=labels).loss)
    speed = options.epochs * len(words) / (time.perf_counter() - start)
    model.eval()
    scores = {
        f"{name} F1": score_tags(right, their_tags(model, tokenizer, names, rows, right))["f1"]
        for name, (rows, right) in held_out.items()
    }
    return {**scores, "speed": speed}


def labelled(tokenizer, names: list[str], words: list, tags: list) -> tuple:
    """Return padded inputs, and labels: tag ids at the first token in each word, else -100."""
    import torch

    inputs = tokenizer(
        words, is_split_into_words=True, padding=True, truncation=True, return_tensors="pt"
    )
    labels = torch.full(inputs["input_ids"].shape, -100)
    for i, row in enumerate(tags):
        numbers = inputs.word_ids(i)
        for j, word in enumerate(numbers):
            if word is not None and word != numbers[j - 1]:
                labels[i, j] = names.index(row[word]) if row[word] in names else 0
    return inputs, labels


def their_tags(model, tokenizer, names: list[str], words: list, tags: list) -> list[list[str]]:
    """Predict a tag for every word with a transformers model."""
    import torch

    rows = []
    with torch.inference_mode():
        for i in range(0, len(words), 64):
            inputs, labels = labelled(tokenizer, names, words[i : i + 64], tags[i : i + 64])
            best = model(**inputs).logits.argmax(-1)
            rows += [[names[k] for k in b[y != -100]] for b, y in zip(best, labels, strict=True)]
    # Truncated or empty words do not have any tokens.
    return [g + ["O"] * (len(t) - len(g)) for g, t in zip(rows, tags, strict=True)]


def report(name: str, results: list[dict]) -> None:
    """Print mean and range over all seeds."""
    values = {key: [r[key] for r in results] for key in results[0]}
    speed = np.mean(values.pop("speed"))
    parts = [f"{k} {np.mean(v):.4f} (from {min(v):.4f} to {max(v):.4f})" for k, v in values.items()]
    print(f"{name}: {', '.join(parts)}, {speed:.1f} examples/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", choices=sorted(HELD_OUT), default="conll2003")
    parser.add_argument("--preset", default=MINILM, help="folder, or name for encoder_zoo")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="maximum training sentences")
    parser.add_argument("--held-out", type=int, help="maximum sentences per set")
    parser.add_argument("--crf", action="store_true", help="add a CRF")
    parser.add_argument("--transformers", action="store_true", help="also train transformers")
    options = parser.parse_args()
    need_data(f"ner/{options.data}")

    train, held_out = read(options.data, options.limit, options.held_out)
    sides = {"encoder_zoo": ours, **({"transformers": theirs} if options.transformers else {})}
    for name, side in sides.items():
        report(name, [side(train, held_out, seed, options) for seed in options.seeds])


if __name__ == "__main__":
    main()
