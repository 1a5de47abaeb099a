"""Who changed what by hand: written before the change, ended after it, with the identity that AWS sees."""

from __future__ import annotations

import http.server
import itertools
import threading
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.identity import caller
from tasks.foundation.errors import ConfigError, StoreError
from tasks.runs.audit import audited, read_audit
from tasks.runs.holds import me


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_a_change_is_on_record_before_it_is_made_and_ended_after_it(store: DirectoryStore) -> None:
    with audited(store, "rollback", serving=7, to=None):
        (begun,) = read_audit(store, 9)
        assert (begun.verb, begun.by, begun.about, begun.ended_at) == ("rollback", me(), {"serving": "7"}, None)
    (done,) = read_audit(store, 9)
    assert done.ended_at is not None
    assert done.ended_at >= done.at == begun.at
    assert (done.failure, done.identity) == (None, None)


def test_a_change_that_is_refused_stays_with_its_class_and_sentence(store: DirectoryStore) -> None:
    with pytest.raises(ConfigError, match="held already"), audited(store, "hold", reason="a test"):
        raise ConfigError("releases are held already")
    (record,) = read_audit(store, 9)
    assert (record.failure, record.message) == ("CONFIG", "releases are held already")


def test_a_change_without_a_record_is_not_made(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise StoreError("no space left")

    monkeypatch.setattr(store, "create", refused)
    with pytest.raises(StoreError, match="no space left"), audited(store, "prune"):
        pytest.fail("it went on")


def test_two_changes_at_one_moment_are_two_records(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    monkeypatch.setattr("tasks.runs.audit.now", lambda: f"2026-01-01T00:00:00.{next(calls) // 3:06d}+00:00")
    for _ in range(3):
        with audited(store, "lift"):
            pass
    assert len(read_audit(store, 9)) == 3


ANSWER = b"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:sts::123456789012:assumed-role/on-call/ana</Arn><UserId>AROA:ana</UserId><Account>123456789012</Account>
</GetCallerIdentityResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></GetCallerIdentityResponse>"""


class Sts(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert b"Action=GetCallerIdentity" in self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)


def test_for_a_bucket_the_identity_is_the_one_that_aws_sees(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer of STS the record has none; nobody waits for long, and nobody is stopped."""
    monkeypatch.setattr(store, "uri", "s3://bucket/main")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sts) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ana")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with audited(store, "skip", span="2026-W47", reason="too few rows"):
            pass
        server.shutdown()
    (record,) = read_audit(store, 9)
    assert record.identity == "arn:aws:sts::123456789012:assumed-role/on-call/ana"
    assert record.about == {"span": "2026-W47", "reason": "too few rows"}
    assert caller("s3://bucket/main") is None, "nobody answers any more"
    assert caller("/a/folder") is None
