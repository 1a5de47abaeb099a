"""Sources of catalogues (rows, item feeds, earlier catalogues), and the plan of a refresh, which builds a newer one.

A refresh embeds new and changed items with the released model, and drops deleted ones; it trains nothing.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from configs.load import config_hash
from configs.schema.compute import InferMachines
from configs.schema.config import BESIDE_THE_WORK, Config
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, read_fact
from infra.store.records import read_record
from tasks.contracts.jobs import JobSpec, ValidateInputs
from tasks.contracts.kinds import REFRESH, ROOTS, is_refresh
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.references import CatalogueRef, CheckpointState, FeedRef, RowsRef, SpanRef, newest_rows
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.stages import Stage, compute_of
from tasks.contracts.workspace import PRUNED_RUN, SPEC
from tasks.data.span_versions import list_feeds
from tasks.runs import branches, lineage, releases
from tasks.runs.ledger import OpenAttempt, marked_open
from tasks.runs.plan import NothingToDo, read_plan, rows_of
from tasks.runs.results import UnusableResult, read_judgement, read_result
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot, find_loss


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


class Refresh(NamedTuple):
    """The work, in the form of a run that trains nothing, and the release that it brings up to date."""

    plan: RunPlan
    release: Release


def plan_refresh(
    store: Store, config: Config, trained_on: str | None = None, waiting: Sequence[SpanRef] = ()
) -> Refresh:
    """Plan the refresh of the current release.

    The settings come from the run that trained the model; `config` decides machines, retries and gates.

    Args:
        trained_on: the lineage with the newest rows, such as a branch of a backfill with a rejected model; default:
            the active branch of the release's lineage.
        waiting: spans that are not trained yet, whose items are taken too.

    A release that lost a file is made again even if its items are unchanged.

    Raises:
        NothingToDo: the release is whole and its catalogue has all rows and item feeds, or there is no release yet, or
            a person took back a release with these items.
        StoreError: the release, its plan or its catalogue is not readable.
    """
    release = releases.current(store)
    if release is None:
        raise NothingToDo(f"nothing to do: {releases.no_current(store, 'to refresh')}")
    made_by = read_plan(store, release.run_key)
    known = known_items(store, release, trained_on)
    new = tuple(span for span in waiting if span not in [rows.span for rows in known.rows])
    repairs = None
    if known.all_released and not new:
        if find_loss(store, release) is None:
            raise NothingToDo(f"nothing to do: release {release.number} holds every item that the workspace knows")
        repairs = release.number
    settings = _settings(made_by.config, config)
    rows = rows_of(store, (*known.waiting, *new))
    if rows is not None and sum(rows) <= config.batch.refresh_cpu_items:
        settings = on_cpu_queue(settings)
    run_key = _unpruned(store, settings, release, (*known.rows, *known.feeds, *new), repairs)
    plan = RunPlan(
        run_key=run_key,
        span=release.span,
        window=new,
        history=known.rows,
        parent=release.model.checkpoint,
        workspace=store.uri,
        config=settings,
    )
    return Refresh(plan, release)


def on_cpu_queue(config: Config) -> Config:
    """Return the settings with stage infer on one machine of `batch.cpu_queue`; unchanged if it runs on this machine.

    A few items don't pay for the start of an accelerator. Arithmetic in bf16 becomes `auto`: a processor may be slower
    at it than at fp32, and the vectors of both lie within `release.min_cosine`.
    """
    if compute_of(config, Stage.infer) != "batch":
        return config
    machines = InferMachines(
        queue=config.batch.cpu_queue,
        definition=config.batch.definition.replace("{stage}", "cpu-{stage}"),
        processes_per_node=1,
        instance=config.batch.cpu_instance,
        target=config.compiler.target,  # without an effect on a processor
    )
    precision = "auto" if config.infer.precision == "bf16" else config.infer.precision
    return config.model_copy(
        update={
            "accelerator": "cpu",
            "batch": config.batch.model_copy(update={"infer": machines}),
            "infer": config.infer.model_copy(update={"workers": 1, "precision": precision}),
        }
    )


def _settings(made_with: Config, now: Config) -> Config:
    places: dict[str, object] = {name: getattr(now, name) for name in (*BESIDE_THE_WORK, "compute", "accelerator")}
    infer = made_with.infer.model_copy(update={"workers": now.infer.workers, "compute": now.infer.compute})
    # One worker each: no rows are compared, and few vectors searched.
    validate = made_with.validate_.model_copy(update={"workers": 1})
    release = made_with.release.model_copy(update={"gates": now.release.gates, "workers": 1})
    return made_with.model_copy(update={**places, "validate_": validate, "infer": infer, "release": release})


def _unpruned(
    store: Store, config: Config, release: Release, sources: Sequence[RowsRef | FeedRef | SpanRef], repairs: int | None
) -> str:
    """Return the key of the refresh, which is another one each time that a prune has marked the one before.

    A deletion may still be under way there, sent by a prune that stood still. So nothing is made again under a name
    that a prune had in its plan.

    Args:
        repairs: the release whose lost files it makes again; None: items are new.

    Raises:
        NothingToDo: a person left its release.
    """
    again = 0
    while True:
        run_key = _run_key(config, release, sources, repairs, again)
        made = releases.of_run(store, run_key)
        if made is not None and releases.was_left(store, made.number):
            raise NothingToDo(
                f"nothing to do: release {made.number} has these items, and a person left it; millrace rollback --to "
                f"{made.number} makes it current, or the next new item"
            )
        pruned = made is not None and releases.is_pruned(store, made.number)
        if not pruned and not store.exists(PRUNED_RUN.key(run=run_key)):
            return run_key
        again += 1


def _run_key(
    config: Config,
    release: Release,
    sources: Sequence[RowsRef | FeedRef | SpanRef],
    repairs: int | None,
    again: int,
) -> str:
    work = {
        "pipeline": config.pipeline,
        "config": config_hash(config),
        "model": release.model.version,
        "sources": sorted(each.prefix for each in sources),
        **({"repairs": repairs} if repairs is not None else {}),
        **({"again": again} if again else {}),
    }
    return f"{REFRESH}{hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:16]}"


def close_left(store: Store, plan: RunPlan) -> None:
    """Close the attempts of the lineage's other refreshes, which are over: the caller holds the lock of refreshes.

    A process that was killed, or that met a full disk, leaves its record open, and its refresh may never be asked for
    again: newer items make another one.
    """
    for run_key in marked_open(store):
        if is_refresh(run_key) and run_key != plan.run_key:
            left = Run(Snapshot(store), run_key)
            if left.plan is not None and left.plan.config.lineage == plan.config.lineage:
                for attempt in left.attempts:
                    if attempt.ended_at is None:
                        OpenAttempt(store, attempt).close_abandoned()
