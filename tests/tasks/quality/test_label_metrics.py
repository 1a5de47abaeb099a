import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, mean_squared_error

from tasks.quality.label_metrics import label_metrics, without_skill

NONE = float("nan")


def test_the_metrics_of_several_classes_are_those_of_scikit_learn():
    """One class is never there but named, and one is neither."""
    random = np.random.default_rng(1)
    truth, says = random.choice([0, 1, 2, 5], 200), random.choice([0, 1, 2, 3], 200)
    assert label_metrics("multiclass", truth.astype(float), says.astype(float)) == {
        "multiclass_accuracy": pytest.approx(accuracy_score(truth, says)),
        "multiclass_macro_f1": pytest.approx(f1_score(truth, says, average="macro")),
    }


def test_the_metrics_of_numbers_are_those_of_scikit_learn_and_scipy():
    random = np.random.default_rng(2)
    truth = random.normal(1e5, 2.0, 300)  # far from zero, where sums of squares would lose digits
    says = truth + random.normal(size=300)
    assert label_metrics("regression", truth, says) == {
        "mae": pytest.approx(mean_absolute_error(truth, says)),
        "rmse": pytest.approx(mean_squared_error(truth, says) ** 0.5),
        "pearson": pytest.approx(scipy.stats.pearsonr(truth, says)[0]),
    }


def test_rows_without_a_label_do_not_count_and_none_give_no_metrics():
    found = label_metrics("regression", np.array([1.0, NONE, 3.0]), np.array([2.0, 90.0, 3.0], dtype=np.float32))
    assert found == {"mae": 0.5, "rmse": pytest.approx(0.5**0.5), "pearson": pytest.approx(1.0)}
    assert label_metrics("multiclass", np.array([NONE]), np.array([1.0])) == {}


def test_an_answer_that_is_no_number_is_no_number_and_never_right():
    assert np.isnan(label_metrics("regression", np.array([1.0, 2.0]), np.array([1.0, NONE]))["rmse"])
    assert label_metrics("multiclass", np.array([0.0, 1.0]), np.array([0.0, NONE]))["multiclass_accuracy"] == 0.5


def test_one_answer_to_all_rows_is_what_a_head_must_beat():
    found = without_skill({"multiclass": np.array([0.0, 2.0, 2.0, NONE]), "regression": np.array([1.0, 4.0])})
    assert found == {
        "multiclass_accuracy": pytest.approx(2 / 3),
        "multiclass_macro_f1": pytest.approx((0 + 0.8) / 2),
        "mae": 1.5,
        "rmse": 1.5,
    }
    assert without_skill({"multiclass": np.array([NONE])}) == {}
