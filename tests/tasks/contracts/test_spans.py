import asyncio
import datetime as dt
import itertools
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect.server.schemas.schedules import CronSchedule

from tasks.contracts.spans import SpanKind, after, first_day, in_order, kind_of, last_day, last_over, span_of
from tasks.foundation.errors import ConfigError

KINDS = st.sampled_from(list(SpanKind))
MOMENTS = st.datetimes(min_value=dt.datetime(1000, 1, 8))
DAYS_AT_MOST = {SpanKind.day: 1, SpanKind.week: 7, SpanKind.month: 31, SpanKind.quarter: 92, SpanKind.year: 366}


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
        ("2024-12-31", SpanKind.year, "2024", "2024-01-01"),
    ],
)
def test_spans_are_named_in_iso_form(moment: str, kind: SpanKind, span: str, start: str) -> None:
    assert span_of(dt.datetime.fromisoformat(moment), kind) == span
    assert first_day(span) == dt.date.fromisoformat(start)


@given(MOMENTS, KINDS)
def test_a_moment_lies_in_the_span_that_begins_before_it(moment: dt.datetime, kind: SpanKind) -> None:
    span = span_of(moment, kind)
    start = first_day(span)
    assert dt.timedelta(0) <= moment.date() - start < dt.timedelta(days=DAYS_AT_MOST[kind])
    assert span_of(dt.datetime(start.year, start.month, start.day), kind) == span


@given(st.lists(MOMENTS, max_size=20), KINDS)
def test_the_order_of_spans_is_the_order_of_time(moments: list[dt.datetime], kind: SpanKind) -> None:
    assert in_order([span_of(moment, kind) for moment in moments]) == [span_of(m, kind) for m in sorted(moments)]


@pytest.mark.parametrize("span", ["2026-13", "2026-W54", "2026-02-30", "2026-00"])
def test_a_span_that_is_not_on_the_calendar_is_refused(span: str) -> None:
    with pytest.raises(ConfigError, match=f"'{span}' is not"):
        first_day(span)


@pytest.mark.parametrize("span", ["20260", "2026-Q5", "2026-q4", "26-11", "2026-11-20 ", "", "latest", "2026-W7"])
def test_a_name_that_is_no_span_is_refused_with_the_valid_forms(span: str) -> None:
    with pytest.raises(ConfigError, match=r"not a day .*2026-W47"):
        first_day(span)


@given(MOMENTS.filter(lambda moment: moment.year < 9999), KINDS)
def test_a_span_ends_the_day_before_the_next_one_begins(moment: dt.datetime, kind: SpanKind) -> None:
    span = span_of(moment, kind)
    assert (kind_of(span), kind_of(after(span))) == (kind, kind)
    assert first_day(span) <= moment.date() <= last_day(span)
    assert first_day(after(span)) - last_day(span) == dt.timedelta(days=1)


@pytest.mark.parametrize("question", [kind_of, last_day, after])
def test_questions_about_a_name_that_is_no_span_are_refused(question: object) -> None:
    with pytest.raises(ConfigError, match="is not a day"):
        question("latest")  # pyright: ignore[reportCallIssue]


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Apia")
AT_MIDNIGHT = ("Africa/Cairo", "America/Havana", "Asia/Beirut", "Atlantic/Azores")  # where clocks change then
DAYS = {SpanKind.day: "* * *", SpanKind.week: "* * 1", SpanKind.month: "2 * *", SpanKind.quarter: "2 1,4,7,10 *"} | {
    SpanKind.year: "2 1 *"
}


def fired(cron: str, zone: str, start: dt.datetime, days: int) -> list[dt.datetime]:
    """The times at which Prefect's scheduler starts runs."""
    schedule = CronSchedule(cron=cron, timezone=zone)
    end = start + dt.timedelta(days=days)
    return list(asyncio.run(schedule.get_dates(n=1000, start=start, end=end)))


@pytest.mark.parametrize(
    ("moment", "zone", "kind", "span"),
    [
        ("2026-11-23T06:00+00:00", "UTC", SpanKind.week, "2026-W47"),
        ("2026-11-22T23:59+00:00", "UTC", SpanKind.week, "2026-W46"),
        ("2026-11-22T23:30+00:00", "Europe/Berlin", SpanKind.week, "2026-W47"),  # it is Monday there
        ("2026-11-23T02:00+00:00", "America/New_York", SpanKind.week, "2026-W46"),  # and still Sunday there
        ("2026-03-29T00:30+00:00", "Europe/Berlin", SpanKind.day, "2026-03-28"),  # clocks are set forward
        ("2026-10-25T00:30+00:00", "Europe/Berlin", SpanKind.day, "2026-10-24"),  # 02:30 the first time
        ("2026-10-25T01:30+00:00", "Europe/Berlin", SpanKind.day, "2026-10-24"),  # 02:30 once more
        ("2027-01-01T00:00+05:30", "Asia/Kolkata", SpanKind.quarter, "2026-Q4"),
        ("2027-01-01T00:00+05:30", "UTC", SpanKind.month, "2026-11"),  # it is December there
    ],
)
def test_the_last_ended_span_follows_the_zones_calendar(moment: str, zone: str, kind: SpanKind, span: str) -> None:
    assert last_over(dt.datetime.fromisoformat(moment), zone, kind) == span


@settings(max_examples=60)
@given(
    st.sampled_from(ZONES),
    KINDS,
    st.integers(0, 23),
    st.sampled_from([0, 15, 30, 59]),
    st.datetimes(dt.datetime(2024, 1, 1), dt.datetime(2029, 1, 1)),
)
def test_scheduled_runs_take_each_span_exactly_once(
    zone: str, kind: SpanKind, hour: int, minute: int, start: dt.datetime
) -> None:
    moments = fired(
        f"{minute} {hour} {DAYS[kind]}",
        zone,
        start.replace(tzinfo=ZoneInfo(zone)),
        days=3000 if kind is SpanKind.year else 730,
    )
    spans = [last_over(moment, zone, kind) for moment in moments]
    assert len(spans) >= 7
    assert all(after(one) == other for one, other in itertools.pairwise(spans))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_clock_changes_skip_and_repeat_no_span(zone: str) -> None:
    start = dt.datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))
    moments = fired("30 2 * * *", zone, start, days=365)
    clock = {(local.hour, local.minute) for local in (moment.astimezone(ZoneInfo(zone)) for moment in moments)}
    assert clock - {(2, 30)}, "no change of clocks was met"
    spans = [last_over(moment, zone, SpanKind.day) for moment in moments]
    assert len(spans) == 365
    assert all(after(one) == other for one, other in itertools.pairwise(spans))


@settings(max_examples=40)
@given(st.sampled_from(AT_MIDNIGHT), st.integers(0, 59), st.integers(2024, 2027))
def test_without_a_midnight_no_span_is_taken_before_its_end(zone: str, minute: int, year: int) -> None:
    """Prefect starts such a run an hour early, on the day before; the next run takes its span."""
    moments = fired(f"{minute} 0 * * *", zone, dt.datetime(year, 1, 1, tzinfo=ZoneInfo(zone)), days=365)
    spans = [last_over(moment, zone, SpanKind.day) for moment in moments]
    assert all(
        last_day(span) < moment.astimezone(ZoneInfo(zone)).date() for span, moment in zip(spans, moments, strict=True)
    )
    assert all(other in (one, after(one), after(after(one))) for one, other in itertools.pairwise(spans))


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="zone 'Berlin'"):
        last_over(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "Berlin", SpanKind.day)


def test_a_time_without_an_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="has no UTC offset"):
        last_over(dt.datetime(2026, 1, 1), "UTC", SpanKind.day)


def test_no_span_is_after_the_last_of_the_calendar() -> None:
    with pytest.raises(ConfigError, match="'9999-12' is the last"):
        after("9999-12")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("2026W45", "2026-W45"),
        ("2026-45", "2026-W45"),
        ("2026-w5", "2026-W05"),
        ("2026-5", "2026-05"),
        ("2026q3", "2026-Q3"),
        ("20261102", "2026-11-02"),
        ("2026/1/2", "2026-01-02"),
    ],
)
def test_a_span_in_another_form_is_named_in_the_right_one(wrong: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean {near}\?"):
        kind_of(wrong)
