"""Lines about how far a long run is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

SECONDS = 10  # between two lines


class Progress(ABC):
    """Counts what a run has done, and shows it now and then.

    Args:
        done: before the run, such as by one that it continues.

    Attributes:
        done: now.
    """

    def __init__(self, done: int):
        self._before = self.done = done
        self._begun = self._printed = time.monotonic()

    def count(self, number: int, state: str = "") -> None:
        """Count what is done, and show it if the last line is some seconds old."""
        self.done += number
        if time.monotonic() - self._printed >= SECONDS:
            self._printed = time.monotonic()
            self.show(state)

    @property
    def rate(self) -> float:
        """Return how much the run does in a second."""
        return (self.done - self._before) / max(time.monotonic() - self._begun, 1e-3)

    @abstractmethod
    def show(self, state: str = "") -> None:
        """Print a line, with the state of the run behind it."""
