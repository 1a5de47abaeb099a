"""Local copies of objects in a bucket: each is downloaded once, and again after a change."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.store.manifest import FileEntry, find_damage, open_files, seal
from infra.store.s3_store import S3Store
from tasks.foundation.errors import FailureClass, StoreError, classify
from tests.support.cloud.s3 import BASE, Fault, S3Server, bucket_of
from tests.support.fakes.fake_runner import commit_files
from tests.support.workspace.stores import everything_below

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(bucket: S3Store) -> S3Store:
    return bucket


def downloads(s3: S3Server) -> list[str]:
    """The keys downloaded since the last call, in order."""
    found = [match[1] for request in s3.requests if (match := re.fullmatch(rf"GET /[^/]+/{BASE}/([^?]+)", request))]
    s3.requests.clear()
    return sorted(found)


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


def test_a_check_of_bytes_costs_two_listings_and_a_request_for_each_object(store: S3Store, s3: S3Server) -> None:
    """The listings say sizes and ETags, so that no HEAD asks for them again."""
    manifest = commit_files(store, "a", {f"part-{number}.parquet": f"rows {number}" for number in range(9)}, "vectors")
    s3.requests.clear()
    assert find_damage(store, "a", manifest, manifest.files) == {}
    assert len(s3.requests) == 9 + 2
    assert downloads(s3) == [f"a/{entry.name}" for entry in manifest.files]


def test_an_object_removed_while_it_is_copied_is_a_store_error(store: S3Store, s3: S3Server) -> None:
    store.write("a/1", b"one")
    s3.faults = [Fault("GET", 404, "NoSuchKey", about="a/1")]
    with pytest.raises(StoreError, match="a/1") as caught:
        store.local("a/1")
    assert classify(caught.value) is FailureClass.STORE


def test_an_object_name_that_leaves_the_folder_of_copies_is_refused(store: S3Store, s3: S3Server) -> None:
    s3.client.put_object(Bucket=bucket_of(store.uri), Key=f"{BASE}/a/../../../outside", Body=b"")
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
