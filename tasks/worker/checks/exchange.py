"""The findings of several workers, collected by the first of them through files of the attempt.

Not through collectives: it must work before there is a process group, and while collectives are broken.
"""

from collections.abc import Callable, Sequence

from infra.store.base import Store
from infra.store.records import read_record
from tasks.contracts.outcomes import Check
from tasks.foundation.records import Record
from tasks.worker.process.machine import wait_until

WAIT_SECONDS = 900.0  # longer than all checks of a machine may take; a worker that dies is noticed elsewhere


class WorkerFindings(Record):
    """What one worker found: numbers by name, and the checks that need no other worker."""

    host: str
    numbers: dict[str, float]
    checks: tuple[Check, ...]


class AllFindings(Record):
    """What all workers know afterwards: hosts and numbers by worker, and every check."""

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
    """Return the same `AllFindings` to each of `members` workers, which all call this with their `index`.

    Args:
        folder: where the files go. Every member has read them at the next barrier.
        judge: called by member 0 alone with all findings in order, before any other member gets an answer; so what
            it writes is written, whatever the others do then.

    Raises:
        HangError: a worker wrote nothing in time; names which.
    """
    all_key = f"{folder}/whole.json"
    if index > 0:
        hand_in(store, folder, index, mine)
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


def hand_in(store: Store, folder: str, index: int, mine: WorkerFindings) -> None:
    """Write a worker's findings for member 0, as `exchange` does for a member that waits for the answer elsewhere."""
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
