"""Measure the HTTP service with one client and with many clients, checking results and memory.

    python benchmarks/serving_load.py
    python benchmarks/serving_load.py TextEmbedder=bert_nano_en_uncased_embedder --minutes 60

This starts `python -m encoder_zoo.serving SOURCE` in a separate process and requests embeddings for
review sentences. First, a single client sends one request at a time. Then `--clients` clients send
requests at the same time. All vectors are compared to calling `embed` directly. The source has the
same format as for the service. By default, this is an export of all-MiniLM-L6-v2 to ONNX. Use
`--minutes` to continue for this time and to print the service's memory every minute. This script
requires the extras `serve` and `test`.

It also prints the CPU time per request for both processes, because it depends less on other
programs on the machine than requests per second.
"""

import argparse
import asyncio
import contextlib
import csv
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

import httpx
import numpy as np
from sources import MINILM

import encoder_zoo as ez
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
def started_service(*sources: str):
    """Start the service, and return its address when it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "encoder_zoo.serving", *sources, "--port", str(port)]
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
    """Return whether the service has warmed up."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health").status_code == 200
    return False


def read_metrics(url: str) -> dict[str, float]:
    """Read the service metrics."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line[0] != "#"]
    return {name: float(value) for name, value in pairs}


def resident_megabytes(url: str) -> float:
    """Return how much memory the service uses."""
    return read_metrics(url)["process_resident_memory_bytes"] / 2**20


async def ask(url: str, texts: list[str], clients: int) -> tuple[list[float], dict[int, bytes]]:
    """Send a request for every text from several clients. Return seconds and response bodies.

    Each client keeps its socket open, and takes 0.2 ms of CPU time per request.
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
    return seconds, answers


def compare(answers: dict[int, bytes], expected: np.ndarray) -> None:
    """Check the vectors in responses."""
    for i, answer in answers.items():
        vector = json.loads(answer)["data"][0]["embedding"]
        np.testing.assert_allclose(vector, expected[i], atol=1e-5)


def measure(url: str, texts: list[str], clients: int, expected: np.ndarray) -> float:
    """Print latencies and CPU times, and return the requests per second."""
    before, own = read_metrics(url), time.process_time()
    start = time.perf_counter()
    seconds, answers = asyncio.run(ask(url, texts, clients))
    rate = len(texts) / (time.perf_counter() - start)
    own, after = time.process_time() - own, read_metrics(url)
    compare(answers, expected)
    spent = {name: value - before.get(name, 0) for name, value in after.items()}
    cpu = 1000 * spent["process_cpu_seconds_total"] / len(texts)
    batch = spent["encoder_zoo_batch_texts_sum"] / spent["encoder_zoo_batch_texts_count"]
    middle, slowest = (1000 * np.percentile(seconds, p) for p in (50, 99))
    print(
        f"{clients:3} clients: {rate:6.1f}/s, p50 {middle:6.1f} ms, p99 {slowest:6.1f} ms, "
        f"{batch:4.1f} texts in a batch, CPU per request {cpu:.1f} ms (clients "
        f"{1000 * own / len(texts):.2f} ms), load {os.getloadavg()[0]:.1f}"
    )
    return rate


@contextlib.contextmanager
def chosen_source(given: str | None):
    """Return the given source, or a temporary folder with an export of all-MiniLM-L6-v2."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        ez.TextEmbedder.from_preset(MINILM).export(f"{folder}/minilm", format="onnx")
        yield f"{folder}/minilm"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", nargs="?", help="default: an export of all-MiniLM-L6-v2 to ONNX")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=0)
    given = parser.parse_args()
    texts = (read_sentences() * (1 + given.requests // 1000))[: given.requests]
    with chosen_source(given.source) as source:
        [embedder] = open_folders([source])[0].values()
        expected = embedder.embed(texts)
        start = time.perf_counter()
        embedder.embed(texts)
        print(f"embed, called directly: {len(texts) / (time.perf_counter() - start):.1f}/s")
        with started_service(source) as url:
            measure_service(url, texts, expected, given.clients, given.minutes)


def measure_service(
    url: str, texts: list[str], expected: np.ndarray, clients: int, minutes: float
) -> None:
    """Measure the service with one client, with many clients, and over some minutes."""
    measure(url, texts[:100], clients, expected)  # kernels for new shapes
    alone = measure(url, texts[: max(50, len(texts) // 5)], 1, expected)
    joined = measure(url, texts, clients, expected)
    print(f"{joined / alone:.1f} times the requests of one client (target: at least 5)")
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        minute = time.monotonic() + min(60, 60 * minutes)
        while time.monotonic() < minute:
            compare(asyncio.run(ask(url, texts, clients))[1], expected)
        print(f"{resident_megabytes(url):.0f} MB")
    print(f"{resident_megabytes(url):.0f} MB at the end")


if __name__ == "__main__":
    main()
