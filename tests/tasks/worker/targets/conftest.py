from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tests.tasks.worker.targets.places import Place, lancedb_place


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture(params=["lancedb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of each kind."""
    return lancedb_place(tmp_path / "target")
