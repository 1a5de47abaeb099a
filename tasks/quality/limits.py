"""Limits of numbers, for thresholds of gates, drift and window sizes. expectations.py judges single rows."""

import math
from typing import NamedTuple


class Limit(NamedTuple):
    """Inclusive bounds of a number; None means no bound."""

    low: float | None
    high: float | None

    def admits(self, number: float | None) -> bool:
        """Return True if the number is within both bounds; False for None, NaN and infinite numbers."""
        if number is None or not math.isfinite(number):
            return False
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        return bool(low <= number <= high)
