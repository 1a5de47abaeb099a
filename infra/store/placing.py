"""Write files and small objects so that a late writer does no harm.

Every write is conditional: to a free key, or in place of a version read before this process checked that it may still
write (infra/store/checked.py). So the leftovers of a dead attempt are replaced, and a successor's objects never are.
"""

from pathlib import Path

from infra.store.base import Conflict, Store, sha256_of
from tasks.foundation.errors import SupersededError

_ROUNDS = 5  # compare-and-swap attempts


def place(store: Store, source: Path, key: str) -> None:
    """Copy a file into the store. An object with equal bytes is kept.

    Raises:
        SupersededError: another process has taken over, so this one may no longer write.
    """
    seen = None
    for _ in range(_ROUNDS):
        try:
            store.upload(source, key, seen)
            return
        except Conflict:
            seen = store.tags(key).get(key)
            if seen is not None and holds(store, key, source):
                return
    raise _crowded(store, key)


def settle(store: Store, key: str, data: bytes) -> None:
    """Write the object that belongs to newly placed files, in place of the replaced files' object.

    Raises:
        SupersededError: another process has taken over, so this one may no longer write.
    """
    seen = None
    for _ in range(_ROUNDS):
        try:
            if seen is None:
                store.create(key, data)
            else:
                store.swap(key, data, seen)
            return
        except Conflict:
            try:
                seen = store.read(key)
            except FileNotFoundError:
                seen = None
            if seen == data:
                return
    raise _crowded(store, key)


def holds(store: Store, key: str, source: Path) -> bool:
    """Return True if the object has the bytes of a local file."""
    if store.sizes(key.rpartition("/")[0]).get(key) != source.stat().st_size:
        return False
    there = store.local(key)
    return there.is_file() and sha256_of(there) == sha256_of(source)


def _crowded(store: Store, key: str) -> SupersededError:
    return SupersededError(
        f"{store.uri}/{key} was written by another process {_ROUNDS} times while this one wanted to; see who works on "
        "it with `millrace status`, and start this again once nobody does"
    )
