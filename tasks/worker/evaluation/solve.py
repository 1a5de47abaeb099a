"""Solves a classification head on fixed vectors: balanced logistic regression, calibrated, with a threshold.

Cross-validation chooses the strength and calibrates a first time: each fold is predicted by a fit on the others. The
encoder was trained on these rows, so their scores are too far apart. Unseen rows correct slope and shift.
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
LEAST_ROWS = 2 * FOLDS  # per class
MOST_STEPS = 1000
# Standard deviations of the normal prior of the correction: a slope of 0.5 is one and a half of them from 1, odds
# times e are one. A few unseen rows, or rows of one class, correct little; 100 correct nearly all.
LOG_SLOPE_DEVIATION = 0.5
SHIFT_DEVIATION = 1.0


class FittedClassifier(NamedTuple):
    """A head: logits are inputs @ weight.T + bias; a row is of class 1 if its probability is at least `threshold`.

    The metrics are cross-validated on rows that the encoder was trained on.
    """

    weight: np.ndarray  # float32 (classes, inputs)
    bias: np.ndarray  # float32 (classes,)
    threshold: float
    strength: float
    metrics: dict[str, float]


class Unseen(NamedTuple):
    """Rows that neither the encoder nor the head was trained on."""

    inputs: np.ndarray  # float32 (rows, inputs)
    classes: np.ndarray  # int64 (rows,): 0 or 1


def find_shortage(classes: np.ndarray, folds: np.ndarray) -> str:
    """Return the reason why the rows are too few for `solve`, whose fits all need both classes; empty if enough."""
    counts = np.bincount(classes, minlength=2)
    if counts.min() < LEAST_ROWS:
        return f"a class has {counts.min()} rows of {LEAST_ROWS}"
    alone = [each for each in range(2) if len(np.unique(folds[classes == each])) < 2]
    return f"all {counts[alone[0]]} rows of class {alone[0]} are in one fold, as rows of one query are" if alone else ""


@threadpool_limits.wrap(limits=1, user_api="blas")  # the rounding of more threads depends on their number
def solve(
    inputs: np.ndarray,
    classes: np.ndarray,
    folds: np.ndarray,
    weights: np.ndarray | None = None,
    unseen: Unseen | None = None,
) -> FittedClassifier:
    """Return the head of the strength with the best cross-validated AUC; deterministic.

    Args:
        inputs: float32 (rows, inputs).
        classes: int64 (rows,): 0 or 1, enough of each for `find_shortage`.
        folds: int64 (rows,): 0 to FOLDS - 1; similar rows should share a fold.
        weights: float64 (rows,): row weights in the fits; None: equal.
        unseen: rows that correct slope and shift; None: they stay as cross-validated.
    """
    weights = np.ones(len(classes)) if weights is None else weights
    crossed = {strength: _crossed_scores(inputs, classes, folds, weights, strength) for strength in STRENGTHS}
    areas = {strength: area_under_roc(classes, scores) or 0.0 for strength, scores in crossed.items()}
    strength = max(areas, key=lambda each: areas[each])
    fitted = _fit(inputs, classes, weights, strength)
    slope, shift = _calibration(crossed[strength], classes)
    others = np.zeros(0) if unseen is None else fitted.decision_function(unseen.inputs)
    if unseen is not None:
        more, away = _correction(slope * others + shift, unseen.classes)
        slope, shift = more * slope, more * shift + away
    probabilities, of_others = (scipy.special.expit(slope * scores + shift) for scores in (crossed[strength], others))
    threshold = best_threshold(np.concatenate([probabilities, of_others]))
    half = np.stack([-fitted.coef_[0], fitted.coef_[0]]) / 2  # the difference of two logits is the score
    return FittedClassifier(
        weight=(slope * half).astype(np.float32),
        bias=(np.array([-0.5, 0.5]) * (slope * np.ravel(fitted.intercept_)[0] + shift)).astype(np.float32),
        threshold=threshold,
        strength=strength,
        metrics=classification_metrics(classes, probabilities, probabilities >= threshold),
    )


def best_threshold(probabilities: np.ndarray) -> float:
    """Return the threshold with the highest expected macro F1, halfway between two probabilities; the lowest in a tie.

    Expected counts, by calibrated probabilities float (rows,) of class 1, vary less than those of the rows' classes.
    """
    values, place = np.unique(probabilities, return_inverse=True)
    if len(values) < 2:
        return 0.5
    rows = np.bincount(place)
    ones, zeros = rows * values, rows * (1 - values)
    right_1 = np.cumsum(ones[::-1])[::-1][1:]  # for a threshold below each value except the first
    right_0 = np.cumsum(zeros)[:-1]
    named_1 = np.cumsum((ones + zeros)[::-1])[::-1][1:]
    scores = right_1 / (named_1 + ones.sum()) + right_0 / (len(place) - named_1 + zeros.sum())
    best = int(np.argmax(scores))
    return float((values[best] + values[best + 1]) / 2)


def _crossed_scores(
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


def _correction(logits: np.ndarray, classes: np.ndarray) -> tuple[float, float]:
    """Return the likeliest slope and shift of logits of unseen rows, a posteriori by the prior above; slope above 0."""

    def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        slope, shift = np.exp(numbers[0]), numbers[1]
        corrected = slope * logits + shift
        wrong = scipy.special.expit(corrected) - classes
        value = (np.logaddexp(0, corrected) - classes * corrected).sum()
        prior = numbers / np.array([LOG_SLOPE_DEVIATION, SHIFT_DEVIATION])
        gradient = np.array([slope * (wrong @ logits), wrong.sum()])
        return float(value + prior @ prior / 2), gradient + prior / np.array([LOG_SLOPE_DEVIATION, SHIFT_DEVIATION])

    log_slope, shift = scipy.optimize.minimize(loss, np.zeros(2), jac=True, method="BFGS").x
    return float(np.exp(log_slope)), float(shift)
