"""HTTP connections that are closed if the client is too slow."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_TO_WAIT = 30  # time for the client to send the headers, or to read the answer


class TimedConnection(H11Protocol):
    """HTTP connection of uvicorn, with time limits for sending the headers and reading the answer.

    Without these limits, slow clients could use up all connections that the service allows. The
    time for the body is limited by `Limits.body_timeout`, and the time between two requests by
    uvicorn. This class is based on h11, because httptools does not limit the size of the headers.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the timer for the headers of the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing is paused until the client has read all
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Start the timer for the rest of the headers, or stop it after the headers."""
        super().data_received(data)
        if self.flow.write_paused:
            return
        # DONE means that an answer such as 413 was sent before the client sent the whole body.
        if self.conn.our_state not in (h11.IDLE, h11.DONE):
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def pause_writing(self) -> None:
        """Start the timer for reading the answer."""
        super().pause_writing()
        self._start_timer()

    def resume_writing(self) -> None:
        """Stop the timer, because the client has read the answer."""
        super().resume_writing()
        self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, because the connection is closed."""
        super().connection_lost(exc)
        self._stop_timer()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(SECONDS_TO_WAIT, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
