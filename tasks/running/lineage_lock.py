"""The lock of a lineage, safe after its holder was killed or suspended.

A process that was suspended until another one took the lock is refused when it wakes: at the next pulse of its stage
or before its next write, and its workers at theirs (infra/store/lease.py).
"""

import contextlib
from collections.abc import Callable, Collection, Iterator

from infra.store.base import Store, wait_for_lock
from infra.store.lease import convert_lost_lease
from infra.store.temporary import clear_unfinished
from tasks.contracts.jobs import JobSpec
from tasks.contracts.kinds import lineage_lock
from tasks.foundation.clock import sleep
from tasks.foundation.errors import CancelledError
from tasks.running.context import is_stopping, override_context, stage_context
from tasks.running.lineage_hold import LineageHold


@contextlib.contextmanager
def hold_lineage(
    store: Store,
    key: str,
    warn: Callable[[str], None],
    sleep: Callable[[float], None] = sleep,
    patience_seconds: float | None = None,
) -> Iterator[None]:
    """Hold the lock `key` inside the block; first delete the temporary files of killed processes.

    Waits for another holder as `wait_for_lock` does.

    Raises:
        Conflict: another process still holds it after the wait.
        CancelledError: the stages here were told to stop meanwhile.
        SupersededError: another process took the lock inside the block.
    """

    def wait(seconds: float) -> None:
        sleep(seconds)
        if is_stopping():
            raise CancelledError("stopped while it waited for its turn; nothing was begun")

    with convert_lost_lease(key), wait_for_lock(store, key, warn, patience_seconds, wait) as lock:
        clear_unfinished(store)
        with override_context(lineages=(*stage_context().lineages, LineageHold(store, key, lock))):
            yield


@contextlib.contextmanager
def hold_lineages(store: Store, names: Collection[str], warn: Callable[[str], None]) -> Iterator[None]:
    """Hold lineages inside the block, for runs and for refreshes. Raises Conflict at once: another process has one."""
    with contextlib.ExitStack() as held:
        for name in sorted(names):
            for what in ("run", "refresh"):
                held.enter_context(hold_lineage(store, lineage_lock(name, what), warn, patience_seconds=0.0))
        yield


def check_lineages() -> None:
    """Raise SupersededError if another process is known to have taken a lineage that this one held."""
    for hold in stage_context().lineages:
        hold.check()


def confirm_lineages() -> None:
    """Check in the store that this process still holds its lineages. Raises SupersededError, StoreError."""
    for hold in stage_context().lineages:
        hold.confirm()


def admit_workers(spec: JobSpec) -> None:
    """Let the workers of this attempt write in the held lineages. Raises as `confirm_lineages` does."""
    for hold in stage_context().lineages:
        hold.admit(spec.job_prefix)
