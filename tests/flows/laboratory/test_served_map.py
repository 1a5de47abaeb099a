"""Page `/map` of `millrace serve`, made by a real worker from the vectors of a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli.serving.pages import Pages
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import PLAN
from tasks.runs import releases
from tests.support.fakes.fake_runner import small_config
from tests.support.pages.shown import Page
from tests.support.workspace.releases import make_current, write_release


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Two releases, the second of which has eight items more."""
    store = DirectoryStore(tmp_path)
    for number, items in ((1, 32), (2, 40)):
        release = write_release(store, number, items=items)
        plan = RunPlan(
            run_key=release.run_key, span=release.span, window=(), history=(), parent=None, workspace=store.uri,
            config=small_config("features={numeric: [], categorical: [], query: []}"),
        )  # fmt: skip
        store.write(PLAN.key(run=release.run_key), plan.to_json())
    return store


def shown(pages: Pages, path: str, query: str = "") -> Page:
    page = pages.page(path, query)
    assert page is not None
    return Page(page.body)


def test_a_release_is_mapped_once_and_compared_with_the_one_before(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(store)
    found = shown(pages, "/map")
    assert len([use for use in found.all("use") if use["class"].startswith("s")]) == 40
    assert "Movers since release 1" in found.text
    monkeypatch.setattr("flows.laboratory.map_page.answered_once", None)  # a second worker would fail
    assert shown(pages, "/map/2", "colour=nothing&with=2").rows == found.rows
    assert pages.page("/map/3") is None


def test_an_earlier_release_shows_what_still_lives(store: DirectoryStore) -> None:
    make_current(store, releases.read(store, 1))
    found = shown(Pages(store), "/map/2", "with=1")
    assert len(found.all("use")) == 32
    assert "32 items" in found.text


def test_no_release_and_a_pruned_one_have_no_map(store: DirectoryStore, tmp_path: Path) -> None:
    releases.mark_pruned(store, [1])
    assert "vectors of release 1" in shown(Pages(store), "/map/1").text
    assert "no release yet" in shown(Pages(DirectoryStore(tmp_path / "empty")), "/map").text
