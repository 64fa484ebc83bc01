"""Raises an error instead of hanging if a forked process uses TensorFlow."""

from __future__ import annotations

import os

_user: int | None = None  # the process in which TensorFlow began to work


def refuse_in_fork() -> None:
    """Record which process uses TensorFlow; raise an error in a fork of it.

    TensorFlow works with threads, which a fork does not have: it would wait for them for ever.

    Raises:
        RuntimeError: "This process was forked from one that had used TensorFlow ..."
    """
    global _user
    if _user is None:
        _user = os.getpid()
    elif _user != os.getpid():
        raise RuntimeError(
            "This process was forked from one that had used TensorFlow, whose threads are not "
            "here: it would wait for them for ever. Start processes anew, with "
            "multiprocessing.get_context('spawn') or 'forkserver', or load the model after the "
            "fork, and in the first process not at all."
        )
