"""The emulator of AWS Batch, with containers that run a test's script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.compute.batch import watch
from infra.store.directory import DirectoryStore
from tests.support.cloud.batch import BatchServer
from tests.support.cloud.containers import stand_in_environment


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture(scope="session")
def batch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    server = BatchServer(stand_in_environment(tmp_path_factory.mktemp("site")), grace_seconds=1.0)
    server.register_all()
    yield server
    server.stop()


@pytest.fixture
def as_batch(monkeypatch: pytest.MonkeyPatch) -> Callable[[BatchServer], BatchServer]:
    """Uses a server as AWS Batch during this test, polled often."""

    def used(server: BatchServer) -> BatchServer:
        server.forget()
        for service in ("BATCH", "CLOUDWATCH_LOGS"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", server.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setattr(watch, "_SHORTEST", 0.05)
        monkeypatch.setattr(watch, "LAST_LOOKS", (0.1,))
        return server

    return used


@pytest.fixture
def batch(batch_server: BatchServer, as_batch: Callable[[BatchServer], BatchServer]) -> BatchServer:
    return as_batch(batch_server)
