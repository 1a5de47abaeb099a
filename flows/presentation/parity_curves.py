"""The plot of a parity report: every metric of both sides by step, and their relative difference with the gate.

The two curves should coincide, so the left one is wide and pale, and the right one is thin and on top of it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tasks.parity.parity_report import ParityPoint, ParityReport, ParitySide

# Okabe and Ito's colours, which readers with any kind of colour vision can distinguish.
SKY_BLUE, VERMILLION, GREEN, GREY = "#56B4E9", "#D55E00", "#009E73", "#707070"
WIDTH_INCHES = 8.33  # 800 pixels in a browser, at 4/3 pixels a point
MOST_COLUMNS = 4
MOST_MARKERS = 40  # on one curve; more would overlap
LOSS = "loss"  # the total loss, which is trained on; the other losses are its parts
EQUAL = 1e-9  # where equal numbers are drawn: smaller than any difference in float32
_LEFT: dict[str, Any] = {"color": SKY_BLUE, "linewidth": 6, "solid_capstyle": "round", "solid_joinstyle": "round"}
_RIGHT: dict[str, Any] = {"color": VERMILLION, "linewidth": 1.3, "markersize": 3}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "millrace",  # the same ids in every drawing
    "svg.fonttype": "path",  # needs no font at the reader's machine
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.92",
}


def draw(report: ParityReport) -> bytes:
    """Return an SVG; the same report gives the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = _by_metric(report.points)
    if loss := _by_metric(report.losses).get(LOSS):
        panels["training loss"] = loss
    rows = math.ceil(len(panels) / MOST_COLUMNS)
    columns = math.ceil(len(panels) / rows)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 1.75 * rows + 3.2), facecolor="white", layout="constrained")
        grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[1.0] * rows, 1.5])
        for number, (name, points) in enumerate(panels.items()):
            _curves(figure.add_subplot(grid[number // columns, number % columns]), name, points)
        _differences(figure.add_subplot(grid[rows, :]), report, loss or [])
        lines = [figure.axes[0].lines[0], figure.axes[0].lines[1]]
        names = [_label(report.left), _label(report.right)]
        figure.legend(lines, names, loc="outside upper left", ncols=2, frameon=False, fontsize=10)
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Title": report.sentence})
    return svg.getvalue()


def _curves(axes: Axes, name: str, points: Sequence[ParityPoint]) -> None:
    """Draw one metric of both sides by step."""
    from matplotlib.ticker import MaxNLocator

    steps = [point.step for point in points]
    axes.plot(steps, [point.left for point in points], **_LEFT)
    axes.plot(steps, [point.right for point in points], **_RIGHT, marker="o" if len(points) <= MOST_MARKERS else "")
    axes.set_title(name)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.margins(x=0.08, y=0.2)


def _differences(axes: Axes, report: ParityReport, loss: Sequence[ParityPoint]) -> None:
    """Draw the relative differences by step on a logarithmic scale, with the gate; equal numbers are at the bottom."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

    by_step: dict[int, float] = {}
    for point in report.points:
        by_step[point.step] = max(by_step.get(point.step, 0.0), point.relative_difference)
    highest = max(report.threshold * 30, *(_drawn(difference) * 3 for difference in by_step.values()))
    axes.set_yscale("log")
    axes.set_ylim(EQUAL / 3, highest)
    axes.axhspan(report.threshold, highest, color=VERMILLION, alpha=0.1, linewidth=0)
    axes.axhline(report.threshold, color=VERMILLION, linewidth=1.3)
    if loss:
        steps, values = [point.step for point in loss], [_drawn(point.relative_difference) for point in loss]
        axes.plot(steps, values, color=GREY, linewidth=1, marker=".", markersize=4, label="training loss")
    values = [_drawn(difference) for difference in by_step.values()]
    label = f"the largest of {len(_by_metric(report.points))} holdout metrics"
    axes.plot(list(by_step), values, color=GREEN, linewidth=1.3, marker="o", markersize=5, clip_on=False, label=label)
    powers = range(-8, math.floor(math.log10(highest)) + 1)
    axes.yaxis.set_major_locator(FixedLocator([EQUAL, *(10.0**power for power in powers)]))
    axes.yaxis.set_major_formatter(
        FixedFormatter(["equal", *(f"{10.0 ** (power + 2):.{max(0, -power - 2)}f} %" for power in powers)])
    )
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"relative difference (gate: below {report.threshold * 100:g} %)")
    axes.set_xlabel("step")
    axes.legend(loc="lower right", ncols=2, frameon=False, bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1)


def _drawn(difference: float) -> float:
    return min(max(difference, EQUAL), 1.0)


def _label(side: ParitySide) -> str:
    return f"{side.accelerator}, {side.precision}"


def _by_metric(points: Sequence[ParityPoint]) -> dict[str, list[ParityPoint]]:
    series: dict[str, list[ParityPoint]] = {}
    for point in points:
        series.setdefault(point.metric, []).append(point)
    return series
