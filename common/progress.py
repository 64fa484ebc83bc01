"""Print the progress of long runs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

SECONDS_BETWEEN_MESSAGES = 10  # minimum time between two messages


class Progress(ABC):
    """Base class that prints a progress message every few seconds.

    Args:
        done: Integer. Number of items to skip, for example if an earlier run was interrupted.

    Attributes:
        done: Integer. Number of items that are finished.
    """

    def __init__(self, done: int):
        self._before = self.done = done
        self._begun = self._printed = time.monotonic()

    def count(self, number: int, state: str = "") -> None:
        """Add a number of finished items. Print a message if the last message is old enough."""
        self.done += number
        if time.monotonic() - self._printed >= SECONDS_BETWEEN_MESSAGES:
            self._printed = time.monotonic()
            self.show(state)

    @property
    def rate(self) -> float:
        """The number of items per second in this run."""
        return (self.done - self._before) / max(time.monotonic() - self._begun, 1e-3)

    @abstractmethod
    def show(self, state: str = "") -> None:
        """Print the current progress. The message should end with `state`."""
