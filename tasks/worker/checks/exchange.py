"""Findings of several workers, collected by the first worker through files of the attempt.

Files, not collectives: the exchange must work before a process group exists, and while collectives are broken.
"""

from collections.abc import Callable, Sequence

from infra.store.base import Store
from infra.store.records import read_record
from tasks.contracts.outcomes import Check
from tasks.foundation.records import Record
from tasks.worker.process.machine import wait_until

WAIT_SECONDS = 900.0  # longer than all checks of a machine may take; a dead worker is noticed elsewhere


class WorkerFindings(Record):
    """One worker's findings: numbers by name, and the checks that need no other worker."""

    host: str
    numbers: dict[str, float]
    checks: tuple[Check, ...]


class AllFindings(Record):
    """All findings, as every worker gets them: hosts and numbers by worker, and every check."""

    hosts: tuple[str, ...]
    numbers: tuple[dict[str, float], ...]
    checks: tuple[Check, ...]


def exchange(
    store: Store,
    folder: str,
    index: int,
    members: int,
    mine: WorkerFindings,
    judge: Callable[[Sequence[WorkerFindings]], Sequence[Check]],
) -> AllFindings:
    """Return the same `AllFindings` to each of `members` workers; each calls this with its `index`.

    Args:
        folder: for the files. Every member has read them at the next barrier.
        judge: called by member 0 alone with all findings in order, before any other member gets an answer; its
            writes are complete even if a member then fails.

    Raises:
        HangError: a worker wrote nothing in time; names the worker's file.
    """
    all_key = f"{folder}/whole.json"
    if index > 0:
        write_findings(store, folder, index, mine)
        wait_until(
            lambda: store.exists(all_key),
            lambda: f"the first worker has not written {store.uri}/{all_key}",
            WAIT_SECONDS,
        )
        return read_record(store, all_key, AllFindings)
    findings = [mine, *_collect(store, folder, members)]
    whole = AllFindings(
        hosts=tuple(each.host for each in findings),
        numbers=tuple(each.numbers for each in findings),
        checks=tuple(judge(findings)),
    )
    if members > 1:
        store.write(all_key, whole.to_json())
    return whole


def write_findings(store: Store, folder: str, index: int, mine: WorkerFindings) -> None:
    """Write a worker's findings for member 0 without waiting for the answer."""
    store.write(f"{folder}/{index}.json", mine.to_json())


def _collect(store: Store, folder: str, members: int) -> list[WorkerFindings]:
    keys = [f"{folder}/{index}.json" for index in range(1, members)]
    if not keys:
        return []

    def missing() -> list[str]:
        there = set(store.list(folder))
        return [key for key in keys if key not in there]

    wait_until(
        lambda: not missing(),
        lambda: f"other workers have not written {', '.join(missing())} in {store.uri}",
        WAIT_SECONDS,
    )
    return [read_record(store, key, WorkerFindings) for key in keys]
