"""Metrics from the results of single rows: rank of the own item, its loss, and binary classification.

The metrics are recall@k, MRR@10, nDCG@10, accuracy, macro F1, AUC, log loss and calibration error. Each row has one
relevant item; ranks are filtered: they ignore other relevant items. No torch or model is needed, so that metrics can
be computed later, for other rows.
"""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from configs.schema.gates import least_competitors
from tasks.quality.label_metrics import CALIBRATION

# One entry for each metric of configs/schema/gates.py: from ranks to each query's value; the metric is their mean.
RANKING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "recall@1": lambda ranks: ranks <= 1,
    "recall@10": lambda ranks: ranks <= 10,
    "recall@100": lambda ranks: ranks <= 100,
    "mrr@10": lambda ranks: np.where(ranks <= 10, 1.0 / ranks, 0.0),
    "ndcg@10": lambda ranks: np.where(ranks <= 10, 1.0 / np.log2(ranks + 1), 0.0),
}

# Likewise from losses, float (rows,) in nats.
LIKELIHOOD: dict[str, Callable[[np.ndarray], np.ndarray]] = {"loss": lambda losses: losses}


def _accuracy(classes: np.ndarray, predicted: np.ndarray) -> float:
    return float((predicted == classes).mean())


def macro_f1(classes: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean F1 of the two classes, from int (rows,) each; 0 for a class without labels and predictions."""
    found = []
    for each in (0, 1):
        hits = int(((predicted == each) & (classes == each)).sum())
        named = int((predicted == each).sum() + (classes == each).sum())
        found.append(2 * hits / named if named else 0.0)
    return sum(found) / 2


def area_under_roc(classes: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Return the area under the ROC curve; None if a class has no row.

    By Mann and Whitney: the share of pairs of a 1 and a 0 in which the 1 has the higher probability; a tie is half.
    """
    ones = int((classes == 1).sum())
    zeros = len(classes) - ones
    if not ones or not zeros:
        return None
    if np.isnan(probabilities).any():
        return float("nan")
    _, place, count = np.unique(probabilities, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # from 1; ties share their mean rank
    return float((ranks[classes == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def area_by_chance(ones: int, zeros: int) -> float | None:
    """Return the 95 % upper bound of a random classifier's AUC; None if a class has no row.

    By the variance of Mann and Whitney's statistic for equally distributed classes (1947, section 3).
    """
    if not ones or not zeros:
        return None
    deviation = ((ones + zeros + 1) / (12 * ones * zeros)) ** 0.5
    return 0.5 + NormalDist().inv_cdf(0.95) * deviation


# From classes and predicted classes to a value.
NAMED: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"accuracy": _accuracy, "macro_f1": macro_f1}

# From classes and probabilities of class 1 to a value; None if undefined.
PROBABLE: dict[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "auc": area_under_roc,
    **CALIBRATION,
}

CLASSIFICATION: dict[str, Callable[[np.ndarray, np.ndarray], float | None]] = {**NAMED, **PROBABLE}


def metrics_of(
    ranks: np.ndarray,
    competitors: np.ndarray,
    losses: np.ndarray | None,
    pair: np.ndarray,
    label_class: np.ndarray,
    probabilities: np.ndarray | None,
    predicted: np.ndarray | None,
    loss_competitors: np.ndarray | None = None,
) -> dict[str, float]:
    """Return all metrics of a model's results of some rows.

    Args:
        ranks: int (rows,), rank of each row's own item, from 1.
        competitors: int (rows,), number of items that it is ranked among, without itself.
        losses: float (rows,), in nats; None: not measured.
        pair: bool (rows,), true if the row counts for ranks and losses.
        label_class: int (rows,), 0, 1, or -1 without a class.
        probabilities: float (rows,), of class 1; None: the model has no classification head.
        predicted: int (rows,), predicted classes; likewise.
        loss_competitors: int (rows,), the same number for the losses; None: as for the ranks.
    """
    found = retrieval_metrics(ranks[pair], competitors[pair])
    if losses is not None:
        contested = losses[pair & (competitors >= 1 if loss_competitors is None else loss_competitors >= 1)]
        if len(contested):
            found |= {name: float(each(contested).mean(dtype=np.float64)) for name, each in LIKELIHOOD.items()}
    if probabilities is not None and predicted is not None:
        known = label_class >= 0
        found |= classification_metrics(label_class[known], probabilities[known], predicted[known])
    return found


def retrieval_metrics(ranks: np.ndarray, competitors: np.ndarray) -> dict[str, float]:
    """Return means over the queries with enough competitors; a metric without such a query is absent.

    Args:
        ranks: int (queries,), from 1.
        competitors: int (queries,), number of items that each query's own item is ranked among, without itself.
    """
    found = {}
    for name, each in RANKING.items():
        counting = competitors >= least_competitors(name)
        if counting.any():
            found[name] = float(each(ranks[counting]).mean())
    return found


def classification_metrics(classes: np.ndarray, probabilities: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return metrics of rows with a class, with the AUC only if both classes have rows.

    Args:
        classes: int (rows,), 0 or 1.
        probabilities: float (rows,), of class 1.
        predicted: int or bool (rows,), predicted classes.
    """
    if not len(classes):
        return {}
    found = {name: measure(classes, predicted) for name, measure in NAMED.items()}
    areas = {name: measure(classes, probabilities) for name, measure in PROBABLE.items()}
    return found | {name: value for name, value in areas.items() if value is not None}
