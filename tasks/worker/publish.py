"""publish: loads a release into one target, and swaps consumers to it once it is complete and checked.

If it stops before the swap, the target still serves the previous table, and the next publication resumes from the
loaded partitions.
"""

import contextlib

from infra.store.base import Store
from tasks.contracts.jobs import PublishInputs
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.runner import report
from tasks.foundation.errors import ConfigError, StoreError
from tasks.runs import releases
from tasks.worker.export.release_vectors import ReleaseVectors
from tasks.worker.export.target import Target, release_of, table_name
from tasks.worker.export.target_checks import ContentMismatch, check_content, check_index
from tasks.worker.export.targets import open_target
from tasks.worker.process.job import Job


def run(job: Job) -> PublishOutcome:
    """Load missing partitions, build the index, check both, warm the service, swap, drop older tables.

    A target that already serves the release is only checked. A rollback first only swaps, then runs again to check.

    Raises:
        ConfigError: the client is not installed, or the target refuses the credentials or the vectors.
        StoreError: the target can't be reached, or its content differs from the release.
        DataError: the index finds too few of the nearest items.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, PublishInputs)
    settings = next((each for each in job.config.publish.targets if each.name == inputs.target), None)
    if settings is None:
        raise ConfigError(f"publish.targets has no target {inputs.target}")
    with job.clock.phase("restoring"):
        release = ReleaseVectors(job.store, inputs.vectors, inputs.model_version, inputs.vectors_sha256)
    table = table_name(inputs.target, inputs.release, release.sha256)
    with contextlib.closing(open_target(settings)) as target, job.clock.phase("productive"):
        before = target.serving()
        if _overtaken(job.store, inputs):
            return _left_alone(release, before)
        if inputs.swap_alone:
            return _swapped(target, table, before, release)
        loaded = _load(target, table, release) if table != before else 0
        try:
            check_content(target, table, release)
        except ContentMismatch as error:
            raise _cleared(target, table, before, error) from error
        quality = check_index(target, table, release, job.config.publish.min_recall)
        dropped: tuple[str, ...] = ()
        if table != before:
            if _overtaken(job.store, inputs):
                return _left_alone(release, before)
            target.serve(table)
            dropped = _drop_older(target, {table, before}, job.store, inputs.release)
    return PublishOutcome(
        table=table,
        served_before=before,
        vectors=release.count,
        loaded=loaded,
        recall=quality.recall,
        query_ms=quality.query_ms,
        queries=quality.queries,
        dropped=dropped,
    )


def _overtaken(store: Store, inputs: PublishInputs) -> bool:
    """Return True if only the current release may be published, and another one is current now."""
    current = releases.current(store) if inputs.only_current else None
    return current is not None and current.number != inputs.release


def _left_alone(release: ReleaseVectors, before: str | None) -> PublishOutcome:
    return PublishOutcome(
        table=None, served_before=before, vectors=release.count, loaded=0, recall=None, query_ms=None, dropped=()
    )


def _swapped(target: Target, table: str, before: str | None, release: ReleaseVectors) -> PublishOutcome:
    """Swap to a table that was completed and checked before; takes seconds at any size."""
    there = table == before or table in target.tables()
    if there and table != before:
        target.serve(table)
    return PublishOutcome(
        table=table if there else None,
        served_before=before,
        vectors=release.count,
        loaded=0,
        recall=None,
        query_ms=None,
        dropped=(),
    )


def _load(target: Target, table: str, release: ReleaseVectors) -> int:
    """Load the incomplete partitions and build the index; return the number of loaded vectors."""
    target.create(table, release.shape)
    expected, there = release.rows_by_partition(), target.rows_by_partition(table, release.partitions)
    done = loaded = 0
    for partition, rows in expected.items():
        if there.get(partition) != rows:
            target.load(table, partition, release.rows(partition), again=partition in there)
            loaded += rows
        done += rows
        report("publish", done, release.count, table)
    target.index(table)
    return loaded


def _cleared(target: Target, table: str, before: str | None, error: ContentMismatch) -> StoreError:
    """Drop a table with wrong content unless it is served; return the error with the next step."""
    if table == before:
        return StoreError(
            f"{error}. It is being served, so nothing was changed: go to another release (millrace rollback), "
            "and then to this one again"
        )
    target.drop(table)
    return StoreError(f"{error}. The table was dropped; the next publication loads it from the beginning")


def _drop_older(target: Target, keep: set[str | None], store: Store, release: int) -> tuple[str, ...]:
    """Drop all tables except `keep` and the release that a rollback would choose.

    An error is only printed: the publication has succeeded even if an old table stays.
    """
    dropped = []
    try:
        back = releases.of_another_model_before(store, releases.read(store, release))
        for table in target.tables():
            if table not in keep and (back is None or release_of(table) != back.number):
                target.drop(table)
                dropped.append(table)
    except StoreError as error:
        print(f"an old table was not dropped: {error}", flush=True)
    return tuple(dropped)
