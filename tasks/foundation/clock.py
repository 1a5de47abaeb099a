"""The time as records store it."""

from __future__ import annotations

import datetime as dt


def now() -> str:
    """Return the time in UTC, ISO 8601 with microseconds; such strings sort as times do."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
