"""Run the service on a local port for tests."""

import contextlib
import threading
import time

import pytest

INSTALL = "`pip install starlette uvicorn prometheus-client httpx`"
httpx, uvicorn, _, _ = [
    pytest.importorskip(name, reason=INSTALL)
    for name in ("httpx", "uvicorn", "starlette", "prometheus_client")
]


@contextlib.contextmanager
def serve(app, until_ready=True, **options):
    """Serve an application in a thread. Yield a client, whose attribute `server` is uvicorn's."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        client.server = server
        try:
            wait_until(lambda: not until_ready or client.get("/health").status_code == 200)
            yield client
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


def wait_until(holds, seconds=120):
    """Wait until `holds()` is true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
