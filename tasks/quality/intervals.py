"""The error of a metric, or of the difference of two models' metrics, as confidence intervals.

Rows are no independent pieces of evidence: rows of one query hang together, and so do rows about one item, whose
vector a training moves for all of them. A few rows that differ say little too, and none says least. The interval
counts all three:

- Each row's influence on the metric (Hampel 1974) is added up by query and by item. The variance is the sum of both
  less that of rows which share both (Cameron, Gelbach and Miller 2011), each by leaving out one query or item (the
  jackknife, CR3 of MacKinnon and White 1985).
- Half a query more is counted as the best, and half as the worst there can be.
- A calibration error is above 0 by chance alone, as it adds up sizes: its bounds count the part that chance can give,
  and the bounds of a difference the most that chance can give one of the two.
- The bounds are Student's, with as many degrees of freedom as the influences show (Satterthwaite 1946), and wider on
  the side to which the influences are skewed (Johnson 1978).

tests/benchmarks/quality/verdicts.py measures how often the bounds are wrong.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from tasks.quality.label_metrics import CALIBRATION, LABEL, LabelMetric
from tasks.quality.row_metrics import CLASSIFICATION, NAMED, RANKING
from tasks.quality.selection import Answers, measure

# Metrics between 0 and 1.
SHARES = (*RANKING, *NAMED, "auc", "calibration_error", "multiclass_accuracy", "multiclass_macro_f1")
TWO_SIDED = 0.975  # confidence of each bound of an interval of 95 %
POWER = 0.8  # probability that the rows that a verdict asks for are enough
_NUDGE = 1e-5  # share of a sum by which it is changed to find a slope
BY_CHANCE = math.sqrt(2 / math.pi)  # mean size of a normal variable around 0, in standard deviations
_ROUNDS = 20  # for an estimate that depends on itself; it settles in about five
_MOST_ROWS = 1e9  # more than any holdout has
_HALVINGS = 40  # steps of a bisection: the range is then as narrow as float32


class Chance(NamedTuple):
    """Chance in a sum of sizes, over the bins."""

    spread: float  # sum of the standard errors
    most: float  # excess over the true sizes, if these are two standard errors below the measured ones, or 0


class Sizes(NamedTuple):
    """Chance in a difference of calibration errors, each a sum of sizes, which are above 0 by chance alone.

    `more` and `less` belong to the side that counts, and to the one that is taken off. `apart` is the sum of sizes of
    the differences between both in each bin, with its standard error; infinite if the sides have other rows. The true
    difference is no larger.
    """

    more: Chance
    less: Chance
    apart: float
    apart_error: float


class Error(NamedTuple):
    """The error of an estimate."""

    standard_error: float
    degrees: float  # degrees of freedom of `standard_error`, at least 2
    skew: float = 0.0  # third moment of the estimate, in standard errors
    excess: float = 0.0  # excess of the estimate over the truth, in the mean; below 0: the estimate is too low
    sizes: Sizes | None = None  # None for all but a difference of calibration errors

    def bounds(self, estimate: float, confidence: float) -> tuple[float, float]:
        """Return the lower and the upper bound; each holds with this confidence.

        Bounds of a difference of calibration errors hold also if one side is calibrated and the other is not: chance
        makes the first error, and adds hardly anything to the second.
        """
        quantile = student(confidence, self.degrees)
        wider = (2 * quantile**2 + 1) / 6 * self.skew
        below, above = ((quantile + max(each, 0.0)) * self.standard_error for each in (-wider, wider))
        low, high = estimate - max(self.excess, 0.0) - below, estimate - min(self.excess, 0.0) + above
        if (sizes := self.sizes) is None:
            return low, high
        apart = sizes.apart + quantile * sizes.apart_error
        more = true_sizes(estimate + above + sizes.less.most, sizes.more.spread)
        less = true_sizes(-estimate + below + sizes.more.most, sizes.less.spread)
        return min(low, -min(less, apart)), max(high, min(more, apart))


class Term(NamedTuple):
    """Answers, and the weight of each model's metric in an estimate: (1, -1) for the difference of two models."""

    answers: Answers
    weights: tuple[float, ...]


def estimate(*terms: Term) -> float:
    """Return the weighted sum of the metrics; NaN if one is undefined."""
    return float(sum(np.dot(term.weights, measure(term.answers)) for term in terms))


def error_of(*terms: Term) -> Error:
    """Return the error of `estimate(*terms)`; rows of different terms with equal groups or items hang together."""
    each = [np.asarray(term.weights) @ influences(term.answers) for term in terms]
    sizes = [len(rows) for rows in each]
    influence = np.concatenate(each)
    group, item = (_numbers([getattr(term.answers, name) for term in terms]) for name in ("groups", "items"))
    both = _numbers([group * (item.max() + 1) + item])
    by_group, by_item, by_both = (_left_out(influence, cluster, sizes) for cluster in (group, item, both))
    square_group, square_item, square_both = (float(found @ found) for found in (by_group, by_item, by_both))
    step = math.hypot(*(_step(term, rows) for term, rows in zip(terms, each, strict=True)))
    widest = by_group if square_group >= square_item else by_item
    second, fourth = (float((widest**power).sum()) + step**power for power in (2, 4))
    if not second:
        return Error(0.0, 2.0)
    variance = max(square_group + square_item - square_both, square_group, square_item) + step**2
    skew = float((widest**3).sum()) / second**1.5
    return Error(math.sqrt(variance), 2 * second**2 / fourth, skew, _excess_by_chance(terms), _sizes(terms))


def _excess_by_chance(terms: Sequence[Term]) -> float:
    """Return the mean excess of the estimate over the truth, which sums of sizes have by chance alone."""
    return math.fsum(
        weight * _excess(term.answers, values)
        for term in terms
        if term.answers.metric == "calibration_error"
        for weight, values in zip(term.weights, term.answers.values, strict=True)
    )


def _excess(answers: Answers, values: np.ndarray) -> float:
    """Return the mean excess of a calibration error: in each bin, of a normal variable's size over that of its mean.

    The mean is taken as one standard deviation below the measured size, which is itself too large.
    """
    found = 0.0
    away = CALIBRATION[answers.metric].parts(answers.truth, values)[:, 1:]
    for size, deviation in zip(*_sizes_of(away, answers.groups), strict=True):
        if deviation:
            found += _excess_size(max(size - deviation, 0.0), deviation)
    return found / len(values)


def _excess_size(mean: float, deviation: float) -> float:
    """Return the mean size of a normal variable less the size of its mean."""
    normal = NormalDist(0.0, deviation)
    return 2 * (deviation**2 * normal.pdf(mean) - mean * normal.cdf(-mean))


def true_sizes(measured: float, spread: float) -> float:
    """Return the largest sum of true sizes that measures so much in the mean, by chance: evenly over the bins.

    Below 0, the largest difference of two such sums: chance adds nothing to a large sum.

    Args:
        spread: sum of the bins' standard errors.
    """
    low, high = 0.0, measured
    if measured <= BY_CHANCE * spread:
        return min(measured, 0.0)  # below 0, the other sum of the difference is larger by so much at least
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = middle + _excess_size(middle, spread) > measured
        low, high = (low, middle) if enough else (middle, high)
    return high


def _sizes(terms: Sequence[Term]) -> Sizes | None:
    """Return the chance in a difference of calibration errors; None for other estimates."""
    if terms[0].answers.metric != "calibration_error":
        return None
    found: dict[bool, list[Chance]] = {True: [], False: []}
    for answers, weights in terms:
        for weight, away in zip(weights, _away(answers, weights), strict=True):
            if weight:
                found[weight > 0].append(_chance(*_sizes_of(away, answers.groups, answers.items)))
    if not all(found.values()):
        return None
    more, less = (Chance(*map(math.fsum, zip(*found[sign], strict=True))) for sign in (True, False))
    if len(terms) > 1:
        return Sizes(more, less, math.inf, 0.0)
    ((answers, weights),) = terms
    apart, errors = _sizes_of(_away(answers, weights).sum(axis=0), answers.groups, answers.items)
    return Sizes(more, less, math.fsum(apart), math.hypot(*errors))


def _away(answers: Answers, weights: Sequence[float]) -> np.ndarray:
    """Return how much the class exceeds the probability in its bin, weighted, float64 (models, rows, bins)."""
    parts = [CALIBRATION[answers.metric].parts(answers.truth, values)[:, 1:] for values in answers.values]
    return np.asarray(weights)[:, None, None] * np.stack(parts) / len(answers.truth)


def _chance(sizes: Sequence[float], deviations: Sequence[float]) -> Chance:
    pairs = [pair for pair in zip(sizes, deviations, strict=True) if pair[1]]
    most = math.fsum(_excess_size(max(size - 2 * deviation, 0.0), deviation) for size, deviation in pairs)
    return Chance(math.fsum(deviations), most)


def _sizes_of(away: np.ndarray, *clusters: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the sizes of the bins' sums, and their standard errors, by the clusters that give the greatest.

    Args:
        away: float64 (rows, bins).
        clusters: names of the rows' clusters, any type, (rows,) each.
    """
    numbers = [_numbers([cluster]) for cluster in clusters]
    summed = [np.stack([np.bincount(each, weights=column) for column in away.T]) for each in numbers]
    sums = [each.sum(axis=1) for each in summed]
    spreads = [
        np.sqrt(np.maximum((each**2).sum(axis=1) - total**2 / each.shape[1], 0.0))
        for each, total in zip(summed, sums, strict=True)
    ]
    return np.abs(sums[0]).tolist(), np.max(spreads, axis=0).tolist()


def interval_of(answers: Answers) -> tuple[float, float]:
    """Return an interval that holds one model's metric with 95 % confidence."""
    term = Term(answers, (1.0,))
    return within_shares(answers.metric, error_of(term).bounds(estimate(term), TWO_SIDED))


def within_shares(metric: str, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds of a metric itself, not beyond 0 and 1 for a share."""
    return (max(bounds[0], 0.0), min(bounds[1], 1.0)) if metric in SHARES else bounds


def influences(answers: Answers) -> np.ndarray:
    """Return each row's influence on each model's metric, float64 (models, rows): about the metric less the metric
    without the row. Each model's add up to zero.
    """
    return np.stack([_influence(answers.metric, answers.truth, values) for values in answers.values])


def _influence(metric: str, truth: np.ndarray, values: np.ndarray) -> np.ndarray:
    if metric == "auc":
        return _of_auc(truth, values)
    if metric in CALIBRATION:
        return _of_sums(CALIBRATION[metric], truth, values)
    if metric in LABEL or metric == "macro_f1":
        return _of_sums(LABEL[metric if metric in LABEL else "multiclass_macro_f1"], truth, values)
    each = (truth == values).astype(np.float64) if metric in CLASSIFICATION else values
    return (each - each.mean()) / len(each)


def _of_auc(truth: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return influences on the area under the ROC curve: each row's share of won pairs (DeLong 1988, equation 5)."""
    ones = truth == 1
    place = np.unique(values, return_inverse=True)[1]
    found = np.zeros(len(values))
    for own, won in ((ones, 1), (~ones, 0)):
        counts = np.bincount(place[~own], minlength=int(place.max()) + 1)
        below = ((np.cumsum(counts) - counts / 2) / counts.sum())[place[own]]
        shares = below if won else 1 - below
        found[own] = (shares - shares.mean()) / own.sum()
    return found


def _of_sums(metric: LabelMetric, truth: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return influences on a function of sums: a row's summands times the slopes of the function."""
    parts = metric.parts(truth, values)
    sums = parts.sum(axis=0)
    nudges = _NUDGE * np.abs(parts).sum(axis=0)
    rise = metric.of_sums(sums + np.diag(nudges)) - metric.of_sums(sums - np.diag(nudges))
    slopes = np.divide(rise, 2 * nudges, out=np.zeros_like(rise), where=nudges > 0)
    return parts @ slopes


def _numbers(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return the columns one after the other, equal values as equal numbers from 0, int64."""
    return np.unique(np.concatenate(columns), return_inverse=True)[1].reshape(-1)


def _left_out(influence: np.ndarray, cluster: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return the change of the estimate if each cluster is left out, float64 (clusters,).

    A cluster with a large share of the rows draws the metric to itself, so its influence looks smaller than it is. One
    that has all rows shows no error.

    Args:
        cluster: int64 (rows,), from 0.
        sizes: rows of each term, in their order.
    """
    term = np.repeat(np.arange(len(sizes)), sizes)
    both = term * (cluster.max() + 1) + cluster
    share = np.bincount(both)[both] / np.array(sizes)[term]
    left = np.divide(influence, 1 - share, out=np.zeros_like(influence), where=share < 1)
    return np.bincount(cluster, weights=left)


def _step(term: Term, influence: np.ndarray) -> float:
    """Return the change of the estimate by one query more: the largest there can be, or a usual one without a bound."""
    groups = np.bincount(_numbers([term.answers.groups]), weights=influence)
    if term.answers.metric not in SHARES:
        return float(np.sqrt((groups**2).mean()))
    weights = np.array(term.weights)
    return float(max(weights[weights > 0].sum(), -weights[weights < 0].sum()) / len(groups))


def scaled(error: Error, times: float) -> Error:
    """Return the error with `times` as many rows, e.g. half the standard error with 4.

    Chance in a sum of sizes shrinks as the standard error does, or faster, in bins that are surely not calibrated.
    """
    less = 1 / math.sqrt(times)
    sizes = None
    if (found := error.sizes) is not None:
        more, other = (Chance(each.spread * less, each.most * less) for each in (found.more, found.less))
        sizes = Sizes(more, other, found.apart, found.apart_error * less)
    degrees = max(2.0, error.degrees * times)
    return Error(error.standard_error / math.sqrt(times), degrees, excess=error.excess * less, sizes=sizes)


def smallest_gap(error: Error, confidence: float) -> float:
    """Return the smallest true gap that is distinguished from zero with probability POWER."""
    return (student(confidence, error.degrees) + NormalDist().inv_cdf(POWER)) * error.standard_error


def rows_needed(rows: int, error: Error, estimate: float, limit: float, confidence: float) -> int | None:
    """Return the rows needed, about, to tell an estimate from a limit; None if a thousand million would not do.

    With these rows, the limit is beyond the bounds with probability POWER, if the true value is as now: the estimate
    without its excess.
    """
    gap = estimate - limit
    if error.excess or error.sizes is not None:
        return _rows_without_chance(rows, error, estimate - error.excess, limit, confidence)
    if not error.standard_error or not gap:
        return None
    times = 1.0
    for _ in range(_ROUNDS):
        times *= (smallest_gap(scaled(error, times), confidence) / gap) ** 2
        if rows * times >= _MOST_ROWS:
            return None
    return math.ceil(rows * times)


def _rows_without_chance(rows: int, error: Error, true: float, limit: float, confidence: float) -> int | None:
    """Return `rows_needed` of an estimate that is a true value and chance, of which more rows leave less."""
    usual = NormalDist().inv_cdf(POWER)

    def tells(times: float) -> bool:
        later = scaled(error, times)
        off = usual * later.standard_error
        low, high = later.bounds(true + later.excess + (off if true < limit else -off), confidence)
        return high < limit if true < limit else low > limit

    low, high = 0.0, 1.0
    while not tells(high):
        low, high = high, 2 * high
        if rows * high >= _MOST_ROWS:
            return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if tells(middle) else (middle, high)
    return math.ceil(rows * high)


def student(confidence: float, degrees: float) -> float:
    """Return a quantile of Student's t distribution, for a confidence above 0.5 and at least 2 degrees of freedom.

    By Hill (1970), Algorithm 396 of the CACM; within 0.1 % from 2 degrees on, which need not be whole.
    """
    tails = 2 * (1 - confidence)
    if degrees <= 2:
        return math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (degrees - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * degrees
    y = (d * tails) ** (2 / degrees)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tails / 2)
        y = x * x
        c += 0.3 * (degrees - 4.5) * (x + 0.6) if degrees < 5 else 0.0
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        e = ((degrees + 6) / (degrees * y) - 0.089 * d - 0.822) * (degrees + 2) * 3
        y = ((1 / e + 0.5 / (degrees + 4)) * y - 1) * (degrees + 1) / (degrees + 2) + 1 / y
    return math.sqrt(degrees * y)
