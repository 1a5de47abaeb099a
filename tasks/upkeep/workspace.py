"""Checks of the workspace: readable records, and the guarantees of its store, tested with a scratch key."""

import contextlib
import time
import uuid

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from infra.store.fitness import find_broken_guarantee, require_fit, succeeds
from tasks.data import span_versions
from tasks.runs import host_records, releases
from tasks.upkeep.check import CheckResult

SCRATCH = "doctor"
_INGEST = "correct --workspace, or start with: millrace look FILE"


def opened(uri: str, found: list[Store], new: bool = False) -> CheckResult:
    """Open the store and append it to `found`. A missing folder fails, or is created if `new`.

    Raises the errors of `open_store`.
    """
    store = open_store(uri)
    if new and isinstance(store, DirectoryStore):
        store.root.mkdir(parents=True, exist_ok=True)
    if isinstance(store, DirectoryStore) and not store.root.is_dir():
        return CheckResult("FAIL", f"{store.uri} does not exist", _INGEST)
    found.append(store)
    return CheckResult("ok", store.uri)


def content(store: Store) -> CheckResult:
    """Check that spans and the current release are readable."""
    spans = span_versions.list_spans(store)
    if not spans:
        return CheckResult("warn", f"{store.uri} has no span yet", _INGEST)
    found = f"{store.uri}: {len(spans)} span{'s' * (len(spans) > 1)}, the newest {spans[-1].name} v{spans[-1].version}"
    current = releases.current(store)
    serves = f"release {current.number} of {current.span.name} serves" if current else "nothing is released yet"
    return CheckResult("ok", f"{found}; {serves}")


def guarantees(store: Store) -> CheckResult:
    """Check write, read, compare-and-swap, lock and delete. Everything written is deleted afterwards."""
    require_fit(store)
    name, started_at = uuid.uuid4().hex, time.monotonic()
    folder = f"{SCRATCH}/{name}"
    try:
        broken = _broken(store, f"{folder}/probe")
    finally:
        with contextlib.suppress(Exception):  # the first error is the one to report
            _remove(store, folder, name)
    if broken:
        return CheckResult(
            "FAIL",
            f"{store.uri}: {broken}",
            "use a file system with atomic renames, or an S3 server with conditional writes",
        )
    if left := store.list(folder):
        return CheckResult(
            "FAIL", f"{store.uri}/{left[0]} still exists after its deletion", "check the permission to delete"
        )
    return CheckResult(
        "ok", f"written, read, swapped, locked and deleted in {1000 * (time.monotonic() - started_at):.0f} ms"
    )


def excluded(store: Store) -> CheckResult:
    """Check for excluded hosts, which get no work for a while."""
    now = time.time()
    out = [record.host for record in host_records.known_hosts(store) if record.live(now).exclusion]
    if out:
        return CheckResult(
            "warn", f"excluded: {', '.join(out)}", "for the reason: millrace hosts; see the runbook, A host is bad"
        )
    return CheckResult("ok", "no host is excluded")


def _broken(store: Store, key: str) -> str:
    """Return the guarantee that the store breaks; empty if it keeps all."""
    if broken := find_broken_guarantee(store, key):
        return broken
    with store.lock(key):
        return "a lock was given twice at once" if succeeds(lambda: _lock(store, key)) else ""


def _lock(store: Store, key: str) -> None:
    with store.lock(key):
        pass


def _remove(store: Store, folder: str, name: str) -> None:
    store.delete(folder)
    for key in store.list(".locks"):
        if name in key:
            store.delete(key)
    if isinstance(store, DirectoryStore):
        with contextlib.suppress(OSError):  # another doctor's scratch key is below it
            store.path(SCRATCH).rmdir()
