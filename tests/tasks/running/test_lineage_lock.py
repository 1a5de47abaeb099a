import contextlib
import os
import threading

import pytest

from infra.store.base import InUse, Store
from infra.store.directory import DirectoryStore
from infra.store.lease import Fence, FencedStore, Lease
from infra.store.s3_store import S3Store
from tasks.contracts.workspace import FENCE
from tasks.foundation.errors import CancelledError, SupersededError
from tasks.running.context import override_context, stage_context
from tasks.running.lineage_hold import LineageHold
from tasks.running.lineage_lock import hold_lineage
from tests.support.cloud.s3 import S3Server
from tests.support.workspace.stores import STORES

KEY = "lineages/main.run"


@pytest.fixture
def bucket(s3: S3Server) -> Store:
    return S3Store(s3.new_workspace())


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return STORES[request.param](request)


FAR = 10_000_000_000.0


class Clock:
    """Each sleep sets the holder's record to its next expiry."""

    def __init__(self, store: Store, expiries: list[float]) -> None:
        self.store, self.expiries, self.slept = store, expiries, 0
        self.leave(expiries.pop(0))

    def leave(self, expires_at: float) -> None:
        lease = Lease(owner="other", host="elsewhere", pid=7, expires_at=expires_at, released=expires_at < FAR)
        self.store.write(f".locks/{KEY}", lease.to_json())

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        assert self.slept < 10
        if self.expiries:
            self.leave(self.expiries.pop(0))


def test_the_lease_of_a_killed_holder_is_waited_for(bucket):
    lines: list[str] = []
    clock = Clock(bucket, [FAR, FAR, FAR, 1.0])
    with hold_lineage(bucket, KEY, lines.append, clock.sleep):
        assert bucket.peek(KEY) is not None
    assert clock.slept == 3
    (line,) = lines
    assert "process 7 on elsewhere" in line
    assert line.endswith("at most 10 minutes")


def test_a_holder_that_stays_is_named_after_the_wait(store, impatient):
    slept: list[float] = []
    with (
        store.lock(KEY),
        pytest.raises(InUse, match=rf"{KEY} .* {os.getpid()} on "),
        hold_lineage(store, KEY, lambda line: None, slept.append),
    ):
        pytest.fail("two at once")
    assert not slept


def test_a_run_takes_the_lineage_as_soon_as_its_holder_leaves_it(store):
    lines: list[str] = []
    with contextlib.ExitStack() as holder:
        holder.enter_context(store.lock(KEY))
        with hold_lineage(store, KEY, lines.append, lambda seconds: holder.close()):
            assert store.peek(KEY) is not None
    (line,) = lines
    assert f"{KEY} is in use by process {os.getpid()}" in line
    assert line.endswith("at most 10 minutes")


def test_a_run_that_is_stopped_while_it_waits_ends(store):
    stop = threading.Event()
    with (
        store.lock(KEY),
        override_context(stop=stop),
        pytest.raises(CancelledError),
        hold_lineage(store, KEY, lambda line: None, lambda seconds: stop.set()),
    ):
        pytest.fail("it was stopped")


def test_a_process_that_slept_while_another_took_over_is_refused_at_its_next_write(bucket):
    key, old, manifest = f".locks/{KEY}", "runs/a/train/attempt-1", "lineages/main/step-1/MANIFEST.json"
    late = FencedStore(bucket, (FENCE.key(lock=KEY),), old, sleep=lambda seconds: None)
    with contextlib.ExitStack() as sleeper:
        sleeper.enter_context(hold_lineage(bucket, KEY, print))
        (turn,) = stage_context().lineages
        turn.admit(old)
        late.write(manifest, b"mine")
        there = Lease.model_validate_json(bucket.read(key))
        bucket.write(key, there.model_copy(update={"until": 0.0}).to_json())  # it stood still for that long
        with bucket.lock(KEY) as lock:
            late.write("lineages/main/step-1/weights", b"the new holder has begun nothing: it may want this work")
            LineageHold(bucket, KEY, lock).admit("runs/a/train/attempt-2")
            turn.check()  # asks nobody; the thread that renews the lease has not looked yet
            with pytest.raises(SupersededError, match="another process"):
                turn.admit("runs/a/evaluate/attempt-1")
            with pytest.raises(SupersededError, match="another process"):
                turn.check()
            with pytest.raises(SupersededError, match=r"attempt-1, .*attempt-2"):
                late.write(manifest, b"late")
            assert bucket.read(manifest) == b"mine"
        with pytest.raises(SupersededError, match="nothing more is written"):
            sleeper.close()


def test_a_holder_that_stands_still_before_it_sets_the_fence_does_not_replace_its_successors(bucket, monkeypatch):
    rival, original = S3Store(bucket.uri), bucket.swap

    def late(where: str, data: bytes, expected: bytes | None) -> None:
        if where == FENCE.key(lock=KEY):  # the lease is confirmed by now
            monkeypatch.setattr(bucket, "swap", original)
            lease = Lease.model_validate_json(rival.read(f".locks/{KEY}"))
            rival.write(f".locks/{KEY}", lease.model_copy(update={"until": 0.0}).to_json())  # for so long
            with rival.lock(KEY) as lock:
                LineageHold(rival, KEY, lock).admit("runs/a/train/attempt-2")
        original(where, data, expected)

    with contextlib.ExitStack() as sleeper:
        sleeper.enter_context(hold_lineage(bucket, KEY, print))
        (turn,) = stage_context().lineages
        turn.admit("runs/a/validate/attempt-1")
        monkeypatch.setattr(bucket, "swap", late)
        with pytest.raises(SupersededError, match="another process"):
            turn.admit("runs/a/train/attempt-1")
        with pytest.raises(SupersededError):
            sleeper.close()
    fence = Fence.model_validate_json(bucket.read(FENCE.key(lock=KEY)))
    assert fence.attempts == ("runs/a/train/attempt-2",)


def test_the_fence_goes_up_with_each_holder_also_when_the_lock_lost_its_count(store):
    terms = []
    for number in range(4):
        if number == 2:
            store.delete(".locks/lineages.main.run")
            store.delete(f".locks/{KEY}")
        with hold_lineage(store, KEY, print):
            stage_context().lineages[0].admit("runs/a/train/attempt-1")
            terms.append(Fence.model_validate_json(store.read(FENCE.key(lock=KEY))).term)
    assert terms == sorted(set(terms))


def test_workers_that_the_next_holder_finds_again_may_write(tmp_path):
    store, job = DirectoryStore(tmp_path), "runs/a/infer/attempt-1"
    with hold_lineage(store, KEY, print):
        stage_context().lineages[0].admit(job)
    with hold_lineage(store, KEY, print):
        turn = stage_context().lineages[0]
        turn.admit("runs/b/train/attempt-1")
        waits = iter([lambda: None, lambda: turn.admit(job)])
        FencedStore(store, (turn.fence,), job, sleep=lambda seconds: next(waits)()).write("vectors/x", b"x")
    assert store.read("vectors/x") == b"x"


@pytest.mark.parametrize("method", ["write", "create", "swap", "upload", "move", "delete", "discard", "lock"])
def test_every_way_to_write_looks_at_the_fence(tmp_path, method):
    store = DirectoryStore(tmp_path)
    store.write("fence", Fence(attempts=("another",), term=1).to_json())
    late = FencedStore(store, ("fence",), "mine", sleep=lambda seconds: None)
    arguments = {
        "swap": ("k", b"", None),
        "delete": ("k",),
        "discard": ("k", {}),
        "lock": ("k",),
        "upload": (tmp_path / "fence", "k"),
    }
    with pytest.raises(SupersededError):
        getattr(late, method)(*arguments.get(method, ("k", b"")))


@pytest.mark.parametrize("held", [True, False], ids=["with a result", "without one"])
def test_a_worker_that_stood_still_before_its_write_leaves_the_result_of_its_successor(tmp_path, held):
    """It passed the fence, slept, and wakes after another attempt has written."""
    store, key = DirectoryStore(tmp_path), "runs/a/train/result.json"
    if held:
        store.write(key, b"of yesterday")
    store.write("fence", Fence(attempts=("mine",), term=1).to_json())

    class Paused(DirectoryStore):
        def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
            if data == b"mine":
                store.write("fence", Fence(attempts=("another",), term=2).to_json())
                FencedStore(store, ("fence",), "another").write(key, b"another's")
            super().swap(key, data, expected)

    with pytest.raises(SupersededError):
        FencedStore(Paused(tmp_path), ("fence",), "mine", sleep=lambda seconds: None).write(key, b"mine")
    assert store.read(key) == b"another's"
