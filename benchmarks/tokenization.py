"""Compare texts per second for tokenizers in encoder_zoo and in other libraries.

    python benchmarks/tokenization.py

All tokenizers process the same texts. The fastest of several rounds is used. Tokenizers run in
turns, so that other programs on the machine affect all of them equally. A second table measures how
fast texts are converted to padded model inputs. This script requires the extra `peers`.

To provide the data, set `ENCODER_ZOO_DATA` to a folder with `sst2/train.tsv`,
`text/wikipedia_train.txt.gz`, `multilingual/lines.txt` and the GPT-2 files
`bpe/{encoder.json,vocab.bpe}`.
"""

import argparse
import gzip
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_hub
import tensorflow as tf
import transformers
from sources import DATA, MINILM, need_data

from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor,
)

BATCH = 4096
LENGTH = 64  # number of tokens in padded inputs
VOCABULARY = MINILM / "vocab.txt"


def corpora(limit: int) -> dict[str, list[str]]:
    """Read ASCII sentences, long documents, and lines in many scripts."""
    sst2 = (DATA / "sst2" / "train.tsv").read_text(encoding="utf-8").split("\n")[1:]
    with gzip.open(DATA / "text" / "wikipedia_train.txt.gz", "rt", encoding="utf-8") as file:
        documents = file.read().split("\n\n")[:2000]
    lines = (DATA / "multilingual" / "lines.txt").read_text(encoding="utf-8").split("\n")
    sentences = [line.split("\t")[1] for line in sst2 if line]
    return {"sst2": sentences[:limit], "documents": documents, "many scripts": lines}


def roberta_files(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Write a vocabulary in RoBERTa format with GPT-2 tokens, and GPT-2 merges."""
    gpt2 = json.loads((DATA / "bpe" / "encoder.json").read_text(encoding="utf-8"))
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *gpt2, "<mask>"]
    path = folder / "vocab.json"
    path.write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    merges = folder / "merges.txt"
    merges.write_bytes((DATA / "bpe" / "vocab.bpe").read_bytes())
    return path, merges


def in_pipeline(function: Callable, texts: list[str], batch: int) -> Callable[[], None]:
    """Return a function to process all texts in tf.data, with several batches at once."""
    dataset = tf.data.Dataset.from_tensor_slices(tf.constant(texts)).batch(batch)
    dataset = dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1  # parallel batches, not parts of batches
    dataset = dataset.with_options(options)

    def run() -> None:
        for _ in dataset:
            pass

    return run


def keras_hub_tokenizer(family: str, files: tuple) -> object:
    """Create a KerasHub tokenizer with the same vocabulary."""
    if family == "wordpiece":
        return keras_hub.tokenizers.BertTokenizer(str(files[0]), lowercase=True)
    return keras_hub.tokenizers.RobertaTokenizer(str(files[0]), str(files[1]))


def tokenizing(
    ours: Tokenizer, theirs: object, hub: object, texts: list[str], batch: int
) -> dict[str, Callable[[], None]]:
    """Return a dict {name: function that tokenizes all texts} with the functions to measure."""
    backend = theirs.backend_tokenizer
    return {
        "encode_batch_fast": lambda: backend.encode_batch_fast(texts, add_special_tokens=False),
        "encoder_zoo called": lambda: ours.tokenize(texts),
        "encoder_zoo called, with offsets": lambda: ours.tokenize_with_offsets(texts),
        "encoder_zoo in tf.data": in_pipeline(ours.tokenize, texts, batch),
        "transformers called": lambda: theirs(texts, add_special_tokens=False),
        "KerasHub in tf.data": in_pipeline(hub, texts, batch),
    }


def packing(
    ours: Tokenizer, theirs: object, hub: object, texts: list[str], batch: int
) -> dict[str, Callable[[], None]]:
    """Return a dict {name: function} to convert texts to padded inputs with `LENGTH` tokens."""
    models = keras_hub.models
    name = "Bert" if isinstance(ours, BertTokenizer) else "Roberta"
    hub_class = getattr(models, f"{name}TextClassifierPreprocessor")
    fixed = {"padding": "max_length", "max_length": LENGTH, "truncation": True}
    return {
        "KerasHub": in_pipeline(hub_class(hub, sequence_length=LENGTH), texts, batch),
        "encoder_zoo": in_pipeline(
            SequenceClassifierPreprocessor(ours, sequence_length=LENGTH), texts, batch
        ),
        "transformers called": lambda: theirs(texts, **fixed, return_tensors="np"),
    }


def measure(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the fastest time for each function in seconds. They run in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for i in range(rounds + 1):  # the first round is used to trace graphs
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start) if i else float("inf")
    return best


def print_table(kind: str, contestants: Callable, families: dict, options) -> None:
    """Print rows for all families, corpora and tokenizers, with ratios to the first tokenizer."""
    texts_of = corpora(options.limit)
    first = next(iter(contestants(*next(iter(families.values())), ["a"], 1)))
    print(f"\n| family | corpus | {kind} | texts/s | of {first} |\n" + 5 * "|---" + "|")
    for family, tokenizers in families.items():
        for corpus, texts in texts_of.items():
            batch = {"documents": 16, "sst2": BATCH}.get(corpus, 1024)
            seconds = measure(contestants(*tokenizers, texts, batch), options.rounds)
            for name, value in seconds.items():
                ratio, rate = seconds[first] / value, len(texts) / value
                print(f"| {family} | {corpus} | {name} | {rate:,.0f} | {ratio:.2f} |", flush=True)


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=100_000, help="maximum SST-2 sentences")
    options = parser.parse_args()
    need_data("sst2", "text", "multilingual", "bpe")

    with tempfile.TemporaryDirectory() as folder:
        files = roberta_files(pathlib.Path(folder))
        families = {
            "wordpiece": (
                BertTokenizer(VOCABULARY),
                transformers.BertTokenizer(str(VOCABULARY)),
                keras_hub_tokenizer("wordpiece", (VOCABULARY,)),
            ),
            "byte-level BPE": (
                RobertaTokenizer(*files),
                transformers.RobertaTokenizer(*map(str, files)),
                keras_hub_tokenizer("byte-level BPE", files),
            ),
        }
        print_table("tokenizer", tokenizing, families, options)
        print_table(f"padded inputs of {LENGTH} tokens", packing, families, options)


if __name__ == "__main__":
    main()
