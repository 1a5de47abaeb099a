"""The lock of a lineage, also when the process that held it was killed, or only stopped, a moment ago.

A process that was stopped for so long that another one took the lock is refused when it wakes: at the next pulse of its
stage, before its next write, and its workers at theirs (infra/store/fence.py).
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.store.base import Store
from infra.store.checked import superseded
from infra.store.unfinished import clear_unfinished
from infra.store.waiting import in_turn
from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import CancelledError
from tasks.running.context import stage_context, stopped, within
from tasks.running.turn import Turn


@contextlib.contextmanager
def hold_lineage(
    store: Store,
    key: str,
    warn: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    patience_seconds: float | None = None,
) -> Iterator[None]:
    """Hold the lock `key` inside the block, and first delete the temporary files that killed processes left.

    A process that holds it is waited for, as in `in_turn`.

    Raises:
        Conflict: another process still works on it after that.
        CancelledError: the stages here were told to stop meanwhile.
        SupersededError: another process took it meanwhile.
    """

    def wait(seconds: float) -> None:
        sleep(seconds)
        if stopped():
            raise CancelledError("stopped while it waited for its turn; nothing was begun")

    with superseded(key), in_turn(store, key, warn, patience_seconds, wait) as lock:
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
