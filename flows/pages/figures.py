"""Small pictures of curves for the pages: SVG, the same bytes for the same numbers.

matplotlib takes most of a second to load, so that is done beforehand, see flows/preloading.py.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Curve = Sequence[tuple[int, float]]  # (step, value), by step

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; the palest, yellow, is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
WIDTH_INCHES, HEIGHT_INCHES = 400 / 96, 220 / 96  # CSS pixels
MOST_POINTS = 400  # of one curve; it is as many pixels wide
MOST_MARKERS = 20  # on one curve; more would be a blot
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "millrace",  # the same ids each time
    "svg.fonttype": "path",  # needs no font that the reader may lack
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#707070",
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.92",
    "legend.columnspacing": 1.2,
    "legend.handlelength": 1.4,
}

_drawing = threading.Lock()  # matplotlib's settings are those of the process, and its figures not for several threads


def draw(curves: Mapping[str, Curve]) -> bytes:
    """An SVG of 400 x 220 CSS pixels with named curves over the steps. Values that are no numbers leave a gap."""
    with _drawing:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        with mpl.rc_context(_STYLE):
            figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), facecolor="white")
            # Fixed places: finding them by measuring would take as long as all the rest.
            axes = figure.add_axes((0.115, 0.165, 0.86, 0.71))
            for number, (name, curve) in enumerate(curves.items()):
                points = thinned(curve, MOST_POINTS)
                axes.plot(
                    [step for step, _ in points],
                    [value if math.isfinite(value) else math.nan for _, value in points],
                    color=COLOURS[number % len(COLOURS)],
                    linestyle="-" if number < len(COLOURS) else "--",
                    linewidth=1.3,
                    marker="o" if len(points) <= MOST_MARKERS else "",
                    markersize=2.5,
                    label=name,
                )
            axes.set_xlabel("step", labelpad=1.5)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
            axes.margins(x=0.02, y=0.08)
            figure.legend(loc="upper left", ncols=len(curves), frameon=False, borderaxespad=0.2)
            svg = io.BytesIO()
            figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def by_name(points: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, list[tuple[int, float]]]:
    """Curves from what was measured at each step."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for step, values in points:
        for name, value in values.items():
            curves.setdefault(name, []).append((step, value))
    return curves


def thinned(items: Sequence[T], most: int) -> Sequence[T]:
    """At most `most` of them, evenly spread, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]
