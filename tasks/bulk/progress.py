"""Lines about how far answers to files are."""

from __future__ import annotations

from encoder_zoo.common.progress import Progress


class AnswerProgress(Progress):
    """Prints how many rows are answered, how fast, and how long the rest will take.

    Args:
        rows: of all files.
        left: that are not answered yet.
    """

    def __init__(self, rows: int, left: int):
        super().__init__(rows - left)
        self._rows = rows

    def show(self, state: str = "") -> None:
        left = (self._rows - self.done) / max(self.rate, 1e-9)
        rest = f", {_duration(left)} left" if self.done < self._rows else ""
        done = f"{self.done:,} of {self._rows:,} rows"
        print(f"Answers: {done}, {self.rate:,.0f} rows/s{rest}{state}", flush=True)


def _duration(seconds: float) -> str:
    """Return a time in the unit that suits it.

    Example:
        >>> _duration(50), _duration(600), _duration(36_000)
        ('50 s', '10 min', '10.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
