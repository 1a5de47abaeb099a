"""Metrics of a classifier's probabilities: are they the shares of rows that are of class 1?

Like metrics of labels, each is a function of sums over the rows. `truth` has the classes, 0 or 1, and `says` the
probabilities of class 1: float64 (rows,).
"""

import numpy as np

from tasks.quality.label_metrics import LabelMetric

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
