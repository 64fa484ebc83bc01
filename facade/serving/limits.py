"""Limits for requests and batches."""

from __future__ import annotations

import dataclasses

from encoder_zoo.common import validation
from encoder_zoo.common.wording import invalid


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits for requests, batches and the queue of the service.

    Args:
        max_request_bytes: Integer. Maximum size of a request in bytes. Larger requests will be
            rejected with status 413. Defaults to 1 MiB.
        max_texts: Integer. Maximum number of texts per request. Requests with more texts will be
            rejected with status 413. Defaults to 256.
        max_queue_texts: Integer. Maximum number of texts in the queue. If the queue is full,
            requests will be rejected with status 429. Defaults to 2,048.
        max_batch_texts: Integer. Maximum number of texts per batch. Defaults to 32.
        max_batch_tokens: Integer. Maximum number of tokens per batch, including padding. A longer
            text will be computed in a separate batch. Defaults to 16,384.
        max_wait: Float. Maximum time to wait for more texts in a batch, in seconds. Defaults to
            0.004.
        body_timeout: Float. Maximum time to wait for the request body, in seconds. Slower requests
            will be rejected with status 408. Defaults to 30.

    Raises:
        ValueError: If a value is invalid, or if `max_texts` exceeds `max_queue_texts`.

    Example:
        >>> Limits(max_texts=64).max_batch_texts
        32
    """

    max_request_bytes: validation.PositiveInt = 2**20
    max_texts: validation.PositiveInt = 256
    max_queue_texts: validation.PositiveInt = 2048
    max_batch_texts: validation.PositiveInt = 32
    max_batch_tokens: validation.PositiveInt = 16_384
    max_wait: validation.NonNegativeFloat = 0.004
    body_timeout: validation.PositiveFloat = 30.0

    def __post_init__(self) -> None:
        for name, rule in validation.get_rules(type(self).__init__).items():
            validation.check_argument(name, getattr(self, name), rule)
        if self.max_texts > self.max_queue_texts:
            most = f"at most max_queue_texts={self.max_queue_texts}"
            raise invalid("max_texts", self.max_texts, most)
