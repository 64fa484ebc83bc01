"""Lock model weights. Many threads can read them at once, but only one thread can change them.

In this way, weights do not change during a prediction. `LocksWeights` defines which model methods
hold the lock. To hold the lock in a function, use `lock_weights`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from encoder_zoo.common.lazy import keras, refuse_in_fork
from encoder_zoo.common.validation import validate_arguments

F = TypeVar("F", bound=Callable)


class WeightsLock:
    """Fair lock that many threads can hold for reading, but only one thread for writing.

    Threads acquire the lock in the order in which they request it. A thread that holds the lock can
    acquire it again, for reading or writing.

    Attributes:
        of_metrics: Lock to hold while running `fit` or `evaluate`.
        version: Integer that increases whenever weights may have changed.

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
        self._readers: dict[int, int] = {}  # how often each thread holds it
        self._writer: int | None = None
        self._depth = self.version = 0
        self._waiting: deque[tuple[int, bool]] = deque()  # (thread, whether it writes)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Wait until no thread is changing weights, and prevent changes by other threads."""
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
        """Wait until no other thread reads or changes weights, and prevent both.

        Args:
            changes: Boolean. Whether the block may change weights. If so, the version will be
                increased. Defaults to True.
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
        """Wait until this thread may acquire the lock."""
        turn, waiting, readers = (me, writes), self._waiting, self._readers

        def may_enter() -> bool:
            if self._writer is not None:
                return False
            if writes:
                return waiting[0] == turn and readers.keys() <= {me}
            return not any(other for _, other in itertools.takewhile(turn.__ne__, waiting))

        if me in readers:
            # Threads that arrive later wait until this thread has finished reading.
            waiting.appendleft(turn)
        else:
            waiting.append(turn)
        try:
            self._changed.wait_for(may_enter)
        finally:  # also when interrupted by the user
            waiting.remove(turn)
            self._changed.notify_all()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Prevent other threads from using a model while its functions or metrics are replaced."""
        with self.of_metrics, self.exclusive(changes=False):
            yield

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Prevent changes of the weights, and prevent other threads from using metrics."""
        with self.of_metrics, self.shared():
            yield

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Prevent other threads from calling `fit` or `evaluate`.

        Raises:
            RuntimeError: If the model is being trained by another `fit` call.
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
    """Return the weights lock of a model. Tasks that share a backbone also share its lock.

    Example:
        >>> model = keras.Sequential()
        >>> get_weights_lock(model) is get_weights_lock(model)
        True

    Raises:
        RuntimeError: In a forked process. The lock may be held by a thread that does not exist in
            this process. See `refuse_in_fork`.
    """
    refuse_in_fork()
    known = vars(getattr(model, "backbone", model))
    # Create the lock only once, in a step that is atomic for all threads.
    return known.get("_weights_lock") or known.setdefault("_weights_lock", WeightsLock())


def share_weights_lock(model: keras.Model, other: keras.Model) -> None:
    """Make a model use the lock of another model, because both are trained together."""
    vars(getattr(model, "backbone", model))["_weights_lock"] = get_weights_lock(other)


def lock_weights(function: F) -> F:
    """Decorator that prevents changes to the weights of all models in the arguments of a function.

    An argument can be a model, or an object with a list of models in `_asked_models`. All threads
    acquire locks in the same order to avoid deadlocks.
    """

    @functools.wraps(function)
    def holding(*args, **kwargs):
        given = [x for x in (*args, *kwargs.values()) if not isinstance(x, type)]
        models = [model for x in given for model in getattr(x, "_asked_models", [x])]
        owners = [getattr(model, "backbone", model) for model in models]
        locks = {get_weights_lock(owner) for owner in owners if isinstance(owner, LocksWeights)}
        with contextlib.ExitStack() as stack:
            for lock in sorted(locks, key=id):
                stack.enter_context(lock.shared())
            return function(*args, **kwargs)

    return cast(F, holding)


# Model methods that hold the lock, grouped by how they hold it. `__reduce__` is used for pickling
# and copying. `export` is included because Keras sets model functions to None while exporting.
LOCKED_METHODS = {
    "shared": """predict predict_on_batch get_weights get_state_tree save save_weights __reduce__
        save_to_preset save_adapters for_cpu trim_vocabulary similarity""",
    "exclusive": "set_weights set_state_tree load_weights quantize enable_lora load_adapters",
    "evaluating": "evaluate test_on_batch",
    "compiling": "compile export",
    "fitting": "fit train_on_batch",
}
WAYS = {name: way for way, names in LOCKED_METHODS.items() for name in names.split()}


class LocksWeights:
    """Mixin for models that many threads can use while other threads save, change or train them.

    The lock is held by the methods in `LOCKED_METHODS` and by all public methods with a
    `batch_size` argument. This includes methods of subclasses. For `fit`, `evaluate` and `compile`,
    only the method of the base class holds the lock.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        is_first = LocksWeights in cls.__bases__
        names = dict.fromkeys([*vars(cls), *(WAYS if is_first else ())])
        for name in filter(functools.partial(hasattr, cls), names):
            method = getattr(cls, name)
            way = WAYS.get(name) or ("shared" if _is_batched_method(name, method) else None)
            if way in ("shared", "exclusive") or (way and is_first):
                setattr(cls, name, _hold(way, method))

    @property
    def weights_version(self) -> int:
        """Return an integer that increases whenever weights may have changed."""
        return get_weights_lock(self).version


def _is_batched_method(name: str, method: Any) -> bool:
    """Check whether a class attribute is a public method with a `batch_size` argument."""
    is_public = inspect.isfunction(method) and not name.startswith("_")
    return is_public and "batch_size" in inspect.signature(method).parameters


def _hold(way: str, method: Any) -> Callable:
    """Wrap a method to hold the lock of its model. Arguments are checked before."""
    if "__signature__" in vars(method):  # by `validate_arguments`
        return validate_arguments(_hold(way, method.__wrapped__))
    if way == "shared":
        return lock_weights(method)

    @functools.wraps(method)
    def holding(self, *args, **kwargs):
        with getattr(get_weights_lock(self), way)():
            return method(self, *args, **kwargs)

    return holding
