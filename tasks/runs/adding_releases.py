"""Make a release of a run, and move the pointer to it unless a later release is current. Gates judged it before."""

import contextlib
from collections.abc import Callable, Iterable, Sequence

from infra.store.base import Conflict, Store
from infra.store.manifest import expect_manifest, read_manifest
from tasks.contracts.evaluation import ByQueries, Override, Verdict
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import ModelRef, RowsRef, SpanRef
from tasks.contracts.runs import Release
from tasks.contracts.spans import first_day
from tasks.contracts.workspace import CLOSED_NUMBER, NUMBER, PRUNED_RELEASE, RELEASE
from tasks.foundation.clock import now
from tasks.foundation.errors import SupersededError
from tasks.runs.releases import (
    Numbered,
    Pointer,
    is_made,
    is_pruned,
    newest,
    numbers,
    of_run,
    of_run_with_number,
    read,
    read_pointer,
    swap_pointer,
)


def add(
    store: Store,
    *,
    span: SpanRef,
    run_key: str,
    model: ModelRef,
    exported: ReleaseOutcome,
    inferred: InferOutcome,
    metrics: dict[str, float],
    by_queries: ByQueries | None = None,
    rows: Sequence[RowsRef] = (),
    verdicts: Sequence[Verdict] = (),
    overrides: Sequence[Override] = (),
    refreshed: int | None = None,
    confirm: Callable[[], None],
) -> Release:
    """Record a release of this run and make it the current one, unless that is of a later span.

    A run that has a release keeps it. The pointer moves once for a release, so a second call undoes neither a later
    release nor a rollback. The pointer never moves to an older span by itself: the release of an old run that ends late
    is kept, and `rollback` can make it current. So is a refresh of a release that is not current any more: it was
    passed over, and is decided again if it is asked for once more. Releases that a dead process left undecided are
    decided first. While releases are held, nothing is decided.

    Args:
        confirm: checks in the store that this process still holds its lineage; it raises SupersededError.

    Raises:
        MissingFolder: the model or the vectors are not complete.
        CorruptFolder: the model's folder is not the one that the release stage left.
        SupersededError: another process has taken the lineage, or `millrace prune` the files of this run.
        StoreError: the pointer or a release is not readable.
    """
    of_model, of_vectors = (read_manifest(store, prefix) for prefix in (exported.model, inferred.prefix))
    expect_manifest(store, exported.model, of_model, exported.model_sha256)  # as the worker wrote or compared it
    release = of_run(store, run_key)
    if release is not None:
        _unmark(store, release.number, confirm)
        _decide_again(store, release, refreshed)
    else:
        release = _numbered(
            store,
            Release(
                number=1,  # this and the next two are filled in when a number is free
                previous=None,
                model_before=None,
                span=span,
                run_key=run_key,
                refreshed=refreshed,
                model=model,
                model_prefix=exported.model,
                vectors_prefix=inferred.prefix,
                vectors=inferred.vectors,
                bad=inferred.bad,
                catalogue=inferred.catalogue,
                model_sha256=exported.model_sha256,
                vectors_sha256=of_vectors.sha256,
                ids_sha256=inferred.ids_sha256,
                metrics=metrics,
                by_queries=by_queries,
                catalogue_metrics=exported.metrics,
                unsearched=exported.unsearched,
                verdicts=tuple(verdicts),
                overrides=tuple(overrides),
                rows=tuple(rows),
                code=exported.code,
                libraries=exported.libraries,
                created_at=now(),
            ),
            confirm,
        )
    settle(store)
    return release


def settle(store: Store) -> Release | None:
    """Let each release that is undecided become current or not, in the order of their numbers.

    One is left undecided by a process that died after it made the release, by a hold, and for a moment by a process
    that goes on. Nothing is decided during a hold. Returns the release that became current; None if none did.

    Raises:
        StoreError: the pointer or a release is not readable.
    """
    while True:
        raw, pointer = read_pointer(store)
        if pointer is not None and pointer.hold is not None:
            return None
        undecided = pointer.undecided if pointer is not None else tuple(numbers(store))
        waiting = _waiting(store, undecided)
        if not waiting:
            return None
        serving = read(store, pointer.release) if pointer is not None else None
        passed_over = set(pointer.passed_over) if pointer is not None else set()
        for number in waiting:
            made = read(store, number)
            if serving is None or _follows(made, serving):
                serving = made
            elif made.refreshed is not None:
                passed_over.add(number)
        assert serving is not None
        left = tuple(number for number in undecided if number not in waiting) if pointer is not None else ()
        decided = Pointer(release=serving.number, undecided=left, passed_over=tuple(sorted(passed_over)))
        with contextlib.suppress(Conflict):  # another process moved it in between; look again
            swap_pointer(store, decided, expected=raw)
            return serving if pointer is None or serving.number != pointer.release else None


def waits(store: Store) -> bool:
    """Return whether a release waits for a decision that the next run or refresh makes. Raises as `settle`."""
    _, pointer = read_pointer(store)
    return pointer is not None and pointer.hold is None and bool(_waiting(store, pointer.undecided))


def _waiting(store: Store, undecided: Iterable[int]) -> list[int]:
    return [number for number in undecided if is_made(store, number) and not is_pruned(store, number)]


def _decide_again(store: Store, release: Release, refreshed: int | None) -> None:
    """Let a refresh that never served be decided again. One that served and was left stays as it is.

    It is undecided first, and its marks are read after that; prune writes its mark, then reads the pointer. So at least
    one of the two sees the other.

    Args:
        refreshed: the release that the caller refreshes. If it is current, the refresh takes its place: the items and
            the model are those that it would get now, even if another release was refreshed when it was made.

    Raises:
        SupersededError: a prune took its files while this process stood still.
    """
    number = release.number
    while True:
        raw, pointer = read_pointer(store)
        if pointer is None or number not in {*pointer.passed_over, *pointer.undecided}:
            return
        waits = number in pointer.undecided
        if waits and (pointer.release != refreshed or pointer.hold is not None):
            return
        gone = waits and is_pruned(store, number)
        undecided = {*pointer.undecided} - {number} if waits else {*pointer.undecided, number}
        passed_over = {*pointer.passed_over, number} if gone else {*pointer.passed_over} - {number}
        moved: dict[str, object] = {
            "undecided": tuple(sorted(undecided)),
            "passed_over": tuple(sorted(passed_over)),
            "release": number if waits and not gone else pointer.release,
        }
        with contextlib.suppress(Conflict):
            swap_pointer(store, pointer.model_copy(update=moved), expected=raw)
            if gone:
                raise _superseded(release)


def _unmark(store: Store, number: int, confirm: Callable[[], None]) -> None:
    """Remove the marks of a number whose files are whole, or that is free.

    Prune marks it again before it deletes files. So the marks are read before `confirm`, and only these are removed: a
    process that stands still in between does not undo the mark of a prune that took its lineage.
    """
    seen = {key: store.tags(key) for key in (kind.key(number=number) for kind in (PRUNED_RELEASE, CLOSED_NUMBER))}
    confirm()
    for key, mark in seen.items():
        if mark:
            store.discard(key, mark)


def _numbered(store: Store, made: Release, confirm: Callable[[], None]) -> Release:
    """Make the release with the next free number, which is undecided from before it is made.

    Prune closes that number before it deletes files, so a process that stood still meanwhile makes a release that never
    serves.
    """
    while True:
        raw, pointer = read_pointer(store)
        if pointer is None and numbers(store):  # stopped after the first release was made
            settle(store)
            continue
        before = read(store, newest(store, pointer.release)) if pointer is not None else None
        number = before.number + 1 if before is not None else 1
        wanted, mine = of_run_with_number(store, made.run_key)  # after the free number: none before it can appear later
        if mine is not None:  # by another process of this run
            return mine
        place = {
            "number": number,
            "previous": pointer.release if pointer is not None else None,
            "model_before": _newest_model(before),
        }
        numbered = made.model_copy(update=place)
        _unmark(store, number, confirm)
        with contextlib.suppress(Conflict):  # another process was faster; take the next number
            if pointer is not None and number not in pointer.undecided:
                undecided = (*pointer.undecided, number)
                swap_pointer(store, pointer.model_copy(update={"undecided": undecided}), expected=raw)
            # Conflict: another process of this run has written a number since, so this one may be late for its release.
            store.swap(NUMBER.key(run=made.run_key), Numbered(number=number).to_json(), expected=wanted)
            store.create(RELEASE.key(number=number), numbered.to_json())
            if is_pruned(store, number):
                raise _superseded(numbered)
            return numbered


def _superseded(release: Release) -> SupersededError:
    return SupersededError(
        f"release {release.number} of run {release.run_key} can't serve: this process stood still, and millrace prune "
        "deleted files of the run meanwhile; run the same command again to make them again"
    )


def _follows(made: Release, serving: Release) -> bool:
    """Return whether a release becomes current: a new model unless the other is of a later span.

    A refresh takes the place of the release that it refreshed, and of no other.
    """
    if made.refreshed is not None:
        return made.refreshed == serving.number
    return first_day(made.span.name) >= first_day(serving.span.name)


def _newest_model(release: Release | None) -> int | None:
    if release is None or release.refreshed is None:
        return release.number if release else None
    return release.model_before
