import http.server
import socket
import threading

import pytest

from tasks.worker.launch.__main__ import this_host


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
