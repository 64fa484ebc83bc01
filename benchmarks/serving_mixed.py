"""Check answers and memory usage for the HTTP service under mixed load.

    python benchmarks/serving_mixed.py
    python benchmarks/serving_mixed.py --requests 2000 --minutes 15

Six bundled tasks are exported to ONNX and served by a single process, together with an index.
`--clients` clients send `--requests` requests for all routes, with 1 to 32 texts per request and
one word to more than 512 tokens per text. In one of ten requests, the client disconnects early, at
a random time. All answers must match the Keras tasks with a tolerance of 1e-5. Use `--minutes` to
keep sending requests for this time. This script requires the extras `serve` and `test`.
"""

import argparse
import asyncio
import collections
import json
import math
import os
import random
import re
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import numpy as np
from serving_load import read_metrics, read_sentences, resident_megabytes, started_service

import encoder_zoo as ez

TASKS = {
    "classes": ("SequenceClassifier", "bert_nano_en_uncased_sentiment"),
    "entities": ("TokenClassifier", "bert_nano_en_uncased_ner"),
    "vectors": ("TextEmbedder", "bert_nano_en_uncased_embedder"),
    "masks": ("MaskedLM", "bert_nano_en_uncased"),
    "pairs": ("Reranker", "bert_nano_en_uncased"),
    "spans": ("SpanQA", "bert_nano_en_uncased"),
}
DISTINCT = 500  # number of different requests
SHARE_LEAVING = 0.1
SHARE_LONG = 0.02  # texts that are longer than the model
SENTENCES = read_sentences()


class Request(NamedTuple):
    """A request to send.

    Attributes:
        path: String. The URL path.
        body: Bytes. The request body.
        select: Function that selects the part of the response to compare.
        expected: The expected value, computed by the Keras task.
    """

    path: str
    body: bytes
    select: Callable[[Any], Any]
    expected: Any


class Drawing:
    """Draw random requests and compute the expected answers."""

    def __init__(self, tasks: dict[str, Any], index: Any, seed: int):
        self.tasks, self.index, self.random = tasks, index, random.Random(seed)

    def text(self) -> str:
        if self.random.random() < SHARE_LONG:
            return " ".join(self.random.choices(SENTENCES, k=80))
        words = self.random.choice(SENTENCES).split()
        return " ".join(words[: self.random.randint(1, len(words))])

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.random.choice([1, 1, 2, 4, 8, 32]))]

    def draw(self) -> Request:
        kind = self.random.choice([*self.tasks, "hits"])
        path, fields, select, expected = getattr(self, f"draw_{kind}")()
        expected = json.loads(json.dumps(expected, default=lambda v: v.tolist()))
        return Request(path, json.dumps(fields).encode(), select, expected)

    def draw_classes(self):
        texts = self.texts()
        options = self.random.choice([{}, {"top_k": 2}, {"threshold": 0.7}])
        expected = self.tasks["classes"].classify(texts, **options)
        return "/classify", {"texts": texts, **options}, lambda body: body["answers"], expected

    def draw_entities(self):
        texts = self.texts()
        expected = self.tasks["entities"].extract_entities(texts)
        return "/entities", {"texts": texts}, lambda body: body["answers"], expected

    def draw_vectors(self):
        texts, dim = self.texts(), self.random.choice([None, 32])
        expected = self.tasks["vectors"].embed(texts, dim=dim)
        fields = {"input": texts, "dimensions": dim}
        return "/v1/embeddings", fields, select_embeddings, expected

    def draw_masks(self):
        texts = [f"{text[:300]} [MASK]." for text in self.texts()]
        expected = self.tasks["masks"].fill_mask(texts)
        return "/fill_mask", {"texts": texts}, select_scores, select_scores({"answers": expected})

    def draw_pairs(self):
        query, texts = self.text()[:100], self.texts()
        expected = self.tasks["pairs"].rank(query, texts)
        fields = {"query": query, "texts": texts}
        return "/rerank", fields, order_by_index, order_by_index(expected)

    def draw_spans(self):
        questions, context = [text[:100] for text in self.texts()], self.text()
        answers = self.tasks["spans"].answer(questions, [context] * len(questions))
        fields = {"question": questions, "context": context}
        return "/answer", fields, select_answer_scores, select_answer_scores({"answers": answers})

    def draw_hits(self):
        queries = self.texts()
        expected = self.index.search(queries, top_k=3)
        fields = {"query": queries, "top_k": 3}
        return "/search", fields, select_scores, select_scores({"answers": expected})


def select_scores(body: dict) -> list:
    """Return only the scores, because the order of equal scores can differ."""
    return [[row["score"] for row in rows] for rows in body["answers"]]


def select_answer_scores(body: dict) -> list[float]:
    """Return the score of the only answer to each question."""
    return [answer["score"] for answer in body["answers"]]


def select_embeddings(body: dict) -> list[list[float]]:
    """Return the vectors in a response in OpenAI format."""
    return [row["embedding"] for row in body["data"]]


def order_by_index(ranked: list[dict]) -> list[float]:
    """Sort scores by text index, because the order of equal scores can differ."""
    return [row["score"] for row in sorted(ranked, key=lambda row: row["index"])]


def is_close(found: Any, expected: Any) -> bool:
    """Return whether two answers are equal, with a tolerance of 1e-5 for floats."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            is_close(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_close, found, expected))
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-5)
    return found == expected


async def send(url: str, requests: list[Request], clients: int, seed: int) -> dict[str, Any]:
    """Send all requests. Return latencies, counts, and memory usage over time."""
    address, left = httpx.URL(url), collections.deque(enumerate(requests))
    seconds, counts, memory = [], collections.Counter(), {}
    marks = {max(1, len(requests) * percent // 100): percent for percent in (10, 50, 100)}
    chance = random.Random(seed)

    async def run_client():
        reader = writer = None
        while left:
            i, request = left.popleft()
            if writer is None:
                reader, writer = await asyncio.open_connection(address.host, address.port)
            head = f"POST {request.path} HTTP/1.1\r\nHost: a\r\nContent-Length: "
            message = f"{head}{len(request.body)}\r\n\r\n".encode() + request.body
            if chance.random() < SHARE_LEAVING:
                counts["left"] += 1
                end = chance.choice([len(message), chance.randrange(len(message))])
                writer.write(message[:end])
                await asyncio.sleep(chance.random() / 20)
                writer.transport.abort()
                writer = None
            else:
                start = time.perf_counter()
                writer.write(message)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())[1]
                body = await reader.readexactly(int(length))
                seconds.append(time.perf_counter() - start)
                counts[head.split()[1].decode()] += 1
                answer = request.select(json.loads(body)) if b" 200 " in head[:20] else None
                counts["equal" if is_close(answer, request.expected) else "different"] += 1
            if i + 1 in marks:
                memory[marks[i + 1]] = await asyncio.to_thread(resident_megabytes, url)
        if writer is not None:
            writer.close()

    start = time.perf_counter()
    await asyncio.gather(*[run_client() for _ in range(clients)])
    rate = len(requests) / (time.perf_counter() - start)
    return {"seconds": seconds, "counts": counts, "memory": memory, "rate": rate}


def measure(url: str, requests: list[Request], clients: int, seed: int) -> None:
    """Send requests and print the results. Wait until the queue is empty."""
    found = asyncio.run(send(url, requests, clients, seed))
    end = time.monotonic() + 60
    while read_metrics(url)["encoder_zoo_queue_texts"] and time.monotonic() < end:
        time.sleep(0.1)
    middle, slowest = (1000 * np.percentile(found["seconds"], p) for p in (50, 99))
    memory = ", ".join(f"{mb:.0f} MB at {percent} %" for percent, mb in found["memory"].items())
    print(
        f"{len(requests)} requests, {found['rate']:.0f}/s, p50 {middle:.0f} ms, p99 {slowest:.0f} "
        f"ms; {dict(found['counts'])}; {memory}; "
        f"queue {read_metrics(url)['encoder_zoo_queue_texts']:.0f}, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def export_tasks(folder: str) -> tuple[dict[str, Any], Any, list[str]]:
    """Export all tasks, and return them, the index and the folders to serve."""
    tasks = {}
    for name, (cls, preset) in TASKS.items():
        tasks[name] = getattr(ez, cls).from_preset(preset)
        tasks[name].export(f"{folder}/{name}", format="onnx")
    index = tasks["vectors"].index(SENTENCES[:500])
    index.save(f"{folder}/notes")
    return tasks, index, [f"{folder}/{name}" for name in [*TASKS, "notes"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tasks, index, folders = export_tasks(folder)
        drawing = Drawing(tasks, index, seed=0)
        drawn = [drawing.draw() for _ in range(min(DISTINCT, given.requests))]
        with started_service(*folders) as url:
            end, seed = time.monotonic() + 60 * given.minutes, 0
            while seed == 0 or time.monotonic() < end:
                seed += 1
                requests = random.Random(seed).choices(drawn, k=given.requests)
                measure(url, requests, given.clients, seed)


if __name__ == "__main__":
    main()
