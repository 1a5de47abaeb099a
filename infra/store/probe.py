"""A store tried out under a scratch key: does it keep what the workspace relies on?"""

from collections.abc import Callable

from infra.store.base import Conflict, Store


def broken_guarantee(store: Store, key: str) -> str:
    """Return the guarantee that the store breaks; empty if it keeps all. The caller deletes `key`.

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
    """Return whether a conditional operation goes through; False where it meets a Conflict."""
    try:
        act()
    except Conflict:
        return False
    return True
