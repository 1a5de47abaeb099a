"""Progress of a lineage: each span with the time of each stage, and the known items in the current release.

Only the records of the newest spans are read; the history of the pipeline has all of them.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import MANIFEST, Manifest, read_manifest
from tasks.contracts.references import FeedRef, RowsRef, SpanRef
from tasks.contracts.runs import Release, RunState
from tasks.contracts.spans import after, first_day, last_day
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import SPAN, VERDICTS
from tasks.data import span_versions
from tasks.foundation.errors import FailureClass
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.planning import decisions
from tasks.planning.decisions import Decision, Skip, skips
from tasks.planning.start import is_after_rejection
from tasks.runs import branches, lineage
from tasks.runs.catalogues import known_items
from tasks.runs.invocations import Invocation
from tasks.runs.run import Run, StageRun, ledgers_in
from tasks.runs.snapshot import Snapshot

ROWS = 60  # newest spans only: two months of days, more than a year of weeks
LONGEST_HOLE = 400  # consecutive missing spans: more than a year of days

# Skipped: a person left it out. Postponed: it waits for the next span, by a decision. Corrected: a version came after
# the run that is named, by a correction or an erasure.
State = Literal[
    "Absent", "Arrived", "Skipped", "Postponed", "Missed", "Running", "Lost", "Failed", "Cancelled", "Unfinished",
    "Rejected", "Corrected", "Held", "Released",
]  # fmt: skip

_SHOWN = tuple(stage for stage in Stage if stage.traits.shown_by_span)


class SpanRow(Record):
    """One span. Times are ISO 8601 in UTC; null: it has not come that far, or the time was not recorded."""

    span: str
    state: State
    version: int | None = Field(description="newest version that has arrived; null: none")
    trained_version: int | None = Field(description="version in the lineage's weights")
    ends_at: str = Field(description="end of the span, in UTC")
    arrived_at: str | None = Field(description="arrival of the newest version")
    validated_at: str | None
    trained_at: str | None
    evaluated_at: str | None
    embedded_at: str | None
    released_at: str | None
    run_key: str | None = Field(description="key of the run that trained it, else of the last one requested")
    failure: FailureClass | None = Field(description="failure class of a run that failed or was cancelled")
    message: str = Field(description="reason of a failure, a skip or a wait; else empty")
    page: str = Field(description="address of the last flow run's page; empty: not known")


class Survey(NamedTuple):
    """The state of a lineage, by span or run key, in the order of the calendar or of begins."""

    lineage: str
    continues: str  # the branch that runs of the lineage continue; else the lineage itself
    versions: Mapping[str, int]  # the newest of each span that has arrived
    consumed: Mapping[str, SpanRef]  # spans that the weights were trained on
    trained_rows: Mapping[str, int]  # clean rows of each of these spans
    skipped: Mapping[str, Skip]  # newest versions only
    trained_by: Mapping[str, str]  # span -> key of the run
    runs: Mapping[str, Run]  # by run key
    released: frozenset[str]  # keys of the runs that have a release
    invocations: Sequence[Invocation]  # the last of each run of the lineage that was looked at
    calendar: Sequence[str]  # the spans that arrived, and those between them that are due

    @property
    def newest(self) -> Sequence[str]:
        """The spans that get a row."""
        return self.calendar[-ROWS:]

    @property
    def watermark(self) -> str | None:
        return max(self.consumed, key=first_day, default=None)


def span_end(span: str) -> dt.datetime:
    """Return the end of a span in UTC, the time zone by which ingest cuts spans."""
    return dt.datetime.combine(last_day(span) + dt.timedelta(days=1), dt.time(), dt.UTC)


def survey(snapshot: Snapshot, name: str, due: str | None) -> Survey:
    """Return the state of a lineage; `due` is the last span that should have arrived, or None.

    Raises:
        ConfigError: a folder below spans/ is not named like a span.
        StoreError: the lineage's head, or the pointer to the current release, is not readable.
    """
    store = snapshot.store
    continues = branches.active(store, name)
    arrived = span_versions.list_spans(store)
    versions = {ref.name: ref.version for ref in arrived}
    left_out = skips(store, name)
    head = lineage.head(store, continues)
    consumed = head[1].consumed if head else ()
    trained_by = {rows.span.name: rows.run_key for rows in consumed}
    found = Survey(
        lineage=name,
        continues=continues,
        versions=versions,
        consumed={rows.span.name: rows.span for rows in consumed},
        trained_rows={rows.span.name: rows.rows for rows in consumed},
        skipped={ref.name: left_out[ref] for ref in arrived if ref in left_out},
        trained_by=trained_by,
        runs={run_key: Run(snapshot, run_key) for run_key in snapshot.runs},
        released=frozenset(snapshot.releases_of_runs),
        invocations=(),
        calendar=_calendar(list(versions), due),
    )
    return found._replace(invocations=_invocations(snapshot, found))


def postponed(store: Store, config: Config, seen: Survey) -> dict[str, Decision]:
    """Return the decisions by which newest spans wait, by span. Raises StoreError: one is not readable."""
    open_ones = [name for name in seen.newest if name in seen.versions and name not in seen.consumed]
    refs = [SpanRef(name=name, version=seen.versions[name]) for name in open_ones]
    return {ref.name: each for ref, each in decisions.waiting(store, config, refs).items()}


def span_rows(snapshot: Snapshot, seen: Survey, missed: Sequence[str], waits: Mapping[str, Decision]) -> list[SpanRow]:
    """Return a row for each of the newest spans, oldest first."""
    by_run = {one.run_key: one for one in seen.invocations}
    by_span = {one.span: one for one in seen.invocations}  # the last one to begin
    runs: dict[str, str | None] = {}
    for span in seen.newest:
        runs[span] = _run_of(seen, span, by_span.get(span))
    manifests = {
        span: f"{SPAN.key(span=span, version=seen.versions[span])}/{MANIFEST}" for span in runs if span in seen.versions
    }
    shown = [run for run_key in runs.values() if (run := seen.runs.get(run_key or "")) is not None]
    judgements = [VERDICTS.key(run=run.run_key) for run in shown if run.run_key not in seen.released]
    done = [run.stage(stage) for run in shown for stage in _SHOWN if run.stage(stage).done]
    snapshot.fetch([*manifests.values(), *judgements, *(key for stage in done for key in ledgers_in(stage.keys))])
    rows = []
    for span, run_key in runs.items():
        one, run = by_run.get(run_key or ""), seen.runs.get(run_key or "")
        manifest = snapshot.read(manifests[span], Manifest) if span in manifests else None
        state = _state(seen, span, run, one)
        ended = {stage: _ended(run.stage(stage)) for stage in _SHOWN} if run is not None else {}
        failed = one if state in ("Failed", "Cancelled") else None
        message = failed.message if failed else seen.skipped[span].reason if state == "Skipped" else ""
        if state == "Arrived" and span in waits:
            state, message = "Postponed", waits[span].why
        rows.append(
            SpanRow(
                span=span,
                state="Missed" if state == "Arrived" and span in missed else state,
                version=seen.versions.get(span),
                trained_version=seen.consumed[span].version if span in seen.consumed else None,
                ends_at=span_end(span).isoformat(timespec="seconds"),
                arrived_at=manifest.facts.get("ingested_at") if manifest else None,
                validated_at=ended.get(Stage.validate),
                trained_at=ended.get(Stage.train),
                evaluated_at=ended.get(Stage.evaluate),
                embedded_at=ended.get(Stage.infer),
                released_at=ended.get(Stage.release),
                run_key=run_key,
                failure=failed.failure if failed else None,
                message=message,
                page=one.page if one else "",
            )
        )
    return rows


def _run_of(seen: Survey, span: str, asked: Invocation | None) -> str | None:
    """Return the run that trained the span, or the last that was asked for, if it is to do better and has not."""
    trained_by = seen.trained_by.get(span)
    if asked is None or (trained_by and asked.state in (RunState.RELEASED, RunState.REJECTED, RunState.UNFINISHED)):
        return trained_by
    return asked.run_key


def _calendar(arrived: Sequence[str], due: str | None) -> list[str]:
    """Return all spans from the first that arrived to the last due one, missing ones too.

    A hole of more than LONGEST_HOLE spans is a wrong date, not missing data: it is left out.
    """
    calendar = list(arrived[:1])
    last = [due] if due and arrived and first_day(due) > first_day(arrived[-1]) else []
    for span in [*arrived[1:], *last]:
        hole: list[str] = []
        each = after(calendar[-1])
        while len(hole) <= LONGEST_HOLE and first_day(each) < first_day(span):
            hole.append(each)
            each = after(each)
        if len(hole) <= LONGEST_HOLE:
            calendar += [each for each in hole if due is None or first_day(each) <= first_day(due)]
        calendar.append(span)
    return calendar


def _invocations(snapshot: Snapshot, seen: Survey) -> list[Invocation]:
    """Return the last invocation of each run, by begin. Runs of old spans that were released are left out."""
    newest = {seen.trained_by.get(span) for span in seen.newest}
    settled = {key for key in seen.trained_by.values() if key not in newest and key in seen.released}
    wanted = [run for run_key, run in seen.runs.items() if run_key not in settled]
    snapshot.fetch(key for run in wanted for key in snapshot.keys(run.run_key, "invocations"))
    known = [run.invocations[-1] for run in wanted if run.invocations]
    root = branches.root(snapshot.store, seen.lineage)
    begun = {one.lineage for one in known if is_after_rejection(one.lineage, root)}  # adopted once they have trained
    ours = {seen.lineage, seen.continues, *begun}
    trained = set(seen.trained_by.values())
    return sorted((one for one in known if one.lineage in ours or one.run_key in trained), key=lambda one: one.began_at)


def _ended(stage: StageRun) -> str | None:
    """Return the end time of a done stage: the end of its last attempt."""
    last = stage.attempts[-1] if stage.done and stage.attempts else None
    return last.ended_at if last is not None and last.failure is None else None


def _state(seen: Survey, span: str, run: Run | None, one: Invocation | None) -> State:
    if span not in seen.versions:
        return "Absent"
    if span in seen.skipped and span not in seen.consumed:
        return "Skipped"
    if run is None:
        return "Arrived"
    trained = seen.consumed.get(span)
    if trained is not None and run.run_key == seen.trained_by[span] and trained.version != seen.versions[span]:
        return "Corrected"
    state = run.reached if one is None else run.state
    if state is RunState.UNFINISHED and one is None and span not in seen.consumed:
        return "Arrived"
    return state.value


class WaitingSource(Record):
    """Items that the release does not hold yet: a version of an item feed, or rows that a run validated."""

    source: str = Field(description="key of the folder")
    records: int = Field(description="rows or feed records; only a refresh finds out how many change an item")
    since: str | None = Field(description="time of arrival, or of its training, ISO 8601 in UTC; null: not recorded")


class CatalogueAge(Record):
    """The catalogue of a release, compared with all arrivals since."""

    release: int = Field(description="number of the release")
    items: int = Field(description="live items in the catalogue")
    vectors: int
    bad: int = Field(description="items of the catalogue without a usable vector")
    waiting: tuple[WaitingSource, ...] = Field(
        description="sources that the release does not hold yet, the longest wait first"
    )

    @property
    def coverage(self) -> float:
        """The share of the catalogue's items that have a vector."""
        return self.vectors / (self.vectors + self.bad) if self.vectors + self.bad else 1.0

    @property
    def complete_until(self) -> str | None:
        """Arrivals before this moment are in the catalogue; None if no source waits."""
        return min((each.since for each in self.waiting if each.since is not None), default=None)

    @property
    def sentence(self) -> str:
        """Completeness of the release, and its missing sources, in one sentence."""
        parts = ["the one item has a vector" if self.vectors == 1 else f"all {self.vectors:,} items have a vector"]
        if self.bad:
            parts = [f"{self.coverage:.2%} of {self.vectors + self.bad:,} items have a vector".replace("%", " %", 1)]
            parts += [f"{self.bad:,} without one, for reasons in its infer quarantine"]
        if self.waiting:
            records, number = sum(each.records for each in self.waiting), len(self.waiting)
            parts += [f"{plural(number, 'source')} with {plural(records, 'record')} not in it yet"]
        return ", ".join(parts)

    def hours(self, at: dt.datetime) -> float:
        """Return the longest wait of a source that the release lacks; 0 if it lacks none."""
        if self.complete_until is None:
            return 0.0
        return max(0.0, (at - dt.datetime.fromisoformat(self.complete_until)).total_seconds() / 3600)


def catalogue_age(snapshot: Snapshot, release: Release) -> CatalogueAge:
    """Return how complete a release is. Raises StoreError: its plan, catalogue or lineage is not readable."""
    waiting = [_waiting(snapshot, source) for source in known_items(snapshot.store, release).waiting]
    return CatalogueAge(
        release=release.number,
        items=release.catalogue.items,
        vectors=release.vectors,
        bad=release.bad,
        waiting=tuple(sorted(waiting, key=lambda each: (each.since or "", each.source))),
    )


def _waiting(snapshot: Snapshot, source: RowsRef | FeedRef) -> WaitingSource:
    if isinstance(source, FeedRef):
        facts = read_manifest(snapshot.store, source.prefix).facts
        return WaitingSource(source=source.prefix, records=facts["rows"], since=facts.get("ingested_at"))
    attempts = Run(snapshot, source.run_key).stage(Stage.train).attempts
    trained = [each.ended_at for each in attempts if each.ended_at is not None]
    return WaitingSource(source=source.prefix, records=source.rows, since=max(trained, default=None))
