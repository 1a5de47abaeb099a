"""A real Prefect server for the flows' tests, in this process or for commands, and a workspace with two spans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.prefect_server import Server, down, up
from infra.store import DirectoryStore
from tests.support.fake_runner import ingest
from tests.support.prefect_server import PrefectServer


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        server = PrefectServer(tmp_path_factory.mktemp("prefect") / "home")
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For commands in processes of their own; this process does not talk to it."""
    home = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        try:
            yield up(home)
        finally:
            down(home)


@pytest.fixture
def store(prefect: PrefectServer, tmp_path: Path) -> Iterator[DirectoryStore]:
    store = DirectoryStore(tmp_path)
    ingest(store, "2021-Q1", "2021-Q2")
    with prefect.in_use():
        yield store
