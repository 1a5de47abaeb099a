"""The right to work on a lineage alone, also when the one who had it before was killed a moment ago."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.lease import InUse
from infra.store import Store


@contextlib.contextmanager
def alone(
    store: Store, key: str, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold the lock `key` inside the block.

    In a directory the kernel frees the lock of a process that dies; in a bucket it is a lease, which such a process
    leaves for a minute. That minute is waited for; a holder that shows that it lives by renewing its lease is not.

    Raises:
        Conflict: somebody else works on it.
    """
    with contextlib.ExitStack() as held:
        expiry = None
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
            sleep(1.0)
        yield
