"""A container asks the endpoint of its machine for credentials, which refuses when many ask at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from botocore.utils import ContainerMetadataFetcher, parse_timestamp

from infra.store import aws
from infra.store.s3_store import S3Store
from tasks.foundation.errors import ConfigError, StoreError

GIVEN = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "token", "Expiration": "2099-01-01T00:00:00Z"}


class Endpoint:
    """It refuses the first requests."""

    refusals = 0
    asked = 0

    def answer(self) -> tuple[int, bytes]:
        self.asked += 1
        return (429, b"Too many requests") if self.asked <= self.refusals else (200, json.dumps(GIVEN).encode())


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Endpoint]:
    """The only place where credentials are found; nobody waits between requests."""
    one = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = one.answer()
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """No log of requests."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    monkeypatch.setattr(aws, "_WAIT_SECONDS", (0.0, 0.0))
    yield one
    server.shutdown()
    server.server_close()


def test_a_worker_waits_for_credentials_that_many_ask_for(endpoint: Endpoint) -> None:
    endpoint.refusals = 5  # botocore asks three times
    S3Store("s3://bucket/workspace")
    assert endpoint.asked == 6


def test_an_endpoint_that_gives_none_is_a_cause_that_may_pass(endpoint: Endpoint) -> None:
    """An error of the configuration would end the run without another try."""
    endpoint.refusals = 1000
    with pytest.raises(StoreError, match=r"credentials .* 429"):
        S3Store("s3://bucket/workspace")
    assert endpoint.asked == 9


def test_broken_credentials_of_the_user_are_not_waited_for(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\ncredential_process = false\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(ConfigError, match="correct AWS_PROFILE"):
        S3Store("s3://bucket/workspace")
    assert endpoint.asked == 0


@pytest.mark.parametrize(
    "text", ["2026-11-25T08:00:00.000Z", "2026-11-25T08:00:00Z", "Wed, 25 Nov 2026 08:00:00 GMT", 1764057600]
)
def test_times_in_replies_are_read_as_botocore_reads_them(text):
    assert aws.moment(text) == parse_timestamp(text)
