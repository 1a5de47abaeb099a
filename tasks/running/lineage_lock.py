"""The lock of a lineage, also when the process that held it was killed, or only stopped, a moment ago.

A process that was stopped for so long that another one took the lock is refused when it wakes: at the next pulse of its
stage, before its next write, and its workers at theirs (infra/store/fence.py).
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.store.base import Conflict, Store
from infra.store.checked import superseded
from infra.store.lease import LeaseInUse
from infra.store.unfinished import clear_unfinished
from tasks.contracts.jobs import JobSpec
from tasks.running.context import stage_context, within
from tasks.running.turn import Turn

TRIES = 3  # a second apart: a process that only checks the lock holds it for a moment


@contextlib.contextmanager
def hold_lineage(
    store: Store, key: str, warn: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold the lock `key` inside the block, and first delete the temporary files that killed processes left.

    In a directory the kernel frees the lock of a process that dies. In a bucket it is a lease, which stays for a
    minute after its holder died: wait for that. Do not wait for a holder that renews its lease, nor for one that still
    has the lock of a directory after a few seconds.

    Raises:
        Conflict: another process works on it.
        SupersededError: another process took it meanwhile.
    """
    with superseded(key), contextlib.ExitStack() as held:
        expiry, refused = None, 0
        while True:
            try:
                lock = held.enter_context(store.lock(key))
                break
            except LeaseInUse as error:
                if expiry is None:
                    warn(f"{error}; waiting to see whether it still runs")
                    expiry = error.lease.expires_at
                elif error.lease.expires_at != expiry:
                    raise
            except Conflict:
                refused += 1
                if refused == TRIES:
                    raise
            sleep(1.0)
        clear_unfinished(store)
        with within(turns=(*stage_context().turns, Turn(store, key, lock))):
            yield


def check_turns() -> None:
    """Raise SupersededError if a lineage that is held here was taken by another process."""
    for turn in stage_context().turns:
        turn.check()


def confirm_turns() -> None:
    """Make sure in the store that every lineage that is held here still is. Raises SupersededError, StoreError."""
    for turn in stage_context().turns:
        turn.confirm()


def admit(spec: JobSpec) -> None:
    """Let the workers of this attempt write in the lineages that are held here. Raises as `confirm_turns` does."""
    for turn in stage_context().turns:
        turn.admit(spec.job_prefix)
