"""Parse the times of rows, refuse implausible ones, and name values that are nearly times.

A few rows far away in time from all others are more often wrong dates than data.
"""

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from tasks.contracts.spans import SpanKind, after, first_day, in_order, last_day
from tasks.data.files.spelling import DAY_FIRST, parse_day_first
from tasks.data.files.values import NUMBER, SCIENTIFIC
from tasks.foundation.errors import DataError

# Tables write 9999 for "never". No span of the calendar's last year has a next one, so none may be made.
_NEVER = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
FIRST_YEAR = 1990  # earlier times are mostly 0 or -1 for "unknown"
AHEAD = dt.timedelta(days=1)  # allowed future, because clocks and time zones differ

# After a longer gap without rows, the dates beyond it may be wrong.
FAR = {
    SpanKind.day: dt.timedelta(days=60),
    SpanKind.week: dt.timedelta(days=182),
    SpanKind.month: dt.timedelta(days=366),
    SpanKind.quarter: dt.timedelta(days=2 * 366),
    SpanKind.year: dt.timedelta(days=3 * 366),
}
FEW = 0.05  # share of all rows

# Ends of numbers in seconds, milliseconds, microseconds and nanoseconds, each the year 5138 and 1973 in the next unit;
# and the microseconds in so many of them.
_UNITS = ((10**11, 1_000_000, 1), (10**14, 1000, 1), (10**17, 1, 1), (10**20, 1, 1000))
_END = 10**20
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
# RFC 822 gives these zones an offset; Python's reader takes all others, and AM and PM, for UTC.
RFC_822 = re.compile(
    r"(?:[A-Z][a-z]{2}, )?[0-9]{1,2} [A-Z][a-z]{2} [12][0-9]{3} [0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?"
    r"(?: (?:[+-][0-9]{4}|UTC|UT|GMT|Z|[ECMP][SD]T)(?: \([\w ]+\))?)?"
)
# As Java writes it: 2026-10-25T02:30:00+02:00[Europe/Berlin]. Without the offset, an hour in October has two meanings.
_NAMED_ZONE = re.compile(r"([T ][0-9:.,]+(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?))\[[\w/+-]+\]$")
_OFFSET = re.compile(r"(?<=[0-9]) +(?:UTC|GMT|Z|([+-][0-9]{2}:?[0-9]{2}))$")


class TimeRange(NamedTuple):
    """The allowed times of rows, from `first` up to and excluding `end`; None: no bound."""

    first: dt.datetime | None
    end: dt.datetime | None

    def problem(self, moment: dt.datetime) -> str:
        """Return the problem with a time and the remedies; empty if the time is in the range."""
        if self.end is not None and moment >= _NEVER:
            return f"{_day(moment)} stands for never; correct it, or set such rows aside with --set-aside FILE"
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


def believed(at: dt.datetime, not_before: dt.date | None, not_after: dt.date | None) -> TimeRange:
    """Return the allowed range of times for an ingest at the moment `at`.

    Args:
        not_before, not_after: the first and the last day in UTC, given by a person; else FIRST_YEAR, and AHEAD of `at`.
    """
    first = not_before or dt.date(FIRST_YEAR, 1, 1)
    last = None if not_after is None else min(not_after, dt.date(9998, 12, 31))
    end = at + AHEAD if last is None else _midnight(last) + dt.timedelta(days=1)
    return TimeRange(_midnight(first), end)


def parse_time(value: object, dayfirst: bool = False) -> dt.datetime:
    """Parse ISO 8601 (without an offset: UTC), RFC 822, YYYYMMDD, YYYYMMDDhhmmss, or a time since 1970.

    A time since 1970 is in seconds, milliseconds, microseconds or nanoseconds, whichever gives a year before 5139.
    `2026-11-20 08:30:00 UTC`, as of BigQuery, is ISO 8601 too. A number and its text are the same time.

    Args:
        dayfirst: texts such as 20.11.2026 8:30 are times too.

    Raises:
        ValueError, OverflowError, TypeError: the value is not a time.
    """
    if isinstance(value, str):
        text = value.strip()
        if dayfirst and DAY_FIRST.fullmatch(text):
            value = parse_day_first(text)
        elif SCIENTIFIC.fullmatch(text):
            raise ValueError(text)  # a spreadsheet has cut its digits
        elif NUMBER.fullmatch(text):
            value = Decimal(text)
        elif RFC_822.fullmatch(text):
            value = parsedate_to_datetime(text)
        else:
            value = dt.datetime.fromisoformat(_plain_iso(text))
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    if isinstance(value, dt.date):
        return _midnight(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError(type(value).__name__)
    return _of_number(value)


def is_epoch(value: object, at: dt.datetime) -> bool:
    """Return True for a number, or its text, that is likely a time: not before 1990, and not after `at`."""
    try:
        return (
            NUMBER.fullmatch(str(value)) is not None
            and dt.datetime(FIRST_YEAR, 1, 1, tzinfo=dt.UTC) <= parse_time(value) <= at + AHEAD
        )
    except (ValueError, OverflowError, TypeError):
        return False


def _plain_iso(text: str) -> str:
    """Return an ISO 8601 text without the name of a zone, and without a blank before its offset."""
    plain = _NAMED_ZONE.sub(r"\1", text)
    return _OFFSET.sub(lambda found: found[1] or "+00:00", plain)


def _of_number(value: float | Decimal) -> dt.datetime:
    if value != value or abs(value) >= _END:
        raise OverflowError(value)
    if value == int(value):
        value = int(value)
        digits = str(value)
        if len(digits) in (8, 14) and digits[:2] in ("19", "20") and _on_calendar(digits):
            return dt.datetime.strptime(digits, "%Y%m%d%H%M%S"[: 6 if len(digits) == 8 else 12]).replace(tzinfo=dt.UTC)
    each, divided = next((each, by) for end, each, by in _UNITS if abs(value) < end)
    moment = value * each // divided if isinstance(value, int) else round(value * each / divided)
    return _EPOCH + dt.timedelta(microseconds=int(moment))


def _on_calendar(digits: str) -> bool:
    try:
        dt.datetime.strptime(digits[:8], "%Y%m%d")
    except ValueError:
        return False
    return len(digits) == 8 or (digits[8:10] < "24" and digits[10:12] < "60" and digits[12:] < "60")


def microseconds(moment: dt.datetime) -> int:
    """Return microseconds since the epoch."""
    return (moment - _EPOCH) // _MICROSECOND


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC)


def _day(moment: dt.datetime) -> str:
    return moment.date().isoformat()


class Seen(NamedTuple):
    """The position of a span's first record, and the number of its rows."""

    where: str  # file, row, column and value
    rows: int


def refuse_far_spans(
    kind: SpanKind,
    source: Mapping[str, Seen],
    known: Mapping[str, Callable[[], int]],
    trusted: tuple[bool, bool],
) -> None:
    """Refuse spans of few rows that are far from most rows of source and workspace.

    Args:
        source: the spans of the source, by name.
        known: for each span of the workspace, a function that returns its rows; called only if spans are far apart.
        trusted: True for the begin, and for the end, if a person gave it; that side is not judged then.

    Raises:
        DataError: such a span exists; names its first record and the remedies.
    """
    groups = _groups(in_order(list({*source, *known})), FAR[kind])
    if len(groups) < 2:
        return
    rows = [sum(source[name].rows if name in source else known[name]() for name in group) for group in groups]
    main = rows.index(max(rows))
    for place, group in enumerate(groups):
        early = place < main
        if place == main or trusted[0 if early else 1] or set(group) & set(known) or rows[place] > FEW * sum(rows):
            continue
        first = source[group[0]]
        border = first_day(groups[main][0]) if early else last_day(groups[main][-1])
        option, edge = ("--not-before", first_day(group[0])) if early else ("--not-after", last_day(group[-1]))
        many = "1 row is" if rows[place] == 1 else f"{rows[place]} rows are"
        raise DataError(
            f"{first.where}: {many} in {_named(group)}, far from the other {sum(rows) - rows[place]} rows, "
            f"{_named(groups[main])}. If the time is wrong, correct it, or set such rows aside with "
            f"{option} {border} --set-aside FILE; if it is right, say so with {option} {edge}"
        )


def _groups(names: Sequence[str], far: dt.timedelta) -> list[list[str]]:
    """Group spans in order; a gap longer than `far` begins a new group."""
    groups: list[list[str]] = []
    for name in names:
        if not groups or first_day(name) - first_day(after(groups[-1][-1])) > far:
            groups.append([])
        groups[-1].append(name)
    return groups


def _named(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}"


_EXCEL_DAYS = range(20_000, 80_000)  # from 1954 to 2119
_EXCEL_EPOCH = dt.datetime(1899, 12, 30)
_SHORT_YEAR = re.compile(r"([0-9]{2})([-/.])([0-9]{2})\2([0-9]{2})(?:[ T].*)?")
_ABBREVIATION = re.compile(r"(.*[0-9]) ?([A-Z]{2,5})")
_ZONE_ALONE = re.compile(r"(.*[0-9])\[([\w/+-]+)\]")
_HALF_DAY = re.compile(r"(.*[0-9]) ?[AaPp]\.?[Mm]\.?")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?")


def way_to_write(value: object) -> str:
    """Return the likely meaning of a value that is no time, and the way to write it; empty if it is not nearly one."""
    text = str(value).strip()
    if NUMBER.fullmatch(text) and _EXCEL_DAYS.start <= float(text) < _EXCEL_DAYS.stop:
        day = _EXCEL_EPOCH + dt.timedelta(days=float(text))
        return (
            f"{text} may be a day number of Excel, {day:%Y-%m-%d}; format the column there as yyyy-mm-dd hh:mm, and "
            "export it again"
        )
    if found := _SHORT_YEAR.fullmatch(text):
        return (
            f"the year of {text!r} has two digits; write four, as in 20{found[1]}-{found[3]}-{found[4]}, or give "
            "--dayfirst if the day is first"
        )
    if (found := _HALF_DAY.fullmatch(text)) and _is_time(re.sub(r"(?<= )([0-9]:)", r"0\1", found[1])):
        return "its hours are of half a day; write them from 00 to 23"
    if (found := _ZONE_ALONE.fullmatch(text)) and _is_time(found[1]):
        return f"{found[2]} has two offsets in a year; write the one of this time, as in +02:00"
    if (found := _ABBREVIATION.fullmatch(text)) and _is_time(found[1]):
        return f"{found[2]} is the name of a zone, which places use differently; write its offset, as in +02:00"
    if _CLOCK.fullmatch(text):
        return f"{text!r} has no date; put it before the time, as in 2026-11-20T{text}"
    return ""


def year_comes_first(texts: list[str]) -> bool:
    """Return True if dates with years of two digits likely begin with the year: it differs less than the last part."""
    found = [each for text in texts if (each := _SHORT_YEAR.fullmatch(text.strip()))]
    return bool(found) and len({each[1] for each in found}) < len({each[4] for each in found})


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except (ValueError, OverflowError, TypeError):
        return False
    return True
