"""Measure the time from process start to the first MiniLM vector, and then for 1 and 600 sentences.

    python benchmarks/first_answer.py --runs 5

Each way runs in a separate process: exports opened with `open_export` in float32 and in int8, ONNX
Runtime with `tokenizers`, this package on TensorFlow and on PyTorch, and transformers. Wall time
and CPU time for all threads are measured from process start to the first vector. Peak memory is
read from Linux after the first vector and at the end. The time for one sentence is a median over 50
calls. All vectors are compared to vectors from the first way. This script requires the extra
`peers`.
"""

import argparse
import csv
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from sources import MINILM

ROOT = pathlib.Path(__file__).parents[1]
TEXT = "A good film."
WAYS = ("open_export float32", "open_export int8", "bare", "tensorflow", "torch", "transformers")


def read_sentences(count: int) -> list[str]:
    """Read review sentences."""
    path = ROOT / "guides" / "data" / "sentiment_sentences.tsv"
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row["sentence"] for row in rows][:count]


def make_embed(way: str, folder: pathlib.Path):
    """Import packages and return a function that embeds sentences."""
    if way.startswith("open_export"):
        import encoder_zoo as ez

        return ez.open_export(folder / way.split()[1]).embed
    if way == "bare":
        return make_bare(folder / "float32")
    if way == "transformers":
        return make_transformers()
    import encoder_zoo as ez

    return ez.TextEmbedder.from_preset(MINILM).embed


def make_bare(folder: pathlib.Path):
    """Return a minimal function that uses an ONNX session and a tokenizer without any checks."""
    import onnxruntime
    import tokenizers

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    columns = {"token_ids": "ids", "padding_mask": "attention_mask", "segment_ids": "type_ids"}

    def embed(texts):
        order = np.argsort([-len(text) for text in texts], kind="stable")
        parts = []
        for start in range(0, len(texts), 32):
            rows = tokenizer.encode_batch([texts[i] for i in order[start : start + 32]])
            inputs = {
                given.name: np.array([getattr(row, columns[given.name]) for row in rows], "int32")
                for given in session.get_inputs()
            }
            parts.append(session.run(None, inputs)[0])
        return np.concatenate(parts)[np.argsort(order)]

    return embed


def make_transformers():
    """Return a function for mean pooling and normalization with transformers."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    model = transformers.AutoModel.from_pretrained(MINILM).eval()

    def embed(texts):
        order = np.argsort([-len(text) for text in texts], kind="stable")
        parts = []
        for start in range(0, len(texts), 32):
            chosen = [texts[i] for i in order[start : start + 32]]
            inputs = tokenizer(chosen, padding=True, truncation=True, return_tensors="pt")
            with torch.inference_mode():
                states = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None]
            mean = (states * mask).sum(1) / mask.sum(1)
            parts.append(torch.nn.functional.normalize(mean).numpy())
        return np.concatenate(parts)[np.argsort(order)]

    return embed


def measure(way: str, folder: pathlib.Path) -> None:
    """Print a line when the first vector is ready, and then all measurements as JSON."""
    embed = make_embed(way, folder)
    first = embed([TEXT])
    print(time.time(), flush=True)
    found = {"cpu": time.process_time(), "first_mb": peak_memory()}
    sentences, seconds = read_sentences(600), []
    for sentence in sentences[:60]:
        start = time.perf_counter()
        embed([sentence])
        seconds.append(time.perf_counter() - start)
    embed(sentences)  # traces all graphs first
    start = time.perf_counter()
    vectors = embed(sentences)
    found["per_second"] = len(sentences) / (time.perf_counter() - start)
    found |= {"one_ms": 1000 * statistics.median(seconds[10:]), "peak_mb": peak_memory()}
    np.save(folder / f"{way}.npy", np.concatenate([first, vectors]))
    print(json.dumps(found))


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def export(folder: pathlib.Path) -> None:
    """Write exports, using a process with Keras."""
    import encoder_zoo as ez

    model = ez.TextEmbedder.from_preset(MINILM)
    for dtype in ("float32", "int8"):
        model.export(folder / dtype, format="onnx", dtype=dtype)


def run(way: str, folder: pathlib.Path) -> dict[str, float]:
    """Measure one way in a separate process."""
    backend = "torch" if way == "torch" else "tensorflow"
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    start = time.time()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{way} failed:\n{done.stderr}")
    answered, found = done.stdout.split("\n")[:2]
    return {"wall": float(answered) - start, **json.loads(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="processes per way")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way == "export":
        export(options.folder)
    elif options.way:
        measure(options.way, options.folder)
    else:
        compare(options.ways, options.runs)


def compare(ways: list[str], runs: int) -> None:
    """Print a table with medians. All ways run in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [sys.executable, __file__, "--way", "export", "--folder", name]
        subprocess.run(command, check=True, capture_output=True)
        found = {way: [] for way in ways}
        for i in range(runs + 1):
            for way in ways:
                measured = run(way, folder)
                if i:  # the first process compiles modules and reads files from the disk
                    found[way].append(measured)
        vectors = {way: np.load(folder / f"{way}.npy") for way in ways}
    columns = ("wall", "cpu", "first_mb", "peak_mb", "one_ms", "per_second")
    print(f"| way | {' | '.join(columns)} | least cosine |\n|---{'|---' * 7}|")
    for way in ways:
        medians = [statistics.median(one[column] for one in found[way]) for column in columns]
        cosine = np.sum(vectors[way] * vectors[ways[0]], axis=1).min()
        print(f"| {way} | {' | '.join(f'{value:.2f}' for value in medians)} | {cosine:.5f} |")


if __name__ == "__main__":
    main()
