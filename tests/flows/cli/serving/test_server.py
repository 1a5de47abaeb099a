"""`millrace serve` as a server: who gets an answer, what every answer carries, and what ends a client that hangs.

What its starter sees when a page fails.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from flows.cli.serving import server
from flows.cli.serving.pages import TEXT, Page, Pages
from flows.cli.serving.server import App
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import StoreError
from tests.support.pages.site import Site, parts, rest
from tests.support.workspace.past import write_past

SECONDS = 30.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    store = DirectoryStore(tmp_path)
    write_past(store, 1)
    site = Site(store)
    yield site
    site.stop()


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:9", "127.0.0.1"])
def test_it_answers_under_the_names_of_this_machine(site: Site, host: str) -> None:
    assert site.get("/metrics", Host=host.format(port=site.port))[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:{port}", "evil.example", "127.0.0.1.evil.example", "127.0.0.1:1@evil.example", "", "127.0.0.1:x"],
)
def test_a_name_that_only_leads_to_this_machine_gets_nothing(site: Site, host: str) -> None:
    status, _, body = site.get("/metrics", Host=host.format(port=site.port))
    assert status == 421
    assert b"millrace_" not in body
    assert site.sent(b"GET /metrics HTTP/1.0\r\n\r\n")[0] == 421


@pytest.mark.parametrize("of", ["cross-site", "same-site"])
def test_a_page_of_another_site_may_link_to_it_and_nothing_else(
    site: Site, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    page = Pages.page
    monkeypatch.setattr(Pages, "page", lambda self, *what: asked.append(what[0]) or page(self, *what))
    for mode, place in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")):
        got = site.get("/?q=lamp", Sec_Fetch_Site=of, Sec_Fetch_Mode=mode, Sec_Fetch_Dest=place)
        assert got[0] == 403
    assert asked == []
    assert site.get("/metrics", Sec_Fetch_Site=of, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document")[0] == 200
    assert site.get("/metrics", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors", Sec_Fetch_Dest="empty")[0] == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n", 400),
        (b"GET /\xff\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n", 501),
    ],
)
def test_errors_too_forbid_loading_anything(site: Site, request_: bytes, status: int) -> None:
    found, head, body = site.sent(request_)
    assert found == status
    assert "content-security-policy: default-src 'none'" in head
    assert "x-content-type-options: nosniff" in head
    assert "connection: close" in head
    assert body.endswith(b"\n")


@pytest.mark.parametrize("begun", [b"", b"GET /metrics HT", b"GET /?q=lamp HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_request_that_is_never_whole_is_given_up_and_not_carried_out(
    site: Site, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    asked: list[str] = []
    monkeypatch.setattr(Pages, "page", lambda self, *what: asked.append(what[0]))
    with site.connected() as client:
        client.sendall(begun)
        assert rest(client) == b""
    with site.connected() as client:
        client.sendall(begun)  # and the client goes away
    time.sleep(0.5)
    assert asked == []


def test_a_page_may_take_longer_than_its_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(Pages, "page", lambda self, *what: time.sleep(0.8) or Page(TEXT, b"made"))
    assert site.get("/")[2] == b"made"


def test_a_client_that_does_not_take_its_answer_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"x" * 50_000_000
    monkeypatch.setattr(Pages, "page", lambda self, *what: Page(TEXT, large))
    with monkeypatch.context() as impatient, site.connected() as client:
        impatient.setattr(server, "TAKEN_SECONDS", 0.5)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2)
        assert len(rest(client)) < len(large)
    assert len(site.get("/")[2]) == len(large)


def test_no_more_than_a_hundred_connections_are_held(site: Site) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(server.MOST_CONNECTIONS):
            held.enter_context(site.connected())
        time.sleep(0.3)
        with site.connected() as client:
            status, head, body = parts(rest(client))
        assert (status, body) == (503, b"There are 100 connections already\n")
        assert "content-security-policy: default-src 'none'" in head
    deadline = time.monotonic() + SECONDS
    while site.get("/metrics")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Failing:
    """Pages of a workspace with a damaged file, in whose message are a text of the workspace and an address."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def page(self, path: str, query: str) -> Any:
        raise self._kind("\x1b[2Jred lamp at http://u:geheim@h/")

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("kind", [StoreError, ValueError])
def test_a_failure_steers_no_terminal_and_tells_no_password(
    kind: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    app = App(cast(Pages, Failing(kind)), 1)
    body = bytes(app._answer("/", "").body)
    app.close()
    said = capsys.readouterr().err
    assert r"\x1b[2Jred lamp at http://u:***@h/" in said
    assert b"geheim" not in body
