"""Requests to the Hugging Face hub: tried again while it is busy, errors that say what to do."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger("encoder_zoo")

_PAUSES = (1, 4, None)  # seconds to wait before the next attempt
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_REFUSALS = {
    401: "no such repository, or a private one: the hub asks for a token (401). Set HF_TOKEN",
    403: "the hub refuses access (403). Set HF_TOKEN to a token that may read it",
    404: "no such repository, or a private one without a token in HF_TOKEN",
    410: "the repository is gone (410)",
    451: "the hub may not give it out (451)",
}
T = TypeVar("T")


class Unreachable(Exception):
    """The hub did not answer, or is busy: files in the cache may be used."""


def asked(address: str, function: Callable[[], T], whatever: bool = False) -> T:
    """Return the result of a request, repeated while the hub is busy, or on any error.

    Raises:
        ValueError: "...: the hub refuses access (403) ..."
        Unreachable: with what was wrong the last time.
    """
    for pause in _PAUSES:
        try:
            return function()
        except Exception as error:  # the client raises its own, the connection's and the system's
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in _REFUSALS:
                raise ValueError(f"{address}: {_refusal(error, status)}.") from error
            if pause is None or not (whatever or status in _BUSY):
                answer = f"it answered {status}: " if status else ""
                raise Unreachable(answer + first_line(error)) from error
            logger.debug("%s: %s; asked again in %s s", address, error, pause)
            time.sleep(pause)
    raise AssertionError("the last pause is None")


def _refusal(error: Exception, status: int) -> str:
    """Return the advice for an answer that a repetition does not change."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return "access must be asked for on its page, and a token set in HF_TOKEN"
    if isinstance(error, EntryNotFoundError):
        return "a file of its own list is not there"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision"
    return _REFUSALS[status]


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def endpoint() -> str | None:
    """Return the hub's address where the user set one, also after the client was imported."""
    return os.environ.get("HF_ENDPOINT")
