"""The bootstrap distribution of a metric: its values on samples of the rows, drawn with replacement.

Rows of one user, or of one query, are correlated, so whole groups are drawn. Challenger and baseline are measured on
the same draw (a paired bootstrap), so rows that are hard for both do not widen the interval of their difference.
"""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from configs.schema.metrics import METRICS
from tasks.contracts.evaluation import Role
from tasks.quality.label_metrics import LABEL
from tasks.quality.row_metrics import CLASSIFICATION, LIKELIHOOD, NAMED, RANKING
from tasks.quality.row_results import RowResults

DRAWS = 4000
POWER = 0.8  # probability that the rows that a verdict asks for are enough
_CHUNK = 4_000_000  # numbers in memory at once
_FEW = 2000  # distinct groups; with more, samples are drawn one at a time


class Answers(NamedTuple):
    """The rows that count for one metric, with the results of one or two models.

    `values` are per-row metrics for ranking and loss, probabilities of class 1 for the AUC, predicted classes for other
    classification metrics, and predictions for metrics of labels.
    """

    metric: str
    groups: np.ndarray  # int64 (rows,): rows with an equal number are drawn together
    truth: np.ndarray  # float64 (rows,): class, 0 or 1, or label; read only for metrics of classes or labels
    values: tuple[np.ndarray, ...]  # float64 (rows,) of each model: the challenger, then the baseline, if any


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


def draw(answers: Answers, draws: int, seed: tuple[int, ...]) -> np.ndarray:
    """Return the metric of each model on random samples of the groups, float64 (models, draws); NaN if undefined.

    The same seed gives the same samples.
    """
    _, group = np.unique(answers.groups, return_inverse=True)
    random = np.random.default_rng(seed)
    if answers.metric == "auc":
        return _draw_auc(answers, group, draws, random)
    parts = _label_parts(answers) if answers.metric in LABEL else [_parts(answers)]
    sums = np.stack([np.bincount(group, weights=part) for some in parts for part in some.T], axis=1)
    drawn = _draw_sums(sums, draws, random)
    if answers.metric in LABEL:
        ends = np.cumsum([some.shape[1] for some in parts])[:-1]
        return np.stack([LABEL[answers.metric].of_sums(some) for some in np.split(drawn, ends, axis=1)])
    return _from_sums(answers.metric, drawn, len(answers.values))


def _label_parts(answers: Answers) -> list[np.ndarray]:
    """Return each row's summands of the label metric, for each model, float64 (rows, parts)."""
    return [LABEL[answers.metric].parts(answers.truth, values) for values in answers.values]


def _parts(answers: Answers) -> np.ndarray:
    """Return each row's summands of the metric, float64 (rows, parts)."""
    if answers.metric not in CLASSIFICATION:
        return np.stack([np.ones(len(answers.groups)), *answers.values], axis=1)
    cells = [
        (answers.truth * 2 + values).astype(np.int64) for values in answers.values
    ]  # 0 to 3: class, predicted class
    return np.concatenate([np.eye(4)[cell] for cell in cells], axis=1)


def _from_sums(metric: str, sums: np.ndarray, models: int) -> np.ndarray:
    """Return the metric of each model from sums of parts, float64 (draws, parts) -> (models, draws)."""
    if metric not in CLASSIFICATION:
        return (sums[:, 1:] / sums[:, :1]).T
    found = []
    for model in range(models):
        right_0, wrong_1, wrong_0, right_1 = sums[:, model * 4 : model * 4 + 4].T  # as (class, predicted) 00 01 10 11
        wrong = wrong_0 + wrong_1
        if metric == "accuracy":
            found.append((right_0 + right_1) / (right_0 + right_1 + wrong))
        else:
            both = [np.divide(2 * right, 2 * right + wrong, out=np.zeros_like(wrong), where=(2 * right + wrong) > 0)
                    for right in (right_0, right_1)]  # fmt: skip
            found.append((both[0] + both[1]) / 2)
    return np.stack(found)


def _draw_sums(sums: np.ndarray, draws: int, random: np.random.Generator) -> np.ndarray:
    """Return the sums over samples with the original number of groups, (groups, parts) -> (draws, parts).

    Groups with equal sums are interchangeable, so one multinomial draw gives the count of each distinct kind.
    """
    kinds, counts = np.unique(sums, axis=0, return_counts=True)
    many = len(sums)
    if len(kinds) > _FEW:
        picks = (random.integers(many, size=many) for _ in range(draws))
        return np.stack([np.bincount(pick, minlength=many) @ sums for pick in picks])
    shares, step = counts / many, max(1, _CHUNK // len(kinds))
    sizes = [min(step, draws - begin) for begin in range(0, draws, step)]
    return np.concatenate([random.multinomial(many, shares, size=size) @ kinds for size in sizes])


def _draw_auc(answers: Answers, group: np.ndarray, draws: int, random: np.random.Generator) -> np.ndarray:
    """Return the area under the ROC curve of samples, (models, draws); a tie of a 1 and a 0 counts half."""
    many = int(group.max()) + 1
    sorted_by = [np.unique(values, return_inverse=True)[1] for values in answers.values]
    found = np.full((len(answers.values), draws), np.nan)
    for at in range(draws):
        weights = np.bincount(random.integers(many, size=many), minlength=many)[group]
        for model, place in enumerate(sorted_by):
            ones = np.bincount(place, weights=weights * answers.truth)
            zeros = np.bincount(place, weights=weights * (1 - answers.truth))
            if pairs := ones.sum() * zeros.sum():
                below = np.cumsum(zeros) - zeros / 2
                found[model, at] = (ones @ below) / pairs
    return found


def rows_needed(rows: int, standard_error: float, gap: float, confidence: float) -> int | None:
    """Return an estimate of the rows needed to distinguish a gap from zero; None if no number of rows would do.

    With these rows, the interval is narrower than the gap with probability POWER, if the gap stays the same.
    """
    if not standard_error or not gap:
        return None
    wanted = smallest_gap(standard_error, confidence) / gap
    needed = rows * wanted**2
    return int(np.ceil(needed)) if needed < 1e9 else None


def smallest_gap(standard_error: float, confidence: float) -> float:
    """Return the smallest true gap that is distinguished from zero with probability POWER."""
    normal = NormalDist()
    return (normal.inv_cdf(confidence) + normal.inv_cdf(POWER)) * standard_error
