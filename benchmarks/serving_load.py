"""Measure the HTTP service with one client and with many clients, checking results and memory.

    python benchmarks/serving_load.py
    python benchmarks/serving_load.py TextEmbedder=bert_nano_en_uncased_embedder --minutes 60

This starts `python -m encoder_zoo.serving SOURCE` in a separate process and requests embeddings for
review sentences. First, a single client sends one request at a time. Then `--clients` clients send
requests at the same time. All vectors are compared to calling `embed` directly. The source has the
same format as for the service. By default, this is all-MiniLM-L6-v2 from a Python package. Use
`--minutes` to continue for this time and to print the service's memory every minute. This script
requires the extras `serve` and `test`.
"""

import argparse
import asyncio
import contextlib
import csv
import json
import pathlib
import random
import re
import socket
import subprocess
import sys
import time

import httpx
import numpy as np
from sources import MINILM

from encoder_zoo.serving import open_folders

ROOT = pathlib.Path(__file__).parents[1]


def read_sentences() -> list[str]:
    """Read and shuffle review sentences."""
    path = ROOT / "guides" / "data" / "sentiment_sentences.tsv"
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row["sentence"] for row in csv.DictReader(file, delimiter="\t", quoting=3)]
    random.Random(0).shuffle(rows)
    return rows


@contextlib.contextmanager
def started_service(source: str):
    """Start the service. When it is ready, return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "encoder_zoo.serving", source, "--port", str(port)]
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        while not is_ready(url):
            assert process.poll() is None, "the service has ended"
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    """Check whether the service has finished warming up."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health").status_code == 200
    return False


def resident_megabytes(url: str) -> float:
    """Return the service's memory, as reported by the service."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith("process_resident_memory_bytes")]
    return float(line.split()[1]) / 2**20


async def ask(url: str, texts: list[str], clients: int, expected: np.ndarray) -> list[float]:
    """Send a request for each text from several clients. Return how many seconds each request took.

    Clients use plain sockets, because 32 httpx clients would need more CPU time than the service.
    """
    seconds, left, answers = [], list(enumerate(texts)), {}

    async def ask_on():
        address = httpx.URL(url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        while left:
            i, text = left.pop()
            body = json.dumps({"input": text}).encode()
            start = time.perf_counter()
            size = f"Content-Length: {len(body)}\r\n\r\n".encode()
            writer.write(b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\n" + size + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head.split(b"\r\n")[0], head
            length = re.search(rb"content-length: (\d+)", head.lower())[1]
            answers[i] = await reader.readexactly(int(length))
            seconds.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*[ask_on() for _ in range(clients)])
    for i, answer in answers.items():
        vector = json.loads(answer)["data"][0]["embedding"]
        np.testing.assert_allclose(vector, expected[i], atol=1e-5)
    return seconds


def measure(url: str, texts: list[str], clients: int, expected: np.ndarray) -> float:
    """Print latencies and return requests per second."""
    seconds = asyncio.run(ask(url, texts, clients, expected))
    rate = clients * len(texts) / sum(seconds)
    middle, slowest = (1000 * np.percentile(seconds, p) for p in (50, 99))
    print(f"{clients:3} clients: {rate:6.1f}/s, p50 {middle:6.1f} ms, p99 {slowest:6.1f} ms")
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", nargs="?", default=f"TextEmbedder={MINILM}")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=0)
    given = parser.parse_args()
    texts = (read_sentences() * (1 + given.requests // 1000))[: given.requests]
    [embedder] = open_folders([given.source])[0].values()
    expected = embedder.embed(texts)
    with started_service(given.source) as url:
        measure(url, texts[:100], given.clients, expected)  # creates kernels for new shapes
        few = max(50, given.requests // 5)
        alone = measure(url, texts[:few], 1, expected)
        joined = measure(url, texts, given.clients, expected)
        print(f"{joined / alone:.1f} times the requests of one client (target: at least 5)")
        end = time.monotonic() + 60 * given.minutes
        while time.monotonic() < end:
            minute = time.monotonic() + min(60, 60 * given.minutes)
            while time.monotonic() < minute:
                asyncio.run(ask(url, texts, given.clients, expected))
            print(f"{resident_megabytes(url):.0f} MB")
        print(f"{resident_megabytes(url):.0f} MB at the end")


if __name__ == "__main__":
    main()
