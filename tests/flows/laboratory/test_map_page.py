"""The page of a map: every item a point, colours by the most frequent values, movers as lines and in a table."""

from __future__ import annotations

from typing import Any

import pytest

from flows.laboratory.map_page import COLOURS, LINES, WIDTH, Shown, drawing, map_html
from flows.presentation.figures import PALE
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Release
from tests.support.pages.golden import Golden
from tests.support.pages.made_up import MAP
from tests.support.pages.shown import Page
from tests.support.workspace.releases import write_release


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Release]:
    store = DirectoryStore(tmp_path_factory.mktemp("map"))
    return write_release(store, 1), write_release(store, 2)


def shown(releases: tuple[Release, Release], **changes: Any) -> Page:
    one = Shown(release=releases[1], before=releases[0], colour="", others=(1,), current=2)
    return Page(map_html("w", MAP.model_copy(update=changes.pop("found", {})), one._replace(**changes)))


def test_all_items_are_inside_on_one_scale() -> None:
    drawn = drawing(MAP, "category")
    assert len(drawn.points) == len(MAP.items)
    places = [(each.x, each.y) for each in (*drawn.points, *drawn.lines)] + [
        (e.x_before, e.y_before) for e in drawn.lines
    ]
    assert all(0 < x < WIDTH and 0 < y < drawn.height for x, y in places)
    first, last = drawn.points[0], drawn.points[50]
    assert (last.x - first.x) / (last.y - first.y) == pytest.approx(2.0, abs=0.01)  # y grows downwards


def test_frequent_values_have_their_own_colour_and_shape() -> None:
    groups = drawing(MAP, "category").groups
    assert [group.name for group in groups] == [*(f"c{value}" for value in range(9, 2, -1)), "3 other values"]
    assert [group.items for group in groups] == [10, 9, 8, 7, 6, 5, 4, 6]
    assert [group.colour for group in groups] == [*COLOURS, PALE]
    assert len({group.shape for group in groups}) == 8
    assert [group.name for group in drawing(MAP, "locale").groups] == ["de", "none"]
    assert drawing(MAP, "").groups == ()


def test_the_page_says_how_it_was_sampled_and_how_much_it_shows(
    releases: tuple[Release, Release], golden: Golden
) -> None:
    page = shown(releases)
    assert "of them): 0.25" in shown(releases, colour="category").text
    golden(page.lines, hide=r"(?s)^i000 .*i009: lamp 10$")
    assert len(page.all("line")) == LINES
    assert page.row("2") == ["2", "i001", "lamp (changed)", "0 of 10", "torch", "candle wick"]
    assert "<b>lamp</b> 3" in page.text  # escaped, else a tag


def test_the_form_offers_other_features_and_releases(releases: tuple[Release, Release]) -> None:
    page = shown(releases, colour="locale")
    assert [form["action"] for form in page.all("form")] == ["/map/2"]
    chosen = [option for option in page.all("option") if "selected" in option]
    assert len(chosen) == 2
    assert page.fetched == ["data:,"]
    assert "none 1" in page.text
    assert not shown(releases, found={"features": (), "separation": (), "items": ()}, others=()).all("button")


def test_a_first_release_has_no_movers(releases: tuple[Release, Release]) -> None:
    page = shown(releases, found={"moves": None}, before=None)
    assert "nothing has moved" in page.text
    assert page.all("line") == []
