"""One connection of `millrace serve`: a single request, with timeouts against slow clients.

uvicorn alone waits for ever for the rest of a request, and answers a malformed one without our headers.
"""

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.h11_impl import H11Protocol

from flows.cli.serving.app import HEADERS
from flows.cli.serving.pages import TEXT

MOST_CONNECTIONS = 100
REQUEST_SECONDS = 10.0  # from the connection to the end of the request
TAKEN_SECONDS = 60.0  # for a client to take its answer


class Connection(H11Protocol):
    """A connection that closes after its answer, or when the client is too slow."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"There are {MOST_CONNECTIONS} connections already")
        else:
            self._end_after(REQUEST_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_after(None)  # making a page may take long

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_after(TAKEN_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_after(TAKEN_SECONDS)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._end_after(TAKEN_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_after(None)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        body = f"{why}\n".encode()
        headers = {**HEADERS, "Content-Type": TEXT, "Content-Length": str(len(body))}
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
        self._end_after(TAKEN_SECONDS)

    def _end_after(self, seconds: float | None) -> None:
        """Drop the connection after `seconds`, even in the middle of an answer; None: cancel the timeout."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort) if seconds is not None else None
