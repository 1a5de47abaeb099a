"""publish: loads a release into one target, and swaps consumers to it once it is complete and checked.

If it stops before the swap, the target still serves the previous table, and the next publication resumes from the
loaded partitions. A served table that is missing or damaged is replaced in the same way, by a second one. After a
refresh, the served table takes over the changes alone, in a transaction, or a copy of it does.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

from configs.schema.stages import AnyTarget, narrowing
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, naming_release
from tasks.contracts.jobs import PublishInputs, report
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.search import NarrowRecall
from tasks.foundation.errors import ConfigError, DataError, StoreError
from tasks.runs import branches, releases, served_targets
from tasks.worker.export.changed_rows import changes, comparable, gathered
from tasks.worker.export.table_contents import IndexQuality, ReleaseVectors, check_content, check_ids, check_index
from tasks.worker.export.target import (
    Changeable,
    DamagedTable,
    Index,
    Owner,
    Target,
    is_copy,
    release_of,
    table_names,
)
from tasks.worker.export.targets import open_target
from tasks.worker.process.job import Job
from tasks.worker.search.narrow_recall import Holdout, measure_narrow, search_holdout

ROWS_AT_ONCE = 10_000  # at most, in one change: 30 MB with vectors of 768 numbers
MOST_CHANGED = 0.25  # share of the release's items; beyond it, a new table with an index of its own costs less


class Proof(NamedTuple):
    """Findings about a complete table: its index, and the recall of narrow vectors if that was measured."""

    built: Index | None
    quality: IndexQuality
    narrow: NarrowRecall | None


def run(job: Job) -> PublishOutcome:
    """Load missing partitions, build the index, check both, warm the service, swap, drop older tables.

    A target that already serves the release is only checked: its index is built again if it is lost, and the release
    is loaded again beside the served table if that is damaged. A rollback first only swaps, then runs again to check.

    Raises:
        ConfigError: the client is not installed, the target refuses the credentials or the vectors, or it belongs to
            another workspace.
        StoreError: the target can't be reached, or a table just loaded differs from the release.
        MissingFolder, CorruptFolder: the release is damaged; names the file.
        DataError: the index finds too few of the nearest items, or narrow vectors too few of the holdout's.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, PublishInputs)
    settings = next((each for each in job.config.publish.targets if each.name == inputs.target), None)
    if settings is None:
        raise ConfigError(f"publish.targets has no target {inputs.target}")
    try:
        return _publish(job, inputs, settings)
    except (MissingFolder, CorruptFolder, FileNotFoundError):
        if not _overtaken(job.store, inputs):
            raise
        return _left_alone(0, None)  # it was left, then pruned, before or while it was read


def _publish(job: Job, inputs: PublishInputs, settings: AnyTarget) -> PublishOutcome:
    """Do the work of `run`."""
    with naming_release(inputs.release), job.clock.phase("restoring"):
        release = ReleaseVectors(
            job.store, inputs.vectors, inputs.vectors_by, inputs.vectors_sha256, settings.width, inputs.model_version
        )
    owner = Owner(job.store.uri, branches.root(job.store, job.config.lineage))
    names = table_names(inputs.target, inputs.release, release.named, narrowing(settings))
    naming = naming_release(inputs.release)
    with naming, contextlib.closing(open_target(settings)) as target, job.clock.phase("productive"):
        before = target.serving()
        if _overtaken(job.store, inputs):
            return _left_alone(release.count, before)
        if not inputs.take_over:
            _expect_own(target, before, owner)
        table = _table(target, names, before)
        if inputs.swap_alone:
            return _swapped(target, table, before, release, owner)
        if table == before and _damaged(target, table, release):
            table = next(name for name in names if name != before)
        prove = functools.partial(_proved, job, inputs, settings, target, release)
        if table != before:  # until it is checked, no rollback goes to it at once
            served_targets.forget(job.store, inputs.release, inputs.target)
        followed = None
        if before is not None and before not in names and table not in target.tables():
            followed = _follow(job.store, settings, target, before, table, release, prove)
        if followed is None:
            loaded = _load(target, table, release) if table != before else 0
            proof = prove(table, table == before)
        else:
            loaded, proof = followed
        there = set(target.tables())  # before the swap: a later one is another publication's
        keep = {each for each in there - set(names) if not is_copy(each)} | {table}
        if table != before or target.owner() != owner:
            if _overtaken(job.store, inputs):
                return _left_alone(release.count, before)
            if not inputs.take_over:
                _expect_own(target, target.serving(), owner)
            if target.serving() != table or target.owner() != owner:
                target.serve(table, owner)
        if table != before:
            keep = _kept(keep, {table, before}, job.store, inputs.release)
        dropped = _drop(target, there - keep, table, owner)
    return PublishOutcome(
        table=table,
        served_before=before,
        vectors=release.count,
        loaded=loaded,
        index=proof.built.name if proof.built is not None else None,
        recall=proof.quality.recall,
        query_ms=proof.quality.query_ms,
        queries=proof.quality.queries,
        narrow=proof.narrow,
        dropped=dropped,
    )


def _expect_own(target: Target, served: str | None, owner: Owner) -> None:
    """Raise ConfigError if the target serves a table of another workspace or lineage, or one that names none."""
    if served is None or (other := target.owner()) == owner:
        return
    of = f"of workspace {other.workspace}, lineage {other.lineage}" if other is not None else "that names no workspace"
    raise ConfigError(
        f"{target.where}: it serves {served} {of}, and this is workspace {owner.workspace}, lineage {owner.lineage}. "
        "Give one of the two another name or address in publish.targets, or let this workspace have it from now on: "
        "millrace publish --take-over"
    )


def _overtaken(store: Store, inputs: PublishInputs) -> bool:
    """Return True if only the current release may be published, and another one is current now."""
    current = releases.current(store) if inputs.only_current else None
    return current is not None and current.number != inputs.release


def _left_alone(vectors: int, before: str | None) -> PublishOutcome:
    return PublishOutcome(
        table=None, served_before=before, vectors=vectors, loaded=0, recall=None, query_ms=None, dropped=()
    )


def _swapped(target: Target, table: str, before: str | None, release: ReleaseVectors, owner: Owner) -> PublishOutcome:
    """Swap to a table that was completed and checked before; takes seconds at any size."""
    there = table == before or table in target.tables()
    if there and table != before:
        target.serve(table, owner)
    return PublishOutcome(
        table=table if there else None,
        served_before=before,
        vectors=release.count,
        loaded=0,
        recall=None,
        query_ms=None,
        dropped=(),
    )


def _table(target: Target, names: tuple[str, str], before: str | None) -> str:
    """Return the name of the release's table: the served one, else an existing one, else the first."""
    there = target.tables()
    return next((name for name in names if name == before), next((name for name in names if name in there), names[0]))


def _damaged(target: Target, table: str, release: ReleaseVectors) -> bool:
    """Return True, and print the damage, if the served table is not the release."""
    try:
        check_content(target, table, release)
    except DamagedTable as error:
        print(f"{error}. It is being served, so the release is loaded again beside it", flush=True)
        return True
    return False


def _follow(
    store: Store, settings: AnyTarget, target: Target, before: str, table: str, release: ReleaseVectors,
    prove: Callable[[str, bool], Proof],
) -> tuple[int, Proof] | None:  # fmt: skip
    """Make the served table the release's, by the rows that differ; return the number of written rows, and the proof.

    Consumers see all of it at once, after all checks. None: the release is to be loaded beside the served table, since
    that differs too much or is damaged, or the service has no such change.
    """
    if not isinstance(target, Changeable):
        return None
    if (earlier := _served_vectors(store, settings, before, release)) is None:
        return None
    try:
        with target.changing(before, table) as changed:
            written = done = 0
            for each in gathered(changes(earlier, release), ROWS_AT_ONCE):
                target.change(changed, each.rows, each.gone)
                written, done = written + each.rows.num_rows, done + each.rows.num_rows + len(each.gone)
                if done > MOST_CHANGED * release.count:
                    raise DamagedTable(f"{target.where}, table {before}: more than a quarter of its items have changed")
                report("publish", done, release.count, table)
            check_content(target, changed, release)
            check_ids(target, changed, release)
            proof = prove(changed, False)
        return written, proof._replace(built=target.index(table))  # by its name now
    except (DamagedTable, DataError, MissingFolder, CorruptFolder, FileNotFoundError) as error:
        print(f"{error}. The release is loaded beside the served table", flush=True)
        return None


def _served_vectors(store: Store, settings: AnyTarget, served: str, release: ReleaseVectors) -> ReleaseVectors | None:
    """Return the vectors of the release that is served; None if they are gone, or not comparable with `release`."""
    try:
        of = releases.read(store, release_of(served))
        by = of.model.of_items.version
        found = ReleaseVectors(store, of.vectors_prefix, by, of.vectors_sha256, settings.width)
    except (ConfigError, StoreError, MissingFolder, CorruptFolder):  # pruned, or of the target's owner before
        return None
    same = served in table_names(settings.name, of.number, found.named, narrowing(settings))
    return found if same and comparable(found, release) else None


def _proved(
    job: Job, inputs: PublishInputs, settings: AnyTarget, target: Target, release: ReleaseVectors,
    table: str, served: bool,
) -> Proof:  # fmt: skip
    """Build and check the index of a complete table; narrow vectors are searched with the holdout queries too.

    Raises:
        DataError: it finds too little.
    """
    queries = search_holdout(job, inputs, settings) if narrowing(settings) and table != inputs.measured else None
    index = target.index(table)
    quality = check_index(target, table, index, release, job.config.publish.min_recall, served)
    most = job.config.publish.max_loss
    return Proof(index, quality, _narrow_recall(target, table, queries, most) if queries is not None else None)


def _load(target: Target, table: str, release: ReleaseVectors) -> int:
    """Load what a table lacks and check all of it; return the number of loaded vectors.

    A table that an earlier publication left is loaded from the beginning if it has anything else.

    Raises:
        StoreError: the table differs from the release although it was loaded from the beginning; it was dropped.
    """
    if table in target.tables():
        try:
            return _complete(target, table, release)
        except DamagedTable as error:
            print(f"{error}. It is loaded again from the beginning", flush=True)
            target.drop(table)
    try:
        return _complete(target, table, release)
    except DamagedTable as error:
        target.drop(table)
        raise StoreError(f"{error}. The table was dropped; the next publication loads it from the beginning") from error


def _complete(target: Target, table: str, release: ReleaseVectors) -> int:
    """Load the incomplete partitions and check all items; return the number of loaded vectors."""
    target.create(table, release.shape)
    expected, there = release.rows_by_partition(), target.rows_by_partition(table, release.partitions)
    done = loaded = 0
    for partition, rows in expected.items():
        if there.get(partition) != rows:
            target.load(table, partition, release.rows(partition), again=partition in there)
            loaded += rows
        done += rows
        report("publish", done, release.count, table)
    check_content(target, table, release)
    check_ids(target, table, release)
    return loaded


def _narrow_recall(target: Target, table: str, queries: Holdout, max_loss: float) -> NarrowRecall:
    """Search a table of narrow vectors with the holdout queries.

    Raises:
        DataError: it loses more recall than `max_loss`.
    """
    found = measure_narrow(queries, lambda vector, k: target.nearest(table, vector, k))
    if found.loss > max_loss:
        raise DataError(
            f"{target.where}, table {table}: narrow vectors lose {found.loss:.4f} of recall@10 over {found.queries} "
            f"holdout queries ({found.recall_at_10:.4f}, and {found.whole:.4f} by the release's vectors; 95 % interval "
            f"of the loss {found.loss_low:.4f} to {found.loss_high:.4f}), more than publish.max_loss {max_loss:g}; the "
            "target serves what it served before. Take a greater width or another form"
        )
    return found


def _kept(there: set[str], served: set[str | None], store: Store, release: int) -> set[str]:
    """Return the tables to keep after a swap: those `served` now and before, and one for a rollback.

    If the workspace can't be read, all are kept, and the error is printed: the publication has succeeded.
    """
    try:
        back = releases.of_another_model_before(store, releases.read(store, release))
    except StoreError as error:
        print(f"old tables were not dropped: {error}", flush=True)
        return there
    kept = {table for table in there if table in served}
    if back is not None and all(release_of(table) != back.number for table in kept):
        kept |= {table for table in there if release_of(table) == back.number}
    return kept


def _drop(target: Target, tables: set[str], served: str, owner: Owner) -> tuple[str, ...]:
    """Drop tables; an error is only printed: the publication has succeeded all the same.

    If this process stood still, another publication may have swapped consumers to one of them, and drops the old ones.
    If it stood still between a look at the target and a drop, consumers get the table back that they had before.
    """
    dropped = []
    try:
        for table in sorted(tables):
            if target.serving() != served:
                print(f"old tables were not dropped: another publication took the place of {served}", flush=True)
                break
            target.drop(table)
            dropped.append(table)
            if target.serving() in (None, table):
                print(f"another publication served {table} when it was dropped; {served} is served again", flush=True)
                target.serve(served, owner)
    except StoreError as error:
        print(f"an old table was not dropped: {error}", flush=True)
    return tuple(dropped)
