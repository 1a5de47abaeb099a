"""The search page of `millrace serve`, and the page of what changed. The workers have no model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli.serving import search_worker
from flows.cli.serving.pages import Pages
from infra.store.directory import DirectoryStore
from tasks.contracts.workspace import CHANGED
from tasks.runs import releases
from tasks.runs.releases import CURRENT, Pointer
from tests.support.fakes.search_worker import LOST
from tests.support.pages.golden import Golden
from tests.support.pages.made_up import CHANGES
from tests.support.pages.shown import Page
from tests.support.workspace.past import write_past, write_run

PID = r"(?<=lamp )\d+"  # of the worker that answers


@pytest.fixture
def store(unreal_workers: DirectoryStore) -> DirectoryStore:
    """With three releases."""
    write_past(unreal_workers, 3)
    return unreal_workers


@pytest.fixture
def pages(store: DirectoryStore) -> Iterator[Pages]:
    pages = Pages(store)
    yield pages
    pages.close()


def shown(pages: Pages, query: str = "") -> Page:
    page = pages.page("/", query)
    assert page is not None
    return Page(page.body)


def test_hits_of_the_current_release_stand_next_to_those_of_the_one_before(pages: Pages, golden: Golden) -> None:
    page = shown(pages, "q=lamp&k=3")
    assert page.text.index("Release 2 Model") < page.text.index("Release 3, the current one Model")
    places = [row[:4] for row in page.rows if row[0].isdigit()]
    assert [place[:3] for place in places[:3]] == [["1", "1.000", "i2"], ["2", "0.900", "i3"], ["3", "0.800", "i4"]]
    assert places[3:] == [
        ["1", "1.000", "2 ↑", "i3"],
        ["2", "0.900", "3 ↑", "i4"],
        ["3", "0.800", "+ new in these 3", "i5"],
    ]
    golden(page.lines, hide=PID)
    chosen = shown(pages, "q=lamp&k=3&with=1")
    assert "Release 1 Model" in chosen.text
    assert [tag["value"] for tag in chosen.all("option") if "selected" in tag] == ["1"]
    assert [tag["value"] for tag in chosen.all("option")] == ["2", "1"]


def test_a_query_is_shown_as_text_and_kept_in_the_form(pages: Pages) -> None:
    page = pages.page("/", "q=%3Cscript%3E%22%27")
    assert page is not None
    assert b"<script>" not in page.body
    made = Page(page.body)
    assert made.all("input")[0]["value"] == "<script>\"'"
    assert "<script>\"' " in made.text


def test_no_worker_starts_before_a_query(pages: Pages, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(search_worker, "WORKER", ("/nothing/like/it",))
    page = shown(pages, "q=+&k=7")
    golden(page.lines)
    assert page.all("input")[1]["value"] == "7"
    assert page.rows == []


@pytest.mark.parametrize("wrong", ["k=0", "k=101", "k=ten", "k=1e1", "with=-1", "k=٣"])
def test_what_makes_no_sense_is_left_out_and_named(pages: Pages, wrong: str) -> None:
    page = shown(pages, f"q=lamp&{wrong}")
    assert f"{wrong} was left out" in page.text
    assert [row[0] for row in page.rows if row[0].isdigit()] == [str(place) for place in range(1, 11)] * 2


def test_releases_that_cannot_be_read_or_searched_are_sentences(
    pages: Pages, store: DirectoryStore, golden: Golden
) -> None:
    unknown = shown(pages, "q=lamp&with=77")
    lost = releases.read(store, 3).model_copy(update={"number": LOST})
    store.write(f"releases/{LOST}.json", lost.to_json())
    page = shown(pages, f"q=lamp&with={LOST}")
    golden(unknown.lines, page.lines, hide=PID)
    assert "has no MANIFEST.json" in page.text
    assert len([row for row in page.rows if row[0].isdigit()]) == 10  # of the current release


def test_a_new_release_is_searched_at_once(pages: Pages, store: DirectoryStore) -> None:
    assert "Release 3, the" in shown(pages, "q=lamp").text
    write_run(store, 3)
    assert "Release 4, the" in shown(pages, "q=lamp").text
    store.write(CURRENT, Pointer(release=1).to_json())
    rolled_back = shown(pages, "q=lamp")
    assert "Release 1, the" in rolled_back.text  # which has none before it
    assert [tag["value"] for tag in rolled_back.all("option")] == ["4", "3", "2"]


def test_a_workspace_without_a_release_says_so(tmp_path: Path, golden: Golden) -> None:
    pages = Pages(DirectoryStore(tmp_path))
    try:
        page = shown(pages, "q=lamp")
        assert page.all("input") == []
        changes = pages.page("/changes")
        assert changes is not None
        golden(page.lines, Page(changes.body).lines)
    finally:
        pages.close()


def changes_of(pages: Pages, path: str) -> Page:
    page = pages.page(path)
    assert page is not None
    return Page(page.body)


def test_what_a_release_changed_has_a_page(pages: Pages, store: DirectoryStore, golden: Golden) -> None:
    second = releases.read(store, 2)
    store.write(CHANGED.key(run=second.run_key), CHANGES.to_json())
    page = changes_of(pages, "/changes/2")
    assert "Release 2 " in page.text
    golden(page.lines, changes_of(pages, "/changes").lines, changes_of(pages, "/changes/1").lines)
    for nothing in ("/changes/7", "/changes/0", "/changes/", "/changes/x"):
        assert pages.page(nothing) is None


def test_pages_lead_to_each_other(pages: Pages) -> None:
    for path, near in (
        ("/", {"/changes", "/history"}),
        ("/changes", {"/", "/history"}),
        ("/history", {"/", "/changes"}),
    ):
        page = changes_of(pages, path)
        assert near <= {link["href"] for link in page.all("a")}
        assert all(not re.match("//|javascript:", link["href"]) for link in page.all("a"))


def test_releases_are_listed_with_refreshes_and_the_one_that_serves(store: DirectoryStore, pages: Pages) -> None:
    third = releases.read(store, 3)
    fresh = {"number": 4, "refreshed": 3, "previous": 3, "run_key": "refresh-1", "vectors": third.vectors + 12}
    store.write("releases/4.json", third.model_copy(update=fresh).to_json())
    store.write("releases/2.json", b"{")
    page = pages.page("/releases")
    assert page is not None
    listed = Page(page.body)
    numbers = [row[0] for row in listed.rows if row[0].isdigit()]
    assert numbers == ["4", "3", "1"]
    assert listed.row("4")[1:3] == ["‖ newer, not serving", "refresh of 3"]
    assert "+12" in listed.row("4")
    assert listed.row("3")[1:3] == ["✓ serves", "new model"]
    assert listed.row("1")[1] == "○ earlier"
    assert "releases/2.json" in listed.text
    links = [link["href"] for link in listed.all("a")]
    assert f"/runs/{third.run_key}/report.html" in links
    assert "/changes/4" in links
