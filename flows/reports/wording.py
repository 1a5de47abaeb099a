"""Numbers, times and states as the pages word them; every state has a sign beside its word and its colour."""

from __future__ import annotations

import datetime as dt
import math

from tasks.history import RunState

NONE = "\N{EN DASH}"

# State -> the sign before it and the class of its colour.
SIGNS: dict[RunState, tuple[str, str]] = {
    "Released": ("✓", "good"),
    "Rejected": ("✕", "refused"),
    "Failed": ("!", "bad"),
    "Cancelled": ("■", "quiet"),
    "Running": ("▶", "going"),
    "Unfinished": ("○", "quiet"),
}


def duration(seconds: float | None) -> str:
    """With two units at most, as in `2 h 31 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 0:
        return f"\N{MINUS SIGN}{duration(-seconds)}"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {left:02d} s"


def moment(iso: str | None) -> str:
    """An ISO 8601 time to the minute; all are in UTC."""
    return iso[:16].replace("T", " ") if iso else NONE


def dollars(value: float) -> str:
    return f"${value:,.2f}"


def number(value: float | None) -> str:
    """A metric, with four decimals."""
    return NONE if value is None else f"{value:.4f}"


def difference(value: float | None, other: float | None) -> str:
    """With its sign, which is a true minus."""
    if value is None or other is None:
        return NONE
    return f"{value - other:+.4f}".replace("-", "\N{MINUS SIGN}")


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}".replace("%", " %")


def count(value: float) -> str:
    return f"{value:,.0f}"


def plural(how_many: int, what: str) -> str:
    return f"{how_many:,} {what}{'' if how_many == 1 else 's'}"


def now() -> dt.datetime:
    """The time that a page is of."""
    return dt.datetime.now(dt.UTC)
