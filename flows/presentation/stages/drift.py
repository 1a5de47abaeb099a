"""Drift of columns since the earlier spans: one figure for each column that drifted most."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from flows.presentation.figures import BLUE, VERMILLION, legend
from flows.presentation.model import Figure
from flows.presentation.wording import number, share
from tasks.contracts.profiles import ColumnDrift

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_MOST_BINS = 14  # bins with the greatest shares; more bars would be too thin for their names
_NAME_CHARS = 18
MOST_FIGURES = 4  # in a report; the page of the data has all


def figures(drifts: Sequence[ColumnDrift]) -> Iterator[Figure]:
    """Yield a figure of each of the columns that drifted most, which come first."""
    yield from map(figure, drifts[:MOST_FIGURES])


def figure(drift: ColumnDrift) -> Figure:
    """Return the shares of a column's values before, and now: the same object for equal drifts, so drawn once."""
    return _figure(cast(Any, drift))


@functools.lru_cache(maxsize=32)
def _figure(drift: ColumnDrift) -> Figure:
    greatest = sorted(drift.bins, key=lambda each: -max(each.earlier, each.now))[:_MOST_BINS]
    shown = [each for each in drift.bins if each in greatest]
    moved = max(drift.bins, key=lambda each: abs(each.now - each.earlier))
    beyond = "beyond its limit" if drift.psi > drift.limit else "within its limit"

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        places = range(len(shown))
        axes.barh([p - 0.2 for p in places], [b.earlier * 100 for b in shown], 0.38, color=BLUE, label="before")
        axes.barh(
            [p + 0.2 for p in places],
            [b.now * 100 for b in shown],
            0.38,
            label="now",
            facecolor="white",
            edgecolor=VERMILLION,
            hatch="////",
        )
        axes.set_yticks(list(places), [_short(b.label) for b in shown])
        axes.invert_yaxis()
        axes.set_xlabel("% of rows")
        axes.locator_params(axis="x", nbins=4)  # with more, the last one's number may pass the edge
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        legend(axes, columns=2)

    return Figure(
        f"Drift of {drift.name}",
        f"population stability index {number(drift.psi)}, {beyond} of {number(drift.limit)}",
        f"Bar chart of {drift.name} before and now. Most moved {moved.label}, from {share(moved.earlier)} to "
        f"{share(moved.now)} of the rows.",
        draw,
        70 + 26 * len(shown),
    )


def _short(label: str) -> str:
    return label if len(label) <= _NAME_CHARS else f"{label[: _NAME_CHARS - 1]}…"
