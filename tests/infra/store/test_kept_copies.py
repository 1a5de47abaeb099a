"""Copies of a bucket's files that a later process uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.store import kept_copies, s3_transfers
from infra.store.base import Store
from infra.store.factory import open_store
from infra.store.manifest import CorruptFolder, commit, open_files
from tests.support.cloud.s3 import S3Server

NAMES = [f"part-{number:05d}.parquet" for number in range(3)]


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home" / "copies"
    monkeypatch.setenv(kept_copies.CACHE, str(folder))
    return folder


@pytest.fixture
def store(s3: S3Server, tmp_path: Path) -> Store:
    """A bucket with a folder of three files."""
    bucket = open_store(s3.new_workspace())
    (tmp_path / "folder").mkdir()
    for name in NAMES:
        (tmp_path / "folder" / name).write_text(f"the rows of {name}")
    commit(bucket, "vectors/one", tmp_path / "folder", "vectors", {})
    return bucket


def opened(store: Store, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """The files' content, as a process opens them that begins now, and the number of files that it fetched."""
    monkeypatch.setattr(s3_transfers, "_mirrors", {})
    s3.forget()
    content = [path.read_text() for path in open_files(store, "vectors/one", "vectors")]
    return content, sum("GET" in one and ".parquet" in one and "list-type" not in one for one in s3.requests)


def test_a_second_process_fetches_nothing_again(store, s3, copies, monkeypatch) -> None:
    first = opened(store, s3, monkeypatch)
    assert first == ([f"the rows of {name}" for name in NAMES], 3)
    assert opened(store, s3, monkeypatch) == (first[0], 0)


def test_a_process_that_is_not_told_to_keeps_nothing(store, s3, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(kept_copies.CACHE, raising=False)
    assert [opened(store, s3, monkeypatch)[1] for _ in range(2)] == [3, 3]


def test_a_damaged_copy_is_fetched_again(store, s3, copies, monkeypatch) -> None:
    expected, _ = opened(store, s3, monkeypatch)
    (kept,) = [file for file in copies.glob("*/file") if file.read_text() == expected[1]]
    kept.unlink()
    kept.write_text(expected[1].replace("rows", "rags"))
    assert opened(store, s3, monkeypatch) == (expected, 1)
    assert opened(store, s3, monkeypatch)[0] == expected


def test_a_damaged_file_of_the_bucket_is_still_refused(store, s3, copies, monkeypatch) -> None:
    store.write(f"vectors/one/{NAMES[0]}", b"the rags of part-00000.parquet")
    with pytest.raises(CorruptFolder, match=r"part-00000\.parquet"):
        opened(store, s3, monkeypatch)
    with pytest.raises(CorruptFolder, match=r"part-00000\.parquet"):
        opened(store, s3, monkeypatch)


def test_the_oldest_copies_go_when_there_is_no_room(store, s3, copies, monkeypatch) -> None:
    monkeypatch.setattr(kept_copies, "SHARE", 0.0)
    assert opened(store, s3, monkeypatch)[1] == 3
    assert list(copies.iterdir()) == []
    monkeypatch.setattr(kept_copies, "SHARE", 1.0)
    assert [opened(store, s3, monkeypatch)[1] for _ in range(2)] == [3, 0]


def test_a_home_that_cant_be_written_costs_the_copies_alone(store, s3, copies, monkeypatch) -> None:
    copies.parent.mkdir()
    copies.write_text("a file where the folder should be")
    assert [opened(store, s3, monkeypatch)[1] for _ in range(2)] == [3, 3]


def test_what_a_killed_process_left_half_made_stops_no_trimming(store, s3, copies, monkeypatch) -> None:
    left = copies / ".left"
    left.mkdir(parents=True)
    (left / "file.part").write_text("half a copy")
    os.utime(left, (0, 0))
    monkeypatch.setattr(kept_copies, "SHARE", 0.0)
    assert opened(store, s3, monkeypatch)[1] == 3
    assert list(copies.iterdir()) == []


def test_a_copy_that_is_still_being_made_stays(store, s3, copies, monkeypatch) -> None:
    making = copies / ".making"
    making.mkdir(parents=True)
    assert opened(store, s3, monkeypatch)[1] == 3
    assert making.is_dir()
