"""The ledger added up, by run, by week and in all: success rates, goodput, mean time to recover, cost.

It is read from the records of attempts and invocations; nothing is measured here.
"""

import datetime as dt
from collections.abc import Sequence
from typing import TypeVar

from pydantic import Field

from configs.prices import repriced
from configs.schema.operations import PriceList
from infra.store.base import Store
from tasks.foundation.clock import Moment
from tasks.foundation.records import Record
from tasks.monitoring.history import History, RunLine, line_of, read_history
from tasks.monitoring.work_sums import work_sums
from tasks.runs.ledger import PricedAttempt
from tasks.runs.run import Run, read_attempts, read_run
from tasks.runs.snapshot import Snapshot
from tasks.runs.sums import Sums, sums_of, total

OneSum = TypeVar("OneSum", bound=Sums)


class LedgerWeek(Sums):
    """The runs that began in one week, in UTC."""

    week: str = Field(description="ISO week, for example 2026-W47")


class LedgerRun(RunLine, Sums):
    """One run of the pipeline, also one that failed or is not over."""


class LedgerReport(Record):
    """`millrace history --ledger`."""

    workspace: str
    since: Moment | None = Field(description="day before which runs are left out; null: none")
    whole: Sums = Field(description="sums over all runs of the pipeline")
    weeks: tuple[LedgerWeek, ...] = Field(description="sums by week, oldest first")
    runs: tuple[LedgerRun, ...] = Field(description="sums by run, in the order of their start")
    other: Sums | None = Field(
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
    apart = sums_of(record for record in found if since is None or record.started_at >= since)
    rows = [row for row in work.rows.values() if since is None or row.began_at >= since]
    other = total((apart, *rows)) if apart.runs or rows else None
    report = ledger_of(store.uri, past, since)
    unreadable = tuple(dict.fromkeys((*past.problems, *snapshot.problems, *work.problems)))
    return report.model_copy(update={"other": other, "unreadable": unreadable})


def at_prices(report: LedgerReport, lists: Sequence[PriceList]) -> LedgerReport:
    """Return the ledger with second sums, at the prices of other lists."""

    def again(sums: OneSum) -> OneSum:
        return sums.model_copy(update={"repriced_charges": repriced(sums.charges, lists)})

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
        whole=total(run.totals for run in runs),
        weeks=tuple(
            LedgerWeek(week=week, **dict(total(run.totals for run in began))) for week, began in sorted(by_week.items())
        ),
        runs=tuple(LedgerRun(**line_of(run), **dict(run.totals)) for run in runs),
        other=None,
        attempts=tuple(map(PricedAttempt.of, sorted(attempts, key=lambda attempt: attempt.started_at))),
        unreadable=tuple(problems),
    )


def _week(moment: str) -> str:
    year, week, _ = dt.datetime.fromisoformat(moment).astimezone(dt.UTC).isocalendar()
    return f"{year}-W{week:02d}"
