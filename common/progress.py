"""Progress messages for long runs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

SECONDS_BETWEEN_MESSAGES = 10  # time between two messages


class Progress(ABC):
    """Count finished work and print a progress message from time to time.

    Args:
        done: Integer. Work that was finished earlier, for example by an interrupted run.

    Attributes:
        done: Integer. Work that is finished now.
    """

    def __init__(self, done: int):
        self._before = self.done = done
        self._begun = self._printed = time.monotonic()

    def count(self, number: int, state: str = "") -> None:
        """Count finished work. Print a message if the last one was printed some seconds ago."""
        self.done += number
        if time.monotonic() - self._printed >= SECONDS_BETWEEN_MESSAGES:
            self._printed = time.monotonic()
            self.show(state)

    @property
    def rate(self) -> float:
        """Return the amount of work per second."""
        return (self.done - self._before) / max(time.monotonic() - self._begun, 1e-3)

    @abstractmethod
    def show(self, state: str = "") -> None:
        """Print a message that ends with the current progress."""
