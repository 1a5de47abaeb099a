"""Delete the files that nothing needs. Meanwhile no run, refresh or backfill works on the workspace."""

import contextlib
from collections.abc import Callable, Iterable

from configs.schema.operations import PruneConfig
from infra.store.base import Conflict, Store
from infra.store.lease import CheckedStore
from infra.store.manifest import MANIFEST, mark_of
from tasks.contracts.kinds import LINEAGES, is_refresh, lineage_of, run_of
from tasks.contracts.outcomes import StageResult
from tasks.contracts.pruning import Folder, PrunePlan
from tasks.contracts.runs import Pruned
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import CLOSED_NUMBER, PRUNED_RELEASE, RESULT
from tasks.foundation.clock import now
from tasks.prune.prune_plan import plan_prune
from tasks.prune.reach import find_reach
from tasks.running.lineage_lock import confirm_lineages, hold_lineages
from tasks.runs import lineage, releases
from tasks.runs.plan import mark_pruned, planned_runs
from tasks.runs.snapshot import Snapshot

_WITH_OUTPUTS = (Stage.validate, Stage.train, Stage.infer, Stage.release)


def prune(store: Store, policy: PruneConfig, dry_run: bool, warn: Callable[[str], None]) -> PrunePlan:
    """Delete the folders that nothing needs if the releases of a policy are kept, or only list them.

    A folder loses its manifest first, so that no reader takes an incomplete folder for a complete one. After a kill,
    the next call deletes the rest.

    Raises:
        Conflict: a process works on a lineage of the workspace, or made a release meanwhile; nothing was deleted.
        StoreError: a record that decides on the needed folders is not readable; nothing was deleted.
    """
    if dry_run:
        return plan_prune(store, policy, find_reach(store, policy))
    with contextlib.ExitStack() as held:
        known = frozenset(lineage_of(key) for key in store.list(LINEAGES))
        held.enter_context(hold_lineages(store, known, warn))
        _settle_marks(store)
        following = releases.last(store) + 1  # before the releases are read: one that is made later is not in the plan
        reach = find_reach(store, policy)
        if more := reach.lineages - known:  # of runs that have not trained yet; they may have ended meanwhile
            held.enter_context(hold_lineages(store, more, warn))
            reach = find_reach(store, policy)
        plan = plan_prune(store, policy, reach)
        _mark(store, plan, following)
        # Notes that shards are done go before the shards.
        for folder in sorted(plan.folders, key=lambda folder: folder.kind != "runs"):
            _delete(CheckedStore(store, lambda _: confirm_lineages()), folder)
    return plan.model_copy(update={"deleted": True})


def _settle_marks(store: Store) -> None:
    """Settle the marks of a prune that died before or after its look at the pointer.

    A mark of the current release is removed. The target of a rollback that has a mark can't serve: the announcement is
    withdrawn, as the rollback would do itself if it lived. If it stands still, its swap of the pointer fails now.

    Raises:
        Conflict: the pointer was moved at the same moment.
    """
    raw, pointer = releases.read_pointer(store)
    if pointer is None:
        return
    if releases.is_pruned(store, pointer.release):
        _unmark_own(store, [pointer.release])
    target = pointer.going_to
    if target is not None and target != pointer.release and releases.is_pruned(store, target):
        releases.swap_pointer(store, pointer.model_copy(update={"going_to": None}), expected=raw)


def _mark(store: Store, plan: PrunePlan, following: int) -> None:
    """Mark the releases and runs that will lose files, and close the next free number.

    A process that stood still while it lost its lineage may still make a release of files that are deleted now, or
    remove a mark that it read before; it does not remove a new one.

    Args:
        following: the free number when the plan was begun.

    Raises:
        Conflict: a rollback made one of the releases current at the same moment, or a release was made.
    """
    if plan.folders and following > 1:
        mine = _close(store, following)
        if releases.is_made(store, following):
            _open(store, following, mine)
            raise Conflict(f"release {following} was made meanwhile; nothing was deleted; try again")
    whole = set(plan.releases) - releases.pruned(store)
    releases.mark_pruned(store, plan.releases)
    _, pointer = releases.read_pointer(store)
    needed = set[int]()
    if pointer is not None:  # an undecided release with an earlier mark can't serve; a new mark may come too late
        needed = {pointer.release, pointer.going_to} & set(plan.releases) | {*pointer.undecided} & whole
    if needed:
        _unmark_own(store, whole)
        raise Conflict(f"release {needed.pop()} became current or undecided meanwhile; nothing was deleted; try again")
    gone = {folder.folder for folder in plan.folders}
    for run_key in {run_of(folder.folder) for folder in plan.folders if folder.kind == "runs"}:
        if is_refresh(run_key):
            mark_pruned(store, run_key)
    snapshot, runs = Snapshot(store), planned_runs(store)
    snapshot.fetch(RESULT.key(run=run_key, stage=stage) for run_key in runs for stage in _WITH_OUTPUTS)
    for run_key in runs:
        # Unreadable results do not count: no run continues from them.
        results = (snapshot.read(RESULT.key(run=run_key, stage=stage), StageResult) for stage in _WITH_OUTPUTS)
        if gone & {folder for result in results if result is not None for folder in result.outcome.outputs}:
            mark_pruned(store, run_key)


def _close(store: Store, number: int) -> bytes | None:
    """Mark a number that has no release; return the mark, or None if another prune's was there before."""
    key, mark = CLOSED_NUMBER.key(number=number), Pruned(at=now()).to_json()
    try:
        store.create(key, mark)
    except Conflict:
        store.write(key, mark)  # the other one may remove its own
        return None
    return mark


def _open(store: Store, number: int, mine: bytes | None) -> None:
    """Remove this process's own mark of a release that was made meanwhile, also after it lost its locks."""
    key = CLOSED_NUMBER.key(number=number)
    seen = store.tags(key)
    with contextlib.suppress(FileNotFoundError):
        if store.read(key) == mine:
            store.discard(key, seen)


def _unmark_own(store: Store, numbers: Iterable[int]) -> None:
    """Remove marks, but none of another prune that took the locks while this one stood still: its mark is another."""
    seen = {key: store.tags(key) for key in (PRUNED_RELEASE.key(number=number) for number in numbers)}
    confirm_lineages()
    for key, mark in seen.items():
        store.discard(key, mark)


def _delete(store: Store, folder: Folder) -> None:
    if folder.kind == "checkpoints":
        lineage.prune_checkpoint(store, folder.folder)
        return
    if folder.kind in ("vectors", "catalogue"):
        store.write(mark_of(folder.folder), Pruned(at=now()).to_json())
    store.delete(f"{folder.folder}/{MANIFEST}")
    if not folder.named:
        store.delete(folder.folder)
        return
    for key in store.list(folder.folder):
        if key not in folder.named:
            store.delete(key)
