import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import ConfigError
from tasks.spans import SpanKind, first_day, in_order, span_of

KINDS = st.sampled_from(list(SpanKind))
MOMENTS = st.datetimes(min_value=dt.datetime(1000, 1, 8))
DAYS_AT_MOST = {SpanKind.day: 1, SpanKind.week: 7, SpanKind.month: 31, SpanKind.quarter: 92}


@pytest.mark.parametrize(
    ("moment", "kind", "span", "start"),
    [
        ("2026-11-20T23:59:59", SpanKind.day, "2026-11-20", "2026-11-20"),
        ("2026-11-20", SpanKind.week, "2026-W47", "2026-11-16"),
        ("2026-11-20", SpanKind.month, "2026-11", "2026-11-01"),
        ("2026-11-20", SpanKind.quarter, "2026-Q4", "2026-10-01"),
        ("2027-01-03", SpanKind.week, "2026-W53", "2026-12-28"),
        ("2024-12-30", SpanKind.week, "2025-W01", "2024-12-30"),
        ("2022-03-31", SpanKind.quarter, "2022-Q1", "2022-01-01"),
    ],
)
def test_spans_are_named_in_iso_form(moment: str, kind: SpanKind, span: str, start: str) -> None:
    assert span_of(dt.datetime.fromisoformat(moment), kind) == span
    assert first_day(span) == dt.date.fromisoformat(start)


@settings(deadline=None)
@given(MOMENTS, KINDS)
def test_a_moment_lies_in_the_span_that_begins_before_it(moment: dt.datetime, kind: SpanKind) -> None:
    span = span_of(moment, kind)
    start = first_day(span)
    assert dt.timedelta(0) <= moment.date() - start < dt.timedelta(days=DAYS_AT_MOST[kind])
    assert span_of(dt.datetime(start.year, start.month, start.day), kind) == span


@settings(deadline=None)
@given(st.lists(MOMENTS, max_size=20), KINDS)
def test_the_order_of_spans_is_the_order_of_time(moments: list[dt.datetime], kind: SpanKind) -> None:
    assert in_order([span_of(moment, kind) for moment in moments]) == [span_of(m, kind) for m in sorted(moments)]


@pytest.mark.parametrize("span", ["2026-13", "2026-W54", "2026-02-30", "2026-00"])
def test_a_span_that_is_not_on_the_calendar_is_refused(span: str) -> None:
    with pytest.raises(ConfigError, match=f"'{span}' is not on the calendar"):
        first_day(span)


@pytest.mark.parametrize("span", ["2026", "2026-Q5", "2026-q4", "26-11", "2026-11-20 ", "", "latest", "2026-W7"])
def test_a_name_that_is_no_span_is_refused_with_the_forms(span: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a day \(2026-11-20\), week \(2026-W47\), month .* or quarter"):
        first_day(span)
