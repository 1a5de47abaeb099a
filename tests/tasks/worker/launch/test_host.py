"""The host of a container: its names, and its end after a fault of its hardware."""

import http.server
import socket
import threading
import time

import pytest

from configs.load import load_config
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.runs.host_records import exclude
from tasks.worker.launch.__main__ import terminate_machine, termination_reason, this_host
from tasks.worker.launch.this_node import StopSignals


class Metadata(http.server.BaseHTTPRequestHandler):
    """IMDSv2 below /imds/: no instance id without a token."""

    instance = "i-0123456789abcdef0"

    def do_PUT(self):
        lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._answer("a-token" if self.path == "/imds/latest/api/token" and lifetime else None)

    def do_GET(self):
        known = self.headers.get("X-aws-ec2-metadata-token") == "a-token"
        self._answer(self.instance if known and self.path == "/imds/latest/meta-data/instance-id" else None)

    def _answer(self, text: str | None) -> None:
        self.send_response(401 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, format, *args):  # noqa: A002
        pass


@pytest.fixture
def metadata(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(Metadata, "instance", Metadata.instance)
    yield f"http://127.0.0.1:{server.server_port}/imds"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("slash", ["", "/"])
def test_on_ec2_the_host_is_the_instance_id(metadata, monkeypatch, slash):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata + slash)
    assert this_host() == "i-0123456789abcdef0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_EC2_METADATA_DISABLED", "True"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "no address"),
    ],
)
def test_outside_ec2_the_host_is_the_host_name(metadata, monkeypatch, name, value):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)
    monkeypatch.setenv(name, value)
    assert this_host() == socket.gethostname()


def test_after_an_empty_answer_the_host_is_the_host_name(metadata, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)
    monkeypatch.setattr(Metadata, "instance", "")
    assert this_host() == socket.gethostname()


LIMITS = load_config().health


HOST = "i-0123456789abcdef0"


def code(failure: FailureClass) -> int:
    return POLICIES[failure].exit_code


def test_only_an_instance_of_ec2_leaves(store):
    for host in (HOST, "worker-7"):
        exclude(store, host, "ECC errors", "run", LIMITS, time.time())
    assert "ECC errors" in (termination_reason(store, HOST, 0.0, code(FailureClass.HOST)) or "")
    assert termination_reason(store, "worker-7", 0.0, code(FailureClass.HOST)) is None


@pytest.mark.parametrize("ended_with", [0, *(code(each) for each in (FailureClass.CONFIG, FailureClass.CANCELLED))])
def test_a_machine_stays_where_no_retry_follows(store, ended_with):
    exclude(store, HOST, "ECC errors", "run", LIMITS, time.time())
    assert termination_reason(store, HOST, 0.0, ended_with) is None


def test_a_record_that_can_not_be_read_keeps_the_machine(store, capsys):
    store.write(f"hosts/{HOST}.json", b"{")
    assert termination_reason(store, HOST, 0.0, code(FailureClass.HOST)) is None
    assert "so the machine stays" in capsys.readouterr().out


def test_a_refusal_is_a_warning_with_the_way_out(monkeypatch, capsys):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    terminate_machine(HOST, "ECC errors", StopSignals())
    said = capsys.readouterr().out
    assert "ECC errors" in said
    assert f"aws ec2 terminate-instances --instance-ids {HOST}" in said
