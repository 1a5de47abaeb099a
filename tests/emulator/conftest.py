"""One emulator for all tests of this folder, empty before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cloud.batch import BatchServer
from tests.support.cloud.batch_client import BatchClient

GRACE_SECONDS = 0.4


@pytest.fixture(scope="session")
def batch_server() -> Iterator[BatchServer]:
    server = BatchServer({"FROM_THE_IMAGE": "added"}, grace_seconds=GRACE_SECONDS)
    server.register_all(CpuMaxVcpus="1024", AcceleratorNodes="16")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def only_client(batch_server: BatchServer) -> BatchClient:
    return BatchClient(batch_server)


@pytest.fixture
def client(only_client: BatchClient) -> BatchClient:
    only_client.server.forget()
    return only_client
