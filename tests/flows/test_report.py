"""The flow that writes the history, under a real Prefect server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.report import report
from infra.store.directory import DirectoryStore
from tests.support.pages.shown import Page
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.past import write_run


@pytest.fixture
def store(prefect: PrefectServer, tmp_path: Path) -> Iterator[DirectoryStore]:
    """With one release in it."""
    store = DirectoryStore(tmp_path)
    write_run(store, 0)
    with prefect.in_use():
        yield store


def test_the_history_is_written_as_a_page_and_as_numbers(prefect: PrefectServer, store: DirectoryStore) -> None:
    written = report(store.uri, overrides=("links.reports=https://reports.example.com/",))
    assert written.history == "reports/history.html"
    assert written.lineages is not None
    assert "Release 1 serves" in Page(store.read(written.lineages)).text
    assert "1 released." in Page(store.read(written.history)).text
    found = {artifact.key: str(artifact.data) for artifact in prefect.artifacts()}
    assert "https://reports.example.com/" in found["history"]
    assert "| 1; span 2026-W01, " in found["history-numbers"]
    assert "| 1 of 1; 100.0 %" in found["history-numbers"]


def test_an_empty_workspace_gives_an_empty_history(store: DirectoryStore, tmp_path: Path) -> None:
    empty = DirectoryStore(tmp_path / "empty")
    written = report(empty.uri, overrides=("links.reports=null",))
    text = Page(empty.read(written.history)).text
    assert "No run yet" in text
    assert "millrace run" in text
