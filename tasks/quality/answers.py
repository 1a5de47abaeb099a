"""The rows that count for a metric: what each model answered, and which rows hang together."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from configs.schema.metrics import METRICS
from tasks.contracts.evaluation import Role
from tasks.quality.label_metrics import LABEL
from tasks.quality.row_metrics import CLASSIFICATION, LIKELIHOOD, NAMED, RANKING
from tasks.quality.row_results import RowResults


class Answers(NamedTuple):
    """The rows that count for one metric, with the results of one or two models.

    `values` are per-row metrics for ranking and loss, probabilities of class 1 for AUC, log loss and calibration error,
    predicted classes for other classification metrics, and predictions for metrics of labels.
    """

    metric: str
    groups: np.ndarray  # int64 (rows,): the row's query, or its user
    items: np.ndarray  # (rows,): the row's item, as numbers or texts
    truth: np.ndarray  # float64 (rows,): class, 0 or 1, or label; read only for metrics of classes or labels
    values: tuple[np.ndarray, ...]  # float64 (rows,) of each model: the challenger, then the baseline, if any


def answers_of(
    rows: RowResults,
    metric: str,
    among: np.ndarray,
    roles: Sequence[Role],
    baseline: Role | None = None,
    width: int | None = None,
) -> Answers:
    """Return the answers of some models, in the order of `roles`. Raises KeyError: a model was not measured.

    Args:
        among: bool (all rows,), the rows that count.
        baseline: as in `row_values`.
        width: likewise.
    """
    values = tuple(row_values(rows, metric, each, baseline, width)[among] for each in roles)
    return Answers(metric, rows.group[among], rows.item_id[among], truths(rows, metric)[among], values)


def row_values(
    rows: RowResults, metric: str, role: Role, baseline: Role | None = None, width: int | None = None
) -> np.ndarray:
    """Return the `Answers.values` of one model, float64 (rows,). Raises KeyError: it was not measured.

    Args:
        baseline: the model to compare with, on the items that both hold; None: no comparison.
        width: dimensions of the truncated vectors for a ranking metric; None: all.
    """
    if metric in RANKING:
        ranks = rows.ranks_against(role, baseline) if width is None else rows.narrow_ranks[width][role]
        return np.asarray(RANKING[metric](ranks), dtype=np.float64)
    if metric in LIKELIHOOD:
        return np.asarray(LIKELIHOOD[metric](rows.losses[role]), dtype=np.float64)
    if metric in LABEL:
        return rows.says[METRICS[metric].head or ""][role].astype(np.float64)
    return (rows.predicted if metric in NAMED else rows.probabilities)[role].astype(np.float64)


def truths(rows: RowResults, metric: str) -> np.ndarray:
    """Return `Answers.truth`, float64 (rows,). Raises KeyError: the rows have no such label."""
    labels = rows.labels[METRICS[metric].head or ""] if metric in LABEL else rows.label_class
    return labels.astype(np.float64)


def measure(answers: Answers) -> tuple[float, ...]:
    """Return the metric of each model over all rows; NaN if undefined, as without rows."""
    if not len(answers.groups):
        return (float("nan"),) * len(answers.values)
    if answers.metric in LABEL:
        return tuple(LABEL[answers.metric](answers.truth, values) for values in answers.values)
    if answers.metric in CLASSIFICATION:
        found = (CLASSIFICATION[answers.metric](answers.truth, values) for values in answers.values)
        return tuple(float("nan") if value is None else value for value in found)
    return tuple(float(values.mean()) for values in answers.values)
