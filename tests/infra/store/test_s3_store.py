"""What is special about a workspace in a bucket; `test_store.py` has what all stores do."""

import hashlib
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from infra.store import aws, s3_store
from infra.store.base import Conflict
from infra.store.factory import open_store
from infra.store.lease import HeldLease, Lease
from infra.store.manifest import FileEntry, open_files, seal
from infra.store.records import place
from infra.store.s3_store import S3Store
from tasks.foundation.errors import ConfigError, FailureClass, StageError, StoreError, classify
from tests.support.cloud.s3 import Fault, S3Server
from tests.support.workspace.stores import everything_below

ROOT = Path(__file__).resolve().parents[3]
BASE = "some/workspace"  # of the workspaces that S3Server makes


@pytest.fixture
def store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setattr("botocore.endpoint.time", types.SimpleNamespace(sleep=lambda seconds: None))  # between tries
    monkeypatch.setattr(aws, "PAUSES_SECONDS", [0.0] * len(aws.PAUSES_SECONDS))
    return S3Store(s3.new_workspace())


def bucket_of(store: S3Store) -> str:
    return store.uri.split("/")[2]


def downloads(s3: S3Server) -> list[str]:
    """The keys downloaded since the last call, in order."""
    found = [match[1] for request in s3.requests if (match := re.fullmatch(rf"GET /[^/]+/{BASE}/([^?]+)", request))]
    s3.requests.clear()
    return sorted(found)


# --- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["s3://bucket/a/b", "s3://bucket/a/b/", "s3://bucket//a//b"])
def test_one_workspace_has_one_name(given: str) -> None:
    assert open_store(given).uri == "s3://bucket/a/b"


@pytest.mark.parametrize("given", ["s3://", "s3:///a", "s3://bucket/../other"])
def test_a_uri_without_a_bucket_is_a_config_error(given: str) -> None:
    with pytest.raises(ConfigError, match="expected s3://bucket/prefix"):
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
        s3.client.put_object(Bucket=bucket_of(store), Key=f"{BASE}/{name}")
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
    with pytest.raises(Conflict, match="CURRENT was changed by another process"):
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
    with pytest.raises(StoreError, match="ConditionalRequestConflict") as caught:
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
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=bucket_of(store))


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
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=bucket_of(store))


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


# --- local copies -----------------------------------------------------------------------------------------------


@pytest.fixture
def copied(store: S3Store, s3: S3Server) -> Path:
    """A folder of two files that was copied once."""
    store.write("a/1", b"one")
    store.write("a/deep/2", b"two")
    folder = store.local("a")
    assert downloads(s3) == ["a/1", "a/deep/2"]
    return folder


def test_a_copied_object_is_not_downloaded_again(store: S3Store, s3: S3Server, copied: Path) -> None:
    assert store.local("a") == copied
    assert store.local("a/1") == copied / "1"
    assert S3Store(store.uri).local("a/deep") == copied / "deep"
    assert downloads(s3) == []


def test_only_a_changed_object_is_downloaded_again(store: S3Store, s3: S3Server, copied: Path) -> None:
    with (copied / "1").open("rb") as reader:
        store.write("a/1", b"uno")
        assert (store.local("a") / "1").read_bytes() == b"uno"
        assert reader.read() == b"one"  # an open file keeps its content
    assert downloads(s3) == ["a/1"]


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(b"0ne"), lambda path: path.write_bytes(b""), lambda path: path.unlink()],
    ids=["changed", "emptied", "removed"],
)
def test_a_damaged_copy_is_downloaded_again(store: S3Store, s3: S3Server, copied: Path, damage) -> None:
    damage(copied / "1")
    assert (store.local("a") / "1").read_bytes() == b"one"
    assert downloads(s3) == ["a/1"]


def test_an_object_deleted_from_the_bucket_is_deleted_from_the_copies(store: S3Store, copied: Path) -> None:
    (copied / "left-behind").write_bytes(b"")
    store.delete("a/deep/2")
    assert everything_below(store.local("a")) == {"1"}
    store.delete("a/1")
    assert not store.local("a/1").exists()
    assert everything_below(store.local("a")) == set()


def test_of_a_folder_only_the_files_that_are_named_are_downloaded(store: S3Store, s3: S3Server, copied: Path) -> None:
    for key in ("a/2", "a/3", "a/deep/4"):
        store.write(key, key.encode())
    folder = store.local("a", ["1", "3", "deep/4"])
    assert downloads(s3) == ["a/3", "a/deep/4"]
    assert everything_below(folder) == {"1", "3", "deep/2", "deep/4"}
    store.delete("a/3")
    store.local("a", ["1", "3"])
    assert (everything_below(folder), downloads(s3)) == ({"1", "deep/2", "deep/4"}, [])


def test_a_manifest_that_names_one_file_of_a_release_downloads_no_other(store: S3Store, s3: S3Server) -> None:
    for key in ("old/0", "old/1", "old/2", "new/1"):
        store.write(key, key.encode())
    files = [
        FileEntry(name=key.partition("/")[2], bytes=5, sha256=hashlib.sha256(key.encode()).hexdigest(), at=at)
        for key, at in (("old/0", "old/0"), ("new/1", None))
    ]
    seal(store, "new", tuple(files), "vectors", {})
    s3.forget()
    assert [path.read_bytes() for path in open_files(store, "new", "vectors")] == [b"old/0", b"new/1"]
    assert downloads(s3) == ["new/1", "new/MANIFEST.json", "old/0"]


def test_an_object_removed_while_it_is_copied_is_a_store_error(store: S3Store, s3: S3Server) -> None:
    store.write("a/1", b"one")
    s3.faults = [Fault("HEAD", 404, "NoSuchKey", about="a/1")]
    with pytest.raises(StoreError, match="a/1") as caught:
        store.local("a/1")
    assert classify(caught.value) is FailureClass.STORE


def test_an_object_name_that_leaves_the_folder_of_copies_is_refused(store: S3Store, s3: S3Server) -> None:
    s3.client.put_object(Bucket=bucket_of(store), Key=f"{BASE}/a/../../../outside", Body=b"")
    with pytest.raises(StoreError, match=r"a/\.\./\.\./\.\./outside"):
        store.local("a")


def test_the_copies_are_deleted_when_their_process_ends(store: S3Store) -> None:
    store.write("a/1", b"one")
    script = "import sys\nfrom infra.store.factory import open_store\nprint(open_store(sys.argv[1]).local('a/1'))"
    shown = subprocess.run(
        [sys.executable, "-c", script, store.uri], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    path = Path(shown.stdout.strip())
    assert path.name == "1"
    assert not path.parents[1].exists()
    assert path.parents[1] != store.local("a/1").parents[1]


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


def test_an_absent_folder_cannot_be_moved(store: S3Store) -> None:
    with pytest.raises(FileNotFoundError, match="no such object or folder"):
        store.move("a", "b")


# --- locks ------------------------------------------------------------------------------------------------------


def test_a_lost_lock_is_an_error_at_the_end_of_its_block(store: S3Store) -> None:
    with pytest.raises(StoreError, match="lost to process 7 on elsewhere"), store.lock("a"):
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


# --- errors -----------------------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[Fault, type[StageError], str]] = {
    "denied": (Fault("GET", 403, "AccessDenied"), ConfigError, "was denied .*s3:ListBucket"),
    "unknown key": (Fault("GET", 403, "InvalidAccessKeyId"), ConfigError, "does not accept the AWS credentials"),
    "expired": (Fault("GET", 400, "ExpiredToken"), ConfigError, "ExpiredToken.* sign in again"),
    "clock": (Fault("GET", 403, "RequestTimeTooSkewed"), ConfigError, "clock .* set it right"),
    "elsewhere": (
        Fault("GET", 400, "AuthorizationHeaderMalformed", more="<Region>eu-south-2</Region>"),
        ConfigError,
        "another region .* set AWS_DEFAULT_REGION to eu-south-2",
    ),
    "no such feature": (Fault("GET", 501, "NotImplemented"), ConfigError, "conditional writes"),
    "unknown": (Fault("GET", 400, "Strange"), StoreError, "answered Strange: as the test wants it"),
}


@pytest.mark.parametrize(("fault", "error", "message"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize(
    "ask",
    [lambda store: store.read("a"), lambda store: store.exists("a"), lambda store: store.list("a")],
    ids=["read", "exists", "list"],
)
def test_a_refusal_names_the_bucket_and_the_way_out(
    store: S3Store, s3: S3Server, fault: Fault, error: type[StageError], message: str, ask
) -> None:
    s3.faults = [fault] * 2  # botocore asks again for some, in another region
    with pytest.raises(error, match=f"bucket '{bucket_of(store)}' .*{message}"):
        ask(store)


WRITES = {
    "write": lambda store, source: store.write("a", b""),
    "create": lambda store, source: store.create("a", b""),
    "swap": lambda store, source: store.swap("a", b"", None),
    "upload": lambda store, source: store.upload(source, "a"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_denied_write_is_a_config_error(store: S3Store, s3: S3Server, source: Path, write) -> None:
    s3.faults = [Fault("PUT", 403, "AccessDenied")]
    with pytest.raises(ConfigError, match=f"{store.uri}/a: access to bucket"):
        write(store, source)


USES = WRITES | {
    "read": lambda store, source: store.read("a"),
    "list": lambda store, source: store.list("a"),
    "exists": lambda store, source: store.exists("a"),
    "local": lambda store, source: store.local("a"),
    "move": lambda store, source: store.move("a", "b"),
    "delete": lambda store, source: store.delete("a"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_missing_bucket_is_a_config_error(s3: S3Server, source: Path, use) -> None:
    with pytest.raises(ConfigError, match="there is no bucket 'nowhere'; create it"):
        use(S3Store("s3://nowhere/a"), source)


def test_throttling_is_waited_out(store: S3Store, s3: S3Server) -> None:
    s3.faults = [Fault("PUT", 503, "SlowDown")] * (s3_store.ATTEMPTS - 1)
    store.write("a", b"one")
    assert store.read("a") == b"one"


@pytest.mark.parametrize("status", [500, 503])
def test_a_bucket_that_keeps_failing_is_a_store_error(store: S3Store, s3: S3Server, status: int) -> None:
    s3.faults = [Fault("PUT", status, "SlowDown")] * (s3_store.ATTEMPTS + 1)
    with pytest.raises(StoreError, match="SlowDown: as the test wants it, at the last of 5 tries"):
        store.write("a", b"one")
    assert len(s3.faults) == 1


@pytest.mark.parametrize("use", [USES[name] for name in ("write", "read", "upload")])
def test_an_unreachable_server_is_a_store_error(
    store: S3Store, source: Path, monkeypatch: pytest.MonkeyPatch, use
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9"):
        use(S3Store(store.uri), source)


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AWS account can be found."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))


def test_missing_credentials_are_a_config_error(s3: S3Server, no_account: None) -> None:
    with pytest.raises(ConfigError, match=r"credentials for bucket 'bucket-a'.* set AWS_PROFILE"):
        S3Store("s3://bucket-a/b").list("")


def test_an_unknown_profile_is_a_config_error(no_account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(ConfigError, match=r"s3://bucket-a/b.*absent.*correct AWS_PROFILE"):
        open_store("s3://bucket-a/b")


@pytest.mark.parametrize(("name", "value"), [("AWS_ENDPOINT_URL", "nonsense"), ("AWS_DEFAULT_REGION", "no such place")])
def test_nonsense_in_the_environment_is_a_config_error(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=rf"{value}.*{name}"):
        open_store("s3://bucket-a/b")


def test_an_impossible_bucket_name_is_a_config_error(s3: S3Server) -> None:
    with pytest.raises(ConfigError, match=r"bucket 'no bucket!'.* correct the workspace's name"):
        S3Store("s3://no bucket!/a").list("")
