"""When the watch may start a run again: pauses that grow, three starts a day."""

import datetime as dt

import pytest

from tasks.monitoring.restarts import StartedRun, turn

NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)


def starts(*hours: float) -> list[StartedRun]:
    """Starts so many hours after noon."""
    moments = [(NOON + dt.timedelta(hours=each)).isoformat() for each in hours]
    return [StartedRun(number=number, flow_run="f", at=moment) for number, moment in enumerate(moments, 1)]


@pytest.mark.parametrize(
    ("before", "at", "due", "given_up"),
    [
        ((), 0.0, 0.0, False),
        ((0,), 0.5, 1.0, False),
        ((0, 1), 1.5, 5.0, False),
        ((0, 1, 5), 6.0, 24.0, True),
        ((0, 1, 5), 24.0, 9.0, False),  # two of them are of the last day
        ((0, 1, 5, 24), 25.0, 28.0, False),
        ((0, 1, 5, 24, 28), 28.5, 29.0, True),
    ],
)
def test_each_start_waits_longer_and_a_day_has_three(before, at, due, given_up):
    ended = NOON + dt.timedelta(hours=max(before)) if before else None
    found = turn(starts(*before), ended, NOON + dt.timedelta(hours=at))
    assert (found.due, found.given_up) == (NOON + dt.timedelta(hours=due), given_up)
