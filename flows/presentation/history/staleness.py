"""What staleness costs, span by span: the champion on the holdout of each new span, which it has not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flows.presentation.figures import LINES, MOST_MARKERS, legend, name_positions, whole_ticks
from flows.presentation.model import Figure
from flows.presentation.wording import difference, number
from tasks.contracts.evaluation import Role
from tasks.monitoring.history import History, PastRun, by_span

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

USUAL_METRIC = "recall@10"
_LINES = {Role.challenger: "challenger", Role.champion: "champion", Role.untrained: "untrained"}


class NewSpan(NamedTuple):
    """The models on the rows of the span that a run was the first to train on."""

    span: str
    rows: int
    values: dict[Role, float]


def new_span(run: PastRun, metric: str = USUAL_METRIC) -> NewSpan | None:
    """Return the models on the newest span of a run; None where it was not measured, or there was no champion."""
    spans = run.judged.outcome.spans if run.judged is not None else ()
    if not spans or spans[-1].span != run.span:
        return None
    values = {role: metrics[metric] for role, metrics in spans[-1].metrics.items() if metric in metrics}
    return NewSpan(run.span, spans[-1].rows, values) if Role.champion in values else None


def staleness(history: History) -> Figure | None:
    """Return the lines of three models over the new spans; None before there is a champion."""
    points = [point for run in by_span(history.runs) if (point := new_span(run)) is not None]
    if not points:
        return None
    last = points[-1].values
    cost = difference(last.get(Role.challenger), last[Role.champion])
    caption = (
        f"on span {points[-1].span}: champion {number(last[Role.champion])}, "
        f"challenger {number(last.get(Role.challenger))}, so training on it is worth {cost}"
    )

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for (role, label), style in zip(_LINES.items(), LINES, strict=False):
            known = [(place, point.values[role]) for place, point in enumerate(points) if role in point.values]
            if known:
                every = max(1, len(known) // MOST_MARKERS * 3)
                axes.plot(*zip(*known, strict=True), **style, markevery=every, label=label)
        name_positions(axes, [point.span for point in points])
        whole_ticks(axes, y=5)
        axes.margins(x=0.03, y=0.1)
        legend(axes, columns=3)

    title = f"{USUAL_METRIC} on the new span"
    return Figure(title, caption, f"Line chart over {len(points)} spans: {caption}.", draw)
