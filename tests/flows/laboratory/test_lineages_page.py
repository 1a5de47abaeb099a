"""The page of lineages has every run in its own place, on its span, with a link to its report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flows.laboratory.lineages_page import COLUMN, Picture, lineages_html, picture
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import FailureClass
from tasks.laboratory.lineages import read_lineages
from tasks.monitoring.history import History, read_history
from tasks.runs.snapshot import Snapshot
from tests.support.pages.golden import Golden
from tests.support.pages.shown import Page
from tests.support.workspace.lineages import go_back
from tests.support.workspace.past import End, week, write_past

ENDS: dict[int, tuple[End, FailureClass | None]] = {
    2: ("Rejected", None),
    3: ("Rejected", None),
    6: ("Failed", FailureClass.CODE),
    8: ("Running", None),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Nine weeks, two of them rejected one after the other, so that there are two branches."""
    store = DirectoryStore(tmp_path_factory.mktemp("lineages"))
    keys = write_past(store, 9, ENDS)
    go_back(store, keys, rejected=2, accepted=1, branch="main-after-1")
    go_back(store, keys, rejected=3, accepted=1, branch="main-after-2")
    return store


@pytest.fixture(scope="module")
def drawn(store: DirectoryStore) -> Picture:
    snapshot = Snapshot(store)
    history: History = read_history(snapshot)
    return picture(read_lineages(snapshot, history)._replace(experiments={"main-after-1": "slow"}), history)


def test_no_two_runs_share_a_place(drawn: Picture) -> None:
    assert len({(mark.x, mark.y) for mark in drawn.marks}) == 9
    assert all(0 < mark.x < drawn.width and 0 < mark.y < drawn.height for mark in drawn.marks)


def test_a_run_is_below_its_span(drawn: Picture) -> None:
    of_span = {name.text: name.x for name in drawn.names if name.kind == "span"}
    for mark in drawn.marks:
        assert mark.x == of_span[mark.says.partition(",")[0]]
    assert [of_span[week(number)] for number in range(9)] == [COLUMN // 2 + number * COLUMN for number in range(9)]


def test_only_the_current_release_is_marked(drawn: Picture) -> None:
    assert [badge.text for badge in drawn.badges if badge.serves] == ["5"]
    assert len(drawn.badges) == 5


def test_three_years_stay_a_few_rows_high(store: DirectoryStore, drawn: Picture) -> None:
    assert {name.text for name in drawn.names if name.kind == "lineage"} == {"main", "experiment slow", "main-after-2"}
    assert drawn.height < 3 * 104 + 60


def test_each_point_leads_to_its_report_and_says_why(store: DirectoryStore, golden: Golden) -> None:
    data = lineages_html(store)
    page = Page(data)
    links = [link["href"] for link in page.all("a")]
    for number in range(9):
        assert f"../runs/{0x5EED0000 + number:016x}/report.html" in links
    titles = re.findall(r"<title>([^<]*)</title>", data.decode())
    (rejected,) = [title for title in titles if title.startswith(f"{week(2)}, lineage main: Rejected")]
    assert "recall@10" in rejected
    assert "&lt;script&gt;alert(1)" in "".join(titles)  # a message is escaped
    assert page.row(week(4))[1] == "✓ Released as 3"
    golden(page.row(week(4))[3])


def test_an_empty_workspace_says_so(tmp_path: Path) -> None:
    assert "Nothing is released yet." in Page(lineages_html(DirectoryStore(tmp_path))).text
