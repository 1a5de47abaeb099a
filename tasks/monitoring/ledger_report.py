"""The ledger added up, by run, by week and in all: success rates, goodput, mean time to recover, cost.

It is read from the records of attempts and invocations; nothing is measured here.
"""

import datetime as dt
from collections.abc import Sequence
from typing import TypeVar

from pydantic import Field

from configs.prices import cost_of, repriced
from configs.schema.prices import Charge, PriceList
from infra.store.base import Store
from tasks.contracts.results import Phases
from tasks.foundation.clock import Moment
from tasks.foundation.errors import FailureClass
from tasks.foundation.records import Record
from tasks.monitoring.history import History, RunLine, line_of, read_history
from tasks.monitoring.outages import outages
from tasks.monitoring.work_sums import WorkSums, added, work_sums
from tasks.runs.ledger import LedgerRecord, PricedAttempt, Totals, totals
from tasks.runs.run import Run, read_attempts, read_run
from tasks.runs.snapshot import Snapshot

Sums = TypeVar("Sums", bound="LedgerSums")


class LedgerSums(Record):
    """Sums over runs and their attempts. A ratio is null while there is nothing to divide by."""

    runs_over: int = Field(description="runs that ended and were not cancelled")
    runs_succeeded: int = Field(description="ended runs with a result; a rejection is a result")
    run_success_rate: float | None
    attempts: int = Field(description="attempts that ended")
    attempts_succeeded: int
    attempt_success_rate: float | None
    attempts_by_class: dict[FailureClass, int] = Field(description="attempts that failed, by failure class")
    seconds: Phases = Field(description="seconds by phase")
    goodput: float | None = Field(
        description="productive seconds as a share of all seconds on machines (all but queued)"
    )
    recoveries: int = Field(
        description="outages that are over: from an attempt that fails uncancelled until the same or a later "
        "stage does work that is kept"
    )
    unrecovered: int = Field(description="outages that are not over")
    mean_seconds_to_recover: float | None = Field(
        description="mean length of the outages that are over, in seconds, waiting for people included"
    )
    cost: float | None = Field(description="cost in dollars; null: the price of an attempt's machines is not known")
    charges: tuple[Charge, ...] = Field(description="machine-seconds by instance and price, which the cost adds up")
    repriced: float | None = Field(
        default=None, description="cost at the prices of --prices; null: not asked for, or a machine has no price there"
    )
    repriced_charges: tuple[Charge, ...] = Field(default=(), description="the charges at the prices of --prices")


class LedgerWeek(LedgerSums):
    """The runs that began in one week, in UTC."""

    week: str = Field(description="ISO week, for example 2026-W47")


class LedgerRun(RunLine, LedgerSums):
    """One run of the pipeline, also one that failed or is not over."""


class LedgerReport(Record):
    """`millrace history --ledger`."""

    workspace: str
    since: Moment | None = Field(description="day before which runs are left out; null: none")
    whole: LedgerSums = Field(description="sums over all runs of the pipeline")
    weeks: tuple[LedgerWeek, ...] = Field(description="sums by week, oldest first")
    runs: tuple[LedgerRun, ...] = Field(description="sums by run, in the order of their start")
    other: LedgerSums | None = Field(
        description="sums over attempts of refreshes, publications, comparisons and imports; null: not requested, "
        "or none"
    )
    attempts: tuple[PricedAttempt, ...] = Field(description="attempts of the runs, in the order of their start")
    unreadable: tuple[str, ...] = Field(description="records that had to be left out, and why")


def read_ledger(store: Store, since: str | None = None) -> LedgerReport:
    """Return the ledger of all runs that began at the time `since`, ISO 8601 in UTC, or later; None: of all.

    Raises:
        StoreError: the workspace could not be read.
    """
    snapshot = Snapshot(store)
    past = read_history(snapshot)
    runs = {run.run_key for run in past.runs}
    others = (key for run, keys in snapshot.runs.items() if run not in runs for key in keys)
    found = read_attempts(snapshot, others)
    known = (release.number for release in past.releases)
    work = work_sums(store, known, past.newest_release)
    other = _others(
        [record for record in found if since is None or record.started_at >= since],
        [row for row in work.rows.values() if since is None or row.began_at >= since],
    )
    report = ledger_of(store.uri, past, since)
    unreadable = tuple(dict.fromkeys((*past.problems, *snapshot.problems, *work.problems)))
    return report.model_copy(update={"other": other, "unreadable": unreadable})


def at_prices(report: LedgerReport, lists: Sequence[PriceList]) -> LedgerReport:
    """Return the ledger with second sums, at the prices of other lists."""

    def again(sums: Sums) -> Sums:
        now = repriced(sums.charges, lists)
        return sums.model_copy(update={"repriced": cost_of(now) if now else None, "repriced_charges": now})

    changes = {
        "whole": again(report.whole),
        "weeks": tuple(map(again, report.weeks)),
        "runs": tuple(map(again, report.runs)),
        "other": None if report.other is None else again(report.other),
        "attempts": tuple(PricedAttempt.of(one, lists) for one in report.attempts),
    }
    return report.model_copy(update=changes)


def read_run_ledger(store: Store, run_key: str) -> LedgerReport:
    """Return the ledger of one run.

    Raises:
        ConfigError: there is no such run.
        StoreError: the workspace could not be read.
    """
    snapshot = Snapshot(store)
    return _report(store.uri, [read_run(snapshot, run_key)], None, snapshot.problems)


def ledger_of(workspace: str, past: History, since: str | None = None) -> LedgerReport:
    """Return the ledger of the runs of a past that was read already, without other work."""
    return _report(workspace, [run for run in past.runs if not since or run.began_at >= since], since, past.problems)


def _report(workspace: str, runs: Sequence[Run], since: str | None, problems: Sequence[str]) -> LedgerReport:
    by_week: dict[str, list[Run]] = {}
    for run in runs:
        if run.began_at:
            by_week.setdefault(_week(run.began_at), []).append(run)
    attempts = [attempt for run in runs for attempt in run.attempts]
    return LedgerReport(
        workspace=workspace,
        since=since,
        whole=_sums(runs, attempts),
        weeks=tuple(
            LedgerWeek(week=week, **_sums(began, [one for run in began for one in run.attempts]).model_dump())
            for week, began in sorted(by_week.items())
        ),
        runs=tuple(map(_run, runs)),
        other=None,
        attempts=tuple(map(PricedAttempt.of, sorted(attempts, key=lambda attempt: attempt.started_at))),
        unreadable=tuple(problems),
    )


def _run(run: Run) -> LedgerRun:
    return LedgerRun(**line_of(run), **_sums([run], run.attempts).model_dump())


def _sums(runs: Sequence[Run], attempts: Sequence[LedgerRecord]) -> LedgerSums:
    over = [run.succeeded for run in runs if run.succeeded is not None]
    took, open_in = outages(attempts)
    # The last stage may turn out to be done without another attempt, when only its result could not be read.
    open_in -= {run.run_key for run in runs if run.succeeded}
    return _of_totals(totals(attempts, 0), took, len(open_in), over)


def _others(attempts: Sequence[LedgerRecord], rows: Sequence[WorkSums]) -> LedgerSums | None:
    """Return the sums over attempts outside of runs, and over refreshes and publications; None without any."""
    if not attempts and not rows:
        return None
    took, open_in = outages(attempts)
    took = [*took, *(seconds for row in rows for seconds in row.recoveries)]
    unrecovered = len(open_in) + sum(row.unrecovered for row in rows)
    return _of_totals(added(totals(attempts, 0), rows, 0), took, unrecovered)


def _of_totals(summed: Totals, took: Sequence[float], unrecovered: int, over: Sequence[bool] = ()) -> LedgerSums:
    return LedgerSums(
        runs_over=len(over),
        runs_succeeded=sum(over),
        run_success_rate=sum(over) / len(over) if over else None,
        attempts=summed.attempts,
        attempts_succeeded=summed.succeeded,
        attempt_success_rate=summed.success_rate,
        attempts_by_class=summed.attempts_by_class,
        seconds=summed.seconds,
        goodput=summed.goodput,
        recoveries=len(took),
        unrecovered=unrecovered,
        mean_seconds_to_recover=round(sum(took) / len(took), 3) if took else None,
        cost=summed.cost,
        charges=summed.charges,
    )


def _week(moment: str) -> str:
    year, week, _ = dt.datetime.fromisoformat(moment).astimezone(dt.UTC).isocalendar()
    return f"{year}-W{week:02d}"
