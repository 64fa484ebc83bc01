"""Compare EntityExtractor and gliner on CoNLL-2003: entity F1 and training speed.

    python benchmarks/entities.py --seeds 0 1 2
    python benchmarks/entities.py --work speed --limit 1000 --seeds 0 1 2

Both sides start from the same encoder and randomly initialized layers. They use AdamW with 10 %
warmup and linear decay, weight decay 0.01 except for biases and LayerNorm, and gradient clipping at
norm 1. The focal loss is summed over each batch. Each sentence is combined with all labels in
random order. Each side uses its own code for splitting sentences into words, but with the same
rule. Each side also creates its own batches. This package groups them by length. Each run uses a
separate process, and sides run in turns.

- quality: exact-match micro F1 on CoNLL-2003 testa and on the WNUT-17 test set. WNUT-17 has six
  labels, but only person and location are used in training.
- speed: training sentences per second, including all preparation in `fit`, and CPU seconds over all
  cores, which are more reliable on shared machines.

Set `ENCODER_ZOO_GLINER` to a Python interpreter with gliner, for example in a virtual environment
created with `pip install gliner torch accelerate`. Set `ENCODER_ZOO_DATA` to a folder as described
in `token_classification.py`.
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TRAINED = {"PER": "person", "LOC": "location", "ORG": "organization", "MISC": "miscellaneous"}
ASKED = {"creative-work": "creative work"}  # for WNUT-17, where all other types are already words
MARKERS = ["<<ENT>>", "<<SEP>>"]


# -- the sides, each with what it imports ----------------------------------------------------------


def ours(job: dict) -> tuple:
    """Train a model. Return the training time in seconds and a function to find entities."""
    import keras

    import encoder_zoo as ez

    keras.utils.set_random_seed(job["seed"])
    model = ez.EntityExtractor.from_preset(job["preset"], added_tokens=MARKERS)
    loss = ez.SpanFocalLoss(job["gamma"], job["alpha"], reduction="sum")
    model.compile(learning_rate=job["learning_rate"], loss=loss)
    size = {"epochs": job["epochs"], "batch_size": job["batch_size"]}
    seconds = timed(lambda: model.fit(job["texts"], job["spans"], verbose=0, **size))
    return seconds, model.extract_entities


def gliner(job: dict) -> tuple:
    """Train a model with gliner. See `ours`."""
    import gliner
    import transformers
    from gliner.config import GLiNERConfig

    transformers.set_seed(job["seed"])
    width = json.loads(pathlib.Path(job["preset"], "config.json").read_text())["hidden_size"]
    config = GLiNERConfig(model_name=job["preset"], hidden_size=width)
    model = gliner.GLiNER.from_config(config).float()  # encoders may be stored in bfloat16
    labels = labels_of(job["spans"])
    examples = []
    for text, spans in zip(job["texts"], job["spans"], strict=True):
        words = list(model.data_processor.words_splitter(text))  # (word, start, end)
        first = {start: i for i, (_, start, _) in enumerate(words)}
        last = {end: i for i, (_, _, end) in enumerate(words)}
        examples.append(
            {
                "tokenized_text": [word for word, _, _ in words],
                "ner": [[first[start], last[end], label] for start, end, label in spans],
                "ner_labels": random.sample(labels, len(labels)),
            }
        )
    with tempfile.TemporaryDirectory() as folder:
        arguments = model.create_training_args(
            folder,
            learning_rate=job["learning_rate"],
            focal_loss_alpha=-1 if job["alpha"] is None else job["alpha"],
            focal_loss_gamma=job["gamma"],
            per_device_train_batch_size=job["batch_size"],
            max_steps=-1,
            num_train_epochs=job["epochs"],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            seed=job["seed"],
        )
        seconds = timed(lambda: model.train_model(examples, None, arguments))
    model.eval()
    return seconds, model.inference


def timed(train) -> dict[str, float]:
    """Measure wall time and CPU time over all cores for calling a function."""
    start, cores = time.perf_counter(), sum(os.times()[:4])
    train()
    return {"wall": time.perf_counter() - start, "cpu": sum(os.times()[:4]) - cores}


SIDES = {"encoder_zoo": ours, "gliner": gliner}


def measure(side: str, path: str) -> None:
    """Run a job from a file and write results to the same file."""
    path = pathlib.Path(path)
    job = json.loads(path.read_text())
    seconds, find = SIDES[side](job)
    found = {}
    for name, (texts, labels) in job["questions"].items():
        rows = find(texts, labels)
        found[name] = [[[e["label"], e["start"], e["end"]] for e in row] for row in rows]
    path.write_text(json.dumps({"seconds": seconds, "found": found}))


# -- the data and the tables -----------------------------------------------------------------------


def read(path: pathlib.Path, names: dict[str, str], limit: int | None) -> tuple[list, list]:
    """Read sentences, with words joined by spaces, and their spans (start, end, label)."""
    import encoder_zoo as ez
    from encoder_zoo.tasks.tagging.tags import find_spans

    texts, spans = [], []
    for words, tags in zip(*(rows[:limit] for rows in ez.read_conll(path)), strict=True):
        starts = [0, *itertools.accumulate(len(word) + 1 for word in words)]
        texts.append(" ".join(words))
        spans.append(
            [
                (starts[first], starts[end] - 1, names.get(kind, kind))
                for kind, first, end in find_spans(tags)
            ]
        )
    return texts, spans


def labels_of(spans: list) -> list[str]:
    return sorted({label for row in spans for *_, label in row})


def run(side: str, job: dict) -> dict:
    """Run a job in a separate process and return results."""
    python = sys.executable if side == "encoder_zoo" else os.environ["ENCODER_ZOO_GLINER"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        subprocess.run([python, __file__, "--measure", side, str(path)], check=True)
        return json.loads(path.read_text())


def f1(found: list, spans: list) -> float:
    """Compute micro F1 for entities, in percent."""
    pairs = zip(found, spans, strict=True)
    right = sum(len({*map(tuple, row)} & {(e[2], *e[:2]) for e in true}) for row, true in pairs)
    return 200 * right / max(sum(map(len, found)) + sum(map(len, spans)), 1)


def shown(values: list[float]) -> str:
    """Format the mean and the range."""
    mean, *bounds = (f"{v:.1f}" for v in (statistics.mean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({' to '.join(bounds)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", choices=["quality", "speed"], default="quality")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--preset", help="encoder folder (default: MiniLM)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, default=3000, help="number of training sentences")
    parser.add_argument("--questions", type=int, help="sentences per test set (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--alpha", type=float, default=0.75, help="focal loss alpha")
    parser.add_argument("--gamma", type=float, default=2.0, help="focal loss gamma")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return

    from sources import DATA, MINILM, need_data

    need_data("ner/conll2003", "ner/wnut17")
    texts, spans = read(DATA / "ner/conll2003/train.conll", TRAINED, options.limit)
    job = {"texts": texts, "spans": spans, "preset": options.preset or str(MINILM), "questions": {}}
    for name in ("epochs", "batch_size", "learning_rate", "alpha", "gamma"):
        job[name] = getattr(options, name)
    sets = {}
    if options.work == "quality":
        for name, path, names in (
            ("CoNLL-2003 testa", "ner/conll2003/testa.conll", TRAINED),
            ("WNUT-17 test", "ner/wnut17/test.conll", ASKED),
        ):
            questions, sets[name] = read(DATA / path, names, options.questions)
            job["questions"][name] = questions, labels_of(sets[name])

    rows = {side: [] for side in options.sides}
    for seed in options.seeds:
        for side, results in rows.items():
            result = run(side, {**job, "seed": seed})
            seconds = result["seconds"]
            speed = options.epochs * len(texts) / seconds["wall"]
            scores = [f1(result["found"][name], sets[name]) for name in sets]
            results.append([*scores, speed, seconds["cpu"]])
            print(f"{side}, seed {seed}: {results[-1]}", file=sys.stderr, flush=True)
    titles = [*(f"{name}, F1" for name in sets), "sentences/s", "seconds of all cores"]
    print(f"| {len(texts)} sentences | {' | '.join(titles)} |")
    print("|---" * (1 + len(titles)) + "|")
    for side, results in rows.items():
        print(f"| {side} | {' | '.join(map(shown, zip(*results, strict=True)))} |")


if __name__ == "__main__":
    main()
