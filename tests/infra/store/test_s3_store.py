"""What is special about a workspace in a bucket; `test_store.py` has what all stores do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.store import s3_store
from infra.store.base import Conflict
from infra.store.factory import open_store
from infra.store.lease import HeldLease, Lease
from infra.store.records import place
from infra.store.s3_store import S3Store
from tasks.foundation.errors import ConfigError, StoreError
from tests.support.cloud.s3 import BASE, Fault, S3Server, bucket_of
from tests.support.workspace.stores import everything_below

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(bucket: S3Store) -> S3Store:
    return bucket


# --- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["s3://bucket/a/b", "s3://bucket/a/b/", "s3://bucket//a//b"])
def test_one_workspace_has_one_name(given: str) -> None:
    assert open_store(given).uri == "s3://bucket/a/b"


@pytest.mark.parametrize("given", ["s3://", "s3:///a", "s3://bucket/../other"])
def test_a_uri_without_a_bucket_is_a_config_error(given: str) -> None:
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        open_store(given)


def test_a_whole_bucket_can_be_a_workspace(s3: S3Server) -> None:
    store = open_store(s3.new_workspace().removesuffix(BASE))
    for key in ("a/1", "a/2", "b"):
        store.write(key, key.encode())
    store.move("a", "c")
    assert store.list("") == ["b", "c/1", "c/2"]
    assert everything_below(store.local("")) == {"b", "c/1", "c/2"}
    assert not store.exists("")
    store.delete("")
    assert store.list("") == []


def test_a_directory_store_does_not_import_boto3() -> None:
    script = (
        "import sys, flows.cli.app, infra.store.base\n"
        "infra.store.factory.open_store('.').list('')\n"
        "assert not {'boto3', 'botocore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


# --- listings ---------------------------------------------------------------------------------------------------


@pytest.fixture
def many(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """More objects than go on one page, and neighbours whose names begin the same way."""
    monkeypatch.setattr(s3_store, "KEYS_AT_ONCE", 2)
    keys = [f"a/b/{name}" for name in ("0", "1", "2", "3/x", "4")]
    for key in (*keys, "a/b-c", "a/b.d/x", "a/bc/x"):
        store.write(key, key.encode())
    return keys


def test_a_listing_and_a_local_copy_have_all_pages(store: S3Store, s3: S3Server, many: list[str]) -> None:
    s3.forget()
    assert store.list("a/b") == many
    assert len(s3.requests) == 3
    assert everything_below(store.local("a/b")) == {key.removeprefix("a/b/") for key in many}


def test_all_pages_move(store: S3Store, many: list[str]) -> None:
    store.move("a/b", "z")
    assert store.list("") == ["a/b-c", "a/b.d/x", "a/bc/x", *[key.replace("a/b", "z") for key in many]]


def test_all_pages_are_deleted_but_no_neighbours(store: S3Store, s3: S3Server, many: list[str]) -> None:
    s3.forget()
    store.delete("a/b")
    assert store.list("") == ["a/b-c", "a/b.d/x", "a/bc/x"]
    assert sum(request.startswith("POST") for request in s3.requests) == 3


def test_a_folder_marker_is_not_an_object(store: S3Store, s3: S3Server) -> None:
    for name in ("a/", "a/b/"):
        s3.client.put_object(Bucket=bucket_of(store.uri), Key=f"{BASE}/{name}")
    assert store.list("a") == []
    assert not store.exists("a")


# --- conditional writes -----------------------------------------------------------------------------------------

LOST_REPLY = Fault("PUT", when="after")


@pytest.mark.parametrize("replies_lost", [1, 2])
def test_a_write_with_a_lost_reply_is_not_a_conflict(store: S3Store, s3: S3Server, replies_lost: int) -> None:
    s3.faults = [LOST_REPLY] * replies_lost
    store.create("CURRENT", b"1")
    s3.faults = [LOST_REPLY] * replies_lost
    store.swap("CURRENT", b"2", expected=b"1")
    assert s3.faults == []
    assert store.read("CURRENT") == b"2"


def test_equal_bytes_from_another_writer_are_a_conflict(store: S3Store) -> None:
    S3Store(store.uri).create("CURRENT", b"1")
    with pytest.raises(Conflict):
        store.create("CURRENT", b"1")


@pytest.mark.parametrize(("before", "after"), [(b"1", b"rival"), (None, b"rival"), (b"1", None)])
def test_a_change_between_reading_and_writing_is_kept(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, before: bytes | None, after: bytes | None
) -> None:
    if before:
        store.write("CURRENT", before)
    put, rival = store._client.put_object, S3Store(store.uri)

    def late(**arguments):
        rival.write("CURRENT", after) if after else rival.delete("CURRENT")
        return put(**arguments)

    monkeypatch.setattr(store._client, "put_object", late)
    with pytest.raises(Conflict, match="CURRENT was changed"):
        store.swap("CURRENT", b"2", expected=before)
    assert (rival.read("CURRENT") if rival.exists("CURRENT") else None) == after


SIMULTANEOUS = Fault("PUT", 409, "ConditionalRequestConflict")


def test_a_write_that_the_bucket_refuses_as_simultaneous_is_tried_again(store: S3Store, s3: S3Server) -> None:
    s3.faults = [SIMULTANEOUS] * 5
    store.create("CURRENT", b"1")
    s3.faults = [SIMULTANEOUS]
    store.swap("CURRENT", b"2", expected=b"1")
    s3.faults = [SIMULTANEOUS]
    with pytest.raises(Conflict, match="CURRENT exists already"):
        store.create("CURRENT", b"3")
    assert store.read("CURRENT") == b"2"


def test_a_bucket_that_refuses_a_write_as_simultaneous_for_good_gives_no_verdict(store: S3Store, s3: S3Server) -> None:
    s3.faults = [SIMULTANEOUS] * 6
    with pytest.raises(StoreError, match="ConditionalRequest") as caught:
        store.create("CURRENT", b"1")
    assert not isinstance(caught.value, Conflict)
    assert (s3.faults, store.exists("CURRENT")) == ([], False)


# --- transfers --------------------------------------------------------------------------------------------------


def test_a_large_file_is_uploaded_in_pieces_and_downloaded_whole(store: S3Store, s3: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(9 * 2**20))
    store.upload(path, "a/large.bin")
    assert any("uploadId" in request for request in s3.requests)
    assert store.local("a/large.bin").read_bytes() == path.read_bytes()
    assert store.read("a/large.bin") == path.read_bytes()


def test_a_large_file_never_replaces_what_came_meanwhile(store: S3Store, s3: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(9 * 2**20))
    store.write("a", b"a successor's")
    s3.faults = [Fault("POST", 409, "ConditionalRequestConflict", about="uploadId=")]
    with pytest.raises(Conflict):
        store.upload(path, "a")
    assert (s3.faults, store.read("a")) == ([], b"a successor's")
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=bucket_of(store.uri))


def test_an_upload_whose_reply_was_lost_counts_as_placed(store: S3Store, s3: S3Server, source: Path) -> None:
    s3.faults = [LOST_REPLY]
    place(store, source, "a/b")
    assert store.read("a/b") == source.read_bytes()


def test_an_interrupted_upload_leaves_no_object_and_no_pieces(store: S3Store, s3: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(9 * 2**20))
    s3.faults = [Fault("PUT", 403, "AccessDenied", about="partNumber=2")]
    with pytest.raises(ConfigError, match="was denied"):
        store.upload(path, "a/large.bin")
    assert store.list("") == []
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=bucket_of(store.uri))


def test_a_missing_file_cannot_be_uploaded(store: S3Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.upload(tmp_path / "gone", "a")


def test_a_cut_off_reply_is_requested_again(store: S3Store, s3: S3Server) -> None:
    store.write("a/b", b"content")
    s3.faults = [Fault("GET", when="during", about="a/b")] * 2
    assert store.read("a/b") == b"content"
    assert s3.faults == []
    s3.faults = [Fault("GET", when="during", about="a/b")] * s3_store.ATTEMPTS
    with pytest.raises(StoreError, match="a/b"):
        store.read("a/b")


# --- moving and deleting ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(store: S3Store, s3: S3Server) -> str:
    for name in ("A-part", "MANIFEST.json", "z-part"):
        store.write(f"a/{name}", b"")
    s3.forget()
    return "a"


def test_the_manifest_arrives_last_and_leaves_first(store: S3Store, s3: S3Server, folder: str) -> None:
    store.move(folder, "b")
    copied = [request.rpartition("/")[2] for request in s3.requests if request.startswith("PUT")]
    assert sorted(copied[:2]) == ["A-part", "z-part"]
    assert copied[2:] == ["MANIFEST.json"]
    first_deletion = next(place for place, request in enumerate(s3.requests) if request.startswith("DELETE"))
    assert s3.requests[first_deletion].endswith("MANIFEST.json")
    assert not any(request.startswith("PUT") for request in s3.requests[first_deletion:])


def test_a_move_leaves_what_a_successor_put_there_meanwhile(
    store: S3Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, rival = store._copy, S3Store(store.uri)

    def late(key: str, copies: dict[str, str]) -> None:
        copy(key, copies)
        rival.write("a/z-part", b"a successor's")

    monkeypatch.setattr(store, "_copy", late)
    store.move(folder, "b")
    assert store.list("") == ["a/z-part", "b/A-part", "b/MANIFEST.json", "b/z-part"]
    assert store.read("a/z-part") == b"a successor's"


def test_an_interrupted_move_leaves_one_whole_folder(store: S3Store, s3: S3Server, folder: str) -> None:
    s3.faults = [Fault("PUT", 403, "AccessDenied", about="/b/z-part")]
    with pytest.raises(ConfigError):
        store.move(folder, "b")
    assert store.list(folder) == ["a/A-part", "a/MANIFEST.json", "a/z-part"]
    assert not store.exists("b/MANIFEST.json")


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.delete("a"),
        lambda store: store.discard("a", store.tags("a")),
        lambda store: store.move("a", "b"),
    ],
    ids=["delete", "discard", "move"],
)
def test_a_half_deleted_folder_has_no_manifest(store: S3Store, s3: S3Server, folder: str, act) -> None:
    s3.faults = [Fault(method, 403, "AccessDenied", about="a/A-part") for method in ("POST", "DELETE")]
    s3.faults += [Fault(method, 403, "AccessDenied", about="a/z-part") for method in ("POST", "DELETE")]
    with pytest.raises(ConfigError):
        act(store)
    assert store.list(folder) == ["a/A-part", "a/z-part"]


def test_an_object_that_the_bucket_refuses_to_delete_is_an_error(
    store: S3Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"Key": f"{BASE}/a/MANIFEST.json", "Code": "AccessDenied", "Message": "retained"}
    monkeypatch.setattr(store._client, "delete_objects", lambda **arguments: {"Errors": [refused]})
    with pytest.raises(ConfigError, match=r"AccessDenied: retained"):
        store.delete(folder)


def test_objects_that_the_bucket_was_too_busy_to_delete_are_deleted_by_another_request(
    store: S3Store, s3: S3Server, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 answers 200 to a request about many keys, and says in it which of them it did not delete."""
    really, busy = store._client.delete_objects, ["InternalError", "SlowDown"]

    def some_refused(**arguments: Any) -> Any:
        (*rest, last) = arguments["Delete"]["Objects"]
        if not (busy and last["Key"].endswith("part")):
            return really(**arguments)
        if rest:
            really(**arguments | {"Delete": {"Objects": rest}})
        return {"Errors": [last | {"Code": busy.pop(), "Message": "try again"}]}

    monkeypatch.setattr(store._client, "delete_objects", some_refused)
    store.delete(folder)
    assert (store.list(folder), busy) == ([], [])


def test_an_absent_folder_cannot_be_moved(store: S3Store) -> None:
    with pytest.raises(FileNotFoundError, match="no such object or folder"):
        store.move("a", "b")


# --- locks ------------------------------------------------------------------------------------------------------


def test_a_lost_lock_is_an_error_at_the_end_of_its_block(store: S3Store) -> None:
    with pytest.raises(StoreError, match="process 7 on elsewhere"), store.lock("a"):
        store.write(".locks/a", Lease(owner="x", host="elsewhere", pid=7, expires_at=1e11).to_json())


def test_a_bucket_that_is_away_at_the_end_of_a_lock_does_not_undo_what_was_finished(
    store: S3Store, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    with store.lock("a") as lock:
        assert isinstance(lock, HeldLease)
        lease = Lease.model_validate_json(store.read(".locks/a"))
        lock._lease = lease.model_copy(update={"until": 0.0})  # the bucket was away for so long
        s3.faults = [Fault("PUT", 503, "SlowDown")] * s3_store.ATTEMPTS
    (line,) = caplog.messages
    assert "is finished" in line
    assert "SlowDown" in line
    assert "start again" not in line
