"""One lock for the weights of a model: many threads may read them, one at a time changes them.

Answers are then those of one state of the weights, before a change or after it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from encoder_zoo.common.lazy import keras, refuse_in_fork

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="keras.Model")


class WeightsLock:
    """A lock that many threads share to read, and one alone has to write, in fair turns.

    Writers go in the order in which they came, and before readers that come later; a writer that
    leaves lets in all readers that wait. A thread that has it may take it again, in either way.

    Attributes:
        of_metrics: a lock of the thread that fits or evaluates.
        version: a number that grows whenever weights may have changed.

    Example:
        >>> lock = WeightsLock()
        >>> with lock.shared(), lock.shared(), lock.exclusive():
        ...     print("alone")
        alone
    """

    def __init__(self):
        self.of_metrics = threading.RLock()
        self._fit = threading.Lock()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._readers: dict[int, int] = {}  # how often each thread has it
        self._writer: int | None = None
        self._depth = self.version = 0
        self._waiting_readers: set[int] = set()
        self._waiting_writers: deque[int] = deque()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Wait until no thread changes the weights, and have none begin in the block."""
        me = threading.get_ident()
        readers = self._readers
        with self._mutex:
            if me in readers:
                readers[me] += 1
            elif self._writer == me or (self._writer is None and not self._waiting_writers):
                readers[me] = 1
            else:
                self._wait_to_read(me)
        try:
            yield
        finally:
            with self._mutex:
                readers[me] -= 1
                if not readers[me]:
                    del readers[me]
                    if self._waiting_writers:
                        self._changed.notify_all()

    def _wait_to_read(self, me: int) -> None:
        self._waiting_readers.add(me)
        try:
            self._changed.wait_for(lambda: me in self._readers)
        except BaseException:  # the user's interrupt, before or after it was let in
            self._waiting_readers.discard(me)
            self._readers.pop(me, None)
            self._changed.notify_all()
            raise

    @contextlib.contextmanager
    def exclusive(self, changes: bool = True) -> Iterator[None]:
        """Wait until no other thread reads or changes the weights, and have none begin.

        Args:
            changes: whether the block may change weights, which counts as another version.
        """
        me = threading.get_ident()
        with self._mutex:
            if self._writer != me:
                self._wait_to_write(me)
            self._depth += 1
        try:
            yield
        finally:
            with self._mutex:
                self.version += changes
                self._depth -= 1
                if not self._depth:
                    self._writer = None
                    self._let_in()

    def _wait_to_write(self, me: int) -> None:
        readers, waiting = self._readers, self._waiting_writers
        if me in readers:
            waiting.appendleft(me)  # the others wait until it has read
        else:
            waiting.append(me)
        try:
            self._changed.wait_for(
                lambda: self._writer is None and waiting[0] == me and readers.keys() <= {me}
            )
            self._writer = me
        finally:
            waiting.remove(me)
            if self._writer is None:  # interrupted by the user
                self._let_in()

    def _let_in(self) -> None:
        """Let in the readers that wait, as a writer is gone; the next one waits for them."""
        self._readers.update(dict.fromkeys(self._waiting_readers, 1))
        self._waiting_readers.clear()
        self._changed.notify_all()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Have no other thread call a model in the block: its functions and metrics are renewed."""
        with self.of_metrics, self.exclusive(changes=False):
            yield

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Have no other thread fit in the block, and none evaluate: the metrics are in use.

        Raises:
            RuntimeError: If another call of `fit` trains the model.
        """
        if not self._fit.acquire(blocking=False):
            raise RuntimeError(
                "This model is being trained by another call of fit. Wait until that has ended, or "
                "train another model: open the preset once more."
            )
        try:
            with self.of_metrics:
                yield
        finally:
            self._fit.release()


def weights_lock(model: keras.Model) -> WeightsLock:
    """Return the lock of a model's weights; tasks have that of their backbone, which several share.

    Example:
        >>> model = keras.Sequential()
        >>> weights_lock(model) is weights_lock(model)
        True

    Raises:
        RuntimeError: If this is a forked process, see `refuse_in_fork`. A thread that does not
            exist there may hold the lock.
    """
    refuse_in_fork()
    known = vars(getattr(model, "backbone", model))
    # A new one only at first, and then in one step for all threads.
    return known.get("_weights_lock") or known.setdefault("_weights_lock", WeightsLock())


def share_weights_lock(model: keras.Model, other: keras.Model) -> None:
    """Have a model that is trained together with another one use its lock."""
    vars(getattr(model, "backbone", model))["_weights_lock"] = weights_lock(other)


@contextlib.contextmanager
def reading(*models: object) -> Iterator[None]:
    """Have the weights of some models stay as they are in the block.

    All threads take the locks of several models in one order, so that none waits for another.

    Args:
        *models: or objects whose `_asked_models` are those; others, and None, are left out.

    Example:
        >>> with reading(None, "an embedder of others"):
        ...     pass
    """
    asked = [
        one for m in models for one in (m._asked_models if hasattr(m, "_asked_models") else [m])
    ]
    owners = (getattr(model, "backbone", model) for model in asked)
    locks = {weights_lock(owner) for owner in owners if hasattr(owner, "weights_version")}
    with contextlib.ExitStack() as stack:
        for lock in sorted(locks, key=id):
            stack.enter_context(lock.shared())
        yield


def reads_weights_of(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function see one state of the weights of the models among its arguments.

    Args:
        *names: of the arguments, see `reading`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def holding(*args, **kwargs):
            given = {**kwargs, **signature.bind(*args, **kwargs).arguments}
            with reading(*map(given.get, names)):
                return function(*args, **kwargs)

        return holding

    return decorate


def reads_weights(method: Callable[P, R]) -> Callable[P, R]:
    """Have a method of a model see one state of its weights from beginning to end."""
    return _inside(lambda lock: lock.shared(), method)


def changes_weights(method: Callable[P, R]) -> Callable[P, R]:
    """Have no other thread read a model's weights while a method changes them."""
    return _inside(lambda lock: lock.exclusive(), method)


def trains(method: Callable[P, R]) -> Callable[P, R]:
    """Have no other thread train or evaluate a model while a method trains it."""
    return _inside(lambda lock: lock.fitting(), method)


def compiles(method: Callable[P, R]) -> Callable[P, R]:
    """Have no other thread call a model while a method compiles it."""
    return _inside(lambda lock: lock.compiling(), method)


def uses_metrics(method: Callable[P, R]) -> Callable[P, R]:
    """Have a method wait until no other thread trains or evaluates a model, and have none begin."""
    return _inside(lambda lock: lock.of_metrics, method)


def _inside(
    hold: Callable[[WeightsLock], contextlib.AbstractContextManager], method: Callable
) -> Callable:
    """Return a method that runs while it holds the lock of its model in some way."""

    @functools.wraps(method)
    def holding(self, *args, **kwargs):
        with hold(weights_lock(self)):
            return method(self, *args, **kwargs)

    return holding


# Of Keras's models; pickles and copies are made by `__reduce__`.
READ = ("get_weights", "get_state_tree", "save", "save_weights", "__reduce__")
ASK = ("predict", "predict_on_batch", "evaluate")
CHANGE = ("set_weights", "set_state_tree", "load_weights", "quantize")


def locks_weights(cls: type[M]) -> type[M]:
    """Have threads see one state of the weights of a class's models, whatever others do with them.

    A class decorator for the methods of Keras's models; those that a class has of its own have
    decorators there.
    """
    kinds = [
        (reads_weights, READ + ASK),
        (changes_weights, CHANGE),
        (trains, ("fit", "train_on_batch")),
        # Keras sets the functions of a model to None while it exports it.
        (compiles, ("compile", "export")),
        (uses_metrics, ("evaluate", "test_on_batch")),
    ]
    own = set(vars(cls))
    for decorate, names in kinds:
        for name in names:
            if name not in own:
                setattr(cls, name, decorate(getattr(cls, name)))
    return cls
