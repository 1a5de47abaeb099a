"""`millrace status` and `freshness`: spans, lineages, the current release, the age of its data, sums of attempts."""

import datetime as dt
from collections.abc import Iterable

from pydantic import Field

import tasks.monitoring.freshness
from configs.load import with_overrides
from configs.schema.config import Config
from flows.cli.releases import target_lines
from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions
from flows.presentation.costs import priced
from flows.presentation.model import Parts, ended_as, table
from flows.presentation.wording import dollars, seconds, share
from infra.store.base import Store
from infra.store.manifest import MANIFEST, Manifest, read_fact
from tasks.contracts.kinds import LINEAGES, lineage_of
from tasks.contracts.outcomes import Phases
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import Hold, Release
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.data import span_versions
from tasks.foundation.clock import now, old
from tasks.foundation.errors import StoreError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.monitoring.deadlines import Clock
from tasks.monitoring.freshness import FreshnessReport
from tasks.monitoring.history import RunLine, last_config, line_of
from tasks.monitoring.progress import CatalogueAge
from tasks.monitoring.spending import Budget, budgets_seen
from tasks.monitoring.work_sums import work_sums
from tasks.planning.decisions import skips
from tasks.planning.start import consumed
from tasks.runs import branches, experiments, lineage
from tasks.runs.experiments import Experiment, read_all
from tasks.runs.releases import newest, no_current, numbers
from tasks.runs.run import Run, read_attempts, read_runs
from tasks.runs.served_targets import Served, of_all_targets
from tasks.runs.snapshot import Snapshot
from tasks.runs.sums import Sums, sums_of, total


class SpanRun(RunLine):
    version: int = Field(description="version of the span that the run trained")


class SpanStatus(Record):
    """The latest version of one span."""

    name: str = Field(description="name of the span, for example 2026-W47")
    version: int = Field(description="version of the span")
    rows: int
    trained: tuple[str, ...] = Field(description="lineages that have trained this version of the span")
    runs: tuple[SpanRun, ...] = Field(
        description="runs that ended with this span, in any version, without experiments that were not released"
    )
    skipped: dict[str, str] = Field(description="reasons of the lineages that skip this version, by lineage")


class LineageStatus(Record):
    """The last completed checkpoint of a lineage."""

    name: str = Field(description="name of the lineage")
    span: str | None = Field(description="newest trained span; null: imported weights without training")
    step: int
    checkpoint: str
    run_key: str


class StatusOutput(Record):
    """`millrace status`."""

    workspace: str
    spans: tuple[SpanStatus, ...]
    lineages: tuple[LineageStatus, ...]
    experiments: tuple[Experiment, ...] = Field(description="experiments that were not released")
    release: Release | None = Field(description="current release")
    hold: Hold | None = Field(
        description="hold, during which no run or refresh changes the current release; null: none"
    )
    targets: tuple[Served, ...] = Field(description="state of each target at its last publication or check")
    budgets: tuple[Budget, ...] = Field(
        default=(), description="budgets of the last run and of this week, in the settings of the last run"
    )
    totals: Sums = Field(description="sums over all attempts that have ended")


def status_page(output: StatusOutput) -> Parts:
    """Yield the spans, the lineages, the current release, the targets, and the sums."""
    rows = (
        [
            span.name,
            f"v{span.version}",
            f"{span.rows:,}",
            ", ".join(span.trained),
            ", ".join([*(_ended(run, span.version) for run in span.runs), *_left_out(span)]),
        ]
        for span in output.spans
    )
    yield table("", ["span", "version", ">rows", "trained in", "runs"], rows)
    for line in output.lineages:
        trained = f"trained up to {line.span}" if line.span is not None else "imported weights, not trained on yet"
        yield f"lineage {line.name}: {trained}, step {line.step}, {line.checkpoint}"
    for tried in output.experiments:
        compare = f"millrace compare {tried.span.name} {tried.name}"
        yield f"experiment {tried.name}: run {tried.run_key}; to compare: {compare}"
    yield f"current release: {_release(output.release) if output.release else 'none yet'}"
    if output.hold is not None:
        yield f"{output.hold.sentence} Lift it with: millrace hold --off"
    yield from target_lines(output.targets, output.release.number if output.release else None)
    totals = output.totals
    per_million = totals.dollars_per_million_vectors
    cost = f"cost {priced(totals.cost, totals.charges)}"
    yield (
        f"ledger: {plural(totals.runs, 'run')}, {plural(totals.attempts, 'attempt')}, "
        + f"{share(totals.success_rate)} succeeded"
        + (f", {totals.running} running or lost" if totals.running else "")
        + f"; goodput {share(totals.goodput)}; {cost}"
        + (f", {dollars(per_million)} per million vectors" if per_million is not None else "")
    )
    yield from (f"budget: {each.sentence}" for each in output.budgets)
    yield f"seconds: {_phases(totals.seconds)}"
    if totals.attempts_by_class:
        yield table(
            "",
            ["failures", ">attempts", ">seconds"],
            (
                [failure.value, str(attempts), seconds(totals.seconds_by_class[failure])]
                for failure, attempts in totals.attempts_by_class.items()
            ),
        )


@command(status_page)
def status(store: Store) -> StatusOutput:
    """Show spans, lineages, the current release, and the cost of all attempts."""
    snapshot = Snapshot(store, strict=True)
    runs = read_runs(snapshot, (Stage.infer,))
    spans = span_versions.list_spans(store)
    snapshot.fetch(_manifest_key(span) for span in spans)
    manifests = {span: snapshot.read(_manifest_key(span), Manifest) for span in spans}
    released = {run.run_key for run in runs if run.release is not None}
    tried = {each.branch: each for each in experiments.read_all(store) if each.run_key not in released}
    apart = {each.run_key for each in tried.values()}
    names = sorted({lineage_of(key) for key in store.list(LINEAGES)} - tried.keys())
    last = {name: lineage.head(store, name) for name in names}
    # A branch without a training run of its own has only inherited checkpoints.
    heads = {name: head for name, head in last.items() if head and head[0].lineage == name}
    seen = {name: consumed(head) for name, head in heads.items()}
    left_out = {name: skips(store, name) for name in names if branches.branch_of(store, name) is None}
    config = last_config(runs, apart)
    current = snapshot.current
    if current is None and numbers(store):
        raise StoreError(no_current(store))
    of_releases = (release.number for release in snapshot.releases_of_runs.values())
    others = work_sums(store, of_releases, newest(store, current.number) if current is not None else None)
    for problem in others.problems:
        raise StoreError(f"{problem}; restore it from a backup, or move it away")
    return StatusOutput(
        workspace=store.uri,
        spans=tuple(
            SpanStatus(
                name=span.name,
                version=span.version,
                rows=_rows(store, span, manifests[span]),
                trained=tuple(name for name in heads if span in seen[name]),
                runs=tuple(
                    SpanRun(**line_of(run), version=run.plan.span.version)
                    for run in sorted(runs, key=lambda run: (run.lineage, run.run_key))
                    if run.span == span.name and run.plan is not None and run.run_key not in apart
                ),
                skipped={name: found[span].reason for name, found in left_out.items() if span in found},
            )
            for span in spans
        ),
        lineages=tuple(
            LineageStatus(
                name=name,
                span=max((rows.span.name for rows in state.consumed), key=first_day, default=None),
                step=ref.step,
                checkpoint=ref.prefix,
                run_key=state.run_key,
            )
            for name, (ref, state) in heads.items()
        ),
        experiments=tuple(tried.values()),
        release=current,
        hold=snapshot.hold,
        targets=of_all_targets(store),
        budgets=budgets_seen(store, config, runs, runs[-1] if runs else None),
        totals=total([_sides(snapshot, runs), *(run.totals for run in runs), *others.rows.values()]),
    )


def _manifest_key(span: SpanRef) -> str:
    return f"{span.prefix}/{MANIFEST}"


def _rows(store: Store, span: SpanRef, manifest: Manifest | None) -> int:
    rows = manifest.facts.get("rows") if manifest is not None else None
    return rows if isinstance(rows, int) else read_fact(store, span.prefix, "rows", int)  # raises with the reason


def _sides(snapshot: Snapshot, runs: Iterable[Run]) -> Sums:
    """Return the sums over the attempts of sides of comparisons: folders of runs without a plan."""
    known = {run.run_key for run in runs}
    return sums_of(
        read_attempts(snapshot, (key for name, keys in snapshot.runs.items() if name not in known for key in keys))
    )


def _ended(run: SpanRun, newest: int) -> str:
    """Return how a run over a span ended; one that trained an older version of it says so."""
    return f"v{run.version} " * (run.version != newest) + ended_as(run.state, run.release, run.failure)


def _left_out(span: SpanStatus) -> list[str]:
    return [f"skipped in {lineage}: {reason}" for lineage, reason in span.skipped.items()]


def _release(release: Release) -> str:
    return (
        f"{release.number}, span {release.span.name}, model {release.model_prefix}, "
        f"{plural(release.vectors, 'vector')} in {release.vectors_prefix}"
    )


def _phases(spent: Phases) -> str:
    parts = [f"{phase} {seconds(value)}" for phase, value in spent.model_dump().items() if value]
    return ", ".join(parts) or "none"


ROWS = 31  # newest spans only
_TIMES = ("arrived_at", "validated_at", "trained_at", "evaluated_at", "embedded_at", "released_at")


def freshness_page(report: FreshnessReport) -> Parts:
    """Yield the report; times are in UTC."""
    yield f"lineage {report.lineage}{f', on branch {report.continues}' * (report.continues != report.lineage)}"
    yield _age(report)
    if report.hold is not None:
        yield report.hold.sentence
    if report.catalogue is not None:
        yield _catalogue(report.catalogue, report)
    if report.spans:
        columns = ("span", "state", "arrived", "validated", "trained", "evaluated", "embedded", "released")
        rows = [(row.span, row.state, *(_minute(getattr(row, name)) for name in _TIMES)) for row in report.spans]
        yield table("", columns, rows[-ROWS:])
    if older := report.older + max(0, len(report.spans) - ROWS):
        yield f"and {older} older"
    yield from map(_clock, report.clocks)
    for problem in report.problems:
        yield f"{'!' if problem.urgent else '-'} {problem.sentence}"
        yield f"  {problem.way_out}"
    if not report.problems:
        yield "nothing is wrong"


@command(freshness_page)
def freshness(options: RunOptions) -> FreshnessReport:
    """Show the age of the released data, the progress of each span, and everything missing, missed or late.

    Settings come from the last run, as in history and metrics, unless --config names a file.
    """
    return tasks.monitoring.freshness.freshness(options.store, _settings(options), dt.datetime.fromisoformat(now()))


def _settings(options: RunOptions) -> Config:
    tried = {each.run_key for each in read_all(options.store)}
    last = last_config(read_runs(Snapshot(options.store), ()), tried) if not options.named else None
    return with_overrides(last, options.overrides) if last is not None else options.config()


def _age(report: FreshnessReport) -> str:
    if report.newest is None or report.age_hours is None:
        return "nothing is released"
    state = "stale since" if report.stale else "fresh until"
    return (
        f"release {report.release} holds data up to {report.newest}, {old(report.age_hours)} old of "
        f"{old(report.target_hours)} promised; {state} {_minute(report.stale_at)} UTC"
    )


def _catalogue(catalogue: CatalogueAge, report: FreshnessReport) -> str:
    until = catalogue.complete_until
    items = f"it holds all items that had arrived by {_minute(until)} UTC" if until else "it holds all known items"
    waits = f", {old(report.catalogue_age_hours or 0.0)} ago of {old(report.catalogue_target_hours)} promised"
    return f"{items}{waits if until else ''}; {catalogue.sentence}"


def _clock(clock: Clock) -> str:
    ends = f"ended {_minute(clock.ended_at)}" if clock.ended_at else f"should end {_minute(clock.expected_end) or '?'}"
    standing = f"{clock.standing}, lost" if clock.lost else f"{clock.standing}, {ends}"
    return f"run over {clock.span}, attempt {clock.attempt}: {standing}, deadline {_minute(clock.deadline)}"


def _minute(moment: str | None) -> str:
    return moment[5:16].replace("T", " ") if moment else ""
