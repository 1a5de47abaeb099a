"""A bucket for every test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3 import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, found by whatever looks for S3 during this test, in this process and in others."""
    s3_server.forget()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    return s3_server
