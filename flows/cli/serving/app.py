"""ASGI application of `millrace serve`: answer a request with a page or an error. server.py runs it.

Another site, open in a browser on this machine, gets no data, even if its own host name resolves to this address.
"""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flows.cli.serving.pages import TEXT, Page, Pages
from flows.cli.terminal.console import note
from tasks.foundation.errors import StageError
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
