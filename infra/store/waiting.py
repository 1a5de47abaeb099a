"""A lock that another process holds: waited for, for a while, instead of failing at once.

The holder may be at work, or dead: in a bucket its lease then stays for a minute. Waiting makes no difference between
the two. Who waits without an end for the result of another's work takes `wait_for` of infra/store/lease.py.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.store.base import Conflict, InUse, Lock, Store

PATIENCE_SECONDS = 600.0
POLL_SECONDS = 1.0


@contextlib.contextmanager
def in_turn(
    store: Store,
    key: str,
    say: Callable[[str], None],
    patience_seconds: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Lock]:
    """Wait for the lock `key` and hold it inside the block.

    Args:
        say: called once, with who holds it and for how long it is waited for.
        patience_seconds: for how long; None: PATIENCE_SECONDS.

    Raises:
        Conflict: another process still holds it after that; InUse, a Conflict, names it.
    """
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    until, said = time.monotonic() + patience, False
    with contextlib.ExitStack() as held:
        while True:
            try:
                lock = held.enter_context(store.lock(key))
                break
            except Conflict as error:  # or it changes hands
                left = until - time.monotonic()
                if left <= 0:
                    raise
                if not said and isinstance(error, InUse):
                    say(f"{store.uri}/{key} is in use by {error.holder}; waiting for it, at most {_words(patience)}")
                    said = True
            sleep(min(POLL_SECONDS, left))
        yield lock


def _words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
