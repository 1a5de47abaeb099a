import pytest

from tasks.contracts.usage import RateUse


@pytest.mark.parametrize(
    ("share", "warmed_up", "warned"),
    [(0.09, True, True), (0.1, True, False), (0.02, False, False)],
    ids=["worn down", "a tenth", "at the beginning of a lineage"],
)
def test_a_rate_below_a_tenth_of_its_peak_is_a_warning(share: float, warmed_up: bool, warned: bool):
    use = RateUse(rate=share * 5e-5, peak=5e-5, warmed_up=warmed_up)
    assert ("train.learning_rate_floor" in use.warning) is warned
