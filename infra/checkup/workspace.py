"""The workspace: what lies in it can be read, and all that a store promises is kept, tried under a key of its own."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable

from infra.checkup.finding import Seen
from infra.store import Conflict, DirectoryStore, Store, open_store
from tasks import catalog, hosts, releases

SCRATCH = "doctor"
_BEGIN = "correct --workspace, or begin with: millrace ingest"


def opened(uri: str, found: list[Store]) -> Seen:
    """Open the store, which is put into `found`. A folder that is not there is not made. Raises as `open_store`."""
    store = open_store(uri)
    if isinstance(store, DirectoryStore) and not store.root.is_dir():
        return Seen("FAIL", f"there is no {store.uri}", _BEGIN)
    found.append(store)
    return Seen("ok", store.uri)


def content(store: Store) -> Seen:
    """Spans and the current release; the rest is found from them."""
    spans = catalog.list_spans(store)
    if not spans:
        return Seen("warn", f"{store.uri} holds no span yet", _BEGIN)
    told = f"{store.uri}: {len(spans)} span{'s' * (len(spans) > 1)}, the newest {spans[-1].name} v{spans[-1].version}"
    current = releases.current(store)
    serves = f"release {current.number} of {current.span.name} serves" if current else "nothing is released yet"
    return Seen("ok", f"{told}; {serves}")


def promises(store: Store) -> Seen:
    """Write, read, compare-and-swap, lock, delete. What was written for it is gone afterwards."""
    name, began = uuid.uuid4().hex, time.monotonic()
    folder = f"{SCRATCH}/{name}"
    try:
        broken = _broken(store, f"{folder}/probe")
    finally:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            _remove(store, folder, name)
    if broken:
        return Seen(
            "FAIL", f"{store.uri}: {broken}", "use a file system, or a server of S3, with atomic renames and conditions"
        )
    if left := store.list(folder):
        return Seen("FAIL", f"{store.uri}/{left[0]} was deleted and is still there", "look at who may delete there")
    return Seen("ok", f"written, read, swapped, locked and deleted in {1000 * (time.monotonic() - began):.0f} ms")


def excluded(store: Store) -> Seen:
    """Machines that get no work for a while."""
    now = time.time()
    out = [record.host for record in hosts.known_hosts(store) if record.live(now).exclusion]
    if out:
        return Seen("warn", f"excluded: {', '.join(out)}", "millrace hosts says why; see the runbook, A host is bad")
    return Seen("ok", "none is excluded")


def _broken(store: Store, key: str) -> str:
    """Which promise is not kept; empty if all are."""
    store.create(key, b"1")
    if store.read(key) != b"1":
        return "what was written is not what is read"
    if _goes_through(lambda: store.create(key, b"2")):
        return "an object that exists was created once more"
    store.swap(key, b"2", expected=b"1")
    if _goes_through(lambda: store.swap(key, b"3", expected=b"1")):
        return "an object was swapped that had changed meanwhile"
    if store.read(key) != b"2" or key not in store.list(SCRATCH):
        return "what was swapped is not what is read or listed"
    with store.lock(key):
        if _goes_through(lambda: _lock(store, key)):
            return "a lock that is held was given to another"
    return ""


def _lock(store: Store, key: str) -> None:
    with store.lock(key):
        pass


def _goes_through(act: Callable[[], None]) -> bool:
    try:
        act()
    except Conflict:
        return False
    return True


def _remove(store: Store, folder: str, name: str) -> None:
    store.delete(folder)
    for key in store.list(".locks"):
        if name in key:
            store.delete(key)
    if isinstance(store, DirectoryStore):
        with contextlib.suppress(OSError):  # another one's look goes on below it
            store.path(SCRATCH).rmdir()
