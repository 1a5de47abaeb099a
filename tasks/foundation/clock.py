"""The time as records store it."""

import datetime as dt


def now() -> str:
    """Return the time in UTC, ISO 8601 with microseconds; such strings sort as times do."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
