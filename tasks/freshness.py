"""How fresh a lineage's released vectors are, and what stands in the way of fresher ones.

It only looks, at nothing but the workspace. What is started and who is told follows in flows/watch.py.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from configs.schema import Config
from infra.store import Store
from tasks import due, releases
from tasks.deadlines import START_MINUTES, Clock, clocks, last_fire, somebody_works
from tasks.durations import old
from tasks.errors import DataError
from tasks.invocations import Invocation
from tasks.problems import Age, Problem, held_up_by, tell
from tasks.records import Record
from tasks.spans import first_day
from tasks.standing import SpanRow, Survey, span_end, span_rows, survey


class FreshnessReport(Record):
    """A lineage at one moment. Times are ISO 8601 in UTC; spans are oldest first."""

    version: Literal[1] = 1
    at: str
    workspace: str
    lineage: str
    continues: str = Field(description="the branch that its runs go on from; else the lineage itself")
    due: str | None = Field(description="the span of the last scheduled run; null: no span has ever arrived")
    release: int | None = Field(description="the current one")
    newest: str | None = Field(description="the newest span in the released vectors")
    newest_ended_at: str | None
    age_hours: float | None = Field(description="of the newest data in the released vectors")
    target_hours: float
    stale: bool
    stale_at: str | None = Field(description="when the released vectors become stale, or did")
    spans: tuple[SpanRow, ...] = Field(description="the newest")
    older: int = Field(description="how many spans lie before those")
    missed: tuple[str, ...] = Field(description="due and arrived, not trained, and no run over it is going on")
    gaps: tuple[str, ...] = Field(description="due, and never arrived")
    clocks: tuple[Clock, ...] = Field(description="runs that are not over, and those that ended late within a day")
    catch_up: str | None = Field(description="the span whose scheduled run brings on all that was missed")
    problems: tuple[Problem, ...] = Field(description="the urgent ones first")

    @property
    def urgent(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.urgent)

    @property
    def sentence(self) -> str:
        """All in all."""
        if self.urgent:
            return " ".join(problem.sentence for problem in self.urgent)
        if self.newest is None:
            return "Nothing is amiss, and nothing released yet."
        return f"Nothing is amiss: the released vectors hold {self.newest}, {old(self.age_hours or 0.0)} old."


def freshness(store: Store, config: Config, at: dt.datetime) -> FreshnessReport:
    """The state of `config.lineage` at the moment `at`, which has an offset.

    A span is due once the scheduled run that takes it should have begun; before, nobody has missed it.

    Raises:
        ConfigError: the cron line is not understood, or spans of several lengths lie in the workspace.
        StoreError: the pointer to the release, or the lineage's head, is not readable.
    """
    due_now = _due(store, config, at)
    seen = survey(store, config.lineage, due_now)
    working = somebody_works(store, config.lineage) if any(one.ended_at is None for one in seen.invocations) else False
    running = {one.span for one in seen.invocations if one.ended_at is None} if working else set[str]()
    continued = config.model_copy(update={"lineage": seen.continues})
    late = due.missed(store, continued, due_now) if due_now else []
    missed = [span for span in late if span not in running]
    rows = span_rows(store, seen, missed, working)
    told = clocks(store, _current(seen), at, working)
    gaps = [span for span in seen.calendar if span not in seen.versions]
    age = _age(store, config, at)
    return FreshnessReport(
        at=_iso(at),
        workspace=store.uri,
        lineage=config.lineage,
        continues=seen.continues,
        due=due_now,
        release=age.release.number if age.release else None,
        newest=age.release.span.name if age.release else None,
        newest_ended_at=_iso(span_end(age.release.span.name)) if age.release else None,
        age_hours=None if age.hours is None else round(age.hours, 2),
        target_hours=age.target_hours,
        stale=age.stale,
        stale_at=_iso(span_end(age.release.span.name) + age.target) if age.release else None,
        spans=tuple(rows),
        older=len(seen.calendar) - len(rows),
        missed=tuple(missed),
        gaps=tuple(gaps),
        clocks=tuple(told),
        catch_up=_catch_up(missed, rows, working),
        problems=tuple(tell(seen, age, rows, told, missed, gaps)),
    )


def _due(store: Store, config: Config, at: dt.datetime) -> str | None:
    """The span of the last scheduled run that has had time to begin."""
    fired = last_fire(config.schedule, at - dt.timedelta(minutes=START_MINUTES))
    try:
        return due.due_span(store, fired, config.schedule.timezone)
    except DataError:  # nothing was ever ingested
        return None


def _current(seen: Survey) -> list[Invocation]:
    """The invocations that count: of a span the last one, unless another run has trained it; and no finished runs'."""
    last = {one.span: one.run_key for one in seen.invocations} | dict(seen.trained_by)
    return [
        one
        for one in seen.invocations
        if one.ended_at is not None or (last[one.span] == one.run_key and not seen.is_released(one.run_key))
    ]


def _catch_up(missed: Sequence[str], rows: Sequence[SpanRow], working: bool) -> str | None:
    """The newest missed span, whose run takes those before it along; None where that would be of no use.

    Whoever works on the lineage comes to the missed ones, or is waited for; what needs people holds up all the rest.
    """
    if not missed or working or held_up_by(rows, missed) is not None:
        return None
    return max(missed, key=first_day)


def _age(store: Store, config: Config, at: dt.datetime) -> Age:
    release = releases.current(store)
    hours = (at - span_end(release.span.name)).total_seconds() / 3600 if release else None
    return Age(release, hours, config.freshness.target_hours)


def _iso(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).isoformat(timespec="seconds")
