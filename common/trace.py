"""How the present graph of TensorFlow is traced, for the layers and preprocessors inside it.

They cannot get it as an argument, because Keras calls the layers, and tasks the preprocessors, with
arguments of their own.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Trace:
    """What is known of a graph when it is traced.

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
    """Return how the present graph is traced."""
    return _trace.get() or Trace()


@contextlib.contextmanager
def tracing(**changes: object) -> Iterator[None]:
    """Return a context manager in which graphs are traced in another way.

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
