"""Requests to the Hugging Face hub, with retries and error messages that give advice."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

logger = logging.getLogger("encoder_zoo")

_PAUSES = (1, 4, None)  # seconds to wait before the next attempt
_WAIT, _LEAST = 60, 1000  # seconds, and bytes that come in them at least
_BUSY = (408, 425, 429, 500, 502, 503, 504)
REFUSALS = {
    401: "no such repository, or a private one: the hub asks for a token (401). Set HF_TOKEN",
    403: "the hub refuses access (403). Set HF_TOKEN to a token that may read it",
    404: "no such repository, or a private one without a token in HF_TOKEN",
    410: "the repository is gone (410)",
    451: "the hub may not give it out (451)",
}
_KINDS = {  # classes of the client's errors
    "GatedRepoError": "access must be asked for on its page, and a token set in HF_TOKEN",
    "EntryNotFoundError": "a file of its own list is not there",
    "RevisionNotFoundError": "there is no such revision",
}
T = TypeVar("T")


class Unreachable(Exception):
    """Raised if the hub does not answer or is busy, so that cached files may be used."""


def within(function: Callable[[], T], received: Callable[[], int] = lambda: 0) -> T:
    """Return the result of a request that ends, or goes on, within a minute.

    The client itself waits as long as a server tells it to, or sends a byte now and then.

    Args:
        function: runs in a thread, which is left alone if it takes too long.
        received: bytes that have come so far.

    Raises:
        Unreachable: If no answer comes in time.
    """
    done: queue.SimpleQueue = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((function(), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    begun, last = time.monotonic(), received()
    while time.monotonic() - begun <= _WAIT:
        with contextlib.suppress(queue.Empty):
            result, error = done.get(timeout=min(1, _WAIT / 4))
            if error is not None:
                raise error
            return result
        if received() - last >= _LEAST:
            begun, last = time.monotonic(), received()
    raise Unreachable(f"no answer came within {_WAIT} seconds")


def retried(
    address: str,
    function: Callable[[], T],
    any_error: bool = False,
    refusals: Mapping[int, str] = REFUSALS,
) -> T:
    """Return the result of a request, repeated if the hub is busy or, if `any_error`, on errors.

    Raises:
        ValueError: If the hub refuses.
        Unreachable: If the hub does not answer. Its message is the last error.
    """
    for pause in _PAUSES:
        try:
            return function()
        except Unreachable:  # it has let the client wait long enough
            raise
        except Exception as error:  # of the client, the connection or the system
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in refusals:
                raise ValueError(f"{address}: {_refusal(error, refusals[status])}.") from error
            if pause is None or not (any_error or status in _BUSY):
                answer = f"it answered {status}: " if status else ""
                raise Unreachable(answer + first_line(error)) from error
            logger.debug("%s: %s; retry in %s s", address, error, pause)
            time.sleep(pause)
    raise AssertionError("the last pause is None")


def _refusal(error: Exception, words: str) -> str:
    """Return the error message for a permanent error: what its class says, or else `words`."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_KINDS[name] for name in names if name in _KINDS), words)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def endpoint() -> str | None:
    """Return HF_ENDPOINT, also if it was set after the client was imported."""
    return os.environ.get("HF_ENDPOINT")
