import pytest

from tasks.foundation.durations import duration, old


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "0 s"),
        (42.4, "42 s"),
        (59.6, "1 min 00 s"),
        (80, "1 min 20 s"),
        (3599.7, "1 h 00 min"),
        (11_100, "3 h 05 min"),
        (360_000, "100 h 00 min"),
    ],
)
def test_seconds_as_people_say_them(seconds: float, said: str):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("hours", "said"),
    [(0.0, "0 h"), (36.4, "36 h"), (72.0, "72 h"), (84.0, "3.5 days"), (336.0, "14 days"), (49_452.0, "2,060.5 days")],
)
def test_hours_become_days(hours: float, said: str):
    assert old(hours) == said
