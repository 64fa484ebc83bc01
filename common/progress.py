"""Progress messages for long runs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

SECONDS_BETWEEN_MESSAGES = 10  # time between two messages


class Progress(ABC):
    """Count finished work, and print a progress message every few seconds.

    Args:
        done: Integer. The amount of work that an earlier, interrupted run finished.

    Attributes:
        done: Integer. The amount of work that is finished.
    """

    def __init__(self, done: int):
        self._before = self.done = done
        self._begun = self._printed = time.monotonic()

    def count(self, number: int, state: str = "") -> None:
        """Count finished work, and print a message if the last message is some seconds old."""
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
