"""Releases: numbered records that bind a model to its vectors and never change, and the pointer to the current one.

The pointer names a release, so model and vectors always change together. Here they are read; `tasks/runs` makes
releases and moves the pointer. A release whose files were deleted by `millrace prune` is marked.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping

from pydantic import Field

from infra.store.base import Store
from infra.store.records import find_record, find_with_bytes, parse_record
from tasks.contracts import workspace
from tasks.contracts.runs import Hold, Pruned, Release
from tasks.contracts.workspace import CLOSED_NUMBER, NUMBER, PRUNED_RELEASE, RELEASE
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.records import Record

CURRENT = workspace.CURRENT.key()

_WAY_OUT = "restore it, or go to another: millrace rollback --to N"


class Pointer(Record):
    """`releases/CURRENT`: the current release, and undecided ones.

    A number is written down as undecided before its release is made, and is crossed out by the write that makes the
    release current or leaves it. So a release that is made is never forgotten, and is decided once.
    """

    release: int = Field(ge=1)
    undecided: tuple[int, ...] = Field(default=(), description="numbers, ascending; the newest may have no release yet")
    passed_over: tuple[int, ...] = Field(
        default=(), description="refreshes that never served: another release did when they were made"
    )
    hold: Hold | None = Field(default=None, description="hold on releases; null: none")
    going_to: int | None = Field(default=None, description="the release that a rollback is about to make current")
    write: str = Field(
        default="", description="id of the write that made this record, so that it differs from all before"
    )


def current(store: Store) -> Release | None:
    """Return the current release; None before the first.

    Raises:
        StoreError: the pointer or the release is not readable, or the pointer is gone; names the file and the way out.
    """
    _, pointer = read_pointer(store)
    if pointer is None:
        return _none_yet(store)
    key = RELEASE.key(number=pointer.release)
    if (release := find_record(store, key, Release, _WAY_OUT)) is None:
        raise StoreError(f"{store.uri}/{key} is gone, and {CURRENT} names it; {_WAY_OUT}")
    return release


def _none_yet(store: Store) -> None:
    """Raise StoreError if the pointer was there: only the first release is made before it."""
    made = numbers(store)
    if len(made) > 1:
        raise StoreError(no_current(store))


def no_current(store: Store, to: str = "") -> str:
    """Return the sentence for a workspace without a current release, and the way out. `to`: as in `to search`."""
    if made := numbers(store):  # one alone may be of a process that stopped before it wrote the pointer
        return (
            f"{store.uri}/{CURRENT} is gone, so none of its releases is current; point it to one again: millrace "
            f"rollback --to {made[-1]}"
        )
    return f"{store.uri} has no release {to}{' ' * bool(to)}yet; first: millrace run"


def hold_of(store: Store) -> Hold | None:
    """Return the hold on all releases, or None. Raises StoreError: the pointer is not readable."""
    _, pointer = read_pointer(store)
    return pointer.hold if pointer is not None else None


def current_and_before(store: Store) -> Iterator[Release]:
    """Yield the current release, the one that was current before it, and so on. Raises as `current`."""
    release = current(store)
    while release is not None:
        yield release
        release = read(store, release.previous) if release.previous is not None else None


def history(store: Store) -> list[Release]:
    """Return all releases, oldest first."""
    return [read(store, number) for number in numbers(store)]


def with_new_models(store: Store) -> Iterator[Release]:
    """Yield the releases that are not refreshes, newest first. Refreshes between them are not read.

    Raises:
        StoreError: a release is not readable; names the file.
    """
    number = last(store)
    while number:
        release = read(store, number)
        if release.refreshed is None:
            yield release
        number = release.model_before


def origin(store: Store, version: str) -> Release | None:
    """Return the newest release that brought a model, which refreshes keep; None for a model that was not released.

    Raises:
        StoreError: a release is not readable; names the file.
    """
    return next((release for release in with_new_models(store) if release.model.version == version), None)


MOST_LOOKS = 8  # at releases, before all are listed


def of_another_model_before(
    store: Store, serving: Release, known: Mapping[int, Release] | None = None, gone: Collection[int] | None = None
) -> Release | None:
    """Return the newest whole release of another model that was current before a release; None if there is none.

    A bad model that was released is refreshed every hour, so the release just before is mostly by the same model. If
    the first ones that are looked at are pruned, one listing says how far back a whole one can be.

    Args:
        known: releases that the caller has read, by number; others are read.
        gone: the pruned releases, if the caller knows them.

    Raises:
        StoreError: a release is not readable; names the file.
    """
    brought = origin(store, serving.model.version) or serving  # the refreshes after it are not read
    number, oldest, looks = brought.previous, 0, 0
    while number is not None and number >= oldest:
        release = known[number] if known and number in known else read(store, number)
        of_another = release.model.version != serving.model.version
        if of_another and not (is_pruned(store, number) if gone is None else number in gone):
            return release
        number, looks = release.previous, looks + 1
        if looks == MOST_LOOKS and gone is None:  # a year of hourly refreshes is not read one by one
            gone = pruned(store)
            oldest = min(set(numbers(store)) - gone, default=serving.number)
    return None


class Numbered(Record):
    """`runs/<run key>/release/number.json`: the number that a run wanted for its release, written before that is made.

    Another run may have taken the number; then this one takes the next, and writes it here.
    """

    number: int = Field(ge=1)


def of_run(store: Store, run_key: str) -> Release | None:
    """Return the release of a run, or None. Reads at most one release.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    return of_run_with_number(store, run_key)[1]


def of_run_with_number(store: Store, run_key: str) -> tuple[bytes | None, Release | None]:
    """Return the bytes of the number that a run wanted, for `Store.swap`, and its release. Raises as `of_run`."""
    raw, wanted = find_with_bytes(
        store, NUMBER.key(run=run_key), Numbered, "write it again from the number in releases/<n>.json"
    )
    if wanted is None:
        return raw, None
    try:
        data = store.read(RELEASE.key(number=wanted.number))
    except FileNotFoundError:
        return raw, None  # stopped before it was made
    release = parse_record(f"{store.uri}/{RELEASE.key(number=wanted.number)}", data, Release, _WAY_OUT)
    return raw, release if release.run_key == run_key else None


def read(store: Store, number: int) -> Release:
    """Return a release by its number.

    Raises:
        ConfigError: there never was a release with this number; names those that exist.
        StoreError: it is gone or damaged; names the file.
    """
    key = RELEASE.key(number=number)
    if (release := find_record(store, key, Release, _WAY_OUT)) is not None:
        return release
    known = numbers(store)
    if known and not 0 < number <= known[-1]:
        raise ConfigError(f"there is no release {number}; there are {', '.join(map(str, known))}")
    if not known and not store.exists(CURRENT):
        raise ConfigError(no_current(store))
    raise StoreError(f"{store.uri}/{key} is gone; {_WAY_OUT}")


def numbers(store: Store) -> list[int]:
    """Return the numbers of all releases, in order; no release is read."""
    return sorted(_of_kinds(store, RELEASE)[0])


def _of_kinds(store: Store, *kinds: workspace.Kind) -> list[set[int]]:
    """Return the numbers of these records, by one listing."""
    keys = store.list(RELEASE.within())
    return [{found["number"] for key in keys if (found := kind.match(key))} for kind in kinds]


def last(store: Store) -> int:
    """Return the highest number of a release, 0 before the first. With a pointer, no listing is made.

    Numbers have no gaps, and no release is ever deleted.

    Raises:
        StoreError: the pointer is damaged.
    """
    _, pointer = read_pointer(store)
    return newest(store, pointer.release) if pointer is not None else max(numbers(store), default=0)


def newest(store: Store, at_least: int) -> int:
    """Return the highest number of a release, found from that of any other without a listing."""
    number, step = at_least, 1
    while is_made(store, number + step):
        number, step = number + step, step * 2
    while step > 1:
        step //= 2
        number += step if is_made(store, number + step) else 0
    return number


def was_left(store: Store, number: int) -> bool:
    """Return whether a release that isn't current was decided for good: it served and a person left it.

    Raises:
        StoreError: the pointer is damaged.
    """
    _, pointer = read_pointer(store)
    return pointer is None or number not in {*pointer.undecided, *pointer.passed_over}


def is_made(store: Store, number: int) -> bool:
    """Return whether there is a release with this number."""
    return store.exists(RELEASE.key(number=number))


def is_pruned(store: Store, number: int) -> bool:
    """Return whether the model or the vectors of a release were deleted, so that it can't serve.

    Raises:
        StoreError: the pointer is damaged.
    """
    if store.exists(PRUNED_RELEASE.key(number=number)):
        return True
    return store.exists(CLOSED_NUMBER.key(number=number)) and number in _undecided(store, [number])


def pruned(store: Store) -> set[int]:
    """Return the numbers of the releases whose model or vectors were deleted, so that they can't serve."""
    made, marked, shut = _of_kinds(store, RELEASE, PRUNED_RELEASE, CLOSED_NUMBER)
    return made & (marked | _undecided(store, shut)) if made & shut else made & marked


def closed(store: Store) -> list[int]:
    """Return the numbers of releases that a prune had closed, in order: they were made too late, or just before."""
    made, shut = _of_kinds(store, RELEASE, CLOSED_NUMBER)
    return sorted(made & shut)


def _undecided(store: Store, closed: Collection[int]) -> set[int]:
    """Return the closed numbers that no decision has passed.

    The release of another one was decided, so it was there before the mark: a prune closed the number too late, and
    died before it opened it again.
    """
    _, pointer = read_pointer(store)
    return set(closed) & set(pointer.undecided) if pointer is not None else set(closed)


def mark_pruned(store: Store, numbers: Iterable[int]) -> None:
    """Record that model or vectors of these releases are deleted, before they are."""
    for number in numbers:
        store.write(PRUNED_RELEASE.key(number=number), Pruned(at=now()).to_json())


def swap_pointer(store: Store, pointer: Pointer, expected: bytes | None) -> bytes:
    """Replace the pointer if its bytes are still `expected`, and return the new ones. None: there is no pointer yet.

    No earlier pointer had them: one that moved and came back would look unmoved to a process that read
    it before.

    Raises:
        Conflict: another process moved it in between.
    """
    data = pointer.model_copy(update={"write": uuid.uuid4().hex}).to_json()
    store.swap(CURRENT, data, expected=expected)
    return data


def read_pointer(store: Store) -> tuple[bytes | None, Pointer | None]:
    """Return the pointer, and its bytes for a swap; None before the first release. Raises StoreError: it is damaged."""
    try:
        raw = store.read(CURRENT)
    except FileNotFoundError:
        return None, None
    return raw, parse_pointer(store, raw)


def parse_pointer(store: Store, raw: bytes) -> Pointer:
    """Return the pointer in the bytes of its file. Raises StoreError: they are damaged."""
    return parse_record(f"{store.uri}/{CURRENT}", raw, Pointer, "point it to a release again: millrace rollback --to N")
