"""Settings for tracing TensorFlow graphs, to be used in layers and preprocessors.

Settings cannot be passed as arguments, because Keras calls layers with a fixed list of arguments.
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
        is_long: Optional boolean. Whether the graph will be used for long texts only (True) or for
            short texts only (False). This can be used to select the attention method. If None, both
            are supported. Defaults to None.
        blocks: Optional dict with the functions of blocks in this graph. This is used to trace
            identical blocks only once, which saves most of the tracing time. The operations in the
            graph are the same, because TensorFlow will inline all function calls. Defaults to None.
        serves: Boolean. Whether to trace the graph for export. If True, empty texts are accepted,
            because a batch can contain texts from several clients, and raising an error would
            affect all clients. Defaults to False.
    """

    is_long: bool | None = None
    blocks: dict | None = None
    serves: bool = False


_trace: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("trace", default=None)


def get_trace() -> Trace:
    """Return the current settings for tracing."""
    return _trace.get() or Trace()


@contextlib.contextmanager
def use_trace_settings(**changes: Any) -> Iterator[None]:
    """Context manager to change the settings for tracing.

    Args:
        **changes: Attributes of `Trace` to change.

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
