"""Prometheus metrics for the service."""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
TEXTS_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
TOKENS_BUCKETS = (16, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """Metrics for the service. For safety, labels never contain values from clients.

    Args:
        count_waiting: A function that counts the texts in the queue.
    """

    def __init__(self, count_waiting: Callable[[], float]):
        self._registry = registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        self._requests = Counter(
            "encoder_zoo_requests",
            "Requests by route and status",
            ["route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "encoder_zoo_request_seconds",
            "Seconds from the arrival of a request to its answer",
            ["route"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._batch_seconds = Histogram(
            "encoder_zoo_batch_seconds",
            "Seconds to compute a batch",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._batch_texts = Histogram(
            "encoder_zoo_batch_texts", "Texts in a batch", buckets=TEXTS_BUCKETS, registry=registry
        )
        self._batch_tokens = Histogram(
            "encoder_zoo_batch_tokens",
            "Tokens in a batch",
            buckets=TOKENS_BUCKETS,
            registry=registry,
        )
        self._truncated = Counter(
            "encoder_zoo_truncated_texts",
            "Texts that were truncated because they are too long",
            registry=registry,
        )
        waiting = Gauge("encoder_zoo_queue_texts", "Texts that wait", registry=registry)
        waiting.set_function(count_waiting)

    def add_request(self, route: str, status: int, seconds: float) -> None:
        """Update the metrics for a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def add_batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Update the metrics for a batch."""
        self._batch_texts.observe(texts)
        self._batch_tokens.observe(tokens)
        self._batch_seconds.observe(seconds)

    def add_truncated(self, texts: int) -> None:
        """Update the metrics for truncated texts."""
        self._truncated.inc(texts)

    def format_text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return prometheus_client.generate_latest(self._registry)
