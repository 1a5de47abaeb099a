"""Wait a limited time for a lock that another process holds.

The holder may be at work or dead: a dead one's lease in a bucket stays for a minute. Use `wait_for` of
infra/store/lease.py to wait without a limit for the result of another process.
"""

import contextlib
from collections.abc import Callable, Iterator

from infra.store.base import Conflict, InUse, Lock, Store
from tasks.foundation.clock import sleep, uptime

PATIENCE_SECONDS = 600.0
POLL_SECONDS = 1.0


@contextlib.contextmanager
def wait_for_lock(
    store: Store,
    key: str,
    say: Callable[[str], None],
    patience_seconds: float | None = None,
    sleep: Callable[[float], None] = sleep,
) -> Iterator[Lock]:
    """Wait for the lock `key` and hold it inside the block.

    Args:
        say: called once with a sentence about the holder and the longest wait.
        patience_seconds: longest wait; None: PATIENCE_SECONDS.

    Raises:
        Conflict: another process still holds it after that; InUse, a Conflict, names the holder.
    """
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    until, said = uptime() + patience, False
    with contextlib.ExitStack() as held:
        while True:
            try:
                lock = held.enter_context(store.lock(key))
                break
            except Conflict as error:  # or it just changed hands
                left = until - uptime()
                if left <= 0:
                    raise
                if not said and isinstance(error, InUse):
                    say(f"{store.uri}/{key} is in use by {error.holder}; waiting for it, at most {_words(patience)}")
                    said = True
            sleep(min(POLL_SECONDS, left))
        yield lock


def _words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
