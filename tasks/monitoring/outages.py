"""Outages: from the failure of an attempt until work continues, by the records of attempts."""

import datetime as dt
from collections.abc import Iterable

from tasks.contracts.stages import Chore, Stage, Work
from tasks.foundation.errors import FailureClass
from tasks.runs.ledger import LedgerRecord

_STAGES: tuple[Work, ...] = (*Stage, *Chore)


def outages(attempts: Iterable[LedgerRecord]) -> tuple[list[float], set[str]]:
    """Return the seconds of each finished outage, and the runs with an open one.

    Failures that follow each other without work in between are one outage. Work of an earlier stage than the one that
    failed first does not end it.
    """
    down: dict[str, tuple[dt.datetime, int]] = {}  # run -> end of the first failure, and place of its stage
    took = []
    for record in sorted(attempts, key=lambda record: (record.started_at, record.attempt)):
        run, place = record.run_key, _STAGES.index(record.stage)
        done = record.ended_at is not None and record.failure is None
        if run in down and place >= down[run][1] and (done or record.seconds.productive):
            since, _ = down.pop(run)
            took.append(max(0.0, (_works_since(record) - since).total_seconds()))
        if record.ended_at and record.failure not in (None, FailureClass.CANCELLED) and run not in down:
            down[run] = (dt.datetime.fromisoformat(record.ended_at), place)
    return took, set(down)


def _works_since(record: LedgerRecord) -> dt.datetime:
    """Return the begin of productive work in an attempt, as if all compiling came first."""
    seconds = record.seconds
    before = seconds.queued + seconds.booting + seconds.compiling + seconds.restoring
    return dt.datetime.fromisoformat(record.started_at) + dt.timedelta(seconds=before)
