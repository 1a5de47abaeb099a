"""What changed, as a section, and in the places that show it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from flows.presentation import markdown, terminal
from flows.presentation.changes import MOST_QUERIES, changes_section, sentences
from flows.presentation.run.pages import stage_page
from flows.presentation.run.report import run_html
from infra.store.directory import DirectoryStore
from tasks.contracts.search import Changes
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import CHANGED
from tasks.runs import releases
from tasks.runs.plan import read_plan
from tests.support.pages.golden import Golden
from tests.support.pages.made_up import CHANGES, LOSS, WIN
from tests.support.pages.shown import Page, part, rows, tables, written
from tests.support.workspace.past import write_past


def changed(**update: object) -> Changes:
    return CHANGES.model_copy(update=update)


def test_model_and_catalogue_are_two_sentences(golden: Golden) -> None:
    golden(sentences(CHANGES))


def test_what_was_not_measured_is_left_out(golden: Golden) -> None:
    assert len(list(sentences(changed(same_item_cosine=None, overlap_at_10=None)))) == 3
    nothing = changed(queries=0, overlap_at_10=None, metrics_before={}, metrics_after={}, wins=(), losses=())
    section = changes_section(nothing)
    golden(sentences(changed(same_item_cosine=None)), written(section))


def test_wins_and_losses_have_their_ranks_and_hits(golden: Golden) -> None:
    section = changes_section(CHANGES)
    golden(written(section))


def test_long_texts_and_lists_are_cut(golden: Golden) -> None:
    talkative = WIN.model_copy(update={"query": "a b\n" * 500, "text": "x" * 5000})
    section = changes_section(changed(wins=(talkative,) * 30, losses=()))
    wins = rows(part(section, "Biggest wins"))
    assert len(wins) == MOST_QUERIES
    assert all(len(cell) < 200 for cell in wins[0])
    assert "\n" not in wins[0][0]
    golden(part(section, "Biggest losses").lines)


def test_a_model_that_is_not_released_is_the_candidate() -> None:
    section = changes_section(changed(after=None))
    assert section.title.endswith("the candidate")
    assert [column.name for column in section.tables[0].columns][1:3] == ["release 1", "the candidate"]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Two releases, and what the second one changed."""
    store = DirectoryStore(tmp_path)
    _, second = write_past(store, 2)
    store.write(CHANGED.key(run=second), CHANGES.to_json())
    return store


def test_the_report_of_a_run_has_it_as_a_section(store: DirectoryStore) -> None:
    first, second = releases.history(store)
    page = Page(run_html(store, second.run_key))
    assert LOSS.query in [cells[0] for cells in page.rows]
    assert "changes" in page.ids
    assert "#changes" in [link["href"] for link in page.all("a")]
    assert "changes" not in Page(run_html(store, first.run_key)).ids
    store.write(CHANGED.key(run=second.run_key), b"{")
    damaged = Page(run_html(store, second.run_key))
    assert f"{store.uri}/{CHANGED.key(run=second.run_key)}" in damaged.text
    assert "changes" not in damaged.ids


def test_the_stage_page_of_the_release_has_it_as_a_part(store: DirectoryStore) -> None:
    first, second = releases.history(store)
    made = stage_page(store, read_plan(store, second.run_key), Stage.release, second)
    assert "release 1 to 2" in made.parts[0].title
    cells = [row for table in tables(markdown.page(made, store.uri)) for row in table]
    assert [row for row in cells if row[0] == LOSS.query] == [
        [LOSS.query, "2", "1,700", LOSS.text],  # in two tables: the UI hides what is wider than its window
        [LOSS.query, "1. cooking pot 2. frying pan", "1. chef knife"],
    ]
    without = stage_page(store, read_plan(store, first.run_key), Stage.release, first)
    assert all("changed" not in each.title for each in without.parts)


def test_a_terminal_shows_it() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80)
    for each in terminal.render(changes_section(CHANGES), ""):
        console.print(each)
    assert "waterproof anorak" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80
