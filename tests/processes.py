"""Start Python processes in tests."""

import functools
import importlib.util
import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest
from paths import TESTS

PATIENCE = 1800  # maximum seconds for a process, so that a test ends if the process hangs


def run(code: str, *arguments: object, given: str | None = None, cwd=None, **environment) -> str:
    """Run code in a new process, and return its output. Skip the test if the backend is missing.

    The code can import modules from the folder of the tests.
    """
    backend = environment.get("KERAS_BACKEND", "keras")
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: `pip install {backend}`")
    done = subprocess.run(
        _command(code, arguments),
        input=given,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=_with_tests(environment),
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def start_process(
    code: str, log: str | os.PathLike, *arguments: object, **environment
) -> subprocess.Popen:
    """Start a process like `run`, and return the process. The output is written to `log`."""
    with open(log, "w") as file:
        return subprocess.Popen(
            _command(code, arguments),
            stdout=file,
            stderr=subprocess.STDOUT,
            env=_with_tests(environment),
        )


def free_addresses(count: int) -> list[str]:
    """Return addresses of free ports on this machine."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def cluster_of_two() -> list[str]:
    """Return the values of TF_CONFIG for two workers."""
    cluster = {"worker": free_addresses(2)}
    tasks = [{"type": "worker", "index": i} for i in range(2)]
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def _command(code: str, arguments: tuple) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]


def _with_tests(environment: dict[str, str]) -> dict[str, str]:
    paths = filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}


@functools.cache
def printed(code: str, backend: str, *arguments: str) -> str:
    """Run code on a backend, and return the output. The result is cached for other tests."""
    return run(code, *arguments, KERAS_BACKEND=backend)
