"""A workspace with three spans and workers without arithmetic; pages are made from it without a Prefect server."""

from __future__ import annotations

from pathlib import Path

import pytest

import infra.runner
from infra.store import DirectoryStore
from tests.support.fake_runner import FakeRunner, ingest


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-W46", "2026-W47", "2026-W48")
    return store


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.runner, "make_runner", lambda config, store, stage: runner)
    return runner
