"""The right to work on a lineage alone, also when the one who had it before was killed a moment ago."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.lease import InUse
from infra.store import Conflict, Store

LOOKS = 3  # a second apart: who only looks whether somebody works holds the lock for a moment


@contextlib.contextmanager
def alone(
    store: Store, key: str, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold the lock `key` inside the block.

    In a directory the kernel frees the lock of a process that dies; in a bucket it is a lease, which such a process
    leaves for a minute. That minute is waited for; a holder that shows that it lives by renewing its lease is not,
    nor one that still has the lock of a directory after a few seconds.

    Raises:
        Conflict: somebody else works on it.
    """
    with contextlib.ExitStack() as held:
        expiry, refused = None, 0
        while True:
            try:
                held.enter_context(store.lock(key))
                break
            except InUse as error:
                if expiry is None:
                    say(f"{error}; waiting to see whether it lives")
                    expiry = error.lease.expires_at
                elif error.lease.expires_at != expiry:
                    raise
            except Conflict:
                refused += 1
                if refused == LOOKS:
                    raise
            sleep(1.0)
        yield
