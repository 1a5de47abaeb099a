"""The pictures of a pipeline's history: quality over spans, freshness over time, and what each run took and gave."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.reports.figures import (
    BLUE,
    GREEN,
    GREY,
    MOST_BARS,
    MOST_MARKERS,
    ORANGE,
    PHASES,
    VERMILLION,
    Picture,
    canvas,
    groups,
    legend,
    mean,
    name_positions,
    name_value,
)
from flows.reports.wording import dollars, duration, number, share
from tasks.contracts import InferOutcome, Release, Stage, TrainOutcome
from tasks.history import History, PastRun, by_span
from tasks.standing import span_end

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_METRICS = 5
DAY = 86400.0


def quality(history: History) -> list[Picture]:
    """One picture for each metric, those that gates ask for first: every judged run at its span."""
    runs = [run for run in by_span(history.runs) if run.judged is not None]
    if not runs:
        return []
    gated = [gate.metric for run in reversed(runs) if run.plan for gate in run.plan.config.evaluate.gates]
    measured = [name for run in reversed(runs) for name in run.metrics]
    names = [name for name in dict.fromkeys([*gated, *measured]) if any(name in run.metrics for run in runs)]
    return [_metric(name, runs) for name in names[:MOST_METRICS]]


def _metric(name: str, runs: Sequence[PastRun]) -> Picture:
    spans = list(dict.fromkeys(run.span for run in runs))
    marks = {
        "Released": {"color": BLUE, "marker": "o", "linestyle": "-"},
        "Rejected": {"color": VERMILLION, "marker": "X", "linestyle": "", "markersize": 7},
        "other": {"color": GREY, "marker": "D", "linestyle": "", "markerfacecolor": "white"},
    }
    with canvas() as drawing:
        axes = drawing.axes
        for kind, style in marks.items():
            drawn = [run for run in runs if name in run.metrics and _kind(run) == kind]
            if drawn:
                places = [spans.index(run.span) for run in drawn]
                few = len(drawn) <= MOST_MARKERS or kind != "Released"
                label = {"Released": "released", "Rejected": "rejected", "other": "not released"}[kind]
                values = [run.metrics[name] for run in drawn]
                if not few:
                    bars = groups(len(drawn))
                    places, values = ([mean([all_of[i] for i in bar]) for bar in bars] for all_of in (places, values))
                axes.plot(places, values, label=label, **style | ({} if few else {"marker": ""}))
        released = [run for run in runs if run.state == "Released" and name in run.metrics]
        if released:
            last = released[-1].metrics[name]
            position = spans.index(released[-1].span)
            beside = [
                run.metrics[name]
                for run in runs
                if name in run.metrics and 0 < abs(position - spans.index(run.span)) <= len(spans) / 5
            ]
            crowded_above = sum(value > last for value in beside) > len(beside) / 2
            align = "right" if len(spans) > 1 else "center"
            name_value(axes, number(last), (position, last), below=crowded_above, align=align)
        name_positions(axes, spans)
        _few_ticks(axes)
        axes.margins(y=0.16)
        legend(axes, columns=3)
        newest = f"the newest release has {number(released[-1].metrics[name])}" if released else "none was released"
        rejected = sum(run.state == "Rejected" for run in runs)
        caption = f"{newest}; {rejected} of {len(runs)} judged runs rejected"
        if len(released) > MOST_BARS:
            caption += f"; the line is the mean of about {round(len(released) / MOST_BARS)} releases at a time"
        return drawing.picture(name, caption, f"{name} on the holdout over {len(spans)} spans: {caption}.")


def _kind(run: PastRun) -> str:
    return run.state if run.state in ("Released", "Rejected") else "other"


def freshness(history: History, now: dt.datetime) -> Picture | None:
    """The age of the newest released data over time; each release lets it drop. None before the first release."""
    steps = _ages(history.releases, history.current, now)
    if not steps:
        return None
    from matplotlib.dates import date2num

    target = history.target_hours
    longest = max(age for _, age in steps)
    unit, seconds = ("days", DAY) if max(longest, (target or 0.0) * 3600) > 3 * DAY else ("hours", 3600.0)
    with canvas() as drawing:
        axes = drawing.axes
        at, ages = [float(date2num(moment)) for moment, _ in steps], [age / seconds for _, age in steps]
        if len(steps) > 4 * MOST_BARS:  # teeth too close to be seen: their tips alone
            highest = [max(bar, key=ages.__getitem__) for bar in groups(len(steps) - 1, 2 * MOST_BARS)]
            at, ages = [[of[i] for i in highest] + of[-1:] for of in (at, ages)]
        axes.plot(at, ages, color=BLUE, label="newest released data")
        axes.plot(date2num(now), steps[-1][1] / seconds, color=BLUE, marker="o", markersize=6)
        told = f"{duration(steps[-1][1])} now"
        name_value(axes, told, (float(date2num(now)), steps[-1][1] / seconds))
        if target is not None:
            axes.axhline(target * 3600 / seconds, color=VERMILLION, linestyle=(0, (5, 2)), label="target")
            told += f"; the target is {duration(target * 3600)}"
        if len(steps) > 4 * MOST_BARS:
            told += "; of every stretch of time the highest is drawn"
        _dates(axes, steps[0][0], now)
        axes.set_ylabel(unit)
        axes.set_ylim(0, max(longest, (target or 0.0) * 3600) / seconds * 1.15)
        legend(axes, columns=2)
        alt = (
            f"Age of the newest released data since {steps[0][0]:%Y-%m-%d}: {told}; at most it was {duration(longest)}."
        )
        return drawing.picture("Freshness", told, alt)


def _ages(releases: Sequence[Release], current: Release | None, now: dt.datetime) -> list[tuple[dt.datetime, float]]:
    """Moment and age in seconds, twice for each release: just before it, and just after."""
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
    if serving != before:  # a rollback, of which nobody noted the time
        points.append((now, (now - before).total_seconds() if before else 0.0))
    return [*points, (now, (now - serving).total_seconds())]


def time_per_run(runs: Sequence[PastRun]) -> Picture:
    """Stacked bars by phase; there is one run at least."""
    longest = max(run.wall_seconds for run in runs)
    unit, seconds = ("hours", 3600) if longest > 5400 else ("minutes", 60) if longest > 90 else ("seconds", 1)
    parts = {phase: [getattr(run.totals.seconds, phase) / seconds for run in runs] for phase in PHASES}
    with canvas() as drawing:
        axes = drawing.axes
        bars = groups(len(runs))
        ends = [0.0] * len(bars)
        for phase, style in PHASES.items():
            heights = [mean([parts[phase][i] for i in bar]) for bar in bars]
            if any(heights):
                axes.bar(
                    range(len(bars)),
                    heights,
                    bottom=ends,
                    width=_width(bars),
                    edgecolor="white",
                    linewidth=0,
                    label=phase,
                    **style,
                )
                ends = [end + height for end, height in zip(ends, heights, strict=True)]
        _named(axes, bars, runs)
        axes.set_ylabel(unit)
        legend(axes, columns=3)
        whole = sum(run.wall_seconds for run in runs)
        told = f"{duration(whole / len(runs))} of work a run on average"
        return drawing.picture(
            "Time of each run", told + _put_together(bars, len(runs)), f"Stacked bars by phase: {told}."
        )


def goodput(runs: Sequence[PastRun]) -> Picture:
    """The productive share of each run's time."""
    worked = [run for run in runs if run.totals.goodput is not None]
    good = [run.totals.goodput or 0.0 for run in worked]
    whole = sum(run.wall_seconds for run in worked)
    overall = sum(run.totals.seconds.productive for run in worked) / whole if whole else None
    told = f"{share(overall)} of all seconds were productive"
    return _bars("Goodput", "percent", worked, [value * 100 for value in good], told, GREEN, top=100)


def cost(runs: Sequence[PastRun]) -> Picture | None:
    """Dollars of each run; None where no prices are configured."""
    spent = [sum(one.cost for one in run.attempts) for run in runs]
    if not any(spent):
        return None
    told = f"{dollars(sum(spent))} in all, {dollars(sum(spent) / len(runs))} a run on average"
    return _bars("Cost of each run", "dollars", runs, spent, told, ORANGE)


def compiling(runs: Sequence[PastRun]) -> Picture | None:
    """Seconds that each run compiled; None where nothing is compiled."""
    spent = [run.totals.seconds.compiling for run in runs]
    if not any(spent):
        return None
    told = f"{duration(sum(spent) / len(runs))} a run on average, {duration(spent[-1])} in the last"
    return _bars("Compiling", "seconds", runs, spent, told, ORANGE)


def throughput(runs: Sequence[PastRun]) -> list[Picture]:
    """Speeds of training and of inference."""
    made = []
    for title, unit, speed in (("Training speed", "pairs/s", _pairs), ("Inference speed", "texts/s", _texts)):
        known = [(run, value) for run in runs if (value := speed(run)) is not None]
        if known:
            timed, values = [run for run, _ in known], [value for _, value in known]
            told = f"{values[-1]:,.0f} {unit} in the last run, {mean(values):,.0f} on average"
            made.append(_bars(title, unit, timed, values, told, BLUE))
    return made


def _pairs(run: PastRun) -> float | None:
    outcome = run.outcome(Stage.train)
    return outcome.pairs_per_second if isinstance(outcome, TrainOutcome) else None


def _texts(run: PastRun) -> float | None:
    outcome = run.outcome(Stage.infer)
    return outcome.texts_per_second if isinstance(outcome, InferOutcome) else None


def _bars(
    title: str,
    unit: str,
    runs: Sequence[PastRun],
    values: Sequence[float],
    told: str,
    colour: str,
    top: float | None = None,
) -> Picture:
    """One bar for each run, or for some together, with their mean as its height."""
    with canvas(200) as drawing:
        axes = drawing.axes
        bars = groups(len(runs))
        heights = [mean([values[i] for i in bar]) for bar in bars]
        axes.bar(range(len(bars)), heights, width=_width(bars), color=colour)
        _named(axes, bars, runs)
        axes.set_ylabel(unit)
        axes.set_ylim(0, top or max(heights, default=1.0) * 1.1 or 1.0)
        return drawing.picture(title, told + _put_together(bars, len(runs)), f"{title}, {unit} for each run: {told}.")


def _named(axes: Axes, bars: Sequence[range], runs: Sequence[PastRun]) -> None:
    name_positions(axes, [runs[bar[0]].span for bar in bars])
    _few_ticks(axes)


def _few_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))


def _width(bars: Sequence[range]) -> float:
    return 0.8 if len(bars) > 3 else 0.35


def _put_together(bars: Sequence[range], runs: int) -> str:
    return f"; each bar is the mean of about {round(runs / len(bars))} runs" if len(bars) < runs else ""


def _dates(axes: Axes, first: dt.datetime, last: dt.datetime) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    if last - first < dt.timedelta(minutes=1):
        first -= dt.timedelta(hours=1)
    room = (last - first) * 0.03
    axes.set_xlim(float(date2num(first - room)), float(date2num(last + room)))
    locator = AutoDateLocator(minticks=2, maxticks=5)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
