"""Sources of catalogues: rows and item feeds of the workspace, and earlier catalogues to build on."""

from collections.abc import Sequence
from typing import NamedTuple

from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, read_fact
from infra.store.records import read_record
from tasks.contracts.checkpoints import CheckpointState
from tasks.contracts.jobs import JobSpec, ValidateInputs
from tasks.contracts.kinds import ROOTS
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.references import CatalogueRef, FeedRef, RowsRef, SpanRef, newest_rows
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import SPEC
from tasks.data.span_versions import list_feeds
from tasks.runs import branches, lineage, releases
from tasks.runs.plan import read_plan
from tasks.runs.results import UnusableResult, read_judgement, read_result


class KnownItems(NamedTuple):
    """The newest versions of all spans of rows and of item feeds, and the sources of the released catalogue."""

    rows: tuple[RowsRef, ...]
    feeds: tuple[FeedRef, ...]
    released: frozenset[str]  # keys of the folders

    @property
    def waiting(self) -> tuple[RowsRef | FeedRef, ...]:
        """Sources that the released catalogue lacks."""
        return tuple(each for each in (*self.rows, *self.feeds) if each.prefix not in self.released)

    @property
    def all_released(self) -> bool:
        """True if the released catalogue was made of exactly these sources."""
        return self.released == {each.prefix for each in (*self.rows, *self.feeds)}


def known_items(store: Store, release: Release, trained_on: str | None = None) -> KnownItems:
    """Return the sources of items for a refresh of `release`.

    Rows come from the released catalogue and from all runs of the lineage, even a rejected one.

    Args:
        trained_on: the lineage; default: the one that runs of the release's lineage continue.

    Raises:
        StoreError: the plan of the release, its catalogue, the lineage's head or its judgement is not readable.
    """
    made_by = read_plan(store, release.run_key)
    name = trained_on or branches.active(store, branches.root(store, made_by.config.lineage))
    head = lineage.head(store, name)
    trained = _right_rows(store, head[1]) if head else ()
    return KnownItems(
        rows=newest_rows(_released_rows(store, release, made_by, trained), trained),
        feeds=tuple(list_feeds(store)),
        released=frozenset(_sources(store, release)),
    )


def _right_rows(store: Store, head: CheckpointState) -> tuple[RowsRef, ...]:
    """Return the rows that a checkpoint has seen, without spans whose rows seem wrong: so do their items."""
    judged = read_judgement(store, head.run_key)
    wrong = judged.wrong_spans if judged is not None and not judged.overrides else ()
    return tuple(rows for rows in head.consumed if rows.span.name not in wrong)


def bases(store: Store, plan: RunPlan) -> tuple[CatalogueRef, ...]:
    """Return earlier catalogues, best first: that of the current release, and that of the run that made the parent."""
    found = []
    serving = releases.current(store)
    if serving is not None:
        found.append(serving.catalogue)
    states = (state for ref, state in lineage.completed(store, plan.config.lineage) if ref == plan.parent)
    if (state := next(states, None)) is not None and (own := of_run(store, state.run_key)) is not None:
        found.append(own)
    return tuple(dict.fromkeys(found))


def others(store: Store, plan: RunPlan) -> tuple[RowsRef, ...]:
    """Return the rows in the released catalogue that the run does not know, or knows in an older version.

    The champion may have them from a rejected backfill, whose branch the lineage does not continue. Without them a
    release would lose items that the one before it has.

    Raises:
        StoreError: the release, its plan or its catalogue is not readable.
    """
    serving = releases.current(store)
    if serving is None:
        return ()
    made_by = read_plan(store, serving.run_key)
    if branches.root(store, made_by.config.lineage) != branches.root(store, plan.config.lineage):
        return ()
    versions = {rows.span.name: rows.span.version for rows in plan.history}
    versions |= {span.name: span.version for span in plan.window}
    released = _released_rows(store, serving, made_by, plan.history)
    return tuple(rows for rows in released if rows.span.version > versions.get(rows.span.name, 0))


def of_run(store: Store, run_key: str) -> CatalogueRef | None:
    """Return the catalogue that a run built; None if it built none."""
    try:
        result = read_result(store, run_key, Stage.validate)
    except UnusableResult:
        return None
    return result.outcome.catalogue if result and isinstance(result.outcome, ValidateOutcome) else None


def _released_rows(
    store: Store, release: Release, made_by: RunPlan, known: Sequence[RowsRef] = ()
) -> tuple[RowsRef, ...]:
    """Return the rows in the released catalogue.

    Args:
        known: references that need not be read from the workspace.
    """
    by_prefix = {rows.prefix: rows for rows in (*made_by.history, *known)}
    roots = tuple(f"{root}/" for root in ROOTS)  # a refresh has rows of its own for a span that waits
    prefixes = [prefix for prefix in _sources(store, release) if prefix.startswith(roots)]
    return tuple(by_prefix.get(prefix) or _rows_of(store, prefix) for prefix in prefixes)


def _rows_of(store: Store, prefix: str) -> RowsRef:
    name, version = read_fact(store, prefix, "span", str), read_fact(store, prefix, "span_version", int)
    return RowsRef(span=SpanRef(name=name, version=version), prefix=prefix, rows=read_fact(store, prefix, "rows", int))


def _sources(store: Store, release: Release) -> list[str]:
    """Return the folders that the released catalogue was made of; from the run that made it if its manifest is lost."""
    try:
        return read_fact(store, release.catalogue.prefix, "sources", list[str])
    except (MissingFolder, CorruptFolder):
        result = read_result(store, release.run_key, Stage.validate)
        if result is None or not isinstance(result.outcome, ValidateOutcome):
            raise
        key = SPEC.key(run=release.run_key, stage=Stage.validate, attempt=result.attempt)
        asked = read_record(store, key, JobSpec, "restore the catalogue from a backup").inputs
        assert isinstance(asked, ValidateInputs)
        rows = newest_rows(asked.history, result.outcome.rows, asked.others)
        return sorted(each.prefix for each in (*rows, *asked.feeds))
