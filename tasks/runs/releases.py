"""Releases: numbered records that bind a model to its vectors and never change, and the pointer to the current one.

The pointer names a release, so model and vectors always change together. Nothing is deleted here; a release whose files
were deleted by `millrace prune` is marked.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.manifest import check_sizes, open_folder, read_manifest
from infra.store.records import find_with_bytes, read_record
from tasks.contracts.evaluation import Override, Verdict
from tasks.contracts.jobs import stage_prefix
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import ModelRef, RowsRef, SpanRef
from tasks.contracts.runs import Pruned, Release
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.records import Record

CURRENT = "releases/CURRENT"

_NUMBER = re.compile(r"releases/(\d+)\.json")
_PRUNED = re.compile(r"releases/(\d+)\.pruned\.json")


class Pointer(Record):
    """`releases/CURRENT`. `newest` is the highest number it ever had; one up to it never becomes current by itself."""

    release: int = Field(ge=1)
    newest: int = Field(ge=1)


def current(store: Store) -> Release | None:
    """Return the current release; None before the first.

    Raises:
        StoreError: the pointer or the release is not readable; names the file and the way out.
    """
    _, pointer = _read_pointer(store)
    return read(store, pointer.release) if pointer else None


def current_and_before(store: Store) -> Iterator[Release]:
    """Yield the current release, the one that was current before it, and so on. Raises what `current` does."""
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
    known = numbers(store)
    left = len(known)
    while left:
        release = read(store, known[left - 1])
        if release.refreshed is None:
            yield release
        # Earlier versions did not record it, so what is before their releases is read one by one.
        left = left - 1 if release.model_before is None else bisect_right(known, release.model_before)


def origin(store: Store, version: str) -> Release | None:
    """Return the newest release that brought a model, which refreshes keep; None for a model that was not released.

    Raises:
        StoreError: a release is not readable; names the file.
    """
    return next((release for release in with_new_models(store) if release.model.version == version), None)


def of_run(store: Store, run_key: str) -> Release | None:
    """Return the release of a run; None where it has none. The newest releases are read first.

    If the run never began its release stage, no release is read.

    Raises:
        StoreError: a release is not readable; names the file.
    """
    if not store.list(stage_prefix(run_key, Stage.release)):
        return None
    return _find(store, run_key)


def read(store: Store, number: int) -> Release:
    """Return a release by its number. Raises StoreError: it is gone or damaged; names the file."""
    way_out = "restore it, or go to another: millrace rollback --to N"
    return read_record(store, f"releases/{number}.json", Release, way_out)


def numbers(store: Store) -> list[int]:
    """Return the numbers of all releases, in order; no release is read."""
    return sorted(int(found[1]) for key in store.list("releases") if (found := _NUMBER.fullmatch(key)))


def pruned(store: Store) -> set[int]:
    """Return the numbers of the releases whose model or vectors were deleted, so that they can't serve."""
    return {int(found[1]) for key in store.list("releases") if (found := _PRUNED.fullmatch(key))}


def mark_pruned(store: Store, numbers: Iterable[int]) -> None:
    """Record that model or vectors of these releases are deleted, before they are."""
    for number in numbers:
        store.write(_pruned_key(number), Pruned(at=now()).to_json())


def unmark_pruned(store: Store, numbers: Iterable[int]) -> None:
    """Forget that: the files of these releases are there."""
    for number in numbers:
        store.delete(_pruned_key(number))


def add(
    store: Store,
    *,
    span: SpanRef,
    run_key: str,
    model: ModelRef,
    exported: ReleaseOutcome,
    inferred: InferOutcome,
    metrics: dict[str, float],
    rows: Sequence[RowsRef] = (),
    verdicts: Sequence[Verdict] = (),
    overrides: Sequence[Override] = (),
    refreshed: int | None = None,
) -> Release:
    """Record a release of this run and make it the current one, unless that is of a later span.

    A run that has a release keeps it. The pointer moves only to a new release, so a second call undoes neither a later
    release nor a rollback. The pointer never moves to an older span by itself: the release of an old run that ends late
    is kept, and `rollback` can make it current. So is a refresh of a release that is not current any more.

    Raises:
        MissingFolder: the model or the vectors are not complete.
        StoreError: the pointer or a release is not readable.
    """
    for prefix in (exported.model, inferred.prefix):
        read_manifest(store, prefix)
    release = _find(store, run_key)
    if release is not None:
        unmark_pruned(store, [release.number])
    while release is None:
        serving = current(store)
        known = numbers(store)
        newest = read(store, known[-1]) if known else None
        draft = Release(
            number=newest.number + 1 if newest else 1,
            previous=serving.number if serving else None,
            span=span,
            run_key=run_key,
            refreshed=refreshed,
            model_before=_newest_model(newest),
            model=model,
            model_prefix=exported.model,
            vectors_prefix=inferred.prefix,
            vectors=inferred.vectors,
            bad=inferred.bad,
            catalogue=inferred.catalogue,
            ids_sha256=inferred.ids_sha256,
            metrics=metrics,
            catalogue_metrics=exported.metrics,
            verdicts=tuple(verdicts),
            overrides=tuple(overrides),
            rows=tuple(rows),
            code=exported.code,
            libraries=exported.libraries,
            created_at=now(),
        )
        try:
            store.create(f"releases/{draft.number}.json", draft.to_json())
            release = draft
        except Conflict:  # another lineage took the number; take the next
            continue
    while True:
        raw, pointer = _read_pointer(store)
        if pointer is not None and release.number <= pointer.newest:
            return release
        stays = pointer is not None and (
            pointer.release != refreshed if refreshed else _later(read(store, pointer.release), release)
        )
        moved = Pointer(release=pointer.release if pointer and stays else release.number, newest=release.number)
        try:
            store.swap(CURRENT, moved.to_json(), expected=raw)
        except Conflict:  # another lineage moved it in between; look again
            continue
        return release


def rollback(store: Store, to: int | None = None, verify: bool = False) -> Release:
    """Make an earlier release current again, model and vectors at once; by default the one before the current.

    Its files must be there with the sizes that their manifests name; with `verify` every byte is read and compared.

    Raises:
        ConfigError: there is no such release, it is current already, or its model or vectors are not whole.
        Conflict: another process moved the pointer meanwhile.
        StoreError: the pointer is not readable and `to` was not given.
    """
    known = numbers(store)
    if not known:
        raise ConfigError(f"{store.uri} has no release to roll back to")
    try:
        raw, pointer = _read_pointer(store)
    except StoreError:
        if to is None:
            raise
        raw, pointer = store.read(CURRENT), None  # a damaged pointer is repaired by naming a release
    target = _before(store, pointer) if to is None else to
    if target not in known:
        raise ConfigError(f"there is no release {target}; there are {', '.join(map(str, known))}")
    if pointer is not None and target == pointer.release:
        raise ConfigError(f"release {target} is the current one already")
    if target in pruned(store):
        raise _is_pruned(store, target)
    release = read(store, target)
    for prefix in (release.model_prefix, release.vectors_prefix):
        try:
            manifest = check_sizes(store, prefix)
            if verify:
                open_folder(store, prefix, manifest.kind)
        except StoreError as error:
            raise ConfigError(f"release {target} can't serve, nothing was changed: {error}") from error
    newest = max(target, pointer.newest if pointer else max(known))
    moved = Pointer(release=target, newest=newest).to_json()
    store.swap(CURRENT, moved, expected=raw)
    if target in pruned(store) and raw is not None:  # in the same moment: prune marks first, and then looks here
        store.swap(CURRENT, raw, expected=moved)
        raise _is_pruned(store, target)
    return release


def _is_pruned(store: Store, number: int) -> ConfigError:
    left = sorted(set(numbers(store)) - pruned(store))
    return ConfigError(
        f"release {number} can't serve, nothing was changed: its model or vectors were deleted by millrace prune; "
        f"there are still {', '.join(map(str, left))}"
    )


def _pruned_key(number: int) -> str:
    return f"releases/{number}.pruned.json"


def _find(store: Store, run_key: str) -> Release | None:
    newest_first = (read(store, number) for number in reversed(numbers(store)))
    return next((release for release in newest_first if release.run_key == run_key), None)


def _newest_model(release: Release | None) -> int | None:
    if release is None or release.refreshed is None:
        return release.number if release else None
    return release.model_before


def _later(one: Release, other: Release) -> bool:
    return first_day(one.span.name) > first_day(other.span.name)


def _before(store: Store, pointer: Pointer | None) -> int:
    if pointer is None:
        raise ConfigError(f"{store.uri} has no current release, so none before it; name one: millrace rollback --to N")
    previous = read(store, pointer.release).previous
    if previous is None:
        raise ConfigError(f"release {pointer.release} is the first: there is none before it to roll back to")
    return previous


def _read_pointer(store: Store) -> tuple[bytes | None, Pointer | None]:
    return find_with_bytes(store, CURRENT, Pointer, "point it to a release again: millrace rollback --to N")
