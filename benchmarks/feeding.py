"""Measure how many CPU cores are needed to feed a device with padded batches from a stream.

    KERAS_BACKEND=torch python benchmarks/feeding.py
    KERAS_BACKEND=torch python benchmarks/feeding.py --device 431000 --count 20000

Wikipedia paragraphs are joined and padded to about 128 and about 512 BERT tokens. A
`keras.utils.PyDataset` returns them in batches of 32. The first pass tokenizes texts and writes a
`TokenCache`. The second pass reads this cache. Times are CPU seconds, so the results apply to a
single core. Use `--device` to set training tokens per second on this device (431,000 for BERT-base
on an H200, see GPU results). Peak memory shows that no pass keeps data in memory.
"""

import argparse
import gzip
import itertools
import resource
import tempfile
import time
from collections.abc import Iterator

import keras
from sources import DATA, MINILM, need_data

import encoder_zoo as ez
from encoder_zoo.tasks.preprocessing.batching import Plan
from encoder_zoo.tasks.training.sources import StreamData
from encoder_zoo.tasks.training.streams import Stream

BATCH, LENGTHS, WORDS = 32, (128, 512), 0.75


class Batches(keras.utils.PyDataset):
    """Batches with texts in memory."""

    def __init__(self, texts: list[str]):
        super().__init__()
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts) // BATCH

    def __getitem__(self, number: int) -> tuple[list[str], list[str]]:
        return self.texts[number * BATCH : (number + 1) * BATCH], ["good", "bad"] * (BATCH // 2)


def long_texts(paragraphs: list[str], words: int, count: int) -> list[str]:
    """Create texts from consecutive words, starting again after the last paragraph."""
    every = " ".join(paragraphs).split(" ")
    starts = (number * words % (len(every) - words) for number in range(count))
    return [" ".join(every[start : start + words]) for start in starts]


def batches(task, source) -> Iterator:
    maker = task.batch_maker
    data = StreamData(Stream(source, maker)).make_source(Plan(BATCH), maker)
    return data._iterate_batches(0, seed=0)


def rate(task, source, length: int, count: int) -> float:
    """Return how many padded tokens are created per CPU second."""
    start, tokens = time.process_time(), 0
    for x, *_ in itertools.islice(batches(task, source), count // BATCH):
        tokens += x["token_ids"].size
        assert x["token_ids"].shape[1] <= length
    return tokens / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=6400, help="number of texts")
    parser.add_argument("--device", type=int, default=431_000, help="tokens per second")
    options = parser.parse_args()
    need_data("text")
    with gzip.open(DATA / "text" / "wikipedia_train.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in itertools.islice(file, 20_000) if line.strip()]
    print("| tokens of a text | from | tokens a second of a core | cores for a device | MB |")
    print("|---|---|---|---|---|")
    for length in LENGTHS:
        task = ez.SequenceClassifier.from_preset(
            MINILM, labels=["good", "bad"], sequence_length=length
        )
        # Most words are a single token. The rest is padding.
        source = Batches(long_texts(lines, int(length * WORDS), options.count))
        with tempfile.TemporaryDirectory() as folder:
            cache = ez.TokenCache(source, folder)
            for name, given in (("texts", source), ("texts, written", cache), ("tokens", cache)):
                found = rate(task, given, length, options.count)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                cores = options.device / found
                print(
                    f"| {length} | {name} | {found:,.0f} | {cores:.2f} | {peak:,.0f} |", flush=True
                )


if __name__ == "__main__":
    main()
