"""A lock that allows several threads to use the weights of a model.

Weights can be read by many threads at the same time, but can only be changed by one thread. This
ensures that weights do not change during a prediction. `common.base_model.BaseModel` holds the lock
in all methods of Keras that use weights, and in each training step. A method with several such
steps has the decorator `lock_weights` or `hold_lock`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from encoder_zoo.common.lazy import check_not_forked, keras

F = TypeVar("F", bound=Callable)


class WeightsLock:
    """Fair lock that many threads can hold for reading, or a single thread for writing.

    Threads acquire the lock in the order of their requests. A thread can acquire the lock several
    times, for reading and for writing.

    Attributes:
        of_metrics: Lock to hold during `fit` and `evaluate`.
        version: Integer that increases whenever weights could have changed.

    Example:
        >>> lock = WeightsLock()
        >>> with lock.shared(), lock.shared(), lock.exclusive():
        ...     print("alone")
        alone
    """

    def __init__(self):
        self.of_metrics = threading.RLock()
        self._fit = threading.Lock()
        self._changed = threading.Condition(threading.RLock())
        self._readers: dict[int, int] = {}  # how many times each thread holds the lock
        self._writer: int | None = None
        self._depth = self.version = 0
        self._waiting: deque[tuple[int, bool]] = deque()  # (thread, whether to write)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Context manager that holds the lock for reading. Other threads cannot change weights."""
        me, readers = threading.get_ident(), self._readers
        with self._changed:
            if me not in readers and self._writer != me:
                self._wait(me, writes=False)
            readers[me] = readers.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                readers[me] -= 1
                if not readers[me]:
                    del readers[me]
                    self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self, changes: bool = True) -> Iterator[None]:
        """Context manager that holds the lock for writing. Other threads cannot use the weights.

        Args:
            changes: Boolean. Whether to increase the version at the end, because weights could have
                changed. Defaults to True.
        """
        me = threading.get_ident()
        with self._changed:
            if self._writer != me:
                self._wait(me, writes=True)
            self._writer, self._depth = me, self._depth + 1
        try:
            yield
        finally:
            with self._changed:
                self.version += changes
                self._depth -= 1
                if not self._depth:
                    self._writer = None
                    self._changed.notify_all()

    def _wait(self, me: int, writes: bool) -> None:
        """Wait until this thread is allowed to acquire the lock."""
        turn, waiting, readers = (me, writes), self._waiting, self._readers

        def may_enter() -> bool:
            if self._writer is not None:
                return False
            if writes:
                return waiting[0] == turn and readers.keys() <= {me}
            return not any(other for _, other in itertools.takewhile(turn.__ne__, waiting))

        if me in readers:
            # This thread is first, because it already holds the lock for reading.
            waiting.appendleft(turn)
        else:
            waiting.append(turn)
        try:
            self._changed.wait_for(may_enter)
        finally:  # also for KeyboardInterrupt
            waiting.remove(turn)
            self._changed.notify_all()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Context manager for `compile`. Other threads cannot use the model."""
        with self.of_metrics, self.exclusive(changes=False):
            yield

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context manager for `evaluate`. Other threads cannot change weights or use metrics."""
        with self.of_metrics, self.shared():
            yield

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Context manager for `fit`. Other threads cannot call `fit` or `evaluate`.

        Raises:
            RuntimeError: If another call to `fit` is training the model.
        """
        if not self._fit.acquire(blocking=False):
            raise RuntimeError(
                "This model is already being trained by another call to `fit`. Wait until this "
                "call has ended, or load the preset again to train a second model."
            )
        try:
            with self.of_metrics:
                yield
        finally:
            self._fit.release()


def get_weights_lock(model: keras.Model) -> WeightsLock:
    """Return the weights lock of a model. Tasks with a shared backbone also share the lock.

    Example:
        >>> model = keras.Sequential()
        >>> get_weights_lock(model) is get_weights_lock(model)
        True

    Raises:
        RuntimeError: If this process was forked from a process that had already used the backend.
            See `check_not_forked`.
    """
    check_not_forked()
    known = vars(getattr(model, "backbone", model))
    # `setdefault` is atomic, so all threads get the same lock.
    return known.get("_weights_lock") or known.setdefault("_weights_lock", WeightsLock())


def share_weights_lock(model: keras.Model, other: keras.Model) -> None:
    """Use the same lock for two models, for example if they are trained together."""
    vars(getattr(model, "backbone", model))["_weights_lock"] = get_weights_lock(other)


def lock_weights(function: F) -> F:
    """Decorator for functions that use models. The locks of all models are held for reading.

    The arguments of the function can be models, or objects with a list of models in the attribute
    `_models_to_lock`. To avoid deadlocks, locks are always acquired in the same order.
    """

    @functools.wraps(function)
    def call_holding_locks(*args, **kwargs):
        given = [x for x in (*args, *kwargs.values()) if not isinstance(x, type)]
        models = [model for x in given for model in getattr(x, "_models_to_lock", [x])]
        owners = [getattr(model, "backbone", model) for model in models]
        locks = {get_weights_lock(one) for one in owners if hasattr(type(one), "weights_version")}
        with contextlib.ExitStack() as stack:
            for lock in sorted(locks, key=id):
                stack.enter_context(lock.shared())
            return function(*args, **kwargs)

    return cast(F, call_holding_locks)


def hold_lock(way: str) -> Callable[[F], F]:
    """Decorator for methods of a model that hold its lock in another way than for reading.

    Args:
        way: String. Name of a method of `WeightsLock`: "exclusive", "compiling", "evaluating" or
            "fitting".
    """

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def call_with_lock(self, *args, **kwargs):
            with getattr(get_weights_lock(self), way)():
                return method(self, *args, **kwargs)

        return cast(F, call_with_lock)

    return decorate
