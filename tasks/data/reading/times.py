"""The times of rows: in which forms they are read, and which of them are believed."""

import datetime as dt
import re
from decimal import Decimal
from typing import NamedTuple

from tasks.data.reading.values import NUMBER

FIRST_YEAR = 1990  # older rows are seldom meant: 0 and -1 often stand for "unknown"
AHEAD = dt.timedelta(days=1)  # clocks and time zones differ

_MILLISECONDS_FROM = 1e11  # as seconds this is the year 5138, as milliseconds 1973
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_ISO_BASIC_DATE = re.compile(r"[0-9]{8}")


class TimeRange(NamedTuple):
    """The times that rows may have, from `first` up to `end`, without it; None: no bound."""

    first: dt.datetime | None
    end: dt.datetime | None

    def problem(self, moment: dt.datetime) -> str:
        """Return why a time is not believed, and the ways out; empty for one that is."""
        if self.end is not None and moment >= self.end:
            return (
                f"{_day(moment)} is later than {_day(self.end - _MICROSECOND)}; correct it, set such rows aside with "
                "--set-aside FILE, or say with --not-after DATE how far the data goes"
            )
        if self.first is not None and moment < self.first:
            return (
                f"{_day(moment)} is before {_day(self.first)}; correct it, set such rows aside with --set-aside FILE, "
                "or say with --not-before DATE when the data began"
            )
        return ""


ANY_TIME = TimeRange(None, None)


def believed(
    at: dt.datetime, not_before: dt.date | None, not_after: dt.date | None, since_first_year: bool
) -> TimeRange:
    """Return the range of times that rows may have, at the moment `at`.

    Args:
        not_before, not_after: the first and the last day in UTC, given by a person.
        since_first_year: without `not_before`, the range begins with FIRST_YEAR; else it has no begin.
    """
    first = not_before or (dt.date(FIRST_YEAR, 1, 1) if since_first_year else None)
    if not_after == dt.date.max:
        end = None
    else:
        end = at + AHEAD if not_after is None else _midnight(not_after) + dt.timedelta(days=1)
    return TimeRange(None if first is None else _midnight(first), end)


def parse_time(value: object) -> dt.datetime:
    """Parse ISO 8601 (without an offset: UTC), or epoch seconds or milliseconds.

    Raises:
        ValueError, OverflowError, TypeError: it is none of them.
    """
    if isinstance(value, str):
        text = value.strip()
        if NUMBER.fullmatch(text) and not _ISO_BASIC_DATE.fullmatch(text):
            value = float(text)
        else:
            value = dt.datetime.fromisoformat(text)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    if isinstance(value, dt.date):
        return _midnight(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError(type(value).__name__)
    seconds = float(value)
    microseconds_each = 1000 if abs(seconds) > _MILLISECONDS_FROM else 1_000_000
    return _EPOCH + dt.timedelta(microseconds=round(seconds * microseconds_each))


def microseconds(moment: dt.datetime) -> int:
    """Return microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC)


def _day(moment: dt.datetime) -> str:
    return moment.date().isoformat()
