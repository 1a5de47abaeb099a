import pytest

from tasks.durations import duration


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
