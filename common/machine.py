"""Information about the machine."""

import os


def count_cores() -> int:
    """Return the number of CPU cores available to this process, for example in a container.

    Example:
        >>> 1 <= count_cores() <= os.cpu_count()
        True
    """
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
