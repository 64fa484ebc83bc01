"""Settings of the TensorFlow graph that is being traced, for the layers and preprocessors in it.

Layers and preprocessors cannot get the settings as an argument, because Keras and the tasks call
them with fixed arguments.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Trace:
    """Hold the settings with which a TensorFlow graph is traced.

    Attributes:
        is_long: Boolean. Whether the graph is used for long or for short texts, so that it only
            contains one attention method. Defaults to None: it is used for both.
        blocks: Dict of the functions of blocks in the graph, by what they compute. Identical blocks
            are then traced only once. Most of the tracing time is spent on blocks, and the final
            graph has the same operations, because TensorFlow inlines the calls. Defaults to None.
        serves: Boolean. Whether the graph is part of an export. It then answers for empty texts
            too: a server puts the requests of several clients into one batch, and an error for one
            text would be the error of all of them. Defaults to False.
    """

    is_long: bool | None = None
    blocks: dict | None = None
    serves: bool = False


_trace: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("trace", default=None)


def current_trace() -> Trace:
    """Return the settings of the graph that is being traced."""
    return _trace.get() or Trace()


@contextlib.contextmanager
def tracing(**changes: object) -> Iterator[None]:
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
