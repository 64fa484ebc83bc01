"""Tells what the process may use of the machine."""

import os


def usable_cores() -> int:
    """Return how many processors the process may run on, which are fewer in some containers.

    Example:
        >>> 1 <= usable_cores() <= os.cpu_count()
        True
    """
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
