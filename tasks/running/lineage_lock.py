"""The lock of a lineage, also when the process that held it was killed a moment ago."""

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.store.base import Conflict, Store
from infra.store.lease import InUse

TRIES = 3  # a second apart: a process that only checks the lock holds it for a moment


@contextlib.contextmanager
def hold_lineage(
    store: Store, key: str, warn: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold the lock `key` inside the block.

    In a directory the kernel frees the lock of a process that dies. In a bucket it is a lease, which stays for a
    minute after its holder died: wait for that. Do not wait for a holder that renews its lease, nor for one that still
    has the lock of a directory after a few seconds.

    Raises:
        Conflict: another process works on it.
    """
    with contextlib.ExitStack() as held:
        expiry, refused = None, 0
        while True:
            try:
                held.enter_context(store.lock(key))
                break
            except InUse as error:
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
        yield
