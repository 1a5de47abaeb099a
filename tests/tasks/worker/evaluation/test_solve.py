import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score

from tasks.worker.evaluation.solve import FOLDS, best_threshold, solve

WIDTH = 24


def unit_vectors(rows: int, seed: int, rare: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Random unit vectors; those that point away from one direction, a share `rare`, are of class 0."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(rows, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    along = vectors[:, 0] + 0.05 * random.normal(size=rows)
    return vectors, (along > np.quantile(along, rare)).astype(np.int64)


def probabilities(inputs: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    logits = inputs @ weight.T + bias
    return 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))


def test_a_head_is_at_least_a_balanced_logistic_regression_and_calibrated():
    inputs, classes = unit_vectors(3000, seed=1)
    others, truth = unit_vectors(3000, seed=2)
    solved = solve(inputs, classes, np.arange(3000) % FOLDS)
    found = probabilities(others, solved.weight, solved.bias)
    balanced = LogisticRegression(class_weight="balanced").fit(inputs, classes)
    assert roc_auc_score(truth, found) > roc_auc_score(truth, balanced.decision_function(others)) - 0.005
    ours = f1_score(truth, found >= solved.threshold, average="macro")
    assert ours > f1_score(truth, balanced.predict(others), average="macro") + 0.05
    assert found.mean() == pytest.approx(truth.mean(), abs=0.01), "a balanced fit alone says one half"
    likely = found > 0.9
    assert found[likely].mean() == pytest.approx(truth[likely].mean(), abs=0.02)


def test_labels_without_a_signal_give_no_confidence():
    inputs, _ = unit_vectors(400, seed=3)
    classes = np.random.default_rng(4).integers(0, 2, 400)
    solved = solve(inputs, classes, np.arange(400) % FOLDS)
    assert np.abs(probabilities(inputs, solved.weight, solved.bias) - classes.mean()).max() < 0.15
    assert solved.metrics["auc"] == pytest.approx(0.5, abs=0.1), "measured on rows that the fit had not seen"


@pytest.mark.parametrize(
    ("classes", "values", "threshold"),
    [
        ([0, 0, 1, 1], [0.1, 0.2, 0.6, 0.8], 0.4),
        ([0, 1, 1, 1], [0.7, 0.75, 0.9, 0.95], 0.725),
        ([1, 1, 0, 1], [0.3, 0.3, 0.3, 0.3], 0.5),
    ],
)
def test_the_best_threshold(classes: list[int], values: list[float], threshold: float):
    assert best_threshold(np.array(classes), np.array(values)) == pytest.approx(threshold)


def test_the_best_threshold_has_the_macro_f1_of_scikit_learn():
    random = np.random.default_rng(5)
    classes = (random.random(200) < 0.9).astype(int)
    values = np.round(np.clip(0.3 * classes + random.random(200), 0, 1), 2)  # with ties

    def macro_f1(threshold: float) -> float:
        return float(f1_score(classes, values >= threshold, average="macro"))

    assert macro_f1(best_threshold(classes, values)) == max(macro_f1(each) for each in np.unique(values)[1:])
