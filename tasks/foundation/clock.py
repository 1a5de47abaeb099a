"""Time as text: as records store it, and as people read it."""

import datetime as dt
from typing import Annotated

from pydantic import AfterValidator


def duration(seconds: float) -> str:
    """Return `42 s`, `1 min 20 s` or `3 h 05 min`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def old(hours: float) -> str:
    """Return the age of data, or its limit: `36 h` up to three days, then `3.5 days`."""
    return f"{hours:.0f} h" if hours <= 72 else f"{hours / 24:,.1f}".removesuffix(".0") + " days"


def now() -> str:
    """Return the time in UTC, ISO 8601 with microseconds; such strings sort by time."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")


def _checked(text: str) -> str:
    if dt.datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time must name its zone, as in 2026-11-20T07:00:00+00:00")
    return text


# The type of a record's time field; a damaged time fails when the record is read.
Moment = Annotated[str, AfterValidator(_checked)]
