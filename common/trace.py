"""Settings for the TensorFlow graph that is being traced. Layers and preprocessors read them.

The settings are not passed as arguments, because Keras and tasks call layers and preprocessors with
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
        is_long: Boolean. True for a graph that only processes long texts, False for a graph that
            only processes short texts. Such a graph needs a single attention method. Defaults to
            None, which supports both.
        blocks: Dictionary of block functions in this graph, with keys that describe the
            computation. It is used to trace identical blocks only once, because blocks take most of
            the tracing time. The final graph has the same operations, because TensorFlow inlines
            all calls. Defaults to None.
        serves: Boolean. Whether the graph is part of an export. If True, it also accepts empty
            texts. Servers put requests from several clients into one batch, and an error for one
            text would affect all clients. Defaults to False.
    """

    is_long: bool | None = None
    blocks: dict | None = None
    serves: bool = False


_trace: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("trace", default=None)


def get_trace() -> Trace:
    """Return the settings for the graph that is being traced."""
    return _trace.get() or Trace()


@contextlib.contextmanager
def use_trace_settings(**changes: Any) -> Iterator[None]:
    """Change the settings for graphs that are traced inside a `with` block.

    Args:
        **changes: Attributes of `Trace`.

    Example:
        >>> with use_trace_settings(is_long=False), use_trace_settings(serves=True):
        ...     get_trace()
        Trace(is_long=False, blocks=None, serves=True)
    """
    token = _trace.set(dataclasses.replace(get_trace(), **changes))
    try:
        yield
    finally:
        _trace.reset(token)
