"""Functions that are shared by all sides of `speed.py`.

This module does not import any framework, because `answer` measures processes from their start.
"""

import statistics
import time
from collections.abc import Callable

BATCH, MASK_RATE = 32, 0.15


def latencies(answer: Callable, texts: list[str]) -> dict[str, float]:
    """Return milliseconds per text (median and 99th percentile)."""
    for text in texts[:20]:
        answer(text)
    times = []
    for text in texts[:300]:
        start = time.perf_counter()
        answer(text)
        times.append(1000 * (time.perf_counter() - start))
    return {"value": statistics.median(times), "p99": statistics.quantiles(times, n=100)[98]}


def second_call(function: Callable) -> float:
    """Return how many seconds the second call takes."""
    function()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
