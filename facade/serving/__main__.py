"""Start the service with `python -m encoder_zoo.serving FOLDER --port 8000`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from encoder_zoo import serving
from encoder_zoo.common.lazy import LazyModule, require
from encoder_zoo.common.wording import invalid
from encoder_zoo.serving import Limits

if TYPE_CHECKING:
    from starlette.applications import Starlette

uvicorn = LazyModule(
    "uvicorn",
    'The service requires uvicorn, which is not installed. Run `pip install "encoder-zoo[serve]"`.',
)
SECONDS_TO_STOP = 60  # maximum time to finish accepted requests during shutdown
# The default value in Python is 0.005. In two rounds with 32 clients and a model without
# computation, on a busy machine with two cores, the throughput was 113 and 135 requests per second
# with the default value, and 125 and 160 with this value. A batch had 13 and 18 texts.
THREAD_SWITCH_SECONDS = 0.0005
MAX_CONNECTIONS = 1000  # more connections are rejected with status 503
MAX_PORT = 65_535


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, Limits]:
    """Parse the command line. For invalid arguments, print an error and exit with status 2."""
    parser = argparse.ArgumentParser(
        "python -m encoder_zoo.serving", description="Serve models over HTTP."
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="FOLDER",
        help="folder of a saved task, export or index, or CLASS=SOURCE for from_preset",
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: only this machine")
    parser.add_argument("--port", type=int, default=8000)
    for field in dataclasses.fields(Limits):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default, metavar="N")
    given = parser.parse_args(arguments)
    try:
        if not 0 <= given.port <= MAX_PORT:
            raise invalid("port", given.port, f"an integer from 0 to {MAX_PORT}")
        return given, Limits(**{f.name: getattr(given, f.name) for f in dataclasses.fields(Limits)})
    except ValueError as error:
        parser.error(str(error))


def open_app(sources: Sequence[str], limits: Limits) -> Starlette:
    """Create the application. If a folder cannot be opened, print an error and exit with status 1.

    Only errors that the user can fix are printed without a traceback: a wrong or damaged folder, a
    file that cannot be read, or a package that is not installed.
    """
    try:
        require(uvicorn)
        return serving.create_app(*serving.open_folders(sources), limits)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the service until the process is stopped."""
    given, limits = parse_arguments(arguments)
    app = open_app(given.sources, limits)
    from encoder_zoo.serving.connections import TimedConnection  # requires uvicorn

    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    uvicorn.run(
        app,
        host=given.host,
        port=given.port,
        http=TimedConnection,
        access_log=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SECONDS_TO_STOP,
    )


if __name__ == "__main__":
    main()
