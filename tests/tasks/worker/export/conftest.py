from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.schema.stages import KINDS
from infra.store.directory import DirectoryStore
from tests.support.fakes.opensearch_server import OpensearchServer
from tests.support.processes.postgres import Postgres
from tests.tasks.worker.export.places import Place, empty_place


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture(params=sorted(KINDS))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of each kind."""
    return empty_place(request.param, request, tmp_path / "target")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpensearchServer]:
    server = OpensearchServer()
    yield server
    server.close()
