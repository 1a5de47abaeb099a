import math

import pytest

from tasks.quality.limits import Limit


@pytest.mark.parametrize(
    ("number", "limit", "passed"),
    [
        (1.0, Limit(1.0, None), True),
        (0.999, Limit(1.0, None), False),
        (1, Limit(None, 1), True),
        (1.001, Limit(None, 1), False),
        (-0.0, Limit(0.0, 0.0), True),
        (math.nan, Limit(0.0, None), False),
        (None, Limit(0.0, None), False),
        (math.inf, Limit(0.0, None), False),
        (-math.inf, Limit(None, 0.0), False),
    ],
)
def test_numbers_within_limits(number: float | None, limit: Limit, passed: bool):
    assert limit.admits(number) is passed
