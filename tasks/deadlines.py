"""Invocations against the clock: which run is late, which one will be, and which was lost on the way.

A run's deadline is in its record; when it should end follows from what is left of it and the ledger's speeds.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import zoneinfo
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from configs.operations_schema import ScheduleConfig
from infra.store import Store
from tasks import ledger
from tasks.contracts import Stage
from tasks.errors import ConfigError, FailureClass, StoreError
from tasks.expected import expected_stage, expected_work, past, rows_of, workers_of
from tasks.invocations import Invocation
from tasks.ledger import LedgerRecord
from tasks.plan import read_plan
from tasks.records import Record
from tasks.results import result_key

START_MINUTES = 15.0  # a scheduled run may take so long to begin before its span counts as missed
TOLD_HOURS = 24.0  # so long after its end is a run that ended late still told of

Standing = Literal["on time", "will be late", "late"]


class Clock(Record):
    """One invocation against its deadline. Times are ISO 8601 in UTC."""

    run_key: str
    span: str
    lineage: str
    attempt: int = Field(description="number of the invocation")
    standing: Standing
    lost: bool = Field(description="its process is gone and left no end on record")
    scheduled_at: str | None
    began_at: str
    ended_at: str | None
    deadline: str
    expected_end: str | None = Field(description="of one that runs; null: nothing like it is on record yet")
    failure: FailureClass | None = Field(description="the class that most of the time went to; null: to work")
    page: str = Field(description="the flow run's page; empty outside of one")
    flow_run: str


def last_fire(schedule: ScheduleConfig, at: dt.datetime) -> dt.datetime:
    """When the schedule last started a run, `at` included.

    Raises:
        ConfigError: the cron line is not understood.
    """
    from prefect._vendor.croniter import croniter  # a second of loading, and what Prefect reads cron lines with

    zone = zoneinfo.ZoneInfo(schedule.timezone)
    wall = at.astimezone(zone).replace(tzinfo=None, microsecond=0) + dt.timedelta(seconds=1)
    try:
        return croniter(schedule.cron, wall).get_prev(dt.datetime).replace(tzinfo=zone)
    except ValueError as error:
        raise ConfigError(f"schedule.cron {schedule.cron!r} is not understood: {error}") from error


def somebody_works(store: Store, lineage: str) -> bool:
    """Whether a process holds the lineage: the one sign of life that a killed run can't leave behind for long.

    Who may only read the workspace can't find out, and hears yes: nobody is declared dead without proof.
    """
    try:
        with store.lock(f"lineages/{lineage}.run"):
            return False
    except (OSError, StoreError):  # Conflict among them
        return True


def clocks(store: Store, told: Sequence[Invocation], at: dt.datetime, working: bool) -> list[Clock]:
    """The invocations that are not over, and those that ended late within a day, by begin.

    Args:
        told: of one lineage, by begin. Of one run the last alone is looked at: it supersedes the others.
        working: whether somebody holds the lineage; else what has no end on record was lost.
    """
    last = {one.run_key: one for one in told}.values()
    found = [_clock(store, one, at, working) for one in last]
    return [one for one in found if one is not None]


def expected_end(
    store: Store, one: Invocation, at: dt.datetime, attempts: Iterable[LedgerRecord]
) -> dt.datetime | None:
    """When an invocation that runs at the moment `at` should end; None where nothing on record tells.

    Stages that are done don't count; of the one that runs, what is left after the time it has had.
    """
    began = dt.datetime.fromisoformat(one.began_at)
    with contextlib.suppress(StoreError):
        plan = read_plan(store, one.run_key)
        there = set(store.list(f"runs/{one.run_key}"))
        left = [stage for stage in Stage if result_key(one.run_key, stage) not in there]
        known, rows = past(store, plan.history), rows_of(store, plan.window)
        work = expected_work(known, plan.config, left, rows)
        if left and work is not None:
            running = [record for record in attempts if record.ended_at is None and record.stage in left]
            spent = 0.0
            for record in running[-1:]:
                stage = Stage(record.stage)
                whole = expected_stage(known, stage, rows, workers_of(plan.config, stage))
                had = (at - dt.datetime.fromisoformat(record.started_at)).total_seconds()
                spent = min(max(had, 0.0), whole.seconds if whole else 0.0)
            return at + dt.timedelta(seconds=work.seconds - spent)
    if one.expected_seconds is None:
        return None
    return max(at, began + dt.timedelta(seconds=one.expected_seconds))


def to_blame(one: Invocation, attempts: Iterable[LedgerRecord], until: dt.datetime) -> FailureClass | None:
    """What an invocation lost most of its time to: CAPACITY where it mostly waited, else the class of its failures."""
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


def _clock(store: Store, one: Invocation, at: dt.datetime, working: bool) -> Clock | None:
    """None for one that is over, unless it ended late a short while ago."""
    deadline = dt.datetime.fromisoformat(one.deadline)
    ended = dt.datetime.fromisoformat(one.ended_at) if one.ended_at else None
    if ended is not None and (ended <= deadline or at - ended > dt.timedelta(hours=TOLD_HOURS)):
        return None
    attempts = ledger.records(store, one.run_key)
    expected = expected_end(store, one, at, attempts) if ended is None and working else None
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
        lost=ended is None and not working,
        scheduled_at=one.scheduled_at,
        began_at=one.began_at,
        ended_at=one.ended_at,
        deadline=one.deadline,
        expected_end=expected.isoformat(timespec="seconds") if expected else None,
        failure=to_blame(one, attempts, ended or at) if standing != "on time" else None,
        page=one.page,
        flow_run=one.flow_run,
    )
