"""Compare results for fine-tuning MiniLM with encoder_zoo and transformers, using the same recipe.

    python benchmarks/quality.py                                  # everything, three seeds: hours
    python benchmarks/quality.py --works mrpc rte --seeds 0 1 2
    python benchmarks/quality.py --limit 2000 --results small.jsonl
    python benchmarks/quality.py --seeds                          # only the table of existing
    results

Both sides use AdamW with learning rate 5e-5, 10 % warmup and linear decay, weight decay 0.01 except
for biases and LayerNorm, gradient clipping at norm 1, and batches grouped by length. Each training
run uses a separate process and adds results to a file, by default `benchmarks/quality.jsonl`. To
continue an interrupted benchmark, runs with results in this file are skipped.

To provide the data, set `ENCODER_ZOO_DATA` to a folder with `sst2/`, `ner/` and `qa/`, as described
in the other benchmarks, and `pairs/{mrpc,rte,stsb}/{train,dev}.tsv`. The first line in these files
is a header. Each other line contains a label or score, a tab, and both texts. For SQuAD, at most
5,000 questions from all articles are used for training. For search, all questions are used. The
last two entries in the table are embeddings, compared to sentence-transformers. See
benchmarks/embedding_quality.py. This script requires the extra `peers`.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable

import embedding_quality
import keras
import numpy as np
import question_answering
import scipy.stats
import token_classification
from sources import DATA, MINILM, need_data
from sst2 import read as read_sst2

import encoder_zoo as ez

SIDES = ("encoder_zoo", "transformers")
RESULTS = pathlib.Path(__file__).with_name("quality.jsonl")


@dataclasses.dataclass(frozen=True)
class Work:
    """A dataset to train and evaluate on.

    Args:
        title: String. Name to show in the table.
        read: Function to call with a limit. It returns the first argument for `train`.
        train: Dict that maps sides to functions. They are called with (data, seed, options) and
            return a dict `{measure: value}`.
        measures: Tuple of strings. Names of the measures to show.
        full: Integer. Maximum value for all measures, which are shown in percent. Defaults to 1.
        epochs: Integer. Number of epochs. Defaults to 3.
        batch_size: Integer. Batch size in training. Defaults to 32.
        limit: Integer or None. Number of training examples, unless `--limit` is used. Defaults to
            None.
    """

    title: str
    read: Callable
    train: dict[str, Callable]
    measures: tuple[str, ...]
    full: int = 1
    epochs: int = 3
    batch_size: int = 32
    limit: int | None = None


# -- one or two texts --------------------------------------------------------------------------


def of_sst2(limit: int | None) -> tuple:
    (texts, labels), (held_out, right) = read_sst2("train"), read_sst2("dev")
    return ([texts[:limit]], labels[:limit]), ([held_out], right)


def of_pairs(name: str, limit: int | None) -> tuple:
    parts = []
    for part, count in (("train", limit), ("dev", None)):
        path = DATA / "pairs" / name / f"{part}.tsv"
        lines = path.read_text(encoding="utf-8").split("\n")[1:]
        rows = [line.split("\t") for line in lines if line][:count]
        texts = [[row[1] for row in rows], [row[2] for row in rows]]
        parts.append((texts, [number_of(row[0]) for row in rows]))
    return tuple(parts)


def number_of(label: str) -> float | int:
    if label in ("entailment", "not_entailment"):
        return int(label == "entailment")
    return float(label) if "." in label else int(label)


def classified_by_us(data: tuple, seed: int, options) -> dict[str, float]:
    keras.utils.set_random_seed(seed)
    (texts, labels), (held_out, right) = data
    regression = isinstance(labels[0], float)
    kind = {"num_classes": 1, "problem_type": "regression"} if regression else {"num_classes": 2}
    model = ez.SequenceClassifier.from_preset(MINILM, **kind)
    model.fit(inputs_of(texts), labels, epochs=options.epochs, batch_size=options.batch_size)
    return measured(model.predict(inputs_of(held_out), verbose=0), right)


def inputs_of(texts: list):
    return texts[0] if len(texts) == 1 else tuple(texts)


def classified_by_transformers(data: tuple, seed: int, options) -> dict[str, float]:
    import torch
    import transformers
    from torch_training import torch_steps

    torch.manual_seed(seed)
    (texts, labels), (held_out, right) = data
    regression = isinstance(labels[0], float)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    model = transformers.BertForSequenceClassification.from_pretrained(
        MINILM, num_labels=1 if regression else 2
    )

    def rows_of(texts, numbers):
        return tokenizer(
            *([part[i] for i in numbers] for part in texts),
            padding=True,
            truncation=True,
            return_tensors="pt",
        )

    lengths = [len(ids) for ids in tokenizer(*texts, truncation=True)["input_ids"]]
    labels = torch.tensor(labels)
    for numbers, step in torch_steps(model, lengths, seed, options):
        step(model(**rows_of(texts, numbers), labels=labels[numbers]).loss)
    model.eval()
    with torch.inference_mode():
        logits = [
            model(**rows_of(held_out, range(i, min(i + 32, len(right))))).logits.numpy()
            for i in range(0, len(right), 32)
        ]
    return measured(np.concatenate(logits), right)


def measured(logits: np.ndarray, right: list) -> dict[str, float]:
    """Return the Spearman correlation for scores, or accuracy and F1 for the second class."""
    right = np.array(right)
    if logits.shape[1] == 1:
        return {"Spearman": float(scipy.stats.spearmanr(logits[:, 0], right).statistic)}
    found = logits.argmax(-1)
    both = (found * right).sum()
    f1 = 2 * both / max(1, found.sum() + right.sum())
    return {"accuracy": float((found == right).mean()), "F1": float(f1)}


# -- entities and answers ----------------------------------------------------------------------


def by_both(benchmark) -> dict[str, Callable]:
    """Return the training functions `ours` and `theirs` of another benchmark, by side."""
    return {
        side: lambda data, seed, options, function=function: function(*data, seed, options)
        for side, function in zip(SIDES, (benchmark.ours, benchmark.theirs), strict=True)
    }


CLASSIFIED = dict(zip(SIDES, (classified_by_us, classified_by_transformers), strict=True))
TAGGED, ANSWERED = by_both(token_classification), by_both(question_answering)
EMBEDDED = by_both(embedding_quality)  # the other side is sentence-transformers
SQUAD = {"full": 100, "epochs": 2, "batch_size": 16, "limit": 5000}
WORKS = {
    "sst2": Work("SST-2", of_sst2, CLASSIFIED, ("accuracy",), epochs=1),
    "mrpc": Work("MRPC", functools.partial(of_pairs, "mrpc"), CLASSIFIED, ("F1", "accuracy")),
    "rte": Work("RTE", functools.partial(of_pairs, "rte"), CLASSIFIED, ("accuracy",)),
    "stsb": Work("STS-B", functools.partial(of_pairs, "stsb"), CLASSIFIED, ("Spearman",)),
    "conll2003": Work(
        "CoNLL-2003",
        functools.partial(token_classification.read, "conll2003"),
        TAGGED,
        ("testa F1",),
    ),
    "wnut17": Work(
        "WNUT-17",
        functools.partial(token_classification.read, "wnut17"),
        TAGGED,
        ("dev F1", "test F1"),
        epochs=5,
    ),
    "squad": Work(
        "SQuAD v1.1",
        functools.partial(question_answering.read, "squad"),
        ANSWERED,
        ("f1", "exact_match"),
        **SQUAD,
    ),
    "squad_v2": Work(
        "SQuAD v2",
        functools.partial(question_answering.read, "squad_v2"),
        ANSWERED,
        ("best_f1", "best_exact_match"),
        **SQUAD,
    ),
    "squad_search": Work(
        "SQuAD v1.1, search",
        embedding_quality.read_squad,
        EMBEDDED,
        ("ndcg@10", "recall@1"),
        **embedding_quality.RECIPES["squad"],
    ),
    "stsb_embeddings": Work(
        "STS-B, embeddings",
        embedding_quality.read_stsb,
        EMBEDDED,
        ("Spearman",),
        **embedding_quality.RECIPES["stsb"],
    ),
}


# -- the table ---------------------------------------------------------------------------------


def train(work: str, side: str, seed: int, limit: int | None) -> dict[str, float]:
    """Train a model and return its results."""
    record = WORKS[work]
    recipe = {"epochs": record.epochs, "batch_size": record.batch_size}
    options = argparse.Namespace(preset=MINILM, crf=False, **recipe)
    return record.train[side](record.read(limit), seed, options)


def read_results(path: pathlib.Path) -> dict[tuple, dict]:
    """Read a results file, and return a dict {(work, side, seed, limit): measures}."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {tuple(row["what"]): row["measures"] for row in map(json.loads, lines)}


def make_table(results: dict[tuple, dict], limit: int | None) -> list[str]:
    """Create a table row per measure, with the mean and range over the seeds run on both sides."""
    lines = ["| data | measure | ours | transformers | seeds |", "|---|---|---|---|---|"]
    for work, record in WORKS.items():
        one = {w[1:3]: row for w, row in results.items() if w[::3] == (work, limit or record.limit)}
        both = sorted(set.intersection(*({n for s, n in one if s == side} for side in SIDES)))
        for measure in record.measures if both else ():
            cells = []
            for side in SIDES:
                values = [100 / record.full * one[side, seed][measure] for seed in both]
                mean, low, high = statistics.mean(values), min(values), max(values)
                spread = f" ({low:.1f} to {high:.1f})" if len(both) > 1 else ""
                cells.append(f"{mean:.1f}{spread}")
            lines.append(f"| {record.title} | {measure} | {' | '.join(cells)} | {len(both)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--limit", type=int, help="number of training examples")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--train", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seeds:
        need_data("sst2", "pairs", "ner", "qa")
    if options.train:
        print(json.dumps(train(*options.train)))
        return
    for seed in options.seeds:
        for work in options.works:
            for side in options.sides:
                what = (work, side, seed, options.limit or WORKS[work].limit)
                if what in read_results(options.results):
                    continue
                command = [sys.executable, __file__, "--train", json.dumps(what)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                measures = json.loads(done.stdout.strip().splitlines()[-1])
                print(*what, measures, flush=True)
                with open(options.results, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"what": what, "measures": measures}) + "\n")
    print(*make_table(read_results(options.results), options.limit), sep="\n")


if __name__ == "__main__":
    main()
