"""Spans: how time is cut into named partitions, and in what order they come.

A span is named in ISO form: `2026-11-20` (day), `2026-W47` (week), `2026-11` (month), `2026-Q4` (quarter).
"""

from __future__ import annotations

import datetime as dt
import enum
import re

from tasks.errors import ConfigError


class SpanKind(enum.StrEnum):
    """The length of a span."""

    day = "day"
    week = "week"
    month = "month"
    quarter = "quarter"


_FORMS = {
    SpanKind.day: re.compile(r"(\d{4})-(\d{2})-(\d{2})"),
    SpanKind.week: re.compile(r"(\d{4})-W(\d{2})"),
    SpanKind.month: re.compile(r"(\d{4})-(\d{2})"),
    SpanKind.quarter: re.compile(r"(\d{4})-Q([1-4])"),
}


def span_of(moment: dt.datetime, kind: SpanKind) -> str:
    """The name of the span that holds `moment` (taken in its own time zone; the caller converts to UTC)."""
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


def first_day(span: str) -> dt.date:
    """The first day of a span.

    Raises:
        ConfigError: `span` is not a day, week, month or quarter in ISO form.
    """
    for kind, form in _FORMS.items():
        if found := form.fullmatch(span):
            numbers = [int(part) for part in found.groups()]
            try:
                match kind:
                    case SpanKind.day:
                        return dt.date(*numbers)
                    case SpanKind.week:
                        return dt.date.fromisocalendar(numbers[0], numbers[1], 1)
                    case SpanKind.month:
                        return dt.date(numbers[0], numbers[1], 1)
                    case SpanKind.quarter:
                        return dt.date(numbers[0], 3 * numbers[1] - 2, 1)
            except ValueError as error:
                raise ConfigError(f"span {span!r} is not on the calendar: {error}") from error
    raise ConfigError(f"span {span!r} is not a day (2026-11-20), week (2026-W47), month (2026-11) or quarter (2026-Q4)")


def in_order(spans: list[str]) -> list[str]:
    """Spans, oldest first."""
    return sorted(spans, key=lambda span: (first_day(span), span))
