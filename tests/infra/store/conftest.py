"""Each kind of store in turn, a store in a directory, and a file to upload."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tests.support.workspace.stores import STORES


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return STORES[request.param](request)


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"new content")
    return path
