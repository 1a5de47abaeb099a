"""What every store must do when several processes or threads use it at once, or die in the middle."""

import errno
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.store.base import Conflict, Store
from infra.store.directory import DirectoryStore
from tests.support.workspace.stores import everything_below

ROOT = Path(__file__).resolve().parents[3]
THREADS = 8


def at_once(action: Callable[[int], object]) -> list[object]:
    """What `action(i)` gives or raises in each of several threads that start together."""
    barrier = threading.Barrier(THREADS)

    def act(number: int) -> object:
        barrier.wait()
        try:
            return action(number)
        except Conflict as conflict:
            return conflict

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(act, range(THREADS)))


def in_a_process(store: Store, body: str, *arguments: str) -> subprocess.Popen[str]:
    """Run `body` with `store` and `arguments` in a new process."""
    script = (
        f"import sys\nfrom infra.store.base import Conflict\nfrom infra.store.factory import open_store\n"
        f"store, arguments = open_store(sys.argv[1]), sys.argv[2:]\n{body}"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, store.uri, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("action", ["create", "swap"])
def test_one_of_several_threads_that_create_or_swap_at_once_wins(store, action):
    if action == "create":
        results = at_once(lambda number: store.create("CURRENT", str(number).encode()))
    else:
        store.write("CURRENT", b"start")
        results = at_once(lambda number: store.swap("CURRENT", str(number).encode(), expected=b"start"))
    winners = [number for number, result in enumerate(results) if result is None]
    assert len(winners) == 1
    assert store.read("CURRENT") == str(winners[0]).encode()


def test_processes_that_swap_at_once_lose_no_update(store):
    store.write("counter", b"0")
    body = (
        "done = 0\n"
        "while done < 20:\n"
        "    read = store.read('counter')\n"
        "    try:\n"
        "        store.swap('counter', str(int(read) + 1).encode(), expected=read)\n"
        "        done += 1\n"
        "    except Conflict:\n"
        "        continue\n"
    )
    processes = [in_a_process(store, body) for _ in range(3)]
    for process in processes:
        with process:
            assert process.wait(timeout=60) == 0
    assert store.read("counter") == b"60"


def test_a_file_that_is_missing_for_a_moment_is_read(tmp_path, monkeypatch):
    """FUSE mounts that know files by path find none while another version takes its place."""
    store, read, missed = DirectoryStore(tmp_path), Path.read_bytes, []
    store.write("a", b"content")

    def miss_once(path: Path) -> bytes:
        if not missed:
            missed.append(path)
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", miss_once)
    assert store.read("a") == b"content"
    with pytest.raises(FileNotFoundError):
        store.read("b")


def test_a_reader_never_sees_half_of_a_write(store):
    contents = {bytes([letter]) * 300_000 for letter in b"ab"}
    store.write("a", max(contents))
    finished = threading.Event()

    def rewrite(_: int) -> None:
        for _ in range(10):
            for content in contents:
                store.write("a", content)
        finished.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(rewrite, 0)
        seen = {store.read("a")}
        while not finished.is_set() and not writing.done():
            seen.add(store.read("a"))
        writing.result()
    assert seen <= contents


def test_readers_see_nothing_of_a_write_whose_process_was_killed(directory):
    directory.write("a/b", b"old")
    body = (
        "import os, signal\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "store.write('a/b', b'new')\n"
    )  # fmt: skip
    with in_a_process(directory, body) as process:
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert len(everything_below(directory.local("a"))) == 2
    assert directory.list("a") == ["a/b"]
    assert directory.read("a/b") == b"old"


def test_a_lock_excludes_other_processes_until_its_holder_is_killed(directory):
    body = "import time\nwith store.lock('lineages/main'):\n    print('held', flush=True)\n    time.sleep(600)\n"
    with in_a_process(directory, body) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Conflict), directory.lock("lineages/main"):
            pass
        holder.kill()
        holder.wait(timeout=60)
        with directory.lock("lineages/main"):
            pass


def test_who_only_looks_never_keeps_a_process_from_a_lock(directory):
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            directory.peek("lineages/main")

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(200):
            with directory.lock("lineages/main"):
                pass
    finally:
        done.set()
        for looker in lookers:
            looker.join()


def test_a_folder_that_loses_a_file_while_it_is_deleted_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, delete, calls = DirectoryStore(tmp_path), shutil.rmtree, []

    def raced(path: Path) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise FileNotFoundError(errno.ENOENT, "another process has placed it", ".tmp-1")
        delete(path)

    store.write("lineages/main/step-1/model", b"")
    monkeypatch.setattr("infra.store.directory.shutil.rmtree", raced)
    store.delete("lineages/main/step-1")
    assert store.list("lineages") == []
