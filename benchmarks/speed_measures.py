"""Functions that the sides of `speed.py` share. No framework is imported here: `answer` measures
a process from its start.
"""

import statistics
import time
from collections.abc import Callable

BATCH, MASK_RATE = 32, 0.15


def latencies(answer: Callable, texts: list[str]) -> dict[str, float]:
    """Milliseconds for one text."""
    for text in texts[:20]:
        answer(text)
    times = []
    for text in texts[:300]:
        start = time.perf_counter()
        answer(text)
        times.append(1000 * (time.perf_counter() - start))
    return {"value": statistics.median(times), "p99": statistics.quantiles(times, n=100)[98]}


def second_call(function: Callable) -> float:
    """Seconds."""
    function()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
