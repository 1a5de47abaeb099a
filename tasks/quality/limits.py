"""Limits of numbers: thresholds of gates, of drift, of a window's size. Single rows are judged in expectations.py."""

import math
from typing import NamedTuple


class Limit(NamedTuple):
    """Inclusive bounds of a number; None means no bound."""

    low: float | None
    high: float | None

    def admits(self, number: float | None) -> bool:
        """Return whether the number is within both bounds. None, NaN and infinite numbers never are."""
        if number is None or not math.isfinite(number):
            return False
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        return bool(low <= number <= high)
