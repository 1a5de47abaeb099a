"""A workspace with three spans, and a fake runner in place of the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

import infra.compute.factory
from infra.store.directory import DirectoryStore
from tests.support.fakes.fake_runner import FakeRunner, ingest


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2021-Q1", "2021-Q2", "2021-Q3")
    return store


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner
