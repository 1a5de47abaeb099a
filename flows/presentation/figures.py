"""One style for all figures: size, colours and marks. The same numbers give the same bytes of SVG.

matplotlib is imported when something is drawn, and not before.
"""

from __future__ import annotations

import base64
import functools
import io
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.presentation.model import Figure, thinned
from flows.presentation.wording import number
from tasks.contracts.comparison import CostPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, PALE = "#222222", "#707070", "#c4c4c4"

# Never colour alone: a line has its own dashes and marker, a bar its own hatching. Each list has eight entries.
_COLOURS = (BLUE, VERMILLION, GREEN, INK, PURPLE, ORANGE, SKY, GREY)
_DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)),
    (0, (9, 3)), (0, (3, 1.2, 1, 1.2, 1, 1.2)), (0, (1, 2.6)), (0, (12, 2, 4, 2)),
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PHASES: dict[str, dict[str, Any]] = {
    "queued": {"facecolor": PALE},
    "booting": {"facecolor": SKY, "hatch": "\\\\\\\\"},
    "compiling": {"facecolor": ORANGE, "hatch": "////"},
    "restoring": {"facecolor": PURPLE, "hatch": "----"},
    "productive": {"facecolor": GREEN},
    "lost": {"facecolor": VERMILLION, "hatch": "xxxx"},
}
WIDTH_PX = 420  # fits a phone without shrinking the text
MOST_BARS = 60  # per figure; more runs share a bar
MOST_MARKERS = 45  # per line; more would overlap
MOST_POINTS = 400  # per line, about one for each pixel
_PX = 1 / 96  # inches
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "millrace",  # the same ids each time
    "svg.fonttype": "path",  # needs no font that the reader may lack
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "hatch.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
}

_drawing = threading.Lock()  # matplotlib's settings are global


@functools.lru_cache(maxsize=32)  # two pages of a run show the same figure
def svg(figure: Figure) -> bytes:
    """Draw a figure, once for the same object. Threads may call this at the same time; they take turns."""
    return drawn(figure.draw, WIDTH_PX, figure.height)


def drawn(draw: Callable[[Canvas], None], width: float, height: float, title: str | None = None) -> bytes:
    """Return a drawing as SVG. Sizes are in pixels; the title goes into the metadata."""
    with _drawing:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas

        with mpl.rc_context(STYLE):
            canvas = Canvas(figsize=(width * _PX, height * _PX), facecolor="white", layout="constrained")
            draw(canvas)
            file, titled = io.BytesIO(), {"Title": title} if title else {}
            canvas.savefig(file, format="svg", metadata={"Date": None, "Creator": None, **titled})
    return file.getvalue()


def data_uri(drawn: bytes) -> str:
    """Return the address of an SVG that is inside of a page, so that the ids in two of them can't meet."""
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn).decode()}"


def curves(
    title: str, about: str, points: Sequence[tuple[int, Mapping[str, float]]], axis: str = "global step"
) -> Figure:
    """Return a figure of numbers over the steps, on one scale; values that are not finite leave a gap.

    Args:
        points: steps in ascending order, at least one, each with its values by name.
        axis: name of the steps.
    """
    names = list(dict.fromkeys(name for _, values in points for name in values))
    known = {name: [(step, values[name]) for step, values in points if name in values] for name in names}
    steps = f"steps {points[0][0]} to {points[-1][0]}"
    ends = "; ".join(f"{name} from {number(line[0][1])} to {number(line[-1][1])}" for name, line in known.items())

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for style, (name, line) in zip(line_styles(len(known)), known.items(), strict=True):
            shown = thinned(line, MOST_POINTS)
            values = [value if math.isfinite(value) else math.nan for _, value in shown]
            every = max(1, len(shown) // MOST_MARKERS * 3)
            axes.plot([step for step, _ in shown], values, **style, markevery=every, label=name)
        axes.set_xlabel(axis)
        whole_ticks(axes, x=5, y=5)
        axes.margins(x=0.03, y=0.08)
        legend(axes, columns=2 if len(known) > 3 else 3)

    return Figure(title, f"{about}, {steps}" if about else steps, f"Line chart over {steps}: {ends}.", draw)


def cost_figures(
    metric: str, lines: Mapping[str, Sequence[CostPoint]], target: float | None, about: str
) -> tuple[Figure, ...]:
    """Return figures of a metric over steps and seconds and, if all prices are known, dollars.

    Args:
        lines: evaluations by name, at least one each.
        target: value of a grey line; None: no line.
    """
    priced = all(point.dollars is not None for line in lines.values() for point in line)
    axes = ("step", "seconds", "dollars") if priced else ("step", "seconds")
    return tuple(_over(axis, metric, lines, target, about) for axis in axes)


def _over(axis: str, metric: str, lines: Mapping[str, Sequence[CostPoint]], target: float | None, about: str) -> Figure:

    def draw(canvas: Canvas) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = canvas.add_subplot()
        if target is not None:
            axes.axhline(target, color=GREY, linewidth=1)
        for style, (name, line) in zip(line_styles(len(lines)), lines.items(), strict=True):
            places, values = [getattr(point, axis) for point in line], [point.value for point in line]
            axes.plot(places, values, **style, label=name)
        axes.set_xlabel(axis)
        whole_ticks(axes, y=5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.margins(x=0.03, y=0.08)
        legend(axes, columns=3)

    ends = "; ".join(
        f"{name} {number(line[-1].value)} at {getattr(line[-1], axis):.4g}" for name, line in lines.items()
    )
    return Figure(f"{metric} over {axis}", about, f"Line chart over {axis}: {ends}.", draw)


def line_styles(lines: int) -> list[dict[str, Any]]:
    """Return a look for each line; among eight no colour, dashes or marker comes twice, and among 64 no whole look."""
    looks = []
    for place in range(lines):
        again, first = divmod(place, len(_COLOURS))
        dashes, marker = _DASHES[(first + again) % len(_DASHES)], _MARKERS[(first + 2 * again) % len(_MARKERS)]
        looks.append({"color": _COLOURS[first], "linestyle": dashes, "marker": marker})
    return looks


def whole_ticks(axes: Axes, y: int, x: int = 0) -> None:
    """Set at most `y` ticks on the y axis and, if given, at most `x` whole-number ticks on the x axis."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=y))
    if x:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=x, integer=True))


def legend(axes: Axes, columns: int) -> None:
    """Draw the legend above the plot, so that it hides no data."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, borderaxespad=0, handletextpad=0.5, columnspacing=1.2
    )


def name_value(axes: Axes, words: str, at: tuple[float, float], below: bool = False, align: str = "right") -> None:
    """Write words above or below a point of a line; a white rim keeps them legible on the line."""
    from matplotlib.patheffects import withStroke

    axes.annotate(
        words,
        at,
        xytext=(0, -8 if below else 8),
        textcoords="offset points",
        ha=align,
        va="top" if below else "bottom",
        fontsize=8.5,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )


def name_positions(axes: Axes, names: Sequence[str], most: int = 4) -> None:
    """Write names below the positions 0, 1, 2 ... of the x axis: the first, the last, and some between."""
    last = len(names) - 1
    step = max(1, math.ceil(last / (most - 1)))
    shown = [position for position in range(0, last, step) if last - position >= step] + [last]
    axes.set_xticks(shown, [names[position] for position in shown])
    axes.set_xlim(-0.6, max(last, 0) + 0.6)


def groups(length: int, most: int = MOST_BARS) -> list[range]:
    """Divide `length` positions, in order, into `most` groups of about one size; into single ones if they are fewer."""
    many = min(length, most)
    return [range(length * i // many, length * (i + 1) // many) for i in range(many)]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
