"""Metrics of label heads, which predict a class or a number for each row, and of the probabilities of a classifier.

Each is a function of sums over the rows, so that the same formula gives the influence of each row. `truth` has
the labels and `says` the predictions: float64 (rows,), classes by number, probabilities of class 1.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from configs.schema.gates import METRICS

ROUNDING = 1e-12  # share of a sum of squares below which a spread counts as zero


class LabelMetric(NamedTuple):
    """`parts` turns labels and predictions into (rows, parts); `of_sums` turns sums (..., parts) into the metric."""

    parts: Callable[[np.ndarray, np.ndarray], np.ndarray]
    of_sums: Callable[[np.ndarray], np.ndarray]

    def __call__(self, truth: np.ndarray, says: np.ndarray) -> float:
        """Return the metric of some rows; NaN if undefined."""
        return float(self.of_sums(self.parts(truth, says).sum(axis=0)))


def _mean_of(each: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return parts from which `_mean` computes the mean of `each` over the rows."""
    return lambda truth, says: np.stack([np.ones(len(truth)), each(truth, says)], axis=1).astype(np.float64)


def _mean(sums: np.ndarray) -> np.ndarray:
    return sums[..., 1] / sums[..., 0]


def _class_counts(truth: np.ndarray, says: np.ndarray) -> np.ndarray:
    """Return for each class a hit, 0 or 1, and the number of its mentions as label or prediction, 0 to 2."""
    numbers = np.arange(max(np.fmax.reduce(each, initial=0) for each in (truth, says)) + 1)
    there, named = truth[:, None] == numbers, says[:, None] == numbers
    return np.hstack([there & named, there.astype(np.int64) + named]).astype(np.float64)


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    """Return the mean F1 of the classes that are labels or predictions of any row."""
    hits, named = np.split(sums, 2, axis=-1)
    each = np.divide(2 * hits, named, out=np.zeros_like(hits), where=named > 0)
    return each.sum(axis=-1) / (named > 0).sum(axis=-1)


def _moments(truth: np.ndarray, says: np.ndarray) -> np.ndarray:
    first, second = (each - each.mean() for each in (truth, says))  # centering does not change the correlation
    return np.stack([np.ones(len(first)), first, second, first * first, second * second, first * second], axis=1)


def _pearson(sums: np.ndarray) -> np.ndarray:
    """Return the correlation (Pearson 1895); NaN if labels or predictions are constant."""
    rows, first, second, of_first, of_second, both = np.moveaxis(np.asarray(sums, dtype=np.float64), -1, 0)
    spreads = [rows * squares - total**2 for squares, total in ((of_first, first), (of_second, second))]
    # Equal values leave a rounding error of about 1e-16 of the subtracted numbers.
    known = [np.where(spread > ROUNDING * rows * squares, spread, np.nan)
             for spread, squares in zip(spreads, (of_first, of_second), strict=True)]  # fmt: skip
    return (rows * both - first * second) / np.sqrt(known[0] * known[1])


# One entry for each metric of the family in configs/schema/gates.py.
LABEL: dict[str, LabelMetric] = {
    "multiclass_accuracy": LabelMetric(_mean_of(lambda truth, says: truth == says), _mean),
    "multiclass_macro_f1": LabelMetric(_class_counts, _macro_f1),
    "mae": LabelMetric(_mean_of(lambda truth, says: np.abs(truth - says)), _mean),
    "rmse": LabelMetric(_mean_of(lambda truth, says: (truth - says) ** 2), lambda sums: np.sqrt(_mean(sums))),
    "pearson": LabelMetric(_moments, _pearson),
}


class Skill(NamedTuple):
    """The test of a head's skill: a metric, and the constant prediction that is best in it."""

    metric: str
    constant: Callable[[np.ndarray], float]
    called: str


# One entry for each label head.
SKILLS: dict[str, Skill] = {
    "multiclass": Skill(
        "multiclass_macro_f1",
        lambda truth: float(np.bincount(truth.astype(np.int64)).argmax()),
        "always naming the largest class",
    ),
    "regression": Skill("rmse", lambda truth: float(truth.mean()), "always saying the mean"),
}


def label_metrics(head: str, truth: np.ndarray, says: np.ndarray) -> dict[str, float]:
    """Return the defined metrics of a head over the rows with a label.

    Args:
        truth: float (rows,), NaN without a label.
        says: float (rows,), the predictions.
    """
    known = ~np.isnan(truth)
    if not known.any():
        return {}
    truth, says = truth[known].astype(np.float64), says[known].astype(np.float64)
    found = {name: metric(truth, says) for name, metric in LABEL.items() if METRICS[name].head == head}
    return {name: value for name, value in found.items() if not np.isnan(value) or np.isnan(says).any()}


def without_skill(labels: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the metrics of the best constant prediction, for each head.

    Args:
        labels: head -> labels, float (rows,), NaN without a label.
    """
    found: dict[str, float] = {}
    for head, truth in labels.items():
        known = truth[~np.isnan(truth)]
        if len(known):
            found |= label_metrics(head, known, np.full(len(known), SKILLS[head].constant(known)))
    return found


BINS = 10  # equally wide
SMALLEST = 1e-7  # about the resolution of float32 probabilities; a row said 0 that is 1 costs 16 nats


def _surprise(truth: np.ndarray, says: np.ndarray) -> np.ndarray:
    """Return 1 and the surprise of each row's class in nats, (rows, 2)."""
    of_own = np.clip(np.where(truth == 1, says, 1 - says), SMALLEST, 1)
    return np.stack([np.ones(len(truth)), -np.log(of_own)], axis=1)


def _mean_surprise(sums: np.ndarray) -> np.ndarray:
    found: np.ndarray = sums[..., 1] / sums[..., 0]
    return found


def _bins(truth: np.ndarray, says: np.ndarray) -> np.ndarray:
    """Return 1, and in the bin of each row's probability how much the class exceeds it, (rows, 1 + BINS)."""
    place = np.clip(np.nan_to_num(says * BINS), 0, BINS - 1).astype(np.int64)
    away = np.zeros((len(truth), BINS))
    away[np.arange(len(truth)), place] = truth - says
    return np.hstack([np.ones((len(truth), 1)), away])


def _calibration_error(sums: np.ndarray) -> np.ndarray:
    """Return the expected calibration error (Naeini et al. 2015, section 2; Guo et al. 2017, arXiv:1706.04599).

    The mean over the rows of |share of class 1 - mean probability| in the bin of the row's probability.
    """
    found: np.ndarray = np.abs(sums[..., 1:]).sum(axis=-1) / sums[..., 0]
    return found


CALIBRATION: dict[str, LabelMetric] = {
    "log_loss": LabelMetric(_surprise, _mean_surprise),
    "calibration_error": LabelMetric(_bins, _calibration_error),
}
