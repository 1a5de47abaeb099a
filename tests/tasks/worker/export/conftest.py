from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.schema.stages import KINDS
from infra.store.directory import DirectoryStore
from tasks.worker.export import table_contents
from tasks.worker.export.target import Target
from tasks.worker.export.targets import open_target
from tests.support.fakes.opensearch_server import OpensearchServer
from tests.support.processes.postgres import Postgres
from tests.support.workspace.changing_shop import Shop
from tests.tasks.worker.export.places import Place, empty_place
from tests.tasks.worker.export.refreshing import ITEMS, PARTITIONS, WIDTH


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


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A released shop of few items. Few queries check an index: they take most of the time of a publication."""
    monkeypatch.setattr(table_contents, "QUERIES", 10)
    shop = Shop(tmp_path, WIDTH, ITEMS, PARTITIONS)
    shop.patch(monkeypatch)
    shop.refresh(None)
    return shop


@pytest.fixture
def at_target(place: Place) -> Callable[[Callable[[Target], Any]], Any]:
    """Lets a function look at the place's target."""

    def use(function: Callable[[Target], Any]) -> Any:
        with contextlib.closing(open_target(place.config().publish.targets[0])) as target:
            return function(target)

    return use
