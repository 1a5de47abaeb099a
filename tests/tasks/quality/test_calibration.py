import numpy as np
import pytest
from sklearn.metrics import log_loss

from tasks.quality.calibration import CALIBRATION


def test_the_log_loss_is_that_of_scikit_learn():
    random = np.random.default_rng(1)
    says = random.random(500)
    truth = (random.random(500) < says).astype(float)
    assert CALIBRATION["log_loss"](truth, says) == pytest.approx(log_loss(truth, says))


def test_a_certain_mistake_costs_much_but_not_without_end():
    assert 15 < CALIBRATION["log_loss"](np.array([1.0, 0.0]), np.array([0.0, 1.0])) < 17


def test_the_calibration_error_of_two_bins():
    """Four rows said 0.25, of which half are 1, and one said 1.0 that is: |2 - 1| / 5."""
    truth, says = np.array([1, 1, 0, 0, 1.0]), np.array([0.25, 0.25, 0.25, 0.25, 1.0])
    assert CALIBRATION["calibration_error"](truth, says) == pytest.approx(0.2)


def test_probabilities_that_are_shares_have_no_error_and_sharper_ones_do():
    random = np.random.default_rng(2)
    says = random.random(20_000)
    truth = (random.random(20_000) < says).astype(float)
    odds = np.log(says / (1 - says))
    assert CALIBRATION["calibration_error"](truth, says) < 0.015
    assert CALIBRATION["calibration_error"](truth, 1 / (1 + np.exp(-3 * odds))) > 0.1


@pytest.mark.parametrize("name", list(CALIBRATION))
def test_a_probability_that_is_no_number_gives_none(name: str):
    assert np.isnan(CALIBRATION[name](np.array([1.0, 0.0]), np.array([np.nan, 0.5])))
