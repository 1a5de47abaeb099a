"""Marks of refreshes and publications whose attempts are not summed up yet: `open/<run key>`.

A mark is made before the first attempt, so work without a mark and without a row in the sums has never begun. Runs need
no marks: their folders are few enough to list.
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
    """Return the content of a mark, which changes with each attempt; None without a mark."""
    try:
        return store.read(OPEN.key(run=run_key))
    except FileNotFoundError:
        return None


def unmark(store: Store, run_key: str) -> None:
    store.delete(OPEN.key(run=run_key))
