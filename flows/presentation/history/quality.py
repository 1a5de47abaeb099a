"""Quality over the spans: a figure of each metric with every judged run, and the intervals that chance gives.

The forward score of each release is on the unseen span after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from configs.schema.gates import METRICS, Family
from flows.presentation.figures import (
    BLUE,
    GREY,
    MOST_BARS,
    MOST_MARKERS,
    VERMILLION,
    groups,
    legend,
    line_styles,
    mean,
    name_positions,
    name_value,
    whole_ticks,
)
from flows.presentation.model import Cell, Figure, Section, table
from flows.presentation.queries import CAPTION, OF_QUERIES, forward_rows
from flows.presentation.wording import difference, number
from tasks.contracts.evaluation import MAIN, Queries
from tasks.contracts.workspace import REPORT
from tasks.foundation.nouns import plural
from tasks.monitoring.history import History, by_span
from tasks.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_METRICS = 5

# Kind of run -> its label and how its points look.
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "Released": ("released", {"color": BLUE, "marker": "o", "linestyle": "-"}),
    "Rejected": ("rejected", {"color": VERMILLION, "marker": "X", "linestyle": "", "markersize": 7}),
    "other": ("not released", {"color": GREY, "marker": "D", "linestyle": "", "markerfacecolor": "white"}),
}


def quality(history: History) -> list[Figure]:
    """Return a figure for each metric, gated ones first, with every judged run at its span.

    A ranking metric has one of unseen and one of seen queries.
    """
    runs = [run for run in by_span(history.runs) if run.judgement is not None]
    if not runs:
        return []
    gated = [gate.metric for run in reversed(runs) if run.plan for gate in run.plan.config.evaluate.gates]
    measured = [name for run in reversed(runs) for name in run.metrics]
    names = [name for name in dict.fromkeys([*gated, *measured]) if any(name in run.metrics for run in runs)]
    return [_figure(curve, runs) for name in names[:MOST_METRICS] for curve in _curves(name, runs) if curve.values]


class _Curve(NamedTuple):
    """A number of each run that has it, by the run's key, with its 95 % interval if one was measured."""

    name: str
    values: dict[str, float]
    bounds: dict[str, tuple[float, float]]


def _curves(name: str, runs: Sequence[Run]) -> Iterator[_Curve]:
    if METRICS[name].family is not Family.ranking:
        yield _Curve(name, {run.run_key: run.metrics[name] for run in runs if name in run.metrics}, {})
        return
    for queries, said in OF_QUERIES.items():
        parts = {run.run_key: run.by_queries.parts[queries] for run in runs if run.by_queries is not None}
        yield _Curve(
            f"{name}, {said}",
            {key: part.metrics[name] for key, part in parts.items() if name in part.metrics},
            {
                key: (part.low, part.high)
                for key, part in parts.items()
                if name == MAIN and part.low is not None and part.high is not None
            },
        )


def _figure(curve: _Curve, runs: Sequence[Run]) -> Figure:
    name, values_of = curve.name, curve.values
    spans = list(dict.fromkeys(run.span for run in runs))
    known = [run for run in runs if run.run_key in values_of]
    released = [run for run in known if run.state == "Released"]
    newest = f"the newest release has {number(values_of[released[-1].run_key])}" if released else "none was released"
    rejected = sum(run.state == "Rejected" for run in runs)
    caption = f"{newest}; {rejected} of {len(runs)} judged runs rejected"
    if curve.bounds:
        caption += "; the thin bars are 95 % intervals: runs whose bars overlap may differ by chance"
    if len(released) > MOST_BARS:
        caption += f"; the line is the mean of about {plural(round(len(released) / MOST_BARS), 'release')} at a time"

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for kind, (label, style) in _MARKS.items():
            drawn = [run for run in known if _kind(run) == kind]
            unmarked: dict[str, Any] = {}
            _intervals(axes, [(spans.index(run.span), curve.bounds.get(run.run_key)) for run in drawn], style)
            places, values = [float(spans.index(run.span)) for run in drawn], [values_of[run.run_key] for run in drawn]
            if kind == "Released" and len(drawn) > MOST_MARKERS:
                bars, unmarked = groups(len(drawn)), {"marker": ""}
                places, values = ([mean([each[i] for i in bar]) for bar in bars] for each in (places, values))
            if drawn:
                axes.plot(places, values, label=label, **style | unmarked)
        if released:
            last, position = values_of[released[-1].run_key], spans.index(released[-1].span)
            near = [run for run in known if 0 < abs(position - spans.index(run.span)) <= len(spans) / 5]
            crowded_above = sum(values_of[run.run_key] > last for run in near) > len(near) / 2
            align = "right" if len(spans) > 1 else "center"
            name_value(axes, number(last), (position, last), below=crowded_above, align=align)
        name_positions(axes, spans)
        whole_ticks(axes, y=5)
        axes.margins(y=0.16)
        legend(axes, columns=3)

    return Figure(name, caption, f"{name} on the holdout over {plural(len(spans), 'span')}: {caption}.", draw)


def _intervals(axes: Axes, found: Sequence[tuple[int, tuple[float, float] | None]], style: Mapping[str, Any]) -> None:
    """Draw an upright bar for each interval, or a pale band if the runs are too many for bars."""
    drawn = [(place, *between) for place, between in found if between is not None]
    if len(drawn) > MOST_MARKERS:
        bars = groups(len(drawn))
        places, lows, highs = ([mean([drawn[i][column] for i in bar]) for bar in bars] for column in range(3))
        axes.fill_between(places, lows, highs, color=style["color"], alpha=0.15, linewidth=0)
    elif drawn:
        places, lows, highs = zip(*drawn, strict=True)
        axes.vlines(places, lows, highs, color=style["color"], linewidth=1, alpha=0.6)
        axes.plot([*places, *places], [*lows, *highs], color=style["color"], marker="_", linestyle="", alpha=0.6)


def _kind(run: Run) -> str:
    return run.state if run.state in ("Released", "Rejected") else "other"


if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_ROWS = 60


def forward_figures(history: History) -> list[Figure]:
    """Return a figure of unseen and one of seen queries; none before a release was judged."""
    found = (_forward_figure(history, queries) for queries in OF_QUERIES)
    return [figure for figure in found if figure is not None]


def _forward_figure(history: History, queries: Queries) -> Figure | None:
    """Return the lines of four models over the new spans; None if no span has rows of these queries."""
    scores = [(score, score.parts[queries]) for _, score in history.forward if queries in score.parts]
    if not scores:
        return None
    last, numbers = scores[-1]
    caption = f"release {last.release} on span {last.span}, which it had not seen: {number(numbers.value)}"
    if numbers.previous_value is not None:
        gain = difference(numbers.value, numbers.previous_value)
        caption += (
            f"; release {last.previous}, before it: {number(numbers.previous_value)}, so its training was worth {gain}"
        )
    lines = {
        "the release": [each.value for _, each in scores],
        "the one before": [each.previous_value for _, each in scores],
        "untrained": [each.untrained for _, each in scores],
        "trained on it": [each.challenger for _, each in scores],
    }

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for (label, values), style in zip(lines.items(), line_styles(len(lines)), strict=True):
            known = [(place, value) for place, value in enumerate(values) if value is not None]
            if known:
                every = max(1, len(known) // MOST_MARKERS * 3)
                axes.plot(*zip(*known, strict=True), **style, markevery=every, label=label)
        name_positions(axes, [score.span for score, _ in scores])
        whole_ticks(axes, y=5)
        axes.margins(x=0.03, y=0.1)
        legend(axes, columns=2)

    title = f"Forward {last.metric}, {OF_QUERIES[queries]}"
    return Figure(
        title,
        caption,
        f"{title} of each release on the span after it, over {plural(len(scores), 'span')}: {caption}.",
        draw,
    )


def forward_section(history: History) -> Section | None:
    """Return a row for each release and span after it; None before a release was judged on one."""
    newest_first = history.forward[::-1][:MOST_ROWS]
    if not newest_first:
        return None
    columns, _ = forward_rows([score for _, score in newest_first])
    linked = [
        (Cell(span, key=REPORT.key(run=run.run_key)), *rest)
        for run, score in newest_first
        for span, *rest in forward_rows([score])[1]
    ]
    lines = (
        "Measured in the run of that span, before it is trained: was the last training worth it, on data that neither "
        "release had seen?",
    )
    return Section("Forward scores", lines, id="forward", tables=(table(f"{CAPTION}, newest first", columns, linked),))
