"""Roll back, by a person: an earlier release is current again, model and vectors at once.

Search services follow elsewhere.
"""

import contextlib

from infra.store.base import Conflict, Store
from infra.store.manifest import CorruptFolder, MissingFolder
from tasks.contracts.runs import Release
from tasks.foundation.errors import ConfigError, StoreError
from tasks.runs.releases import (
    CURRENT,
    Pointer,
    closed,
    is_made,
    is_pruned,
    numbers,
    of_another_model_before,
    parse_pointer,
    pruned,
    read,
    read_pointer,
    swap_pointer,
)
from tasks.runs.snapshot import expect_whole


def rollback(store: Store, to: int | None = None) -> Release:
    """Make an earlier release current again; by default the newest whole one of another model that was current before.

    Every byte of its model and vectors is read and compared first.

    Raises:
        ConfigError: there is no such release, it is current already, or its model or vectors are not whole.
        Conflict: another process made another release current meanwhile.
        StoreError: the pointer is not readable and `to` was not given.
    """
    raw, pointer, release = _checked(store, to)
    while True:
        try:
            return _go(store, raw, pointer, release)
        except Conflict:
            before = pointer
            raw, pointer = read_pointer(store)
            if pointer is not None and pointer.release == release.number:  # the reply to the last write was lost
                return release
            if before is None or pointer is None or pointer.release != before.release:
                raise  # the person saw another current release


def _checked(store: Store, to: int | None) -> tuple[bytes | None, Pointer | None, Release]:
    """Return the pointer, and the release to go to, which can serve."""
    raw: bytes | None = None
    with contextlib.suppress(FileNotFoundError):
        raw = store.read(CURRENT)
    try:
        pointer = parse_pointer(store, raw) if raw is not None else None
    except StoreError:
        if to is None:
            raise
        pointer = None  # a damaged one is repaired by naming a release
    if pointer is None and not numbers(store):
        raise ConfigError(f"{store.uri} has no release to roll back to")
    target = _before(store, pointer) if to is None else to
    if not is_made(store, target):
        raise ConfigError(f"there is no release {target}; there are {', '.join(map(str, numbers(store)))}")
    if pointer is not None and target == pointer.release:
        raise ConfigError(f"release {target} is the current one already")
    if is_pruned(store, target):
        raise _lost(store, target)
    release = read(store, target)
    try:
        expect_whole(store, release)
    except (MissingFolder, CorruptFolder) as error:
        raise ConfigError(
            f"release {target} can't serve, nothing was changed: {error}. Name another one, see: millrace releases"
        ) from error
    return raw, pointer, release


def _go(store: Store, raw: bytes | None, pointer: Pointer | None, release: Release) -> Release:
    if pointer is None:
        undecided = tuple(number for number in closed(store) if number != release.number)  # their releases may be late
        swap_pointer(store, Pointer(release=release.number, undecided=undecided), expected=raw)
        return release
    raw = _announced(store, pointer, raw, release.number)
    without = {
        name: tuple(number for number in getattr(pointer, name) if number != release.number)
        for name in ("undecided", "passed_over")
    }
    moved = {"release": release.number, **without, "going_to": None}
    swap_pointer(store, pointer.model_copy(update=moved), expected=raw)
    return release


def _announced(store: Store, pointer: Pointer, raw: bytes | None, target: int) -> bytes:
    """Record the target in the pointer, so that prune keeps the release; return the pointer's bytes.

    Prune writes its mark, then reads the pointer; a rollback writes the pointer, then reads the marks. So at least one
    of two concurrent processes sees the other, even if one dies.
    """
    if pointer.going_to != target or raw is None:
        raw = swap_pointer(store, pointer.model_copy(update={"going_to": target}), expected=raw)
    if is_pruned(store, target):
        swap_pointer(store, pointer.model_copy(update={"going_to": None}), expected=raw)
        raise _lost(store, target)
    return raw


def _lost(store: Store, number: int) -> ConfigError:
    left = sorted(set(numbers(store)) - pruned(store))
    return ConfigError(
        f"release {number} can't serve, nothing was changed: its model or vectors were deleted by millrace prune; "
        f"there are still {', '.join(map(str, left))}"
    )


def _before(store: Store, pointer: Pointer | None) -> int:
    if pointer is None:
        raise ConfigError(f"{store.uri} has no current release, so none before it; name one: millrace rollback --to N")
    serving = read(store, pointer.release)
    found = of_another_model_before(store, serving)
    if found is None:
        others = sorted(set(numbers(store)) - pruned(store) - {serving.number})
        named = f"; name one: millrace rollback --to N, of {', '.join(map(str, others))}" if others else ""
        raise ConfigError(
            f"no whole release of another model was current before release {serving.number}, by model "
            f"{serving.model.version}{named}"
        )
    return found.number
