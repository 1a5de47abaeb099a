"""Find invocations that are late, will be late, or are lost; the times of a schedule.

The deadline of a run is in its record; its expected end follows from the remaining work and the speeds in the ledger.
A cron line is read as by cron of Debian, also on days with another offset.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import Field

from tasks.contracts.runs import RunState
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError, FailureClass
from tasks.foundation.records import Record
from tasks.monitoring.estimates import past, stage_cost, work_cost
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord
from tasks.runs.plan import rows_of
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

START_MINUTES = 15.0  # a span counts as missed if its scheduled run has not begun by then
REPORTED_HOURS = 24.0  # reporting period of a late run after its end

Standing = Literal["on time", "will be late", "late"]


class Clock(Record):
    """One invocation against its deadline. Times are ISO 8601 in UTC."""

    run_key: str
    span: str
    lineage: str
    attempt: int = Field(description="number of the invocation")
    standing: Standing
    lost: bool = Field(description="true: its process is gone and recorded no end")
    scheduled_at: str | None
    began_at: str
    ended_at: str | None
    deadline: str
    expected_end: str | None = Field(
        description="expected end of a running invocation; null: no such work is recorded yet"
    )
    failure: FailureClass | None = Field(description="failure class that most of the time was lost to; null: none")
    page: str = Field(description="address of the flow run's page; empty: none")
    flow_run: str


def clocks(snapshot: Snapshot, invocations: Sequence[Invocation], at: dt.datetime) -> list[Clock]:
    """Return invocations that have not ended, or that ended late within the last day, by begin.

    Args:
        invocations: of one lineage, by begin. Only the last one of a run counts.
    """
    last = {one.run_key: one for one in invocations}.values()
    found = [_clock(Run(snapshot, one.run_key), one, at) for one in last]
    return [one for one in found if one is not None]


def expected_end(run: Run, one: Invocation, at: dt.datetime) -> dt.datetime | None:
    """Return the expected end of an invocation that runs at the moment `at`; None without an estimate.

    Done stages don't count; a running stage counts with its estimate less its time so far.
    """
    began = dt.datetime.fromisoformat(one.began_at)
    plan = run.plan
    if plan is not None:
        left = [stage for stage in Stage if not run.stage(stage).done]
        known, rows = past(run.snapshot, plan.history), rows_of(run.snapshot.store, plan.window)
        work = work_cost(known, plan.config, left, rows)
        if left and work.seconds is not None:
            running = [record for record in run.attempts if record.ended_at is None and record.stage in left]
            spent = 0.0
            for record in running[-1:]:
                stage = Stage(record.stage)
                whole = stage_cost(known, plan.config, stage, rows).seconds
                had = (at - dt.datetime.fromisoformat(record.started_at)).total_seconds()
                spent = min(max(had, 0.0), whole or 0.0)
            return at + dt.timedelta(seconds=work.seconds - spent)
    if one.expected_seconds is None:
        return None
    return max(at, began + dt.timedelta(seconds=one.expected_seconds))


def main_cause(one: Invocation, attempts: Iterable[LedgerRecord], until: dt.datetime) -> FailureClass | None:
    """Return the main cause of a delay: CAPACITY if the invocation mostly waited, else its costliest failure class."""
    counted_from = dt.datetime.fromisoformat(one.scheduled_at or one.began_at)
    began = dt.datetime.fromisoformat(one.began_at)
    mine = [record for record in attempts if record.started_at >= one.began_at and record.ended_at is not None]
    waited = max(0.0, (began - counted_from).total_seconds()) + sum(record.seconds.queued for record in mine)
    if waited > (until - counted_from).total_seconds() / 2:
        return FailureClass.CAPACITY
    lost: dict[FailureClass, float] = {}
    for record in mine:
        if record.failure is not None:
            lost[record.failure] = lost.get(record.failure, 0.0) + record.wall_seconds
    return max(lost, key=lambda failure: lost[failure], default=None)


def _clock(run: Run, one: Invocation, at: dt.datetime) -> Clock | None:
    """Return None for an invocation that ended, unless it ended late a short while ago."""
    deadline = dt.datetime.fromisoformat(one.deadline)
    ended = dt.datetime.fromisoformat(one.ended_at) if one.ended_at else None
    if ended is not None and (ended <= deadline or at - ended > dt.timedelta(hours=REPORTED_HOURS)):
        return None
    lost = ended is None and run.state is RunState.LOST
    expected = expected_end(run, one, at) if ended is None and not lost else None
    standing: Standing = "on time"
    if (ended or at) > deadline:
        standing = "late"
    elif expected is not None and expected > deadline:
        standing = "will be late"
    return Clock(
        run_key=one.run_key,
        span=one.span,
        lineage=one.lineage,
        attempt=one.number,
        standing=standing,
        lost=lost,
        scheduled_at=one.scheduled_at,
        began_at=one.began_at,
        ended_at=one.ended_at,
        deadline=one.deadline,
        expected_end=expected.isoformat(timespec="seconds") if expected else None,
        failure=main_cause(one, run.attempts, ended or at) if standing != "on time" else None,
        page=one.page,
        flow_run=one.flow_run,
    )


_SECOND = dt.timedelta(seconds=1)


def check_schedule(cron: str, timezone: str) -> None:
    """Raise ConfigError for a cron line that Prefect does not understand, or this file."""
    from prefect.server.schemas.schedules import CronSchedule  # a second of loading

    try:
        CronSchedule(cron=cron, timezone=timezone)
    except ValueError as error:
        raise _not_understood(cron) from error
    next_fire(cron, timezone)


def last_fire(cron: str, timezone: str, at: dt.datetime) -> dt.datetime:
    """Return when the schedule last started a run, in UTC, `at` included.

    Raises:
        ConfigError: the cron line is not understood, or names a date that never comes, as the 30th of February.
    """
    return next(_times(cron, timezone, at + _SECOND, back=True)).astimezone(dt.UTC)


def next_fire(cron: str, timezone: str) -> dt.datetime:
    """Return the next start of the schedule. Raises as `last_fire`."""
    return next(_times(cron, timezone, dt.datetime.now(dt.UTC), back=False))


def _times(cron: str, timezone: str, since: dt.datetime, back: bool) -> CronSim:
    local = since.astimezone(dt.UTC).replace(microsecond=0).astimezone(ZoneInfo(timezone))
    try:
        return CronSim(cron, local, reverse=back)
    except CronSimError as error:
        raise _not_understood(cron) from error


def _not_understood(cron: str) -> ConfigError:
    return ConfigError(
        f"schedule.cron {cron!r} is not a cron line: minute, hour, day of the month, month, day of the week, "
        "as in '0 6 * * 1'"
    )
