"""Python processes that tests start."""

import functools
import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest
from paths import TESTS


def run(code: str, *arguments: object, given: str | None = None, cwd=None, **environment) -> str:
    """Return what a new process prints, which can import tests' modules; skip without backend."""
    backend = environment.get("KERAS_BACKEND", "keras")
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: `pip install {backend}`")
    paths = filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        timeout=3600,  # for one that hangs
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@functools.cache
def printed(code: str, backend: str, *arguments: str) -> str:
    """Return what a process of a backend prints, which runs once for all tests that ask."""
    return run(code, *arguments, KERAS_BACKEND=backend)
