"""Gates by plain comparison, for processes of which each would load great-expectations for five seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tasks.gates.expectations import Limit


def judge_numbers(numbers: Mapping[str, float | None], limits: Mapping[str, Limit]) -> dict[str, bool]:
    """What `tasks.gates.expectations.judge_numbers` answers."""
    return {name: _within(numbers[name], limit) for name, limit in limits.items()}


def _within(number: float | None, limit: Limit) -> bool:
    low, high = (-math.inf if limit.low is None else limit.low), (math.inf if limit.high is None else limit.high)
    return number is not None and math.isfinite(number) and low <= number <= high
