"""Figures of a span's columns: rows over time, histograms of numbers and text lengths, commonest values, drift."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from flows.presentation.figures import BLUE, GREEN, SKY, VERMILLION, legend, name_positions, whole_ticks
from flows.presentation.model import Figure
from flows.presentation.wording import count, number, share
from tasks.contracts.profiles import ColumnDrift, ColumnProfile, Histogram, Shared, SpanProfile

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_VALUES = 12  # bars of one figure
MOST_COLUMNS = 40  # with a figure each
_NAME_CHARS = 18
UNITS = {10: "day", 13: "hour"}  # by the letters of a time, as in 2026-11-20 and 2026-11-20T05


def figures(profile: SpanProfile, drawn: Collection[str] = ()) -> Iterator[Figure]:
    """Yield the rows over time, and a figure for each column that has a histogram or common values.

    Args:
        drawn: names of drifts whose bars are shown elsewhere already, so that common values are not shown twice.
    """
    if len(profile.times) > 1:
        yield _times(profile.times)
    for column in profile.columns[:MOST_COLUMNS]:
        if column.histogram is not None:
            yield _histogram(column, column.histogram)
        if column.top and (f"{column.name} language" if column.kind == "text" else column.name) not in drawn:
            yield _top(column)


def _times(times: dict[str, int]) -> Figure:
    unit = UNITS[len(next(iter(times)))]
    fewest, most = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    caption = f"from {count(times[fewest])} on {fewest} to {count(times[most])} on {most}; one bar for each {unit}"

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        axes.bar(range(len(times)), list(times.values()), color=BLUE, width=0.85)
        name_positions(axes, list(times), most=3)
        whole_ticks(axes, y=4)

    return Figure(f"Rows by {unit}", caption, f"Bar chart of the rows by {unit}: {caption}.", draw, 190)


def _histogram(column: ColumnProfile, histogram: Histogram) -> Figure:
    what = "length in characters" if column.kind == "text" else "values"
    title = f"{column.name} length" if column.kind == "text" else column.name
    low, middle, high = (column.quantiles.get(q, 0.0) for q in ("0.01", "0.5", "0.99"))
    caption = f"{what}: the middle one is {middle:g}, and 98 % are between {low:g} and {high:g}"

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        axes.stairs([100 * each for each in histogram.shares], histogram.edges, fill=True, color=SKY)
        axes.axvline(middle, color=BLUE, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.set_ylabel("% of rows")
        whole_ticks(axes, y=4)

    alt = f"Histogram of {title}, {caption}. The outermost bars hold the values beyond too."
    return Figure(title, f"{caption} (dashed: the middle)", alt, draw, 190)


def _top(column: ColumnProfile) -> Figure:
    shown: tuple[Shared, ...] = column.top[:MOST_VALUES]
    rest = max(0, len(column.top) - len(shown))
    of = "language" if column.kind == "text" else "value"
    title = f"{column.name} language" if column.kind == "text" else column.name
    caption = f"commonest {of} {shown[0].value}, {share(shown[0].share)} of the rows"
    caption += f"; the {len(shown)} commonest of {count(column.distinct)}" if rest else ""

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        axes.barh(range(len(shown)), [100 * each.share for each in shown], 0.7, color=GREEN)
        axes.set_yticks(range(len(shown)), [_short(each.value) for each in shown])
        axes.invert_yaxis()
        axes.set_xlabel("% of rows")
        axes.locator_params(axis="x", nbins=4)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")

    return Figure(title, caption, f"Bar chart of {title}: {caption}.", draw, 80 + 20 * len(shown))


def _short(label: str) -> str:
    return label if len(label) <= _NAME_CHARS else f"{label[: _NAME_CHARS - 1]}…"


if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_MOST_BINS = 14  # bins with the greatest shares; more bars would be too thin for their names
_BIN_CHARS = 18
MOST_FIGURES = 4  # in a report; the page of the data has all


def drift_figures(drifts: Sequence[ColumnDrift]) -> Iterator[Figure]:
    """Yield a figure of each of the columns that drifted most, which come first."""
    yield from map(drift_figure, drifts[:MOST_FIGURES])


def drift_figure(drift: ColumnDrift) -> Figure:
    """Return the shares of a column's values before, and now: the same object for equal drifts, so drawn once."""
    return _drift_figure(cast(Any, drift))


@functools.lru_cache(maxsize=32)
def _drift_figure(drift: ColumnDrift) -> Figure:
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
        axes.set_yticks(list(places), [_short_bin(b.label) for b in shown])
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


def _short_bin(label: str) -> str:
    return label if len(label) <= _BIN_CHARS else f"{label[: _BIN_CHARS - 1]}…"
