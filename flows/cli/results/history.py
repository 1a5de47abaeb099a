"""`millrace history`: all runs, for people and for scripts."""

from collections.abc import Sequence

from pydantic import Field

from flows.cli.terminal.console import say, show_table
from flows.presentation.forward import CAPTION, forward_rows
from flows.presentation.model import Cell, ended_as, state
from flows.presentation.wording import dollars, duration, moment, now, number, share
from infra.store.base import Store
from tasks.contracts.evaluation import ForwardScore
from tasks.foundation.records import Record
from tasks.monitoring.history import PastRun, RunFacts, age_seconds, read_history
from tasks.monitoring.reader import Reader
from tasks.runs.ledger import Totals

MOST_LINES = 60


class PastRunLine(RunFacts):
    """One run, also one that failed or is not over."""

    seconds: float
    goodput: float | None = Field(description="productive share of its seconds on machines")
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
    runs_succeeded: int = Field(description="of those, that came to a result; a rejection is a result")
    totals: Totals
    runs: tuple[PastRunLine, ...] = Field(description="by their begin")
    forward: tuple[ForwardScore, ...] = Field(description="each release on the spans after it, oldest first")
    unreadable: tuple[str, ...] = Field(description="what had to be left out, and why")


def history(store: Store) -> HistoryOutput:
    """Return all runs, by begin, and the sums over them. Raises StoreError where the workspace can't be read."""
    past = read_history(Reader(store))
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
        forward=tuple(score for _, score in past.forward),
        unreadable=past.problems,
    )


def show(output: HistoryOutput) -> None:
    """Print the newest runs, and the sums over all."""
    columns = ("span", "run", "state", "began", ">time", ">goodput", ">attempts", ">cost", "metric")
    show_table(columns, map(_row, output.runs[-MOST_LINES:]))
    if len(output.runs) > MOST_LINES:
        say(f"the newest {MOST_LINES} of {len(output.runs)} runs")
    _show_forward(output.forward[-MOST_LINES:])
    goodput = share(output.totals.goodput)
    say(f"{output.runs_succeeded} of {output.runs_over} runs came to a result; goodput {goodput}")
    if output.newest_data_seconds is not None and output.target_seconds is not None:
        standing = "beyond" if output.newest_data_seconds > output.target_seconds else "within"
        age, target = duration(output.newest_data_seconds), duration(output.target_seconds)
        say(f"release {output.release} serves; its newest data is {age} old, {standing} the target of {target}")
    say(*(f"left out: {problem}" for problem in output.unreadable))


def _show_forward(scores: Sequence[ForwardScore]) -> None:
    if scores:
        say(f"{CAPTION}:")
        columns, rows = forward_rows(scores)
        show_table(columns, rows)


def _row(run: PastRunLine) -> tuple[Cell | str, ...]:
    text = ended_as(run.state, run.release, run.failure)
    metric = ", ".join(f"{name} {number(value)}" for name, value in list(run.metrics.items())[:1])
    spent = (duration(run.seconds), share(run.goodput), str(run.attempts), dollars(run.cost))
    return (run.span, run.run_key, state(run.state, text), moment(run.began_at), *spent, metric)


def _line(run: PastRun) -> PastRunLine:
    return PastRunLine(
        **run.facts.model_dump(),
        seconds=round(run.wall_seconds, 3),
        goodput=run.totals.goodput,
        cost=run.totals.cost,
        attempts=len(run.attempts),
        metrics=run.metrics,
    )
