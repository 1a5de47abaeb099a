"""Reports, the history, a search and what changed, in a real browser: on a phone, on a screen, and printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from flows.cli.serving.search_page import SearchPages
from flows.laboratory.lineages_page import lineages_html
from flows.laboratory.map_page import Shown, map_html
from flows.presentation.history.page import history_html
from flows.presentation.run.data_page import data_html
from flows.presentation.run.report import run_html
from flows.presentation.run.rows_page import rows_html
from flows.presentation.search import Asked, SearchedRelease, search_html
from infra.store.directory import DirectoryStore
from tasks.contracts.search import Answer
from tasks.contracts.workspace import CHANGED
from tasks.foundation.errors import FailureClass
from tasks.runs import releases
from tests.browser.album import Album
from tests.support.pages.made_up import CHANGES, MAP, WIN
from tests.support.workspace.past import End, write_past
from tests.support.workspace.profiled import write_profiled

PHONE, SCREEN = 360, 1280
PAPER = 695  # A4 less 13 mm at either side, in pixels of 1/96 inch
RUNS = 26
ENDS: dict[int, tuple[End, FailureClass | None]] = {
    22: ("Rejected", None),
    23: ("Failed", FailureClass.CODE),
    24: ("Running", None),
}
RELEASED, REJECTED, FAILED, RUNNING = 21, 22, 23, 24
PAGES = (
    "released",
    "rejected",
    "failed",
    "running",
    "history",
    "history of one",
    "lineages",
    "map",
    "search",
    "changes",
    "data",
    "rows",
    "releases",
)
PLAIN = ("running", "lineages", "map", "search", "changes", "rows", "releases")  # pages without figures


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each page as a file."""
    folder = tmp_path_factory.mktemp("pages")
    store, young = DirectoryStore(folder / "workspace"), DirectoryStore(folder / "young")
    keys = write_past(store, RUNS, ENDS)
    write_past(young, 1)
    current, before = releases.read(store, 2), releases.read(store, 1)
    store.write(CHANGED.key(run=current.run_key), CHANGES.to_json())
    changes = SearchPages(store).changes(2)
    assert changes is not None
    sides = (
        SearchedRelease(current, Answer(hits=WIN.after, seconds=0.01)),
        SearchedRelease(before, Answer(hits=WIN.before, seconds=0.01)),
    )
    (folder / "profiled").mkdir()
    profiled = write_profiled(folder / "profiled", 40)
    made = {
        "data": data_html(profiled.store, profiled.second) or b"",
        "rows": rows_html(profiled.store, profiled.second) or b"",
        "releases": SearchPages(store).releases(),
        "released": run_html(store, keys[RELEASED]),
        "rejected": run_html(store, keys[REJECTED]),
        "failed": run_html(store, keys[FAILED]),
        "running": run_html(store, keys[RUNNING]),
        "history": history_html(store),
        "history of one": history_html(young),
        "lineages": lineages_html(store),
        "map": map_html(store.uri, MAP, Shown(current, before, "", (1,), 2)),
        "search": search_html(store.uri, Asked("an anorak"), *sides, [before], ("k=0 was left out",)),
        "changes": changes,
    }
    for name, page in made.items():
        (folder / f"{name}.html").write_bytes(page)
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize("width", [PHONE, SCREEN])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_loads_nothing_else(
    pages: dict[str, Path], name: str, width: int, page: Page, album: Album
) -> None:
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(pages[name].as_uri())
    page.set_viewport_size({"width": width, "height": page.evaluate("document.documentElement.scrollHeight")})
    album.add(page, f"{name}-{width}")
    assert [url for url in asked if not url.startswith("data:")] == [pages[name].as_uri()]
    assert said == []
    assert overflow(page) <= 0
    images = page.locator("figure img").all()
    assert images or name in PLAIN
    for image in images:
        assert image.evaluate("image => image.naturalWidth") > 0
        box = image.bounding_box()
        assert box is not None
        assert box["width"] >= 300
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_on_paper(pages: dict[str, Path], name: str, page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": PAPER, "height": 900})
    page.emulate_media(media="print")
    page.goto(pages[name].as_uri())
    assert overflow(page) <= 0
    cut = page.locator(".wide").evaluate_all("all => all.filter(one => one.scrollWidth > one.clientWidth).length")
    assert cut == 0, "a table is wider than the paper"
    pdf = page.pdf(path=tmp_path / "page.pdf", format="A4", print_background=True, prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF")
    assert 1 <= pdf.count(b"/Type /Page\n") <= 12


def test_lineages_begin_at_the_newest_span(pages: dict[str, Path], page: Page) -> None:
    page.set_viewport_size({"width": PHONE, "height": 900})
    page.goto(pages["lineages"].as_uri())
    first, last = page.locator(".drawing .span").first, page.locator(".drawing .span").last
    box = last.bounding_box()
    assert box is not None
    assert 0 < box["x"] < box["x"] + box["width"] < PHONE
    assert (first.bounding_box() or {"x": 0})["x"] < 0


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    return page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
