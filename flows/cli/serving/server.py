"""`millrace serve`: the pages of a workspace for a browser on this machine, served by uvicorn.

It listens on loopback only, and ends at a signal. Another site, open in a browser on this machine, gets no data, even
if its own host name resolves to this address. A connection has a single request, with timeouts against slow clients:
uvicorn alone waits for ever for the rest of a request, and answers a malformed one without our headers.
"""

import asyncio
import contextlib
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from flows.cli.serving.pages import TEXT, Page, Pages
from flows.cli.terminal.console import note
from flows.cli.terminal.ending import leave_soon
from infra.store.base import Store
from tasks.foundation.errors import ConfigError, StageError
from tasks.foundation.passwords import masked

HEADERS = {
    "Server": "millrace",
    "Connection": "close",  # a page has no parts to fetch
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
# With any port, since people forward ports. Other names are refused, even if they resolve here (DNS rebinding).
_OUR_NAMES = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)


class App:
    """The pages of a workspace; up to `at_once` are made at the same time, each in a thread."""

    def __init__(self, pages: Pages, at_once: int) -> None:
        self._pages = pages
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="page")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        response = _refusal(request)
        if response is None:
            path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
            response = await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, path, query)
        await response(scope, receive, send)

    def close(self) -> None:
        """End the search workers; pages that are being made are not waited for."""
        self._pages.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, path: str, query: str) -> Response:
        try:
            page = self._pages.page(path, query)
        except StageError as error:
            said = masked(str(error))
            note(f"{error.failure}: {path}: {said}")
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.failure}: {said}")
        except Exception as error:  # one bad page must not end the server
            said = f"{type(error).__name__}: {masked(str(error))}"
            note(f"CODE: {path}: {said}")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, said)
        if page is None:
            nothing = "There is no such page here; the search is at /, the history of all runs at /history"
            return _response(HTTPStatus.NOT_FOUND, nothing)
        return _response(HTTPStatus.OK, page)


def _refusal(request: Request) -> Response | None:
    if request.method not in ("GET", "HEAD"):
        return _response(HTTPStatus.NOT_IMPLEMENTED, "These pages only show; there is GET and HEAD")
    host = request.headers.get("host", "")
    if not _OUR_NAMES.fullmatch(host):
        return _response(HTTPStatus.MISDIRECTED_REQUEST, "These pages are those of 127.0.0.1 and localhost alone")
    if _of_another_site(request):
        return _response(HTTPStatus.FORBIDDEN, "A page of another site may link here, and nothing else")
    return None


def _of_another_site(request: Request) -> bool:
    """Return whether a browser says that a page of another origin asks, other than by a link that a person follows."""
    site, mode, place = (request.headers.get(f"sec-fetch-{name}") for name in ("site", "mode", "dest"))
    return site in ("cross-site", "same-site") and (mode, place) != ("navigate", "document")


def _response(status: HTTPStatus, what: Page | str) -> Response:
    page = what if isinstance(what, Page) else Page(TEXT, f"{what}\n".encode())
    return Response(page.body, status, headers={**HEADERS, "Content-Type": page.content_type})


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


HOST = "127.0.0.1"
END_SECONDS = 1  # for the answers that are on their way when it ends
LEAVE_SECONDS = 5.0  # a page that is being made ends with the process


class Server:
    """Listens from the start, and answers while `run` runs."""

    def __init__(self, store: Store, port: int) -> None:
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._app = App(Pages(store), MOST_CONNECTIONS)
        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # the application prints its own failures
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=END_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer until `stop`, or until a signal if this is the main thread; then end the search workers."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._app.close()

    def stop(self) -> None:
        """Let `run` end soon."""
        self._server.should_exit = True


def _listening(port: int) -> socket.socket:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
        stack.pop_all()
    return listener


def make_server(store: Store, port: int) -> Server:
    """Return a server that listens; port 0 is any free one.

    Raises:
        ConfigError: the port is taken, or not allowed.
    """
    try:
        return Server(store, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"can't listen on {HOST}:{port}: {error}; choose another: --port 4281") from error


def serve(store: Store, port: int) -> None:
    """Answer until Ctrl-C or SIGTERM, either of which is the ordinary end. Raises as `make_server`."""
    server = make_server(store, port)
    print(f"http://{HOST}:{server.port} shows {store.uri}; Ctrl-C ends it", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    print("stopped", file=sys.stderr)
    leave_soon(lambda: 0, LEAVE_SECONDS)
