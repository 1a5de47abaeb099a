"""Six released months, in a directory or in each kind of store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tests.support.fakes.fake_runner import ingest
from tests.support.workspace.backfills import fake_workers, run_spans
from tests.support.workspace.stores import STORES
from tests.tasks.prune.six_months import MONTHS


@pytest.fixture(scope="session")
def six_months(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Six released months, and a seventh that has arrived; made once, and copied for each test."""
    store = DirectoryStore(tmp_path_factory.mktemp("six months"))
    with pytest.MonkeyPatch.context() as patch:
        fake_workers(store, patch)
        ingest(store, *MONTHS)
        run_spans(store, *MONTHS[:6])
    return store


@pytest.fixture
def store(tmp_path: Path, six_months: DirectoryStore) -> DirectoryStore:
    shutil.copytree(six_months.root, tmp_path / "workspace")
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture(params=STORES)
def any_store(request: pytest.FixtureRequest, six_months: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each kind of store in turn."""
    store = STORES[request.param](request)
    for key in six_months.list(""):
        if not key.startswith(".locks/"):
            store.write(key, six_months.read(key))
    fake_workers(store, monkeypatch)
    return store
