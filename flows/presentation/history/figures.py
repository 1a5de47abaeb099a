"""Figures of a pipeline's history: freshness over time, duration and cost of each run. quality.py has the metrics."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.presentation.figures import (
    BLUE,
    GREEN,
    MOST_BARS,
    ORANGE,
    PHASES,
    VERMILLION,
    groups,
    legend,
    mean,
    name_positions,
    name_value,
    whole_ticks,
)
from flows.presentation.model import Figure
from flows.presentation.wording import dollars, duration, share
from tasks.contracts.outcomes import InferOutcome, TrainOutcome
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.foundation.nouns import plural
from tasks.monitoring.history import History
from tasks.monitoring.progress import span_end
from tasks.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

DAY = 86400.0


def freshness(history: History, now: dt.datetime) -> Figure | None:
    """Return the age of the newest released data over time; each release lowers it. None before the first release."""
    steps = _ages(history.releases, history.current, now)
    if not steps:
        return None
    target = history.target_hours
    longest = max(age for _, age in steps)
    unit, seconds = ("days", DAY) if max(longest, (target or 0.0) * 3600) > 3 * DAY else ("hours", 3600.0)
    many = len(steps) > 4 * MOST_BARS  # too many releases to see each drop: draw the peaks only
    age = f"{duration(steps[-1][1])} now"
    caption = f"{age}; the target is {duration(target * 3600)}" if target is not None else age
    caption += "; of every stretch of time the highest is drawn" if many else ""

    def draw(canvas: Canvas) -> None:
        from matplotlib.dates import date2num

        axes = canvas.add_subplot()
        at, ages = [float(date2num(moment)) for moment, _ in steps], [each / seconds for _, each in steps]
        if many:
            highest = [max(bar, key=ages.__getitem__) for bar in groups(len(steps) - 1, 2 * MOST_BARS)]
            at, ages = [[of[i] for i in highest] + of[-1:] for of in (at, ages)]
        axes.plot(at, ages, color=BLUE, label="newest released data")
        axes.plot(at[-1], ages[-1], color=BLUE, marker="o", markersize=6)
        name_value(axes, age, (at[-1], ages[-1]))
        if target is not None:
            axes.axhline(target * 3600 / seconds, color=VERMILLION, linestyle=(0, (5, 2)), label="target")
        _dates(axes, steps[0][0], now)
        axes.set_ylabel(unit)
        axes.set_ylim(0, max(longest, (target or 0.0) * 3600) / seconds * 1.15)
        legend(axes, columns=2)

    since = f"Age of the newest released data since {steps[0][0]:%Y-%m-%d}"
    return Figure("Freshness", caption, f"{since}: {caption}; at most it was {duration(longest)}.", draw)


def _ages(releases: Sequence[Release], current: Release | None, now: dt.datetime) -> list[tuple[dt.datetime, float]]:
    """Return moment and age in seconds, twice for each release: just before it and just after."""
    points: list[tuple[dt.datetime, float]] = []
    before: dt.datetime | None = None
    for release in sorted(releases, key=lambda release: release.created_at):
        made, end = dt.datetime.fromisoformat(release.created_at), span_end(release.span.name)
        if before is not None:
            points.append((made, (made - before).total_seconds()))
        points.append((made, (made - end).total_seconds()))
        before = end
    serving = span_end(current.span.name) if current is not None else None
    if not points or serving is None:
        return points
    if serving != before:  # a rollback; its time is not recorded
        points.append((now, (now - before).total_seconds() if before else 0.0))
    return [*points, (now, (now - serving).total_seconds())]


def time_per_run(runs: Sequence[Run]) -> Figure:
    """Return stacked bars by phase, for at least one run."""
    longest = max(run.wall_seconds for run in runs)
    unit, seconds = ("hours", 3600) if longest > 5400 else ("minutes", 60) if longest > 90 else ("seconds", 1)
    spent = [run.totals.seconds for run in runs]
    bars = groups(len(runs))

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        ends = [0.0] * len(bars)
        for phase, style in PHASES.items():
            heights = [mean([getattr(spent[i], phase) / seconds for i in bar]) for bar in bars]
            if any(heights):
                places, look = range(len(bars)), {"edgecolor": "white", "linewidth": 0} | style
                axes.bar(places, heights, bottom=ends, width=_width(bars), label=phase, **look)
                ends = [end + height for end, height in zip(ends, heights, strict=True)]
        _named(axes, bars, runs)
        axes.set_ylabel(unit)
        legend(axes, columns=3)

    average = f"{duration(sum(run.wall_seconds for run in runs) / len(runs))} of work a run on average"
    caption = average + _put_together(bars, len(runs))
    return Figure("Time of each run", caption, f"Stacked bars by phase: {average}.", draw)


def goodput(runs: Sequence[Run]) -> Figure:
    """Return the productive share of each run's time on machines."""
    worked = [run for run in runs if run.totals.goodput is not None]
    good = [run.totals.goodput or 0.0 for run in worked]
    whole = sum(run.totals.seconds.paid for run in worked)
    overall = sum(run.totals.seconds.productive for run in worked) / whole if whole else None
    says = f"{share(overall)} of the seconds on machines were productive"
    return _bars("Goodput", "percent", worked, [value * 100 for value in good], says, GREEN, top=100)


def cost(runs: Sequence[Run]) -> Figure | None:
    """Return the dollars of each run; None without a known price."""
    priced = [(run, cost) for run in runs if (cost := run.totals.cost) is not None]
    if not priced:
        return None
    spent = [cost for _, cost in priced]
    says = f"{dollars(sum(spent))} in all, {dollars(sum(spent) / len(spent))} a run on average"
    return _bars("Cost of each run", "dollars", [run for run, _ in priced], spent, says, ORANGE)


def compiling(runs: Sequence[Run]) -> Figure | None:
    """Return the compile seconds of each run; None if nothing was compiled."""
    spent = [run.totals.seconds.compiling for run in runs]
    if not any(spent):
        return None
    says = f"{duration(sum(spent) / len(runs))} a run on average, {duration(spent[-1])} in the last"
    return _bars("Compiling", "seconds", runs, spent, says, ORANGE)


def throughput(runs: Sequence[Run]) -> list[Figure]:
    """Return the speeds of training and of inference."""
    made = []
    for title, unit, speed in (("Training speed", "pairs/s", _pairs), ("Inference speed", "texts/s", _texts)):
        known = [(run, value) for run in runs if (value := speed(run)) is not None]
        if known:
            timed, values = [run for run, _ in known], [value for _, value in known]
            says = f"{values[-1]:,.0f} {unit} in the last run, {mean(values):,.0f} on average"
            made.append(_bars(title, unit, timed, values, says, BLUE))
    return made


def _pairs(run: Run) -> float | None:
    outcome = run.outcome(Stage.train)
    return outcome.pairs_per_second if isinstance(outcome, TrainOutcome) else None


def _texts(run: Run) -> float | None:
    outcome = run.outcome(Stage.infer)
    return outcome.texts_per_second if isinstance(outcome, InferOutcome) else None


def _bars(
    title: str,
    unit: str,
    runs: Sequence[Run],
    values: Sequence[float],
    says: str,
    colour: str,
    top: float | None = None,
) -> Figure:
    """Return one bar for each run, or for several runs together, with their mean as its height."""
    bars = groups(len(runs))
    heights = [mean([values[i] for i in bar]) for bar in bars]

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        axes.bar(range(len(bars)), heights, width=_width(bars), color=colour)
        _named(axes, bars, runs)
        axes.set_ylabel(unit)
        axes.set_ylim(0, top or max(heights, default=1.0) * 1.1 or 1.0)

    caption = says + _put_together(bars, len(runs))
    return Figure(title, caption, f"{title}, {unit} for each run: {says}.", draw, height=200)


def _named(axes: Axes, bars: Sequence[range], runs: Sequence[Run]) -> None:
    name_positions(axes, [runs[bar[0]].span for bar in bars])
    whole_ticks(axes, y=5)


def _width(bars: Sequence[range]) -> float:
    return 0.8 if len(bars) > 3 else 0.35


def _put_together(bars: Sequence[range], runs: int) -> str:
    return f"; each bar is the mean of about {plural(round(runs / len(bars)), 'run')}" if len(bars) < runs else ""


def _dates(axes: Axes, first: dt.datetime, last: dt.datetime) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    if last - first < dt.timedelta(minutes=1):
        first -= dt.timedelta(hours=1)
    room = (last - first) * 0.03
    axes.set_xlim(float(date2num(first - room)), float(date2num(last + room)))
    locator = AutoDateLocator(minticks=2, maxticks=5)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
