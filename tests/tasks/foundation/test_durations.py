import pytest

from tasks.foundation.clock import duration, old


@pytest.mark.parametrize(
    ("seconds", "text"),
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
def test_seconds_are_shown_in_suitable_units(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.0, "0 h"), (36.4, "36 h"), (72.0, "72 h"), (84.0, "3.5 days"), (336.0, "14 days"), (49_452.0, "2,060.5 days")],
)
def test_long_ages_are_shown_in_days(hours: float, text: str):
    assert old(hours) == text
