"""The few lengths that batches are padded to where a program is compiled for every shape."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

LENGTHS = tuple(2**i for i in range(3, 14))  # 8 to 8,192
SHORTEST = 32  # tokens of the longest text, below which lengths are as for it
THREE_LENGTHS_UP_TO = 128  # tokens, up to which there are three lengths

_lengths = contextvars.ContextVar("lengths", default=LENGTHS[1:])


@contextlib.contextmanager
def padding_to(lengths: tuple[int, ...] | None) -> Iterator[None]:
    """Return a context in which `lengths_now` returns these lengths, to trace a graph with.

    Args:
        lengths: ascending; None leaves them as they are.
    """
    token = _lengths.set(lengths or _lengths.get())
    try:
        yield
    finally:
        _lengths.reset(token)


def lengths_now() -> tuple[int, ...]:
    """Return the lengths that batches are padded to."""
    return _lengths.get()


def choose_lengths(longest: int, known: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Return the lengths that batches are padded to: powers of two, three of them up to `THREE_LENGTHS_UP_TO`.

    Three cost some padding, and each further one a program, which takes seconds to compile.

    Args:
        longest: tokens of the longest example.
        known: lengths that there are programs for, which stay.

    Example:
        >>> choose_lengths(59), choose_lengths(300), choose_lengths(59, known=(8, 16, 32))
        ((16, 32, 64), (32, 64, 128, 256, 512), (8, 16, 32, 64))
    """
    last = next((n for n in LENGTHS if n >= max(longest, SHORTEST)), LENGTHS[-1])
    if known:
        return known + tuple(n for n in LENGTHS if known[-1] < n <= last)
    return tuple(n for n in LENGTHS if min(last, THREE_LENGTHS_UP_TO) // 4 <= n <= last)
