import contextlib

import pytest

from infra.store.base import Conflict, Store
from infra.store.directory import DirectoryStore
from infra.store.lease import InUse, Lease
from infra.store.s3_store import S3Store
from tasks.running.lineage_lock import TRIES, hold_lineage
from tests.support.cloud.s3 import S3Server

KEY = "lineages/main.run"


@pytest.fixture
def bucket(s3: S3Server) -> Store:
    return S3Store(s3.new_workspace())


class Clock:
    """Each sleep sets the holder's record to its next expiry."""

    def __init__(self, store: Store, expiries: list[float]) -> None:
        self.store, self.expiries, self.slept = store, expiries, 0
        self.leave(expiries.pop(0))

    def leave(self, expires_at: float) -> None:
        lease = Lease(owner="other", host="elsewhere", pid=7, expires_at=expires_at)
        self.store.write(f".locks/{KEY}", lease.to_json())

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        assert self.slept < 10
        if self.expiries:
            self.leave(self.expiries.pop(0))


FAR = 10_000_000_000.0


def test_the_lease_of_a_killed_holder_is_waited_for(bucket):
    lines: list[str] = []
    clock = Clock(bucket, [FAR, FAR, FAR, 1.0])
    with hold_lineage(bucket, KEY, lines.append, clock.sleep), pytest.raises(InUse), bucket.lock(KEY):
        pass
    assert clock.slept == 3
    (line,) = lines
    assert "in use by process 7 on elsewhere" in line
    assert line.endswith("waiting to see whether it still runs")


def test_a_holder_that_renews_its_lease_keeps_the_lineage(bucket):
    clock = Clock(bucket, [FAR, FAR, FAR + 20])
    with (
        pytest.raises(InUse, match="process 7 on elsewhere"),
        hold_lineage(bucket, KEY, lambda line: None, clock.sleep),
    ):
        pytest.fail("two at once")
    assert clock.slept == 2


def test_a_held_lock_in_a_directory_belongs_to_a_running_process(tmp_path):
    store, slept = DirectoryStore(tmp_path), []
    with store.lock(KEY), pytest.raises(Conflict), hold_lineage(store, KEY, lambda line: None, slept.append):
        pytest.fail("two at once")
    assert len(slept) == TRIES - 1


def test_a_lock_held_for_a_moment_only_delays_the_run(tmp_path):
    store = DirectoryStore(tmp_path)
    with contextlib.ExitStack() as looking:
        looking.enter_context(store.lock(KEY))
        with hold_lineage(store, KEY, lambda line: None, lambda seconds: looking.close()), pytest.raises(Conflict):
            looking.enter_context(store.lock(KEY))
