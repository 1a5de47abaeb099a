"""The ages of a release (its model's data, its catalogue), and the problems that prevent newer ones.

It only reads the workspace. flows/watch.py starts runs and sends alerts.
"""

import contextlib
import datetime as dt
import logging
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import read_fact
from tasks.contracts.evaluation import USUAL_SPANS, FewRows, few_rows
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import Hold
from tasks.contracts.spans import first_day, in_order
from tasks.foundation.clock import old
from tasks.foundation.errors import DataError, StoreError
from tasks.foundation.records import Record
from tasks.monitoring.deadlines import START_MINUTES, Clock, clocks, last_fire
from tasks.monitoring.problems import Age, Problem, Waiting, find_problems, held_up_by, may_pass
from tasks.monitoring.progress import (
    CatalogueAge,
    SpanRow,
    Survey,
    catalogue_age,
    postponed,
    span_end,
    span_rows,
    survey,
)
from tasks.planning import next_run
from tasks.runs.invocations import Invocation, is_held
from tasks.runs.snapshot import Snapshot

_log = logging.getLogger("millrace")


class FreshnessReport(Record):
    """A lineage at one moment. Times are ISO 8601 in UTC; spans are oldest first."""

    version: Literal[1] = 1
    at: str
    workspace: str
    lineage: str
    continues: str = Field(description="branch that its runs continue; else the lineage itself")
    due: str | None = Field(description="span of the last scheduled run; null: no span has ever arrived")
    release: int | None = Field(description="number of the current release")
    hold: Hold | None = Field(
        description="hold, during which no run or refresh changes the current release; null: none"
    )
    newest: str | None = Field(description="newest span in the released vectors")
    newest_ended_at: str | None = Field(description="end of that span, from which the age counts")
    age_hours: float | None = Field(description="age of the newest data in the released vectors, in hours")
    target_hours: float = Field(description="greatest age allowed, in hours (freshness.target_hours)")
    stale: bool
    stale_at: str | None = Field(description="time at which the released vectors become stale, or did")
    catalogue: CatalogueAge | None = Field(description="items of the current release; null: nothing is released")
    catalogue_age_hours: float | None = Field(
        description="longest time that an item has waited for a release, in hours; 0: none waits"
    )
    catalogue_target_hours: float = Field(
        description="longest wait allowed, in hours (freshness.catalogue_target_hours)"
    )
    coverage: float | None = Field(description="share of the release's items that have a vector; 1.0 is all")
    spans: tuple[SpanRow, ...] = Field(description="newest spans, oldest first")
    older: int = Field(description="number of spans before these")
    missed: tuple[str, ...] = Field(description="spans that are due and arrived, are not trained, and have no run now")
    gaps: tuple[str, ...] = Field(description="spans that are due and never arrived")
    clocks: tuple[Clock, ...] = Field(description="runs that have not ended, or that ended late within the last day")
    catch_up: str | None = Field(description="span whose run takes all that was missed, or continues a lost run")
    problems: tuple[Problem, ...] = Field(description="problems, the urgent ones first")

    @property
    def urgent(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.urgent)

    @property
    def sentence(self) -> str:
        """The whole report in a sentence."""
        if self.urgent:
            return " ".join(problem.sentence for problem in self.urgent)
        if self.newest is None:
            return "Nothing is wrong, and nothing is released yet."
        items = f"; {self.catalogue.sentence}" if self.catalogue else ""
        return f"Nothing is wrong: the released vectors hold {self.newest}, {old(self.age_hours or 0.0)} old{items}."


def freshness(store: Store, config: Config, at: dt.datetime) -> FreshnessReport:
    """Return the state of `config.lineage` as `freshness_seen` does, and log unreadable records."""
    snapshot = Snapshot(store)
    found = freshness_seen(snapshot, config, at)
    for unreadable in snapshot.problems:
        _log.warning("left out: %s", unreadable)
    return found


def freshness_seen(
    snapshot: Snapshot, config: Config, at: dt.datetime, known: CatalogueAge | None = None
) -> FreshnessReport:
    """Return the state of `config.lineage` at the moment `at`, which has an offset.

    A span is due once the scheduled run that takes it should have begun. Records of runs that can't be read are left
    out; `snapshot.problems` names them.

    Args:
        snapshot: new, or at most a moment old.
        known: the age of the current catalogue, if computed a moment ago.

    Raises:
        ConfigError: the cron line is not understood, or the workspace holds spans of several lengths.
        StoreError: the pointer to the release, its plan or catalogue, or the lineage's head, is not readable.
    """
    store = snapshot.store
    due_now = _due(store, config, at)
    seen = survey(snapshot, config.lineage, due_now)
    working = is_held(store, config.lineage) if any(one.ended_at is None for one in seen.invocations) else False
    running = {one.span for one in seen.invocations if one.ended_at is None} if working else set[str]()
    continued = config.model_copy(update={"lineage": seen.continues})
    late = next_run.missed(store, continued, due_now) if due_now else []
    missed = [span for span in late if span not in running]
    rows = span_rows(snapshot, seen, missed, postponed(store, continued, seen))
    late_runs = clocks(snapshot, _current(seen), at)
    gaps = [span for span in seen.calendar if span not in seen.versions]
    again = _catch_up(seen, missed, rows, working)
    age = _age(snapshot, config, at)
    catalogue = known if age.release and known and known.release == age.release.number else None
    if catalogue is None and age.release is not None:
        catalogue = catalogue_age(snapshot, age.release)
    waiting = Waiting(catalogue, catalogue.hours(at) if catalogue else 0.0, config.freshness.catalogue_target_hours)
    hold = snapshot.hold
    few = _few_rows(store, config, seen)
    return FreshnessReport(
        at=_iso(at),
        workspace=store.uri,
        lineage=config.lineage,
        continues=seen.continues,
        due=due_now,
        release=age.release.number if age.release else None,
        hold=hold,
        newest=age.release.span.name if age.release else None,
        newest_ended_at=_iso(span_end(age.release.span.name)) if age.release else None,
        age_hours=None if age.hours is None else round(age.hours, 2),
        target_hours=age.target_hours,
        stale=age.stale,
        stale_at=_iso(span_end(age.release.span.name) + age.target) if age.release else None,
        catalogue=catalogue,
        catalogue_age_hours=round(catalogue.hours(at), 2) if catalogue else None,
        catalogue_target_hours=config.freshness.catalogue_target_hours,
        coverage=catalogue.coverage if catalogue else None,
        spans=tuple(rows),
        older=len(seen.calendar) - len(rows),
        missed=tuple(missed),
        gaps=tuple(gaps),
        clocks=tuple(late_runs),
        catch_up=again,
        problems=tuple(find_problems(seen, age, waiting, rows, late_runs, missed, gaps, again, hold, few)),
    )


def _few_rows(store: Store, config: Config, seen: Survey) -> list[FewRows]:
    """Return the newest span that has arrived, and later open ones, if they have far fewer rows than usual."""
    rows = dict(seen.trained_rows)
    open_ones = [name for name in seen.calendar if name in seen.versions and name not in rows][-USUAL_SPANS:]
    for name in open_ones:
        with contextlib.suppress(StoreError):  # an unreadable span has its own problem
            rows[name] = read_fact(store, SpanRef(name=name, version=seen.versions[name]).prefix, "rows", int)
    ordered = {name: rows[name] for name in in_order([*rows])}
    still = {*open_ones, *[*ordered][-1:]}
    return [each for each in few_rows(ordered, config.validate_.before.missing.warn) if each.span in still]


def _due(store: Store, config: Config, at: dt.datetime) -> str | None:
    """Return the span of the last scheduled run that has had time to begin."""
    fired = last_fire(config.schedule.cron, config.schedule.timezone, at - dt.timedelta(minutes=START_MINUTES))
    try:
        return next_run.due_span(store, fired, config.schedule.timezone)
    except DataError:  # nothing was ever ingested
        return None


def _current(seen: Survey) -> list[Invocation]:
    """Return the last invocation of each unreleased span, or of the run that trained it."""
    last = {one.span: one.run_key for one in seen.invocations} | dict(seen.trained_by)
    return [
        one
        for one in seen.invocations
        if one.ended_at is not None or (last[one.span] == one.run_key and one.run_key not in seen.released)
    ]


def _catch_up(seen: Survey, missed: Sequence[str], rows: Sequence[SpanRow], working: bool) -> str | None:
    """Return the span to run next: the newest missed one, after earlier missed spans; None if a run can't help.

    If no span was missed: the span of the last run, if that was lost or failed transiently. A run can't help while a
    process works on the lineage, or if a failed run needs a person.
    """
    if working or held_up_by(rows, missed) is not None:
        return None
    return max(missed, key=first_day) if missed else _interrupted(seen, rows)


def _interrupted(seen: Survey, rows: Sequence[SpanRow]) -> str | None:
    """Return the span of the run that began last, if it broke off after its training or is the lineage's first run."""
    last = seen.invocations[-1].run_key if seen.invocations else None
    for row in rows:
        if row.run_key == last and row.state in ("Lost", "Failed") and may_pass(row):
            trained = row.span == seen.watermark and row.trained_version == row.version
            return row.span if trained or not seen.consumed else None
    return None


def _age(snapshot: Snapshot, config: Config, at: dt.datetime) -> Age:
    release = snapshot.current
    hours = (at - span_end(release.span.name)).total_seconds() / 3600 if release else None
    return Age(release, hours, config.freshness.target_hours)


def _iso(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).isoformat(timespec="seconds")
