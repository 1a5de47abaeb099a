"""Spans, the named partitions of time, and their order.

A span is named in ISO form: `2026-11-20` (day), `2026-W47` (week), `2026-11` (month), `2026-Q4` (quarter) or `2026`
(year).
"""

import datetime as dt
import enum
import re
import zoneinfo

from tasks.foundation.errors import ConfigError


class SpanKind(enum.StrEnum):
    """The length of a span."""

    day = "day"
    week = "week"
    month = "month"
    quarter = "quarter"
    year = "year"


_FORMS = {
    SpanKind.day: re.compile(r"(\d{4})-(\d{2})-(\d{2})"),
    SpanKind.week: re.compile(r"(\d{4})-W(\d{2})"),
    SpanKind.month: re.compile(r"(\d{4})-(\d{2})"),
    SpanKind.quarter: re.compile(r"(\d{4})-Q([1-4])"),
    SpanKind.year: re.compile(r"(\d{4})"),
}

# Forms that people write for these, each with the right one.
_NEAR_FORMS = {
    re.compile(r"(\d{4})[-_ ]([1-9])"): "{}-{:02d}",
    re.compile(r"(\d{4})[-_ ]?[Ww]?(\d{1,2})"): "{}-W{:02d}",
    re.compile(r"(\d{4})[-_ ]?[Qq](\d)"): "{}-Q{}",
    re.compile(r"(\d{4})[-/.]?(\d{1,2})[-/.]?(\d{1,2})"): "{}-{:02d}-{:02d}",
}

# Time from a span's first day to some day of the next span, for all lengths of the two.
_INTO_THE_NEXT = {
    SpanKind.day: dt.timedelta(days=1),
    SpanKind.week: dt.timedelta(days=7),
    SpanKind.month: dt.timedelta(days=31),
    SpanKind.quarter: dt.timedelta(days=92),
    SpanKind.year: dt.timedelta(days=366),
}


def span_of(moment: dt.datetime, kind: SpanKind) -> str:
    """Return the name of the span that holds `moment`, taken in its own time zone; the caller converts to UTC."""
    match kind:
        case SpanKind.day:
            return moment.date().isoformat()
        case SpanKind.week:
            year, week, _ = moment.isocalendar()
            return f"{year:04d}-W{week:02d}"
        case SpanKind.month:
            return f"{moment.year:04d}-{moment.month:02d}"
        case SpanKind.quarter:
            return f"{moment.year:04d}-Q{(moment.month + 2) // 3}"
        case SpanKind.year:
            return f"{moment.year:04d}"


def kind_of(span: str) -> SpanKind:
    """Return the length of a span, from its name. Raises ConfigError as `first_day` does."""
    return _parse(span)[0]


def first_day(span: str) -> dt.date:
    """Return the first day of a span. Raises ConfigError: `span` is not a span in ISO form."""
    return _parse(span)[1]


def last_day(span: str) -> dt.date:
    """Return the last day of a span, inclusive. Raises ConfigError as `first_day` does."""
    return first_day(after(span)) - dt.timedelta(days=1)


def after(span: str) -> str:
    """Return the next span of the same length. Raises ConfigError as `first_day` does, and for the calendar's last."""
    kind, first = _parse(span)
    try:
        return span_of(_midnight(first + _INTO_THE_NEXT[kind]), kind)
    except OverflowError as error:
        raise ConfigError(f"span {span!r} is the last of the calendar, which has none after it") from error


def last_over(moment: dt.datetime, zone: str, kind: SpanKind) -> str:
    """Return the newest span that is over at `moment` in a time zone: the one before the span that contains it.

    A clock change at night does not change the date, so it does not change the span.

    Args:
        moment: a time with any UTC offset; the calendar is the one of `zone`.
        zone: a name of the IANA database, for example Europe/Berlin.
        kind: the length of the spans.

    Raises:
        ConfigError: the time zone is unknown.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no UTC offset")
    try:
        local = moment.astimezone(zoneinfo.ZoneInfo(zone))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigError(f"unknown time zone {zone!r}; write it as Europe/Berlin") from error
    before = first_day(span_of(local, kind)) - dt.timedelta(days=1)
    return span_of(_midnight(before), kind)


def in_order(spans: list[str]) -> list[str]:
    """Return the spans, oldest first."""
    return sorted(spans, key=lambda span: (first_day(span), span))


def _parse(span: str) -> tuple[SpanKind, dt.date]:
    """Return length and first day."""
    for kind, form in _FORMS.items():
        if found := form.fullmatch(span):
            numbers = [int(part) for part in found.groups()]
            try:
                match kind:
                    case SpanKind.day:
                        return kind, dt.date(*numbers)
                    case SpanKind.week:
                        return kind, dt.date.fromisocalendar(numbers[0], numbers[1], 1)
                    case SpanKind.month:
                        return kind, dt.date(numbers[0], numbers[1], 1)
                    case SpanKind.quarter:
                        return kind, dt.date(numbers[0], 3 * numbers[1] - 2, 1)
                    case SpanKind.year:
                        return kind, dt.date(numbers[0], 1, 1)
            except ValueError as error:
                raise ConfigError(f"span {span!r} is not on the calendar: {error}{_meant(span)}") from error
    raise ConfigError(
        f"span {span!r} is not a day (2026-11-20), week (2026-W47), month (2026-11), quarter (2026-Q4) or year (2026)"
        f"{_meant(span)}"
    )


def _meant(span: str) -> str:
    """Return the span that a wrong name was probably meant to be, as the end of a message; else an empty text."""
    for wrong, right in _NEAR_FORMS.items():
        if found := wrong.fullmatch(span):
            year, *rest = found.groups()
            near = right.format(year, *map(int, rest))
            return f"; did you mean {near}?" if near != span and _is_span(near) else ""
    return ""


def _is_span(name: str) -> bool:
    try:
        _parse(name)
    except ConfigError:
        return False
    return True


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime(day.year, day.month, day.day)
