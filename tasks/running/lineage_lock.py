"""The lock of a lineage, safe after its holder was killed or suspended.

A process that was suspended until another one took the lock is refused when it wakes: at the next pulse of its stage
or before its next write, and its workers at theirs (infra/store/fence.py).
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
    """Hold the lock `key` inside the block; first delete the temporary files of killed processes.

    Waits for another holder as `in_turn` does.

    Raises:
        Conflict: another process still holds it after the wait.
        CancelledError: the stages here were told to stop meanwhile.
        SupersededError: another process took the lock inside the block.
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
    """Raise SupersededError if another process is known to have taken a lineage that this one held."""
    for turn in stage_context().turns:
        turn.check()


def confirm_turns() -> None:
    """Check in the store that this process still holds its lineages. Raises SupersededError, StoreError."""
    for turn in stage_context().turns:
        turn.confirm()


def admit(spec: JobSpec) -> None:
    """Let the workers of this attempt write in the held lineages. Raises as `confirm_turns` does."""
    for turn in stage_context().turns:
        turn.admit(spec.job_prefix)
