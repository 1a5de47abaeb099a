"""The history of the pipeline: releases, quality and freshness of the model that serves, costs, reasons of failures."""

import datetime as dt

from configs.prices import basis_of
from flows.presentation import html, queries
from flows.presentation.costs import budget_boxes, cost_section
from flows.presentation.history import figures
from flows.presentation.history.ledger import ledger_section
from flows.presentation.history.quality import forward_figures, forward_section, quality
from flows.presentation.model import HISTORY_KEY, Cell, Page, Section, Tile, ended_as, facts, state, table, unreadable
from flows.presentation.releases import published_as
from flows.presentation.wording import (
    NONE,
    ON_HOLDOUT,
    count,
    dollars,
    duration,
    moment,
    now,
    share,
    shortened,
    versions,
)
from infra.store.base import Store
from tasks.contracts.workspace import DATA_PAGE, REPORT
from tasks.foundation.errors import POLICIES
from tasks.foundation.nouns import plural
from tasks.monitoring.history import PLANS, History, age_seconds, read_history
from tasks.monitoring.ledger_report import ledger_of
from tasks.monitoring.spending import costs_of
from tasks.runs.snapshot import Snapshot
from tasks.runs.sums import Sums


def releases_section(history: History) -> Section | None:
    """Return a row for each of the newest releases; None before the first."""
    if not history.published:
        return None
    newest_first, serving = history.published[::-1], history.current.number if history.current else None
    metric = queries.metric_of(each.by_queries for each in newest_first)
    columns = ("release", "", "span", "made at", ">vectors", *queries.columns(metric))
    rows = [
        (
            Cell(f"{each.number}, serves", "✓", "good") if each.number == serving else str(each.number),
            published_as(each.refreshed),
            each.span.name,
            moment(each.created_at),
            count(each.vectors),
            *queries.cells(each.by_queries, metric),
        )
        for each in newest_first
    ]
    caption = f"Newest first; metrics {ON_HOLDOUT}, which a refresh takes over from its model"
    return Section("Releases", id="releases", tables=(table(caption, columns, rows),))


MOST_ROWS = 60
MOST_LETTERS = 240  # characters of a run's message
REFERENCE = 0.985  # success rate of runs at Amazon Search M5


def history_html(store: Store, at: dt.datetime | None = None, near: tuple[Cell, ...] = ()) -> bytes:
    """Return the history of a workspace as HTML; ages are those at `at`, by default now. `near` are pages to go to.

    Raises:
        StoreError: the workspace could not be read.
    """
    return html.render(page(store.uri, read_history(Snapshot(store)), at or now())._replace(near=near))


def page(workspace: str, history: History, at: dt.datetime) -> Page:
    """Return the report of a past that was read already."""
    summed = history.totals
    names = {run.plan.config.pipeline: None for run in history.runs if run.plan}
    title = f"{', '.join(names) or 'Pipeline'}: history"
    return Page(
        title=title,
        workspace=workspace,
        key=HISTORY_KEY,
        heading=title,
        summary=_summary(history),
        about=(),
        state=None,
        tiles=tuple(_tiles(history, summed, at)),
        boxes=(*_boxes(history, at), *unreadable(history.problems)),
        sections=tuple(section for section in _sections(workspace, history, summed, at) if section is not None),
    )


def _summary(history: History) -> str:
    if not history.runs:
        return "No run yet. Begin one: millrace run"
    states = [run.state for run in history.runs]
    counts = ", ".join(f"{states.count(each)} {each.lower()}" for each in dict.fromkeys(states))
    first = history.runs[0].began_at
    return f"{plural(len(states), 'run')}{f' since {first[:10]}' if first else ''}: {counts}."


def _tiles(history: History, summed: Sums, at: dt.datetime) -> list[Tile]:
    succeeded, over = summed.runs_succeeded, summed.runs_over
    current, last = history.current, history.last
    made = f"span {current.span.name}, made {moment(current.created_at)}" if current else "none yet"
    per_million, basis = summed.dollars_per_million_vectors, basis_of(summed.charges)
    tiles = [
        _freshness_tile(history, at),
        *_catalogue_tile(history, at),
        Tile("Current release", Cell(str(current.number) if current else NONE), made),
        Tile(
            "Runs that came to a result",
            Cell(f"{succeeded} of {over}" if over else NONE),
            f"{share(succeeded / over)}; {share(REFERENCE)} is what Amazon Search M5 published" if over else "",
        ),
        Tile("Goodput", Cell(share(summed.goodput)), f"of {duration(summed.seconds.paid)} on machines"),
        Tile(
            "Attempts that succeeded",
            Cell(f"{summed.succeeded} of {summed.attempts}"),
            share(summed.success_rate) if summed.success_rate is not None else "",
        ),
        Tile(
            "Cost",
            Cell(dollars(summed.cost)),
            f"{dollars(per_million)} per million vectors; {basis}" if per_million else basis,
        ),
    ]
    if history.plan_error is not None:
        tiles.append(
            Tile("Planned time", Cell(f"{share(history.plan_error)} off"), f"median of the last {PLANS} runs at most")
        )
    if last is not None:
        tiles.insert(0, Tile("Last run", state(last.state), f"{last.span}, begun {moment(last.began_at)}"))
    return tiles


def _freshness_tile(history: History, at: dt.datetime) -> Tile:
    age, target = age_seconds(history.current, at), history.target_hours
    if age is None or target is None:
        return Tile("Newest released data", Cell(duration(age)), "nothing is released yet" if age is None else "")
    stale = age > target * 3600
    cell = Cell(f"{duration(age)} old", "!" if stale else "✓", "bad" if stale else "good")
    return Tile(
        "Newest released data", cell, f"{'beyond' if stale else 'within'} the target of {duration(target * 3600)}"
    )


def _catalogue_tile(history: History, at: dt.datetime) -> list[Tile]:
    """Return a tile of how long items have waited for a release, and of the share that has a vector."""
    catalogue = history.catalogue
    if catalogue is None:
        return []
    stale = _waited_too_long(history, at)
    waited = f"waiting for {duration(catalogue.hours(at) * 3600)}" if catalogue.waiting else "none waits"
    cell = Cell(waited, "!" if stale else "✓", "bad" if stale else "good")
    return [Tile("New items", cell, catalogue.sentence)]


def _waited_too_long(history: History, at: dt.datetime) -> bool:
    catalogue, targets = history.catalogue, history.targets
    return catalogue is not None and targets is not None and catalogue.hours(at) > targets.catalogue_target_hours


def _boxes(history: History, at: dt.datetime) -> list[Section]:
    """Return the warnings at the top of the page."""
    boxes = [*budget_boxes(history.budgets)]
    age, target, current = age_seconds(history.current, at), history.target_hours, history.current
    if age is not None and target is not None and age > target * 3600:
        lines = (
            f"The newest data in release {current.number if current else ''} is {duration(age)} old; "
            f"freshness.target_hours allows {duration(target * 3600)}. "
            "The table of runs shows what kept newer spans from being released.",
        )
        boxes.append(Section("Stale", lines, id="stale", mood="bad"))
    if history.catalogue is not None and _waited_too_long(history, at):
        waited = duration(history.catalogue.hours(at) * 3600)
        lines = (
            f"Items have waited {waited} for a release, longer than freshness.catalogue_target_hours allows. "
            "To take them in: millrace refresh",
        )
        boxes.append(Section("Items wait", lines, id="items-wait", mood="bad"))
    if current is not None and current.number != history.newest_release:
        lines = (
            f"Release {current.number} serves, though {history.newest_release} is the newest: it was rolled back.",
        )
        boxes.append(Section("Rolled back", lines, id="rolled-back", mood="refused"))
    return boxes


def _sections(workspace: str, history: History, summed: Sums, at: dt.datetime) -> list[Section | None]:
    runs = history.runs
    worked = [run for run in runs if run.attempts and run.wall_seconds]
    if not runs:
        return []
    fresh = figures.freshness(history, at)
    money = [
        figures.time_per_run(worked),
        figures.goodput(worked),
        figures.cost(worked),
        figures.compiling(worked),
        *figures.throughput(worked),
    ] if worked else []  # fmt: skip
    shown = tuple(figure for figure in (fresh, *forward_figures(history), *quality(history)) if figure)
    return [
        Section("Freshness and quality", id="quality", figures=shown) if shown else None,
        forward_section(history),
        releases_section(history),
        Section("What runs take", id="effort", figures=tuple(figure for figure in money if figure)) if money else None,
        *cost_section(costs_of(runs)),
        _failures(summed),
        _runs(history),
        ledger_section(ledger_of(workspace, history)),
        _spans(history),
    ]


def _failures(summed: Sums) -> Section | None:
    if not summed.attempts_by_class:
        return Section("Failures", ("No attempt has failed.",), id="failures") if summed.attempts else None
    rows = [
        (failure.value, str(attempts), share(attempts / summed.attempts), duration(summed.seconds_by_class[failure]),
         POLICIES[failure].meaning)
        for failure, attempts in sorted(summed.attempts_by_class.items(), key=lambda one: -one[1])
    ]  # fmt: skip
    columns = ("class", ">attempts", ">of all attempts", ">time", "~meaning")
    return Section("Failures", id="failures", tables=(table("Attempts that failed, by class", columns, rows),))


def _runs(history: History) -> Section:
    shown = list(reversed(history.runs))[:MOST_ROWS]
    metric = queries.metric_of(run.by_queries for run in shown)
    lineages = {run.lineage for run in history.runs}
    serving = history.current.run_key if history.current else ""
    rows = []
    for run in shown:
        summed = run.totals
        failed = summed.attempts - summed.succeeded
        ended = ended_as(run.state, run.release.number if run.release else None, run.failure)
        rows.append(
            (
                Cell(run.span or run.run_key, key=REPORT.key(run=run.run_key)),
                state(run.state, f"{ended}, serves" if run.run_key == serving else ended),
                *((run.lineage,) if len(lineages) > 1 else ()),
                *queries.cells(run.by_queries, metric),
                moment(run.began_at)[:10],
                duration(run.wall_seconds),
                share(summed.goodput),
                f"{len(run.attempts)}" + (f", {failed} failed" if failed else ""),
                dollars(summed.cost),
                shortened(run.message.partition("\n")[0], MOST_LETTERS) or NONE,
            )
        )
    columns = (
        "span",
        "state",
        *(("lineage",) if len(lineages) > 1 else ()),
        *queries.columns(metric),
        "began",
        ">time",
        ">goodput",
        ">attempts",
        ">cost",
        "~why",
    )
    cut = (
        f"The newest {MOST_ROWS} of {count(len(history.runs))} runs; the figures show all."
        if len(history.runs) > MOST_ROWS
        else ""
    )
    made = table(f"Newest first; each span links to the report of its run; metrics {ON_HOLDOUT}", columns, rows)
    return Section("Runs", (cut,) if cut else (), id="runs", tables=(made,))


def _spans(history: History) -> Section | None:
    if not history.spans:
        return None
    rows = [
        (
            Cell(row.span, key=REPORT.key(run=row.run_key) if row.run_key else ""),
            state(row.state),
            versions(row.version, row.trained_version) or NONE,
            moment(row.arrived_at),
            Cell(
                moment(row.validated_at), key=DATA_PAGE.key(run=row.run_key) if row.run_key and row.validated_at else ""
            ),
            *map(moment, (row.trained_at, row.evaluated_at, row.embedded_at, row.released_at)),
        )
        for row in reversed(history.spans)
    ]
    columns = (
        "span",
        "state",
        "version",
        "arrived",
        "validated",
        "trained",
        "evaluated",
        "embedded",
        "released",
    )
    words = {"Skipped": "is skipped", "Postponed": "waits for the next span"}
    skipped = [f"{row.span} {words[row.state]}: {row.message}" for row in history.spans if row.state in words]
    lines = (
        "What is due, missed or late: millrace freshness",
        "The time of its validation links to the page of its data.",
        *skipped,
    )
    return Section("Spans", lines, id="spans", tables=(table("How far each has come, newest first", columns, rows),))


def summary(history: History, at: dt.datetime) -> Section:
    """Return the numbers at the top of the page as a section, for the Prefect UI and the terminal."""
    rows = [tile.noted for tile in _tiles(history, history.totals, at)]
    page = (("the page", Cell("", key=HISTORY_KEY)),)
    line = f"The page shows the newest {MOST_ROWS} runs."
    return Section("History", (_summary(history), line), tables=(facts((*rows, *page)),))
