import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score

from tasks.worker.evaluation.solve import FOLDS, Unseen, best_threshold, find_shortage, solve
from tests.support.pages.golden import Golden

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


def test_rows_that_the_encoder_never_saw_take_the_confidence_of_those_it_did():
    """An encoder pulls the rows that it is trained on apart by their own class, which no new row does."""
    random = np.random.default_rng(6)

    def rows(count: int, seen: bool) -> tuple[np.ndarray, np.ndarray]:
        inputs, classes = unit_vectors(count, seed=7 + seen, rare=0.3)
        classes = np.where(random.random(count) < 0.08, 1 - classes, classes)  # labels that text does not explain
        inputs[:, 1] = (0.08 * (2 * classes - 1) if seen else 0.0) + 0.1 * random.normal(size=count)
        return inputs, classes

    inputs, classes = rows(1200, seen=True)
    others, truth = rows(4000, seen=False)
    folds, unseen = np.arange(1200) % FOLDS, Unseen(others[:1000], truth[:1000])
    found = []
    for solved in (solve(inputs, classes, folds), solve(inputs, classes, folds, unseen=unseen)):
        says = probabilities(others[1000:], solved.weight, solved.bias)
        right = np.where(truth[1000:] == 1, says, 1 - says)
        found.append((slope_of(says, truth[1000:]), -np.log(right).mean()))
    (slope_before, loss_before), (slope, loss) = found
    assert slope_before < 0.7, "the fault: cross-validation among seen rows is too sure"
    assert 0.8 < slope < 1.2
    assert loss < loss_before


def slope_of(says: np.ndarray, truth: np.ndarray) -> float:
    """Return the calibration slope: 1 if calibrated, less if too sure (Cox 1958)."""
    logits = np.log(says / (1 - says))
    return float(LogisticRegression(C=1e6).fit(logits[:, None], truth).coef_[0, 0])


def test_a_few_unseen_rows_of_one_class_change_little():
    inputs, classes = unit_vectors(1000, seed=8, rare=0.3)
    others, truth = unit_vectors(10, seed=9, rare=0.3)
    likely = others[truth == 1][:5]
    plain, corrected = (
        solve(inputs, classes, np.arange(1000) % FOLDS, unseen=unseen)
        for unseen in (None, Unseen(likely, np.ones(5, dtype=np.int64)))
    )
    before, after = (probabilities(inputs, each.weight, each.bias) for each in (plain, corrected))
    assert np.abs(before - after).mean() < 0.1


def test_the_best_threshold_has_the_highest_expected_macro_f1():
    """Against the mean over many draws of the classes, by scikit-learn's formula."""
    random = np.random.default_rng(5)
    values = np.round(random.beta(2, 0.7, size=120), 2)  # with ties, and three in four of class 1
    draws = random.random((40, 120)) < values

    def expected(threshold: float) -> float:
        named = values >= threshold
        return float(np.mean([f1_score(each, named, average="macro") for each in draws]))

    reached = expected(best_threshold(values))
    assert reached > max(expected(each) for each in np.unique(values)[1::8]) - 0.01
    assert reached > expected(0.2) + 0.02
    assert best_threshold(np.full(4, 0.3)) == 0.5, "one probability: nothing to choose"


def test_a_class_of_one_query_is_too_few_as_the_fits_without_its_fold_have_no_row_of_it(golden: Golden):
    classes = (np.arange(200) < 40).astype(np.int64)
    folds = np.where(classes, 3, np.arange(200) % FOLDS)
    golden(find_shortage(classes, folds) or "")
    folds[0] = 1
    assert find_shortage(classes, folds) == ""
    inputs, _ = unit_vectors(200, seed=10)
    assert np.isfinite(solve(inputs, classes, folds).weight).all()
    golden(find_shortage((np.arange(200) < 9).astype(np.int64), folds) or "")
