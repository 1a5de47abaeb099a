"""A workspace with three spans and workers without arithmetic; and one with a past of ten weeks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import infra.compute.factory
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import FailureClass
from tests.flows.presentation.done import Done
from tests.support.fakes.fake_runner import FakeRunner, ingest
from tests.support.workspace.past import End, write_past

# number of the week -> how its run ended
ENDS: dict[int, tuple[End, FailureClass | None]] = {
    2: ("Rejected", None),
    4: ("Failed", FailureClass.HOST),
    5: ("Failed", FailureClass.CODE),
    6: ("Cancelled", FailureClass.CANCELLED),
    9: ("Running", None),
}


class Past(NamedTuple):
    """`keys` by number of the week."""

    store: DirectoryStore
    keys: tuple[str, ...]


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    """Ten weeks: not to be written to. The run of the first and of the eighth had to try training twice."""
    store = DirectoryStore(tmp_path_factory.mktemp("past"))
    return Past(store, tuple(write_past(store, 10, ENDS)))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-W46", "2026-W47", "2026-W48")
    return store


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


@pytest.fixture
def done(store: DirectoryStore, runner: FakeRunner) -> Done:
    return Done(store)
