"""Files and notes put in their places without harm by a writer that comes late.

Nothing is written over unseen: an object goes only where nothing is, or in place of exactly what was seen before this
process made sure that it may still write (infra/store/checked.py). So what an attempt that died left there is
replaced, and what a successor put there never is.
"""

from pathlib import Path

from infra.store.base import Conflict, Store, sha256_of
from tasks.foundation.errors import SupersededError

_ROUNDS = 5  # of seeing and replacing, while other writers come in between


def place(store: Store, source: Path, key: str) -> None:
    """Copy a file into the store. Equal bytes that are there already count as placed.

    Raises:
        SupersededError: another process may write here now, and this one may not.
    """
    seen = None
    for _ in range(_ROUNDS):
        try:
            store.upload(source, key, seen)
            return
        except Conflict:
            seen = store.tags(key).get(key)
            if seen is not None and _holds(store, key, source):
                return
    raise _crowded(store, key)


def settle(store: Store, key: str, data: bytes) -> None:
    """Write an object that belongs to files just placed, in place of one that belongs to those they replaced.

    Raises:
        SupersededError: another process may write here now, and this one may not.
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


def _holds(store: Store, key: str, source: Path) -> bool:
    if store.sizes(key.rpartition("/")[0]).get(key) != source.stat().st_size:
        return False
    there = store.local(key)
    return there.is_file() and sha256_of(there) == sha256_of(source)


def _crowded(store: Store, key: str) -> SupersededError:
    return SupersededError(
        f"{store.uri}/{key} was written by another process {_ROUNDS} times while this one wanted to; see who works on "
        "it with `millrace status`, and start this again once nobody does"
    )
