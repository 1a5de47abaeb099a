"""Test a store under a scratch key for the guarantees that the workspace needs."""

from collections.abc import Callable

from infra.store.base import Conflict, Store


def find_broken_guarantee(store: Store, key: str) -> str:
    """Return the broken guarantee of the store; empty if it keeps all. The caller deletes `key`.

    Raises:
        StoreError, OSError: an operation failed.
    """
    store.create(key, b"1")
    if store.read(key) != b"1":
        return "an object reads differently than it was written"
    if succeeds(lambda: store.create(key, b"2")):
        return "an existing object was created again"
    store.swap(key, b"2", expected=b"1")
    if store.read(key) != b"2" or key not in store.list(key.rpartition("/")[0]):
        return "a swapped object is not read or listed as swapped"
    if succeeds(lambda: store.swap(key, b"3", expected=b"1")):
        return "an object was swapped although it had changed"
    return ""


def succeeds(act: Callable[[], None]) -> bool:
    """Return True if a conditional operation succeeds, False for a Conflict."""
    try:
        act()
    except Conflict:
        return False
    return True
