"""Solves a classification head on fixed vectors: balanced logistic regression, calibrated, with a threshold.

Strength, calibration and threshold are chosen by cross-validation: each fold is predicted by a fit on the others.
"""

from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from tasks.quality.row_metrics import area_under_roc, classification_metrics

FOLDS = 5
STRENGTHS = (0.1, 1.0, 10.0)  # inverse strength of the L2 penalty, for inputs of about unit length
LEAST_ROWS = 2 * FOLDS  # per class, so that every fit has rows of both
MOST_STEPS = 1000


class FittedClassifier(NamedTuple):
    """A head: logits are inputs @ weight.T + bias; a row is of class 1 if its probability is at least `threshold`.

    The metrics are cross-validated.
    """

    weight: np.ndarray  # float32 (classes, inputs)
    bias: np.ndarray  # float32 (classes,)
    threshold: float
    strength: float
    metrics: dict[str, float]


@threadpool_limits.wrap(limits=1, user_api="blas")  # the rounding of more threads depends on their number
def solve(
    inputs: np.ndarray, classes: np.ndarray, folds: np.ndarray, weights: np.ndarray | None = None
) -> FittedClassifier:
    """Return the head of the strength with the best cross-validated AUC; deterministic.

    Args:
        inputs: float32 (rows, inputs).
        classes: int64 (rows,): 0 or 1, at least LEAST_ROWS of each.
        folds: int64 (rows,): 0 to FOLDS - 1; similar rows should share a fold.
        weights: float64 (rows,): row weights in the fits; None: equal.
    """
    weights = np.ones(len(classes)) if weights is None else weights
    unseen = {strength: _unseen_scores(inputs, classes, folds, weights, strength) for strength in STRENGTHS}
    areas = {strength: area_under_roc(classes, scores) or 0.0 for strength, scores in unseen.items()}
    strength = max(areas, key=lambda each: areas[each])
    slope, shift = _calibration(unseen[strength], classes)
    probabilities = scipy.special.expit(slope * unseen[strength] + shift)
    threshold = best_threshold(classes, probabilities)
    fitted = _fit(inputs, classes, weights, strength)
    half = np.stack([-fitted.coef_[0], fitted.coef_[0]]) / 2  # the difference of two logits is the score
    return FittedClassifier(
        weight=(slope * half).astype(np.float32),
        bias=(np.array([-0.5, 0.5]) * (slope * np.ravel(fitted.intercept_)[0] + shift)).astype(np.float32),
        threshold=threshold,
        strength=strength,
        metrics=classification_metrics(classes, probabilities, probabilities >= threshold),
    )


def best_threshold(classes: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the threshold with the highest macro F1, halfway between two probabilities; the lowest in a tie.

    Args:
        classes: int64 (rows,): 0 or 1.
        probabilities: float (rows,), of class 1.
    """
    values, place = np.unique(probabilities, return_inverse=True)
    if len(values) < 2:
        return 0.5
    ones = np.bincount(place, weights=classes)
    zeros = np.bincount(place, weights=1 - classes)
    right_1 = np.cumsum(ones[::-1])[::-1][1:]  # for a threshold below each value except the first
    right_0 = np.cumsum(zeros)[:-1]
    named_1 = np.cumsum((ones + zeros)[::-1])[::-1][1:]
    scores = right_1 / (named_1 + ones.sum()) + right_0 / (len(classes) - named_1 + zeros.sum())
    best = int(np.argmax(scores))
    return float((values[best] + values[best + 1]) / 2)


def _unseen_scores(
    inputs: np.ndarray, classes: np.ndarray, folds: np.ndarray, weights: np.ndarray, strength: float
) -> np.ndarray:
    """Return the score of each row by a fit without its fold, float64 (rows,)."""
    scores = np.zeros(len(classes))
    for fold in range(FOLDS):
        own = folds == fold
        if own.any():
            fitted = _fit(inputs[~own], classes[~own], weights[~own], strength)
            scores[own] = fitted.decision_function(inputs[own])
    return scores


def _fit(inputs: np.ndarray, classes: np.ndarray, weights: np.ndarray, strength: float) -> LogisticRegression:
    regression = LogisticRegression(C=strength, class_weight="balanced", max_iter=MOST_STEPS)
    return regression.fit(inputs, classes, sample_weight=weights)


def _calibration(scores: np.ndarray, classes: np.ndarray) -> tuple[float, float]:
    """Return slope and shift that calibrate the scores' logistic function (Platt 1999, with his targets)."""
    ones = classes.sum()
    zeros = len(classes) - ones
    targets = np.where(classes == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))

    def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        logits = numbers[0] * scores + numbers[1]
        wrong = scipy.special.expit(logits) - targets
        value = np.logaddexp(0, logits) - targets * logits
        return float(value.mean()), np.array([(wrong * scores).mean(), wrong.mean()])

    start = np.array([1.0, np.log((ones + 1) / (zeros + 1))])
    slope, shift = scipy.optimize.minimize(loss, start, jac=True, method="BFGS").x
    return max(0.0, float(slope)), float(shift)  # a negative slope would come from noise
