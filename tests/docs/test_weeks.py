"""The weeks of docs/aws.md: a line that grows with the weeks says why, and another one does not grow."""

from __future__ import annotations

import pytest

from tests.benchmarks.weeks import SIZES, SUMS, WEEKS, Size, week


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.items:,} items")
def test_a_line_grows_only_if_it_says_why(size: Size) -> None:
    first, second = (week(size, number) for number in WEEKS)
    grown = {one.name for one, other in zip(first, second, strict=True) if one[2:8] != other[2:8]}
    assert grown - set(SUMS) == {line.name for line in first if line.grows}
