"""`millrace history`: all runs, their ledger, and their numbers for Prometheus."""

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from configs.prices import read_prices
from flows.cli.terminal.command import command
from flows.cli.terminal.options import write
from flows.presentation import queries
from flows.presentation.costs import priced
from flows.presentation.history.ledger import run_ledger, whole_ledger
from flows.presentation.history.page import history_html
from flows.presentation.model import Cell, Parts, ended_as, state, table
from flows.presentation.queries import CAPTION, forward_rows
from flows.presentation.releases import published_as
from flows.presentation.wording import ON_HOLDOUT, count, dollars, duration, moment, now, share
from infra.store.base import Store
from tasks.contracts.evaluation import ByQueries, ForwardScore
from tasks.contracts.runs import Release
from tasks.foundation.errors import ConfigError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.monitoring.history import RunLine, age_seconds, line_of, read_history
from tasks.monitoring.ledger_report import LedgerReport, at_prices, read_ledger, read_run_ledger
from tasks.monitoring.prometheus import metrics_text
from tasks.runs.audit import Audit, read_audit
from tasks.runs.plan import find_run
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot
from tasks.runs.sums import Sums

MOST_LINES = 60
MOST_CHANGES = 20


class HistoryLine(RunLine):
    """A run with its seconds, cost and metrics."""

    seconds: float
    goodput: float | None = Field(description="productive share of its seconds on machines")
    cost: float | None = Field(description="cost in dollars; null: a machine has no price")
    attempts: int
    metrics: dict[str, float] = Field(description="metrics on the whole holdout, unseen and seen queries together")
    by_queries: ByQueries | None = Field(description="the same for unseen and seen queries apart; null: not evaluated")


class PublishedLine(Record):
    """One release: a new model, or a refresh of an earlier one."""

    release: int
    refreshed: int | None = Field(description="number of the release whose model it keeps; null: a new model")
    span: str
    run_key: str
    created_at: str
    vectors: int
    metrics: dict[str, float] = Field(description="metrics of its model on the whole holdout")
    by_queries: ByQueries | None = Field(description="the same for unseen and seen queries apart; null: not measured")


class HistoryOutput(Record):
    """`millrace history`."""

    workspace: str
    release: int | None = Field(description="number of the current release")
    newest_data_seconds: float | None = Field(description="age of the newest data in that release, in seconds")
    target_seconds: float | None = Field(description="greatest age allowed, in seconds")
    totals: Sums = Field(description="sums over all runs")
    runs: tuple[HistoryLine, ...] = Field(description="runs in the order of their start")
    releases: tuple[PublishedLine, ...] = Field(description="newest releases, refreshes included, oldest first")
    forward: tuple[ForwardScore, ...] = Field(description="score of each release on the spans after it, oldest first")
    by_hand: tuple[Audit, ...] = Field(description="newest changes by a person or by a prune, oldest first")
    unreadable: tuple[str, ...] = Field(description="records that had to be left out, and why")


def history_page(output: HistoryOutput | LedgerReport, run_key: str | None) -> Parts:
    """Yield the newest runs and the sums over all, or the ledger: of one run with its attempts, or of all runs."""
    if isinstance(output, LedgerReport):
        yield from run_ledger(output) if run_key is not None else whole_ledger(output)
    else:
        yield from _runs(output)
    yield from (f"left out: {problem}" for problem in output.unreadable)


def _runs(output: HistoryOutput) -> Parts:
    metric = queries.metric_of(run.by_queries for run in reversed(output.runs))
    columns = ("span", "run", "state", "began", ">time", ">goodput", ">attempts", ">cost", *queries.columns(metric))
    yield table("", columns, (_row(run, metric) for run in output.runs[-MOST_LINES:]))
    if output.runs:
        yield f"cost of all runs: {priced(output.totals.cost, output.totals.charges)}"
    if len(output.runs) > MOST_LINES:
        yield f"the newest {MOST_LINES} of {len(output.runs)} runs"
    yield from _releases(output)
    if scores := output.forward[-MOST_LINES:]:
        yield f"{CAPTION}:"
        yield table("", *forward_rows(scores))
    summed = output.totals
    ended = f"{summed.runs_succeeded} of {plural(summed.runs_over, 'run')} came to a result"
    yield f"{ended}; goodput {share(summed.goodput)}"
    if output.newest_data_seconds is not None and output.target_seconds is not None:
        standing = "beyond" if output.newest_data_seconds > output.target_seconds else "within"
        age, target = duration(output.newest_data_seconds), duration(output.target_seconds)
        yield f"release {output.release} serves; its newest data is {age} old, {standing} the target of {target}"
    if output.by_hand:
        yield "changes by hand:"
        yield table("", ("at", "change", "~by", "~about", "end"), map(_by_hand, output.by_hand))


def _by_hand(change: Audit) -> tuple[Cell | str, ...]:
    by = ", ".join(filter(None, (change.by, change.identity)))
    about = ", ".join(f"{name} {value}" for name, value in change.about.items())
    end = change.failure or ("done" if change.ended_at is not None else "not ended")
    return moment(change.at), change.verb, by, about, end


@command(history_page)
def history(
    store: Store,
    html: Annotated[Path | None, typer.Option(help="Write one HTML file instead of printing.")] = None,
    ledger: Annotated[
        bool,
        typer.Option("--ledger", help="Show the ledger instead: success rates, goodput, mean time to recover, cost."),
    ] = False,
    run_key: Annotated[
        str | None,
        typer.Option(
            "--run",
            help="With --ledger: the attempts of this run; takes a key or its beginning.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="With --ledger: only runs since this day, as in 2026-11-20, or time; in UTC."),
    ] = None,
    prometheus: Annotated[
        Path | None, typer.Option(help="Write metrics for Prometheus to this file instead; - prints them.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="With --ledger: a YAML file of price lists; shows costs at these prices too.")
    ] = None,
    as_json: bool = False,
) -> HistoryOutput | LedgerReport | None:
    """Show all runs with results, times and costs, and how fresh the released data is; or sums over their attempts."""
    if not ledger and (run_key is not None or since is not None or prices is not None):
        raise ConfigError(
            "history: --run, --since and --prices go with --ledger; one run in full: millrace report --run KEY"
        )
    if sum((ledger, prometheus is not None, html is not None)) > 1:
        raise ConfigError("history: give one of --ledger, --prometheus and --html")
    if ledger:
        found = _ledger(store, run_key, since)
        return found if prices is None else at_prices(found, read_prices(prices, "--prices "))
    if prometheus is not None:
        _write_metrics(store, prometheus)
        return None
    if html is not None:
        write(html, history_html(store))
    return _all_runs(store) if html is None or as_json else None


def _all_runs(store: Store) -> HistoryOutput:
    """Return all runs, by begin, and the sums over them."""
    past = read_history(Snapshot(store))
    return HistoryOutput(
        workspace=store.uri,
        release=past.current.number if past.current else None,
        newest_data_seconds=age_seconds(past.current, now()),
        target_seconds=past.target_hours * 3600 if past.target_hours else None,
        totals=past.totals,
        runs=tuple(map(_line, past.runs)),
        releases=tuple(map(_published, past.published)),
        forward=tuple(score for _, score in past.forward),
        by_hand=read_audit(store, MOST_CHANGES),
        unreadable=past.problems,
    )


def _ledger(store: Store, run_key: str | None, since: str | None) -> LedgerReport:
    if run_key is None:
        return read_ledger(store, None if since is None else _moment(since))
    if since is not None:
        raise ConfigError("history --ledger: give --run or --since, not both")
    return read_run_ledger(store, find_run(store, run_key))


def _write_metrics(store: Store, file: Path) -> None:
    text = metrics_text(store)
    if str(file) == "-":
        typer.echo(text, nl=False)
    else:
        write(file, text)


def _moment(text: str) -> str:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--since {text!r} is no day; write it as in 2026-11-20 or 2026-11-20T07:00") from error
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return zoned.astimezone(dt.UTC).isoformat(timespec="microseconds")


def _releases(output: HistoryOutput) -> Parts:
    """Yield the newest releases if refreshes are among them; else the runs tell all."""
    newest = output.releases[-MOST_LINES:]
    if any(each.refreshed is not None for each in newest):
        yield f"Releases and refreshes; metrics {ON_HOLDOUT}:"
        metric = queries.metric_of(each.by_queries for each in newest)
        columns = (">release", "", "span", "made at", ">vectors", *queries.columns(metric))
        rows = (
            (
                str(each.release),
                published_as(each.refreshed),
                each.span,
                moment(each.created_at),
                count(each.vectors),
                *queries.cells(each.by_queries, metric),
            )
            for each in newest
        )
        yield table("", columns, rows)


def _row(run: HistoryLine, metric: str | None) -> tuple[Cell | str, ...]:
    text = ended_as(run.state, run.release, run.failure)
    spent = (duration(run.seconds), share(run.goodput), str(run.attempts), dollars(run.cost))
    told = (run.span, run.run_key, state(run.state, text), moment(run.began_at))
    return (*told, *spent, *queries.cells(run.by_queries, metric))


def _published(release: Release) -> PublishedLine:
    return PublishedLine(
        release=release.number,
        refreshed=release.refreshed,
        span=release.span.name,
        run_key=release.run_key,
        created_at=release.created_at,
        vectors=release.vectors,
        metrics=release.metrics,
        by_queries=release.by_queries,
    )


def _line(run: Run) -> HistoryLine:
    return HistoryLine(
        **line_of(run),
        seconds=round(run.wall_seconds, 3),
        goodput=run.totals.goodput,
        cost=run.totals.cost,
        attempts=len(run.attempts),
        metrics=run.metrics,
        by_queries=run.by_queries,
    )
