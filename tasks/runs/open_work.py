"""Marks of refreshes and publications whose attempts are not summed up yet: `open/<run key>`.

A mark is made before the first attempt, so what has none and no row in the sums has never begun. Runs need none: their
folders are few enough to be listed.
"""

from infra.store.base import Store
from tasks.contracts.kinds import PUBLICATION, REFRESH
from tasks.contracts.workspace import OPEN


def mark(store: Store, run_key: str, attempt: str) -> None:
    """Mark a refresh or a publication before an attempt; nothing happens for a run."""
    if run_key.startswith((REFRESH, PUBLICATION)):
        store.write(OPEN.key(run=run_key), attempt.encode())


def marked(store: Store) -> list[str]:
    """Return the run keys that are marked."""
    return [found["run"] for key in store.list(OPEN.within()) if (found := OPEN.match(key))]


def read(store: Store, run_key: str) -> bytes | None:
    """Return what a mark holds: it changes with each attempt. None where there is none."""
    try:
        return store.read(OPEN.key(run=run_key))
    except FileNotFoundError:
        return None


def unmark(store: Store, run_key: str) -> None:
    store.delete(OPEN.key(run=run_key))
