"""Makes a release of a run, and moves the pointer to it unless a later release serves. It proves nothing: gates did."""

from collections.abc import Sequence

from infra.store.base import Conflict, Store
from infra.store.manifest import read_manifest
from tasks.contracts.evaluation import Override, Verdict
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import ModelRef, RowsRef, SpanRef
from tasks.contracts.runs import Release
from tasks.contracts.spans import first_day
from tasks.foundation.clock import now
from tasks.runs.releases import CURRENT, Pointer, current, find, numbers, read, read_pointer, unmark_pruned


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
    of_model, of_vectors = (read_manifest(store, prefix).sha256 for prefix in (exported.model, inferred.prefix))
    release = find(store, run_key)
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
            model_sha256=of_model,
            vectors_sha256=of_vectors,
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
        raw, pointer = read_pointer(store)
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


def _newest_model(release: Release | None) -> int | None:
    if release is None or release.refreshed is None:
        return release.number if release else None
    return release.model_before


def _later(one: Release, other: Release) -> bool:
    return first_day(one.span.name) > first_day(other.span.name)
