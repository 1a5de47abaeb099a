import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from tasks.quality.label_metrics import CALIBRATION
from tasks.quality.row_metrics import classification_metrics, metrics_of, retrieval_metrics


def test_retrieval_metrics_of_known_ranks():
    metrics = retrieval_metrics(np.array([1, 2, 10, 101]), np.full(4, 100))
    assert metrics["recall@1"] == 0.25
    assert metrics["recall@10"] == 0.75
    assert metrics["recall@100"] == 0.75
    assert metrics["mrr@10"] == pytest.approx((1 + 1 / 2 + 1 / 10) / 4)
    assert metrics["ndcg@10"] == pytest.approx((1 + 1 / math.log2(3) + 1 / math.log2(11)) / 4)


def test_a_row_counts_for_a_metric_only_if_k_items_compete_with_its_own():
    """Among ten items any model has the own one among the first ten; among eleven it may miss it."""
    metrics = retrieval_metrics(np.array([1, 1, 3, 11, 2]), np.array([0, 1, 9, 10, 99]))
    assert metrics["recall@1"] == 1 / 4
    assert metrics["recall@10"] == metrics["ndcg@10"] * math.log2(3) == 1 / 2
    assert metrics["mrr@10"] == 1 / 4
    assert "recall@100" not in metrics
    assert retrieval_metrics(np.array([1, 1]), np.array([0, 0])) == {}


def test_classification_metrics_of_known_probabilities():
    predicted = np.array([1, 1, 0, 1, 0])
    metrics = classification_metrics(np.array([1, 1, 1, 0, 0]), np.array([0.9, 0.5, 0.2, 0.6, 0.1]), predicted)
    # class 1 has precision 2/3 and recall 2/3, class 0 has 1/2 and 1/2
    assert metrics["accuracy"] == pytest.approx(3 / 5)
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    # of the six pairs of a 1 and a 0, the 1 has the higher probability in four
    assert metrics["auc"] == pytest.approx(4 / 6)


@pytest.mark.parametrize(("cls", "macro_f1"), [(1, 0.5), (0, 0.0)])
def test_a_single_class_has_no_auc(cls: int, macro_f1: float):
    metrics = classification_metrics(np.full(3, cls), np.array([0.9, 0.8, 0.7]), np.ones(3))
    assert "auc" not in metrics
    assert (metrics["accuracy"], metrics["macro_f1"]) == (float(cls), macro_f1)


def test_no_rows_give_no_metrics():
    none = np.array([], dtype=np.int64)
    assert retrieval_metrics(none, none) == {}
    assert classification_metrics(np.array([], dtype=np.int64), np.array([]), np.array([])) == {}


def test_the_loss_is_the_mean_of_the_pairs_whose_item_has_a_competitor():
    found = metrics_of(
        ranks=np.array([1, 2, 3, 1]),
        competitors=np.array([1, 1, 1, 0]),
        losses=np.array([0.5, 1.5, np.nan, 0.0], dtype=np.float32),
        pair=np.array([True, True, False, True]),
        label_class=np.array([-1, -1, -1, -1]),
        probabilities=None,
        predicted=None,
    )
    assert found["loss"] == 1.0
    assert "accuracy" not in found


def test_classification_metrics_are_those_of_scikit_learn():
    random = np.random.default_rng(2)
    classes, probabilities = random.integers(0, 2, 300), random.integers(0, 20, 300) / 19  # with ties
    predicted = (probabilities >= 0.5).astype(int)
    found = classification_metrics(classes, probabilities, predicted)
    assert {name: found[name] for name in ("accuracy", "macro_f1", "auc")} == {
        "accuracy": pytest.approx(accuracy_score(classes, predicted)),
        "macro_f1": pytest.approx(f1_score(classes, predicted, average="macro")),
        "auc": pytest.approx(roc_auc_score(classes, probabilities)),
    }


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
