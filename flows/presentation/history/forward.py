"""The forward score over the history: each release scored on the unseen span after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flows.presentation.figures import MOST_MARKERS, legend, line_styles, name_positions, whole_ticks
from flows.presentation.forward import CAPTION, forward_rows
from flows.presentation.model import Cell, Figure, Section, table
from flows.presentation.queries import OF_QUERIES
from flows.presentation.wording import difference, number
from tasks.contracts.evaluation import Queries
from tasks.contracts.workspace import REPORT
from tasks.monitoring.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_ROWS = 60


def forward_figures(history: History) -> list[Figure]:
    """Return a figure of unseen and one of seen queries; none before a release was judged."""
    found = (_figure(history, queries) for queries in OF_QUERIES)
    return [figure for figure in found if figure is not None]


def _figure(history: History, queries: Queries) -> Figure | None:
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
        title, caption, f"{title} of each release on the span after it, over {len(scores)} spans: {caption}.", draw
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
