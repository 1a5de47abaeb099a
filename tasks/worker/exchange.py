"""What each of several workers found, brought together by the first of them, through files of the attempt.

Not by collectives: it must work before there is a process group, and where the collectives are what is broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from infra.store import Store
from tasks.contracts import Check
from tasks.errors import HangError
from tasks.records import Record

WAIT_SECONDS = 900.0  # longer than all checks of a machine may take; a worker that dies is noticed by others
SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 1.0


class Part(Record):
    """What one worker found: numbers by name, and checks that it could judge by itself."""

    host: str
    numbers: dict[str, float]
    checks: tuple[Check, ...]


class Whole(Record):
    """What all of them know afterwards: hosts and numbers by worker, and every check."""

    hosts: tuple[str, ...]
    numbers: tuple[dict[str, float], ...]
    checks: tuple[Check, ...]


def exchange(
    store: Store, folder: str, index: int, members: int, mine: Part, judge: Callable[[Sequence[Part]], Sequence[Check]]
) -> Whole:
    """The same `Whole` for each of `members` workers that call this with their `index`.

    Args:
        folder: where the files go. Every member has read them once it has met the others again.
        judge: called by member 0 alone with all parts in order, before any other member learns anything; so what
            it writes is written, whatever the others do then.

    Raises:
        HangError: a worker was not heard of; names which.
    """
    whole_key = f"{folder}/whole.json"
    if index > 0:
        store.write(f"{folder}/{index}.json", mine.to_json())
        wait_until(lambda: store.exists(whole_key), lambda: f"the first worker has not written {store.uri}/{whole_key}")
        return Whole.model_validate_json(store.read(whole_key))
    parts = [mine, *_collect(store, folder, members)]
    whole = Whole(
        hosts=tuple(part.host for part in parts),
        numbers=tuple(part.numbers for part in parts),
        checks=tuple(judge(parts)),
    )
    if members > 1:
        store.write(whole_key, whole.to_json())
    return whole


def wait_until(there: Callable[[], bool], missing: Callable[[], str], seconds: float = WAIT_SECONDS) -> None:
    """Poll until `there`.

    Raises:
        HangError: it took longer than `seconds`; says what is `missing`.
    """
    deadline, pause = time.monotonic() + seconds, SHORTEST_POLL_SECONDS
    while not there():
        if time.monotonic() > deadline:
            raise HangError(f"{missing()} within {seconds:g} s; a worker is stuck, or has ended unnoticed")
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_POLL_SECONDS)


def _collect(store: Store, folder: str, members: int) -> list[Part]:
    keys = [f"{folder}/{index}.json" for index in range(1, members)]
    if not keys:
        return []

    def missing() -> list[str]:
        there = set(store.list(folder))
        return [key for key in keys if key not in there]

    wait_until(lambda: not missing(), lambda: f"other workers have not written {', '.join(missing())} in {store.uri}")
    return [Part.model_validate_json(store.read(key)) for key in keys]
