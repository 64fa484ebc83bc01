"""Python processes that tests start."""

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

PATIENCE = 1800  # seconds for a process, so that one that hangs ends even on a busy machine


def run(code: str, *arguments: object, given: str | None = None, cwd=None, **environment) -> str:
    """Return what a new process prints, which can import tests' modules; skip without backend."""
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
    """Start a process as `run` does, and return it; the file `log` takes what it prints."""
    with open(log, "w") as file:
        return subprocess.Popen(
            _command(code, arguments),
            stdout=file,
            stderr=subprocess.STDOUT,
            env=_with_tests(environment),
        )


def free_addresses(count: int) -> list[str]:
    """Return addresses at this machine, at ports that are free."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def cluster_of_two() -> list[str]:
    """Return TF_CONFIG of each of two workers."""
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
    """Return what a process of a backend prints, which runs once for all tests that ask."""
    return run(code, *arguments, KERAS_BACKEND=backend)
