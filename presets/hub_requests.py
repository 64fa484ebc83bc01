"""Send requests to the Hugging Face Hub, with retries and helpful error messages."""

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
_TIMEOUT_SECONDS = 60
_MIN_BYTES = 1000  # minimum number of bytes to receive within the timeout
_BUSY = (408, 425, 429, 500, 502, 503, 504)
REFUSALS = {
    401: "the repository does not exist or is private (401). Set HF_TOKEN",
    403: "the hub denies access (403). Set HF_TOKEN to a token with read access",
    404: "the repository does not exist, or it is private and HF_TOKEN is not set",
    410: "the repository was deleted (410)",
    451: "the repository is not available for legal reasons (451)",
}
_KINDS = {  # error classes of huggingface_hub
    "GatedRepoError": "the repository is gated. Request access on its page and set HF_TOKEN",
    "EntryNotFoundError": "a listed file is missing on the hub",
    "RevisionNotFoundError": "the revision does not exist",
}
T = TypeVar("T")


class Unreachable(Exception):
    """Raised if the hub is busy or does not respond. The caller can use cached files instead."""


def run_with_timeout(function: Callable[[], T], received: Callable[[], int] = lambda: 0) -> T:
    """Run a request, and raise an error after a minute without progress.

    Without this limit, a server could make the client wait forever, for example by sending one byte
    from time to time.

    Args:
        function: A function that sends the request. The function runs in a thread, which is
            abandoned after a timeout.
        received: A function that returns the number of received bytes. Defaults to a constant.

    Returns:
        The result of the function.

    Raises:
        Unreachable: If no response arrives in time.
    """
    done: queue.SimpleQueue = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((function(), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    begun, last = time.monotonic(), received()
    while time.monotonic() - begun <= _TIMEOUT_SECONDS:
        with contextlib.suppress(queue.Empty):
            result, error = done.get(timeout=min(1, _TIMEOUT_SECONDS / 4))
            if error is not None:
                raise error
            return result
        if received() - last >= _MIN_BYTES:
            begun, last = time.monotonic(), received()
    raise Unreachable(f"the hub did not respond within {_TIMEOUT_SECONDS} seconds")


def run_with_retries(
    address: str,
    function: Callable[[], T],
    any_error: bool = False,
    refusals: Mapping[int, str] = REFUSALS,
) -> T:
    """Run a request, and repeat the request while the hub is busy.

    Args:
        address: String. Preset address for error messages.
        function: A function that sends the request.
        any_error: Boolean. Whether to repeat the request after any error. Defaults to False.
        refusals: Dict {HTTP status: error message}. Defaults to `REFUSALS`.

    Returns:
        The result of the function.

    Raises:
        ValueError: If the hub rejects the request.
        Unreachable: If the hub does not respond. The message contains the last error.
    """
    for pause in _PAUSES:
        try:
            return function()
        except Unreachable:  # the client has waited long enough
            raise
        except Exception as error:  # client, connection or system error
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in refusals:
                kinds = (kind.__name__ for kind in type(error).__mro__)
                why = next((_KINDS[kind] for kind in kinds if kind in _KINDS), refusals[status])
                raise ValueError(f"{address}: {why}.") from error
            if pause is None or not (any_error or status in _BUSY):
                answer = f"the hub answered {status}: " if status else ""
                raise Unreachable(answer + read_first_line(error)) from error
            logger.debug("%s: %s. Retry in %s s", address, error, pause)
            time.sleep(pause)
    raise AssertionError("the last pause is None")


def read_first_line(error: Exception) -> str:
    """Return the first line of an error message, or the error type if the message is empty."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def get_endpoint() -> str | None:
    """Return the current value of HF_ENDPOINT, which huggingface_hub only reads at import time."""
    return os.environ.get("HF_ENDPOINT")
