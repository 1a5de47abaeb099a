"""A workspace under a real server, empty or with three runs that were released."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES
from tests.flows.backfill.failing import QUARTERS, Failing, workers
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.backfills import fake_workers, run_spans


@pytest.fixture
def store(prefect: PrefectServer, tmp_path: Path) -> Iterator[DirectoryStore]:
    with prefect.in_use():
        yield DirectoryStore(tmp_path / "disturbed")


@pytest.fixture(autouse=True)
def quick(without_pages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for failure, policy in POLICIES.items():
        monkeypatch.setitem(POLICIES, failure, policy._replace(delay_seconds=policy.delay_seconds / 1000))
    for module in ("tasks.running.stage_output", "flows.orchestration.child_runs"):
        monkeypatch.setattr(f"{module}.ASK_SECONDS", 0.2)
    monkeypatch.setattr(
        "flows.orchestration.span_flow.make_stage_page", lambda plan, stage, value: None
    )  # drawing takes longest


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> Failing:
    return workers(store, monkeypatch)


@pytest.fixture(scope="session")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three_runs")
    store = DirectoryStore(folder)
    ingest(store, *QUARTERS)
    with pytest.MonkeyPatch.context() as patch:
        fake_workers(store, patch)
        run_spans(store, *QUARTERS[:3])
    return folder


@pytest.fixture
def begun(store: DirectoryStore, runner: Failing, three_runs: Path) -> DirectoryStore:
    """A workspace of four quarters, of which three were run and released."""
    shutil.copytree(three_runs, store.root, dirs_exist_ok=True)
    return store
