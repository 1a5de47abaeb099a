import pytest

from tasks.worker.evaluation.rows import sample_sizes


@pytest.mark.parametrize(
    ("there", "most", "measured"),
    [
        ([5, 5], 20, [5, 5]),
        ([100, 100, 100], 20, [5, 5, 10]),
        ([100, 2, 100], 20, [8, 2, 10]),
        ([100, 100, 3], 20, [8, 9, 3]),
        ([2, 1, 100], 20, [2, 1, 17]),
        ([100, 100, 100, 100], 21, [3, 3, 4, 11]),
        ([100], 20, [20]),
        ([100, 100, 100], 1, [0, 0, 1]),
    ],
)  # fmt: skip
def test_the_newest_span_has_half_and_the_others_share_the_rest(there: list[int], most: int, measured: list[int]):
    assert sample_sizes(there, most) == measured


def test_a_higher_cap_takes_no_row_away():
    there = [7, 40, 0, 13, 90, 25, 60]
    before = [0] * len(there)
    for most in range(1, sum(there) + 5):
        now = sample_sizes(there, most)
        assert sum(now) == min(most, sum(there))
        assert all(new >= old for new, old in zip(now, before, strict=True)), most
        before = now
    assert before == there
