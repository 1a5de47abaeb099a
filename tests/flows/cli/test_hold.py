"""`millrace hold`, and what the other commands say of it, in this process."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from flows.cli.serving.search_page import SearchPages
from infra.store.directory import DirectoryStore
from tests.support.fakes.fake_runner import ingest
from tests.support.processes import command
from tests.support.processes.command import Command
from tests.support.workspace.adding import add


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-01")
    add(store, "a", "2026-01")
    add(store, "b", "2026-02")
    monkeypatch.setenv("MILLRACE_WORKSPACE", store.uri)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "no server"))
    return store


@pytest.fixture
def millrace(capsys: pytest.CaptureFixture[str]) -> Command:
    return functools.partial(command.call, capsys)


def test_a_hold_is_shown_wherever_the_release_is_until_it_is_lifted(store, millrace):
    rolled_back = millrace("rollback")
    assert 'millrace hold --reason "why"' in rolled_back.out
    held = millrace("hold", "--reason", "Ana looks at W02")
    assert held.code == 0, held.err
    assert "Ana looks at W02." in held.out
    past = millrace("history")
    assert "changes by hand:" in past.out
    assert "reason Ana looks at W02" in " ".join(past.out.split())
    changes = [(each["verb"], each["failure"]) for each in json.loads(millrace("history", "--json").out)["by_hand"]]
    assert changes == [("rollback", None), ("hold", None)]
    assert "millrace hold --off" in millrace("status").out
    pages = SearchPages(store)
    assert b"Ana looks at W02." in pages.search("")
    pages.close()
    assert json.loads(millrace("rollback", "--to", "2", "--json").out)["hold"]["reason"] == "Ana looks at W02"
    add(store, "c", "2026-03")
    lifted = millrace("hold", "--off")
    assert lifted.code == 0, lifted.err
    assert "release 3 of 2026-03" in lifted.out
    assert "millrace rollback --to 3" in lifted.out
    assert "held" not in millrace("status").out


def test_a_hold_needs_one_of_its_two_options(store, millrace):
    assert millrace("hold", "--off", "--reason", "x").code == millrace("hold").code == 78
