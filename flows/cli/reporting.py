"""`millrace history`: all runs as people and scripts read them; and the files that `--html` and `--out` write."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import Field
from rich.console import Console
from rich.table import Table

from flows.reports.wording import dollars, duration, moment, now, number, share
from infra.store import Store
from tasks.errors import FailureClass, StoreError
from tasks.history import PastRun, RunState, age_seconds, read_history
from tasks.ledger import Totals
from tasks.records import Record

MOST_LINES = 60


class PastRunLine(Record):
    """One run, whatever became of it."""

    run_key: str
    span: str
    lineage: str
    state: RunState
    release: int | None
    failure: FailureClass | None
    began_at: str
    ended_at: str | None
    seconds: float
    goodput: float | None
    cost: float
    attempts: int
    metrics: dict[str, float]


class HistoryOutput(Record):
    """`millrace history`."""

    workspace: str
    release: int | None = Field(description="that serves")
    newest_data_seconds: float | None = Field(description="age of the newest data in that release")
    target_seconds: float | None
    runs_over: int = Field(description="that ended and were not cancelled")
    runs_succeeded: int = Field(description="of those, that came to a result; a rejection is one")
    totals: Totals
    runs: tuple[PastRunLine, ...]
    unreadable: tuple[str, ...] = Field(description="what had to be left out, and why")


def history(store: Store) -> HistoryOutput:
    """All runs, by begin, with the sums over them. Raises StoreError where the workspace can't be read."""
    past = read_history(store)
    succeeded, over = past.judged_runs
    return HistoryOutput(
        workspace=store.uri,
        release=past.current.number if past.current else None,
        newest_data_seconds=age_seconds(past.current, now()),
        target_seconds=past.target_hours * 3600 if past.target_hours else None,
        runs_over=over,
        runs_succeeded=succeeded,
        totals=past.totals,
        runs=tuple(map(_line, past.runs)),
        unreadable=past.problems,
    )


def show(output: HistoryOutput) -> None:
    """As people read it: the newest runs, and what they come to."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("span", "run", "state", "began", "time", "goodput", "attempts", "cost", "metric"):
        table.add_column(name, justify="right" if name in ("time", "goodput", "attempts", "cost") else "left")
    for run in output.runs[-MOST_LINES:]:
        state = f"{run.state} as {run.release}" if run.release else f"{run.state} {run.failure or ''}".rstrip()
        metric = ", ".join(f"{name} {number(value)}" for name, value in list(run.metrics.items())[:1])
        spent = (duration(run.seconds), share(run.goodput), str(run.attempts), dollars(run.cost))
        table.add_row(run.span, run.run_key, state, moment(run.began_at), *spent, metric)
    console.print(table, markup=False)
    say = [
        f"{output.runs_succeeded} of {output.runs_over} runs came to a result; goodput {share(output.totals.goodput)}"
    ]
    if len(output.runs) > MOST_LINES:
        say.insert(0, f"the newest {MOST_LINES} of {len(output.runs)} runs")
    if output.newest_data_seconds is not None and output.target_seconds is not None:
        standing = "beyond" if output.newest_data_seconds > output.target_seconds else "within"
        age, target = duration(output.newest_data_seconds), duration(output.target_seconds)
        say.append(f"release {output.release} serves; its newest data is {age} old, {standing} the target of {target}")
    for line in (*say, *(f"left out: {problem}" for problem in output.unreadable)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def write_file(path: Path, data: bytes) -> None:
    """Put a file in place at once: whoever reads it meanwhile, such as node_exporter, gets the old one or the new one.

    Raises:
        StoreError: it can't be written; names the path.
    """
    path = path.expanduser().absolute()
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            staged.write_bytes(data)
            os.replace(staged, path)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror or error}") from error


def _line(run: PastRun) -> PastRunLine:
    return PastRunLine(
        run_key=run.run_key,
        span=run.span,
        lineage=run.lineage,
        state=run.state,
        release=run.release.number if run.release else None,
        failure=run.failure,
        began_at=run.began_at,
        ended_at=run.ended_at,
        seconds=round(run.wall_seconds, 3),
        goodput=run.totals.goodput,
        cost=run.totals.cost,
        attempts=len(run.attempts),
        metrics=run.metrics,
    )
