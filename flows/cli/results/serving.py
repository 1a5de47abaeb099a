"""`millrace serve`: the pages of a workspace for a browser on this machine, wherever the workspace is.

It only reads. `/` searches the releases. The history is made at most every few seconds; a run's report is made if none
was written.
"""

import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, NamedTuple

from flows.cli.results.search_page import SearchPages
from flows.presentation.model import HISTORY_KEY
from flows.presentation.search import CHANGES, HISTORY, SEARCH, TO_CHANGES, TO_SEARCH
from infra.store.base import Store
from tasks.foundation.errors import ConfigError, StageError

HOST = "127.0.0.1"
FRESH_SECONDS = 10.0  # a page is made again after so long, so that reloading it does no harm
MOST_KEPT = 50  # pages

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPORT = re.compile(rf"/runs/({_NAME})/report\.html")
_CHANGES = re.compile(rf"{CHANGES}(?:/([1-9]\d{{0,8}}))?")
_TEXT_FILE = re.compile(rf"/((?:runs|refreshes|publications)/{_NAME}(?:/{_NAME})*\.(?:json|yaml|txt|log|csv|md))")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Page(NamedTuple):
    """What is sent."""

    content_type: str
    body: bytes


class Pages:
    """The pages of one workspace by path; several threads may ask at once. `close` ends what they started."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._making = threading.Lock()  # matplotlib draws one picture at a time
        self._made: dict[str, tuple[float, Page]] = {}
        self._search = SearchPages(store)

    def close(self) -> None:
        self._search.close()

    def page(self, path: str, query: str = "") -> Page | None:
        """Return the page under a path and a query as a browser sends them, still quoted; None where there is none.

        Raises:
            StageError: the workspace could not be read.
        """
        path = urllib.parse.unquote(path)
        if path == SEARCH:
            return Page(HTML, self._search.search(query))
        if found := _CHANGES.fullmatch(path):
            changes = self._search.changes(int(found[1]) if found[1] else None)
            return Page(HTML, changes) if changes is not None else None
        if path in (HISTORY, f"/{HISTORY_KEY}"):
            return self._fresh(HISTORY, self._history)
        if path == "/metrics":
            return self._fresh(path, self._metrics)
        if found := _REPORT.fullmatch(path):
            return self._report(found[1])
        if found := _TEXT_FILE.fullmatch(path):
            data = self._read(found[1])
            return Page(TEXT, data) if data is not None else None
        return None

    def _history(self) -> Page:
        from flows.presentation.history.page import history_html

        return Page(HTML, history_html(self._store, near=(TO_SEARCH, TO_CHANGES)))

    def _metrics(self) -> Page:
        from tasks.monitoring.prometheus import CONTENT_TYPE, metrics_text

        return Page(CONTENT_TYPE, metrics_text(self._store))

    def _report(self, run_key: str) -> Page | None:
        """Return the report that was written when the run ended; if there is none, or the run lasts, make one now."""
        from flows.presentation.run.origin import report_key
        from flows.presentation.run.report import run_html
        from tasks.runs.invocations import of_run
        from tasks.runs.plan import plan_key

        if not self._store.exists(plan_key(run_key)):
            return None
        started = of_run(self._store, run_key)
        over = bool(started) and started[-1].ended_at is not None
        if over and (stored := self._read(report_key(run_key))) is not None:
            return Page(HTML, stored)
        return self._fresh(run_key, lambda: Page(HTML, run_html(self._store, run_key)))

    def _read(self, key: str) -> bytes | None:
        return self._store.read(key) if self._store.exists(key) else None

    def _fresh(self, name: str, make: Callable[[], Page]) -> Page:
        with self._making:
            at, page = self._made.get(name, (0.0, None))
            if page is None or self._clock() - at > FRESH_SECONDS:
                page = make()
                self._made = self._made if len(self._made) < MOST_KEPT else {}
                self._made[name] = (self._clock(), page)
            return page


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    pages: ClassVar[Pages]
    server_version = "millrace"
    sys_version = ""

    def do_GET(self) -> None:
        _, _, path, query, _ = urllib.parse.urlsplit(self.path)
        try:
            page = self.pages.page(path, query)
        except StageError as error:
            print(f"{error.failure}: {path}: {error}", file=sys.stderr)
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, Page(TEXT, f"{error.failure}: {error}\n".encode()))
            return
        except Exception as error:  # one bad page must not end the server
            print(f"CODE: {path}: {type(error).__name__}: {error}", file=sys.stderr)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, Page(TEXT, f"{type(error).__name__}: {error}\n".encode()))
            return
        if page is None:
            nothing = "There is no such page here; the search is at /, the history of all runs at /history\n"
            self._send(HTTPStatus.NOT_FOUND, Page(TEXT, nothing.encode()))
        else:
            self._send(HTTPStatus.OK, page)

    do_HEAD = do_GET  # noqa: N815

    def _send(self, status: HTTPStatus, page: Page) -> None:
        self.send_response(status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Silent: failures are printed where they happen."""


class Server(ThreadingHTTPServer):
    """Ends without waiting for browsers that keep a connection open."""

    daemon_threads = True

    def __init__(self, store: Store, port: int) -> None:
        self._pages = Pages(store)
        super().__init__((HOST, port), type("BoundHandler", (Handler,), {"pages": self._pages}))

    def server_close(self) -> None:
        """Close the socket and end the search workers."""
        super().server_close()
        self._pages.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a browser that closed its connection is not an error of this server."""


def make_server(store: Store, port: int) -> Server:
    """Return a server that listens, and answers once `serve_forever` is called; port 0 is any free one.

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
    print(f"http://{HOST}:{server.server_port} shows {store.uri}; Ctrl-C ends it", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        server.server_close()
