"""A page of another site in the browser of a person who is logged in gets nothing from our servers, and starts nothing.

The server is the one that `millrace run` leaves behind, which `up` finds and the demo starts in the same way.
"""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from flows.cli.serving.pages import Pages
from infra import prefect_server
from infra.prefect_server import Server
from infra.store.directory import DirectoryStore
from tests.browser.conftest import REBOUND
from tests.browser.prefect_pages import log_in
from tests.support.fakes.fake_runner import ingest
from tests.support.pages.site import Site
from tests.support.processes import forked
from tests.support.processes.prefect_server import credentials, database_of
from tests.support.workspace.past import write_past

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]

# Each way in which a page may ask without a person: what it could read, or why it could not.
ASK = """async ([url, method, mode, type, credentials]) => {
  try {
    const body = method === "POST" ? JSON.stringify({name: "evil"}) : undefined;
    const answer = await fetch(url, {method, mode, credentials, body, headers: type ? {"Content-Type": type} : {}});
    return answer.type === "opaque" ? "opaque" : `${answer.status} ${await answer.text()}`;
  } catch (error) { return "refused"; }
}"""
EVENT = """url => new Promise(done => {
  const socket = new WebSocket(url, "prefect");
  const event = {occurred: new Date().toISOString(), event: "evil", resource: {"prefect.resource.id": "evil"},
                 id: crypto.randomUUID ? crypto.randomUUID() : "9f0f9c7e-5a2f-4a29-9e0c-3f0d5f3f2b11"};
  socket.onopen = () => {
    socket.send(JSON.stringify({type: "auth", token: null}));
    socket.send(JSON.stringify(event));
  };
  socket.onmessage = message => done(message.data);
  socket.onclose = () => done("closed");
  setTimeout(() => done("silent"), 10000);
})"""
FORM = """url => {
  const form = Object.assign(document.createElement("form"), {method: "POST", enctype: "text/plain", action: url});
  form.append(Object.assign(document.createElement("input"), {name: '{"name":"evil","x":"', value: '"}'}));
  document.body.append(form);
  form.submit();
}"""
LOAD = """url => Promise.all(["img", "script", "iframe", "object"].map(kind => new Promise(done => {
  const part = document.createElement(kind);
  part.onload = () => done(kind);
  part.onerror = () => done("error");
  part[kind === "object" ? "data" : "src"] = url;
  document.body.append(part);
  setTimeout(() => done("silent"), 5000);
})))"""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, prefect_tables: Path) -> Iterator[Server]:
    """The Prefect server that a `millrace run` left behind."""
    folder = tmp_path_factory.mktemp("left")
    home, store = folder / "prefect", DirectoryStore(folder / "workspace")
    ingest(store, "2026-01")
    command = ["run", "--workspace", store.uri, "--set", "model.scratch.layers=1"]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    try:
        with database_of(home, prefect_tables):
            environment["PREFECT_HOME"] = str(home)
            done = forked.module("tests.support.fakes.millrace", *command, environment=environment, seconds=180)
        assert done.code == 0, done.err
        found = prefect_server.running(home)
        assert found is not None
        yield found
    finally:
        prefect_server.down(home)


@pytest.fixture(scope="module")
def asked() -> Iterator[list[str]]:
    """What the pages of `millrace serve` were asked to make."""
    asked: list[str] = []
    page = Pages.page
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pages, "page", lambda self, *what: asked.append(what[0]) or page(self, *what))
        yield asked


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, asked: list[str]) -> Iterator[Site]:
    store = DirectoryStore(tmp_path_factory.mktemp("served"))
    write_past(store, 1)
    site = Site(store)
    yield site
    site.stop()


class _Blank(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><body>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of another web server on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Blank) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield web.server_port
        web.shutdown()


@pytest.fixture
def context(left: Server, site: Site, elsewhere: int, browser: Browser) -> Iterator[BrowserContext]:
    """A browser in which a person is logged in."""
    with browser.new_context() as context:
        log_in(context.new_page(), left.ui_url, str(prefect_server.read_password(Path(left.home))))
        yield context


def known(left: Server) -> dict[str, Any]:
    """What the server holds, asked with its password."""
    found = {
        kind: httpx.post(f"{left.url}/{kind}/filter", json={}, auth=credentials(left)).raise_for_status().json()
        for kind in ("flows", "flow_runs", "deployments", "events")
    }
    found["events"] = {event["event"] for event in found["events"]["events"]}
    return found


@pytest.mark.parametrize("origin", ["http://127.0.0.1:{port}", "http://localhost:{port}", f"http://{REBOUND}:{{port}}"])
def test_a_page_of_another_origin_reads_makes_and_starts_nothing(
    context: BrowserContext, left: Server, site: Site, asked: list[str], elsewhere: int, origin: str
) -> None:
    before = known(left)
    asked.clear()
    page = context.new_page()
    page.goto(origin.format(port=elsewhere))
    api = left.url
    (flow_run, *_) = before["flow_runs"]
    for url, method in (
        (f"{api}/flows/", "POST"),
        (f"{api}/flows/filter", "POST"),
        (f"{api}/work_pools/", "POST"),
        (f"{api}/flow_runs/{flow_run['id']}", "DELETE"),
        (f"{api}/admin/settings", "GET"),
        (f"http://127.0.0.1:{site.port}/?q=lamp", "GET"),
        (f"http://127.0.0.1:{site.port}/metrics", "GET"),
    ):
        for mode, media in (
            ("cors", "application/json"),
            ("cors", "text/plain"),
            ("cors", ""),
            ("no-cors", "text/plain"),
        ):
            for carried in ("omit", "include"):
                assert page.evaluate(ASK, [url, method, mode, media, carried]) in ("refused", "opaque"), url
    assert page.evaluate(EVENT, f"{api.replace('http', 'ws')}/events/in") == "closed"
    assert "img" not in page.evaluate(LOAD, f"http://127.0.0.1:{site.port}/?q=lamp")
    page.evaluate(FORM, f"{api}/flows/")
    page.wait_for_url(f"{api}/flows/")
    assert "Unauthorized" in page.content()
    after = known(left)
    assert {kind: after[kind] for kind in ("flows", "flow_runs", "deployments")} == {
        kind: before[kind] for kind in ("flows", "flow_runs", "deployments")
    }
    assert "evil" not in after["events"]
    assert asked == []


def test_a_name_that_leads_here_by_a_trick_is_no_way_in(context: BrowserContext, left: Server, site: Site) -> None:
    page = context.new_page()
    page.goto(left.ui_url.replace("127.0.0.1", REBOUND))
    for path, method in (("/api/flows/", "POST"), ("/api/admin/settings", "GET")):
        assert page.evaluate(ASK, [path, method, "cors", "application/json", "include"]).startswith("401 ")
    answer = page.goto(f"http://{REBOUND}:{site.port}/metrics")
    assert answer is not None
    assert answer.status == 421


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_its_own_pages_work_under_both_names(browser: Browser, left: Server, site: Site, page: Page, name: str) -> None:
    log_in(page, left.ui_url.replace("127.0.0.1", name), str(prefect_server.read_password(Path(left.home))))
    page.goto(f"{left.ui_url.replace('127.0.0.1', name)}/runs")
    page.get_by_text("2026-01 attempt 1").first.wait_for()
    answer = page.goto(f"http://{name}:{site.port}/history")
    assert answer is not None
    assert answer.status == 200
