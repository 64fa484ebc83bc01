"""Settings for the TensorFlow graph being traced, to be read by layers and preprocessors.

Layers and preprocessors cannot take settings as an argument, because Keras and tasks call them with
fixed arguments.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Trace:
    """Settings for tracing a TensorFlow graph.

    Attributes:
        is_long: Boolean. Whether the graph will only be used for long texts or only for short
            texts, so that it needs a single attention method. Defaults to None, which supports
            both.
        blocks: Dict with block functions in this graph. Keys describe what they compute. Identical
            blocks are then traced only once. Most tracing time is spent on blocks. The final graph
            has the same operations because TensorFlow inlines all calls. Defaults to None.
        serves: Boolean. Whether the graph is part of an export. If True, it also accepts empty
            texts. Servers put requests from several clients into one batch, and an error for one
            text would affect all clients. Defaults to False.
    """

    is_long: bool | None = None
    blocks: dict | None = None
    serves: bool = False


_trace: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("trace", default=None)


def current_trace() -> Trace:
    """Return settings for the graph being traced."""
    return _trace.get() or Trace()


@contextlib.contextmanager
def tracing(**changes: Any) -> Iterator[None]:
    """Trace graphs with other settings inside a `with` block.

    Args:
        **changes: Attributes of `Trace`.

    Example:
        >>> with tracing(is_long=False), tracing(serves=True):
        ...     current_trace()
        Trace(is_long=False, blocks=None, serves=True)
    """
    token = _trace.set(dataclasses.replace(current_trace(), **changes))
    try:
        yield
    finally:
        _trace.reset(token)
