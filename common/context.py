"""Settings for the current call or TensorFlow graph, which layers and preprocessors read.

These settings cannot be arguments or attributes: Keras, families and tasks call layers,
initializers and preprocessors with fixed arguments, and several threads share these objects.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Context:
    """Settings for the current call, or for the TensorFlow graph that is being traced.

    Attributes:
        is_long: Optional boolean. Whether the graph is only used for long texts (True) or only for
            short texts (False), which determines the attention method. If None, both are supported.
        blocks: Optional dict with the functions of blocks in this graph. Identical blocks are only
            traced once, which saves most of the tracing time. The operations in the graph are the
            same, because TensorFlow inlines all function calls.
        serves: Boolean. Whether the graph is traced for export. If True, empty texts are accepted,
            because a batch can contain texts from several clients, and an error would affect all of
            them. Defaults to False.
        engine: Optional string. "numpy" or "tensorflow", the library for preprocessing. If None,
            the backend determines the library. See `common.lazy`.
        draws_weights: Boolean. Whether new weights are random. If False, they are zeros, which
            saves time before weights are loaded. Defaults to True.
        truncated: Optional dictionary or function to collect the counts of truncated texts. A
            dictionary maps (preprocessor id, message) to (truncated texts, all texts). A function
            is called with (truncated texts, all texts, message) for each batch of a traced dataset.
            If None, the counts are logged immediately.
    """

    is_long: bool | None = None
    blocks: dict | None = None
    serves: bool = False
    engine: str | None = None
    draws_weights: bool = True
    truncated: dict | Callable | None = None


_context: contextvars.ContextVar[Context] = contextvars.ContextVar("context")
_DEFAULTS = Context()


def get_context() -> Context:
    """Return the settings for the current call or graph."""
    return _context.get(_DEFAULTS)


@contextlib.contextmanager
def use_context(**changes: Any) -> Iterator[None]:
    """Context manager that changes settings.

    Args:
        **changes: Attributes of `Context` to change.

    Example:
        >>> with use_context(is_long=False), use_context(serves=True):
        ...     get_context().is_long, get_context().serves
        (False, True)
    """
    token = _context.set(dataclasses.replace(get_context(), **changes))
    try:
        yield
    finally:
        _context.reset(token)
