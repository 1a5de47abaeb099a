"""`millrace ledger`: what became of runs and attempts, where their seconds went, and what they cost."""

import datetime as dt

from flows.cli.terminal import console
from flows.cli.terminal.console import say
from flows.presentation import terminal
from flows.presentation.history.ledger import run_ledger, whole_ledger
from infra.store.base import Store
from tasks.foundation.errors import ConfigError
from tasks.monitoring.ledger_report import LedgerReport, read_ledger, read_run_ledger


def ledger(store: Store, run_key: str | None, since: str | None) -> LedgerReport:
    """Return the ledger of one run, or of all that began since a day or time; without a zone it is in UTC.

    Raises:
        ConfigError: there is no such run, `since` is no time, or both were given.
        StoreError: the workspace could not be read.
    """
    if run_key is None:
        return read_ledger(store, None if since is None else _moment(since))
    if since is not None:
        raise ConfigError("ledger: give --run or --since, not both")
    return read_run_ledger(store, run_key)


def show(report: LedgerReport, one_run: bool) -> None:
    """Print the ledger of one run with its attempts, or that of all runs."""
    for section in run_ledger(report) if one_run else whole_ledger(report):
        console.show(terminal.render(section, report.workspace))
    say(*(f"left out: {problem}" for problem in report.unreadable))


def _moment(text: str) -> str:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--since {text!r} is no day; write it as in 2026-11-20 or 2026-11-20T07:00") from error
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return zoned.astimezone(dt.UTC).isoformat(timespec="microseconds")
