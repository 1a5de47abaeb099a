"""What the workers of one machine share, with a bucket that counts what is asked of it."""

from __future__ import annotations

import fcntl
import itertools
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import HangError
from tasks.worker.process import machine as process_machine
from tasks.worker.process.machine import Machine, SharedFolder, beating, once_per_machine


def test_the_last_worker_to_leave_removes_the_folder(tmp_path: Path):
    workers = [SharedFolder(tmp_path / "graphs") for _ in range(3)]
    (tmp_path / "graphs/model.neff").touch()
    for worker in workers[:2]:
        worker.leave()
        assert (tmp_path / "graphs/model.neff").exists()
    workers[2].leave()
    assert not (tmp_path / "graphs").exists()


def test_a_worker_that_lets_go_of_it_has_left(tmp_path: Path):
    folder = SharedFolder(tmp_path / "graphs")
    del folder
    assert not (tmp_path / "graphs").exists()


def test_a_folder_that_is_removed_while_it_is_opened_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before, lock = SharedFolder(tmp_path / "graphs"), fcntl.flock

    def lock_late(folder: int, how: int) -> None:
        if how == fcntl.LOCK_SH:
            before.leave()
        lock(folder, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    folder = SharedFolder(tmp_path / "graphs")
    assert folder.path.is_dir()
    folder.leave()
    assert not folder.path.exists()


WORKERS = 4


class SlowBucket(DirectoryStore):
    """Files in a folder, as a bucket that takes its time."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.uri = "s3://bucket"
        self.asked: list[str] = []

    def read(self, key: str) -> bytes:
        self._ask(f"read {key}")
        return super().read(key)

    def sizes(self, prefix: str) -> dict[str, int]:
        self._ask(f"sizes {prefix}")
        return super().sizes(prefix)

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        self._ask(f"local {key}")
        return super().local(key, names)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        time.sleep(0.02)  # the other workers come meanwhile


@pytest.fixture
def bucket(tmp_path: Path) -> SlowBucket:
    store = SlowBucket(tmp_path / "bucket")
    for key in ("model/MANIFEST.json", "model/deep/weights", "rows"):
        store.write(key, key.encode())
    return store


def machine(first: int = 0, workers: int = 1) -> Machine:
    return Machine("s3://bucket", "runs/r/train/attempt-1", first, workers)


def test_one_worker_fetches_for_all(bucket: SlowBucket):
    together = threading.Barrier(WORKERS)

    def work(_: int) -> list[object]:
        mine = machine(workers=WORKERS)
        store = mine.reads(bucket)
        together.wait()
        folder = store.local("model")
        found: list[object] = [store.read("rows"), store.sizes("model"), (folder / "deep/weights").read_bytes()]
        found += [folder.name, store.local("rows").read_bytes(), store.read("rows")]
        together.wait()
        mine.leave()
        return found

    with ThreadPoolExecutor(WORKERS) as pool:
        first, *others = pool.map(work, range(WORKERS))
    sizes = {"model/MANIFEST.json": 19, "model/deep/weights": 18}
    assert first == [b"rows", sizes, b"model/deep/weights", "model", b"rows", b"rows"]
    assert others == [first] * (WORKERS - 1)
    assert sorted(bucket.asked) == ["local model", "local rows", "read rows", "sizes model"]


def test_named_files_are_copied_alone(bucket: SlowBucket):
    bucket.write("model/other", b"large")
    mine = machine()
    store = mine.reads(bucket)
    for _ in range(2):
        folder = store.local("model", ["deep/weights", "gone"])
        assert [path.name for path in folder.rglob("*") if path.is_file()] == ["weights"]
    assert bucket.asked == ["local model"]
    assert (store.local("model") / "other").read_bytes() == b"large"
    mine.leave()


def test_what_is_not_there_is_asked_for_again(bucket: SlowBucket):
    mine = machine()
    store = mine.reads(bucket)
    with pytest.raises(FileNotFoundError):
        store.read("late")
    store.write("late", b"now")
    assert store.read("late") == b"now"
    mine.leave()


def test_a_local_directory_is_read_as_it_is(tmp_path: Path):
    store = DirectoryStore(tmp_path)
    assert machine().reads(store) is store


def test_other_machines_attempts_and_workspaces_have_folders_of_their_own():
    others = [Machine("s3://bucket", "runs/r/train/attempt-2", 0, 1), Machine("s3://other", "a", 0, 1)]
    ours = [machine(), machine(32), *others]
    assert len({each.folder for each in ours}) == len(ours)
    for each in ours:
        each.leave()


def test_a_worker_that_comes_after_another_has_left_finds_what_that_wrote():
    first, late = machine(workers=2), machine(workers=2)
    first.publish("pairs", b"there")
    first.leave()
    assert late.wait_for("pairs", "the training rows", 0.05) == b"there"
    folder = late.folder
    late.leave()
    assert not folder.exists(), "all have used it and left"


def test_a_worker_that_waits_in_vain_names_what_it_waits_for(bucket: SlowBucket, monkeypatch: pytest.MonkeyPatch):
    mine, other = machine(), machine()
    with pytest.raises(HangError, match=r"/pairs, .* 0\.05 s"):
        mine.wait_for("pairs", "the training rows", 0.05)
    other.publish("pairs", b"there")
    assert mine.wait_for("pairs", "the training rows", 0.05) == b"there"

    begun, over = threading.Event(), threading.Event()

    def hang(key: str) -> bytes:
        begun.set()
        over.wait()
        return b""

    monkeypatch.setattr(bucket, "read", hang)
    thread = threading.Thread(target=other.reads(bucket).read, args=("rows",))
    thread.start()
    begun.wait()
    monkeypatch.setattr(process_machine, "LONGEST_SECONDS", 0.05)
    with pytest.raises(HangError, match=r"s3://bucket/rows, .*5 s"):
        mine.reads(bucket).read("rows")
    over.set()
    thread.join()
    mine.leave()
    other.leave()


def test_who_waits_waits_as_long_as_the_work_goes_on(monkeypatch: pytest.MonkeyPatch):
    mine, other = machine(workers=2), machine(workers=2)
    hours, pieces = itertools.count(), beating(range(20), other.beat)

    def work(_seconds: float) -> None:
        if next(pieces, None) is None:
            other.publish("pairs", b"there")

    clock = SimpleNamespace(monotonic=lambda: 3600.0 * next(hours), sleep=work)
    monkeypatch.setattr(process_machine, "time", clock)
    assert mine.wait_for("pairs", "the training rows") == b"there"
    assert next(hours) > 20, "hours"
    with pytest.raises(HangError, match="within 14400 s"):
        mine.wait_for("others", "the other rows")
    mine.leave()
    other.leave()


def test_one_worker_does_the_work_and_the_others_wait_for_its_result(tmp_path):
    made: list[int] = []
    got: list[bytes] = []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.05)  # the others come meanwhile
        return b"done"

    threads = [
        threading.Thread(target=lambda: got.append(once_per_machine(tmp_path / "it", make, "to wait")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), got) == (1, [b"done"] * 4)


def test_work_that_fails_is_left_to_the_next_worker(tmp_path):
    def fail() -> bytes:
        raise OSError("no connection")

    with pytest.raises(OSError, match="no connection"):
        once_per_machine(tmp_path / "it", fail, "to fail")
    assert once_per_machine(tmp_path / "it", lambda: b"done", "to end") == b"done"
