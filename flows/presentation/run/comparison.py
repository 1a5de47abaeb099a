"""Runs next to each other: settings that differ, metrics with intervals, slices, queries, curves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from configs.schema.gates import METRICS, Family
from flows.presentation.figures import BLUE, GREY, cost_figures, curves
from flows.presentation.model import Cell, Figure, Page, Section, Table, ended_as, state, table
from flows.presentation.queries import ALL_QUERIES, OF_QUERIES
from flows.presentation.wording import MINUS, NONE, count, dollars, number, seconds, shortened
from tasks.contracts.comparison import (
    RATE,
    ComparedMetric,
    ComparedPair,
    ComparedQuery,
    ComparedRun,
    Comparison,
)
from tasks.contracts.references import CurvePoint
from tasks.contracts.runs import RunState
from tasks.contracts.workspace import REPORT
from tasks.foundation.nouns import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LETTERS = 80  # shown of a text
KEY = "reports/comparison.html"  # links are relative to it; a comparison is not stored in the workspace
SCALED = ("loss", "mae", "rmse")  # metrics that are no shares
LOSS, RECALL = "loss", "recall@10"
_ANSWERS = {"better": Cell("better", "✓", "good"), "worse": Cell("worse", "✕", "bad"), "undecided": Cell("undecided")}


def comparison_page(compared: Comparison, workspace: str) -> Page:
    """Return the comparison as a page."""
    runs = compared.runs
    heading = " and ".join(f"{run.label}: {run.name}" for run in runs)
    return Page(
        title=f"Comparison of {', '.join(run.name for run in runs)}",
        workspace=workspace,
        key=KEY,
        heading=heading,
        summary=" ".join(_in_short(pair) for pair in compared.pairs),
        about=(),
        state=None,
        tiles=(),
        boxes=(),
        sections=(
            Section("Runs", id="runs", tables=(_runs(runs),)),
            _settings(compared),
            *(section for pair in compared.pairs for section in _of_pair(pair, many=len(compared.pairs) > 1)),
            *_curves(runs),
            *_costs(compared),
        ),
    )


def metrics_table(pair: ComparedPair, a: str = "", b: str = "") -> Table:
    """Return the metrics of two runs on the same rows, with the intervals of their differences.

    Args:
        a, b: names of the runs; empty: their labels.
    """
    a, b = a or pair.a, b or pair.b
    rows = [(_name(each), count(each.rows), *_numbers(each), _ANSWERS[each.answer]) for each in pair.metrics]
    columns = ("metric", ">rows", f">{a}", f">{b}", ">difference", ">95 % interval", f"{b} is")
    return table(f"{b} against {a}, items ranked {pair.items}", columns, rows)


def _in_short(pair: ComparedPair) -> str:
    """Return a sentence on recall of unseen queries and one on seen ones, or on the first metric."""
    apart = [each for each in pair.metrics if each.metric == RECALL and each.queries != "all"]
    if not pair.metrics:
        return f"{pair.b} and {pair.a} can't be compared."
    return " ".join(_told(pair, each) for each in apart or pair.metrics[:1])


def _told(pair: ComparedPair, each: ComparedMetric) -> str:
    told = {"better": "is better than", "worse": "is worse than", "undecided": "can't be told from"}[each.answer]
    return (
        f"{pair.b} {told} {pair.a} by {_name(each)} on {plural(each.rows, 'row')}: {number(each.b)} and "
        f"{number(each.a)}, a difference of {_signed(each.difference)} ({_interval(each)} with 95 % confidence)."
    )


def _name(each: ComparedMetric) -> str:
    """Return the metric with its queries, as in `recall@10, unseen queries`; without them if it has no such parts."""
    if METRICS[each.metric].family is not Family.ranking:
        return each.metric
    return f"{each.metric}, {ALL_QUERIES if each.queries == 'all' else OF_QUERIES[each.queries]}"


def _numbers(each: ComparedMetric) -> tuple[str, str, str, str]:
    return number(each.a), number(each.b), _signed(each.difference), _interval(each)


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.4f}".replace("-", MINUS)


def _interval(each: ComparedMetric) -> str:
    return f"{_signed(each.low)} to {_signed(each.high)}"


def _runs(runs: Sequence[ComparedRun]) -> Table:
    rows = [
        (
            run.label,
            run.name,
            Cell(run.run_key, key=REPORT.key(run=run.run_key) if run.metrics else ""),
            run.span,
            _ended(run),
        )
        for run in runs
    ]
    return table("", ("", "~name", "run", "span", "state"), rows)


def _ended(run: ComparedRun) -> Cell:
    if run.state is RunState.UNFINISHED and run.metrics:
        return Cell("not released", "○", "quiet")
    return state(run.state, ended_as(run.state, run.release))


def _settings(compared: Comparison) -> Section:
    if not compared.settings:
        return Section("Settings", ("All settings that decide a model are the same.",), id="settings")
    rows = [(Cell(each.key, code=True), *map(_value, each.values)) for each in compared.settings]
    made = table("Settings that differ", ("key", *(f"~{run.label}" for run in compared.runs)), rows)
    return Section("Settings", id="settings", tables=(made,))


def _value(value: object) -> str:
    return NONE if value is None else value if isinstance(value, str) else json.dumps(value)


def _of_pair(pair: ComparedPair, many: bool) -> Iterator[Section]:
    """Yield the sections of one pair; their titles name it if there are several."""
    of, mark = f" of {pair.a} and {pair.b}" * many, f"-{pair.b}" * many
    if not pair.metrics:
        yield Section(f"{pair.a} and {pair.b} can't be compared", pair.notes, id=f"metrics{mark}", short=f"Metrics{of}")
        return
    common = (
        f"{plural(pair.rows, 'holdout row')} of {pair.a}'s {pair.rows_a:,} and {pair.b}'s {pair.rows_b:,} in common"
    )
    where = f"Both models were measured in one evaluation, of {plural(pair.rows, 'holdout row')}"
    rows = f"{common if pair.measured_in is None else where}; items are ranked {pair.items}."
    about = (
        "Each interval holds the true difference with 95 % confidence. Rows of one query or user hang together, and so "
        "do rows about one item."
    )
    yield Section(
        f"Metrics{of}",
        (rows, *pair.notes, about),
        id=f"metrics{mark}",
        figures=tuple(_intervals(pair)),
        tables=(metrics_table(pair),),
    )
    if pair.slices:
        yield Section(f"Slices{of}", id=f"slices{mark}", tables=(_slices(pair),))
    moved = (
        _queries(pair, pair.losses, f"Queries whose item fell most from {pair.a} to {pair.b}"),
        _queries(pair, pair.wins, f"Queries whose item rose most from {pair.a} to {pair.b}"),
    )
    lines = () if any(table.rows for table in moved) else ("No item moved.",)
    yield Section(f"Queries{of}", lines, id=f"queries{mark}", tables=tuple(each for each in moved if each.rows))


def _intervals(pair: ComparedPair) -> Iterator[Figure]:
    """Yield a figure of the differences with their intervals; a loss has another scale and is left out."""
    shown = [each for each in pair.metrics if each.metric not in SCALED]
    if not shown:
        return

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        axes.axvline(0, color=GREY, linewidth=1)
        for place, each in enumerate(reversed(shown)):
            sure = each.answer != "undecided"
            axes.plot([each.low, each.high], [place, place], color=BLUE if sure else GREY, linewidth=2)
            axes.plot(each.difference, place, marker="o" if sure else "s", color=BLUE if sure else GREY)
        axes.set_yticks(range(len(shown)), [_name(each) for each in reversed(shown)])
        axes.set_xlabel(f"{pair.b} minus {pair.a}")
        axes.grid(axis="x")

    told = "; ".join(f"{each.metric} {_signed(each.difference)}, {_interval(each)}" for each in shown)
    about = "with 95 % intervals; grey squares: the rows can't tell"
    yield Figure(f"{pair.b} minus {pair.a}", about, f"Differences with intervals: {told}.", draw, 80 + 24 * len(shown))


def _slices(pair: ComparedPair) -> Table:
    rows = [
        (
            f"{each.column} = {each.value}",
            count(each.numbers.rows),
            *a_and_b,
            _ANSWERS[each.numbers.answer]._replace(text=difference),
            interval,
        )
        for each in pair.slices
        for *a_and_b, difference, interval in [_numbers(each.numbers)]
    ]
    columns = ("slice", ">rows", f">{pair.a}", f">{pair.b}", ">difference", ">95 % interval")
    return table(f"{pair.slices[0].numbers.metric} by slice", columns, rows)


def _queries(pair: ComparedPair, queries: Sequence[ComparedQuery], caption: str) -> Table:
    rows = [
        (
            shortened(one.query or one.row_id, LETTERS),
            count(one.rank_a),
            count(one.rank_b),
            shortened(one.item or one.item_id, LETTERS),
        )
        for one in queries
    ]
    return table(caption, ("~query", f">rank in {pair.a}", f">rank in {pair.b}", "~its item"), rows)


def _curves(runs: Sequence[ComparedRun]) -> Iterator[Section]:
    """Yield the section of the curves; steps count from each run's begin unless all begin at one step."""
    trained = [run for run in runs if run.first_step is not None and (run.losses or run.curve)]
    if not trained:
        return
    apart = len({run.first_step for run in trained}) > 1
    axis = "step of the run" if apart else "global step"

    def points(metric: str, of: Callable[[ComparedRun], Sequence[CurvePoint]]) -> list[tuple[int, dict[str, float]]]:
        found: dict[int, dict[str, float]] = {}
        for run in trained:
            for point in of(run):
                if metric in point.metrics:
                    step = point.step - (run.first_step or 0) * apart
                    found.setdefault(step, {})[run.label] = point.metrics[metric]
        return sorted(found.items())

    drawn = {
        "Training loss": points(LOSS, lambda run: run.losses),
        "Learning rate": points(RATE, lambda run: run.rates),
        f"{RECALL} within the training": points(RECALL, lambda run: run.curve),
    }
    shown = {title: line for title, line in drawn.items() if line}
    labels = [run.label for run in trained]
    yield Section(
        "Curves",
        tuple(map(_steps, trained)),
        id="curves",
        figures=tuple(_figure(title, line, axis) for title, line in shown.items()),
        tables=tuple(
            table(
                f"{title} by {axis}",
                (f">{axis}", *(f">{label}" for label in labels)),
                [(count(step), *(_point(title, values.get(label)) for label in labels)) for step, values in line],
                folded=True,
            )
            for title, line in shown.items()
        ),
    )


def _costs(compared: Comparison) -> Iterator[Section]:
    """Yield the section of time and money until each run is as good as the first one."""
    metric, first = compared.metric, compared.runs[0]
    tables, lines = cost_tables(compared), {run.label: run.costs for run in compared.runs}
    if metric is None or not tables:
        return
    yield Section(
        "Cost",
        ("Seconds by the clock of health, warmup and train without lost work, and dollars of their machines.",),
        id="cost",
        figures=cost_figures(metric, lines, first.costs[-1].value, f"grey: the value of {first.label}"),
        tables=tables,
    )


def cost_tables(compared: Comparison) -> tuple[Table, ...]:
    """Return a table of the time and money until each run is as good as the first one; none without all attempts."""
    metric, runs = compared.metric, compared.runs
    if metric is None or not all(run.costs for run in runs):
        return ()
    rows = [
        (
            f"{run.label}: {run.name}",
            number(run.costs[-1].value),
            seconds(run.costs[-1].seconds),
            dollars(run.costs[-1].dollars),
            count(run.target.step) if run.target else "not reached",
            seconds(run.target.seconds) if run.target else NONE,
            dollars(run.target.dollars if run.target else None),
        )
        for run in runs
    ]
    columns = ("", f">{metric}", ">seconds", ">dollars", ">at step", ">seconds to it", ">dollars to it")
    goal = f"{metric} {number(runs[0].costs[-1].value)}, the value of {runs[0].label} after its training"
    return (table(f"Time and money until each run reaches {goal}", columns, rows),)


def _point(title: str, value: float | None) -> str:
    return number(value) if value is None or title != "Learning rate" else f"{value:.3g}"


def _steps(run: ComparedRun) -> str:
    rate = f", with a learning rate of {run.learning_rate:.3g} at the last" if run.learning_rate is not None else ""
    return f"{run.label} trained from step {run.first_step or 0:,} to {run.last_step or 0:,}{rate}."


def _figure(title: str, line: list[tuple[int, dict[str, float]]], axis: str) -> Figure:
    return curves(title, "", line, axis)
