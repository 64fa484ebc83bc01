"""Lines about how far answers to files are."""

from __future__ import annotations

import time

SECONDS = 10  # between two lines


class Progress:
    """Print how many rows are answered, how fast, and how long the rest will take.

    Args:
        rows: of all files.
        left: that are not answered yet.
    """

    def __init__(self, rows: int, left: int):
        self._rows, self._before = rows, rows - left
        self._done = self._before
        self._begun = self._printed = time.monotonic()

    def add(self, count: int) -> None:
        """Count rows, and print a line now and then."""
        self._done += count
        if time.monotonic() - self._printed >= SECONDS:
            self._printed = time.monotonic()
            self.show()

    def show(self) -> None:
        """Print a line."""
        rate = (self._done - self._before) / max(time.monotonic() - self._begun, 1e-3)
        left = (self._rows - self._done) / max(rate, 1e-9)
        rest = f", {_duration(left)} left" if self._done < self._rows else ""
        done = f"{self._done:,} of {self._rows:,} rows"
        print(f"Answers: {done}, {rate:,.0f} rows/s{rest}", flush=True)


def _duration(seconds: float) -> str:
    """Return a time in the unit that suits it.

    Example:
        >>> _duration(50), _duration(600), _duration(36_000)
        ('50 s', '10 min', '10.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
