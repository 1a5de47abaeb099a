"""A parity comparison as artifacts of its flow run; the workspace has the report itself.

Its plot has every metric of both sides by step, and their relative difference with the margin. The two curves should
coincide, so the left one is wide and pale, and the right one is thin and on top of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flows.presentation.figures import GREEN, GREY, SKY, VERMILLION, drawn, whole_ticks
from flows.presentation.markdown import image, section_lines
from flows.presentation.model import Cell, Section, Table, facts, table
from flows.presentation.wording import MINUS, NONE, count
from tasks.contracts.workspace import PARITY
from tasks.laboratory.equivalence import Equivalence, Finding, percent
from tasks.laboratory.parity_report import ParityPoint, ParityReport, worst_by_metric

MARKS = {
    Finding.equal: Cell("equal", "✓", "good"),
    Finding.different: Cell("different", "✕", "bad"),
    Finding.undecided: Cell("not decided"),
}
BOUNDS = (">each bound with 0.95", ">rows needed")  # columns of `bounds` and `needed`


def publish(report: ParityReport, workspace: str, plot: bytes) -> None:
    """Make a page and a table of all points, of the flow run in which this is called. `plot` is an SVG.

    Their keys name the sides alone, so that the history of a page shows how they agreed over the spans.
    """
    from prefect.artifacts import create_markdown_artifact, create_table_artifact  # the terminal needs no Prefect

    key = f"parity-{report.left.accelerator}-{report.right.accelerator}"
    about = f"span {report.span.name}, lineage {report.lineage}"
    create_markdown_artifact(key=key, markdown=markdown(report, workspace, plot), description=about)
    rows = [
        {"step": p.step, "metric": p.metric, "left": _value(p.left), "right": _value(p.right)}
        | {"relative difference": percent(p.relative_difference)}
        for p in report.points
    ]
    create_table_artifact(key=f"{key}-points", table=rows, description=f"{about}, every evaluation")


def markdown(report: ParityReport, workspace: str, plot: bytes) -> str:
    """Return the verdict, the plot, and the tables."""
    whole = section(report)
    head, rest = whole._replace(tables=()), whole._replace(title="Where they differ", lines=())
    plotted = image("Metrics of both sides over the steps", plot)
    return "\n".join([*section_lines(head, workspace), plotted, "", *section_lines(rest, workspace, 2)])


def section(report: ParityReport) -> Section:
    """Return the verdict, the largest difference of each metric, and the setup of both sides."""
    both = f"Both trained span {report.span.name} of lineage {report.lineage} from {report.start}."
    sides = [
        (name, side.accelerator, side.precision, str(side.workers), Cell(side.run_key, code=True))
        for name, side in (("left", report.left), ("right", report.right))
    ]
    stored = (("report", Cell("", key=PARITY.key(key=report.key))), ("plot", Cell("", key=report.plot)))
    return Section(
        report.state,
        (report.sentence, both),
        tables=(
            _qualities(report),
            _differences("Where each metric differs most", report, report.points),
            _differences("The training losses, which no gate judges", report, report.losses),
            table("", ("side", "accelerator", "precision", ">workers", "run"), sides),
            facts(stored, "Where the files are"),
        ),
    )


def _qualities(report: ParityReport) -> Table:
    rows = [
        (one.metric, *map(_value, (one.first, one.other)), MARKS[one.finding], bounds(one), needed(one))
        for one in report.qualities
    ]
    within = f"within {percent(report.margin)}"
    columns = ("metric", f">{report.left.accelerator}", f">{report.right.accelerator}", within, *BOUNDS)
    return table("After the last step", columns, rows)


def bounds(one: Equivalence) -> str:
    """Format the bounds of a relative difference."""
    if one.same_answers:
        return "the same answers"
    if one.relative_bounds is None:
        return NONE
    return " to ".join(f"{MINUS if bound < 0 else '+'}{percent(abs(bound))}" for bound in one.relative_bounds)


def needed(one: Equivalence) -> str:
    """Format the rows that would decide."""
    return NONE if one.rows_needed is None else count(one.rows_needed)


def _differences(caption: str, report: ParityReport, points: tuple[ParityPoint, ...]) -> Table:
    rows = [
        (p.metric, str(p.step), _value(p.left), _value(p.right), percent(p.relative_difference))
        for p in worst_by_metric(points)
    ]
    columns = ("metric", ">step", f">{report.left.accelerator}", f">{report.right.accelerator}", ">difference")
    return table(caption, columns, rows)


def _value(value: float) -> str:
    return f"{value:.8g}"


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from tasks.laboratory.parity_report import ParitySide

WIDTH_PX = 800
MOST_COLUMNS = 4
MOST_MARKERS = 40  # on one curve; more would overlap
LOSS = "loss"  # the total loss, which is trained on; the other losses are its parts
EQUAL = 1e-9  # drawn for equal numbers: smaller than any difference in float32
_LEFT: dict[str, Any] = {"color": SKY, "linewidth": 6, "solid_capstyle": "round", "solid_joinstyle": "round"}
_RIGHT: dict[str, Any] = {"color": VERMILLION, "linewidth": 1.3, "markersize": 3}


def draw(report: ParityReport) -> bytes:
    """Return an SVG; the same report gives the same bytes."""
    panels = _by_metric(report.points)
    if loss := _by_metric(report.losses).get(LOSS):
        panels["training loss"] = loss
    rows = math.ceil(len(panels) / MOST_COLUMNS)
    columns = math.ceil(len(panels) / rows)

    def fill(canvas: Canvas) -> None:
        grid = canvas.add_gridspec(rows + 1, columns, height_ratios=[*[1.0] * rows, 1.5])
        for number, (name, points) in enumerate(panels.items()):
            _curves(canvas.add_subplot(grid[number // columns, number % columns]), name, points)
        _draw_differences(canvas.add_subplot(grid[rows, :]), report, loss or [])
        names = [_label(report.left), _label(report.right)]
        canvas.legend(canvas.axes[0].lines[:2], names, loc="outside upper left", ncols=2, fontsize=10)

    return drawn(fill, WIDTH_PX, 168 * rows + 307, title=report.sentence)


def _curves(axes: Axes, name: str, points: Sequence[ParityPoint]) -> None:
    """Draw one metric of both sides by step."""
    steps = [point.step for point in points]
    axes.plot(steps, [point.left for point in points], **_LEFT)
    axes.plot(steps, [point.right for point in points], **_RIGHT, marker="o" if len(points) <= MOST_MARKERS else "")
    axes.set_title(name)
    axes.set_xlabel("step")
    whole_ticks(axes, x=3, y=4)
    axes.margins(x=0.08, y=0.2)


def _draw_differences(axes: Axes, report: ParityReport, loss: Sequence[ParityPoint]) -> None:
    """Draw the relative differences by step on a logarithmic scale, with the margin; equal numbers lie below."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

    by_step: dict[int, float] = {}
    for point in report.points:
        by_step[point.step] = max(by_step.get(point.step, 0.0), point.relative_difference)
    highest = max(report.margin * 30, *(_shown(difference) * 3 for difference in by_step.values()))
    axes.set_yscale("log")
    axes.set_ylim(EQUAL / 3, highest)
    axes.axhspan(report.margin, highest, color=VERMILLION, alpha=0.1, linewidth=0)
    axes.axhline(report.margin, color=VERMILLION, linewidth=1.3)
    if loss:
        steps, values = [point.step for point in loss], [_shown(point.relative_difference) for point in loss]
        axes.plot(steps, values, color=GREY, linewidth=1, marker=".", markersize=4, label="training loss")
    values = [_shown(difference) for difference in by_step.values()]
    label = f"the largest of {len(_by_metric(report.points))} holdout metrics"
    axes.plot(list(by_step), values, color=GREEN, linewidth=1.3, marker="o", markersize=5, clip_on=False, label=label)
    powers = range(-8, math.floor(math.log10(highest)) + 1)
    axes.yaxis.set_major_locator(FixedLocator([EQUAL, *(10.0**power for power in powers)]))
    axes.yaxis.set_major_formatter(
        FixedFormatter(["equal", *(f"{10.0 ** (power + 2):.{max(0, -power - 2)}f} %" for power in powers)])
    )
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"relative difference (margin: {report.margin * 100:g} %)")
    axes.set_xlabel("step")
    axes.legend(loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1)


def _shown(difference: float) -> float:
    return min(max(difference, EQUAL), 1.0)


def _label(side: ParitySide) -> str:
    return f"{side.accelerator}, {side.precision}"


def _by_metric(points: Sequence[ParityPoint]) -> dict[str, list[ParityPoint]]:
    series: dict[str, list[ParityPoint]] = {}
    for point in points:
        series.setdefault(point.metric, []).append(point)
    return series
