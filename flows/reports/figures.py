"""What all pictures of the pages share: size, colours and marks, and the way into a page as an image with its text.

matplotlib is imported when something is drawn, and not before. Each picture is an image of its own (a data: URI), so
that the ids inside of two can't meet.
"""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, PALE = "#222222", "#707070", "#c4c4c4"

# Never colour alone: a line has its own dashes and marker, a bar its own hatching.
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": VERMILLION, "linestyle": (0, (5, 1.5)), "marker": "s"},
    {"color": GREEN, "linestyle": (0, (1.5, 1.2)), "marker": "^"},
    {"color": INK, "linestyle": (0, (6, 1.5, 1.5, 1.5)), "marker": "D"},
)
PHASES: dict[str, dict[str, Any]] = {
    "queued": {"facecolor": PALE},
    "booting": {"facecolor": SKY, "hatch": "\\\\\\\\"},
    "compiling": {"facecolor": ORANGE, "hatch": "////"},
    "restoring": {"facecolor": PURPLE, "hatch": "----"},
    "productive": {"facecolor": GREEN},
    "lost": {"facecolor": VERMILLION, "hatch": "xxxx"},
}
WIDTH_PX = 420  # as wide as a phone shows it without making its text small
MOST_BARS = 60  # in one picture; more are put together
MOST_MARKERS = 45  # on one line; more would be a blot
_PX = 1 / 96  # inches
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "millrace",  # the same ids each time
    "svg.fonttype": "path",  # needs no font that the reader may lack
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.5,
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


class Picture(NamedTuple):
    """An image for a page. `alt` says what it shows to those who don't see it, `caption` what to look for."""

    title: str
    caption: str
    alt: str
    uri: str
    height: int


class Canvas(NamedTuple):
    """An empty figure with one pair of axes."""

    figure: Figure
    axes: Axes

    def picture(self, title: str, caption: str, alt: str) -> Picture:
        """What was drawn, as an image. To be called inside `canvas`."""
        svg = io.BytesIO()
        self.figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        uri = f"data:image/svg+xml;base64,{base64.b64encode(svg.getvalue()).decode()}"
        return Picture(title, caption, alt, uri, round(self.figure.get_figheight() / _PX))


@contextlib.contextmanager
def canvas(height_px: int = 230) -> Iterator[Canvas]:
    """Something to draw on, `WIDTH_PX` wide, in the style of all pictures."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_PX * _PX, height_px * _PX), facecolor="white", layout="constrained")
        yield Canvas(figure, figure.add_subplot())


def legend(axes: Axes, columns: int) -> None:
    """Above the plot, where it hides nothing."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, borderaxespad=0, handletextpad=0.5, columnspacing=1.2
    )


def name_value(axes: Axes, words: str, at: tuple[float, float], below: bool = False, align: str = "right") -> None:
    """What a point of a line stands for, above or below it; legible on the line too by its white rim."""
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
    """Names below the positions 0, 1, 2 ... of the x axis: the first, the last, and some between."""
    last = len(names) - 1
    many = min(most, len(names))
    shown = sorted({round(i * last / max(many - 1, 1)) for i in range(many)})
    axes.set_xticks(shown, [names[position] for position in shown])
    axes.set_xlim(-0.6, max(last, 0) + 0.6)


def groups(length: int, most: int = MOST_BARS) -> list[range]:
    """`length` positions put together, in order, into `most` groups of about one size; alone where they are fewer."""
    many = min(length, most)
    return [range(length * i // many, length * (i + 1) // many) for i in range(many)]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
