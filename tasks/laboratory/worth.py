"""The worth of earlier trainings in points of recall@10 (0.01), and the gain expected of the next one, with its doubt.

Earlier trainings count by their forward scores, and by the end of their curves. A score over 227 rows has a standard
error of 3 points, so a mean of two or four of them tells little, and the answer may be that nobody can know yet. It
is the normal random-effects model (Gelman et al., Bayesian Data Analysis, 5.4), its spread integrated out on a grid
(Röver, Bayesian random-effects meta-analysis using bayesmeta, 2020):

    score of a training, a span ~ normal(its gain, error^2)     gain ~ normal(mean, spread^2 / spans)
    mean ~ normal(0, PRIOR^2)                                   spread ~ half-normal(SPREAD)
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

from infra.store.base import Store
from tasks.contracts.evaluation import MAIN, ForwardScore
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CheckpointState, CurvePoint
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.foundation.errors import StoreError
from tasks.planning.decisions import SURE, Gain, Worth
from tasks.runs import lineage, releases
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

POINT = 0.01  # one point, in units of MAIN
_MOST_RUNS = 3  # runs to read for each score that is wanted: some measured none


def newest_runs(snapshot: Snapshot, state: CheckpointState, most: int) -> Iterator[Run]:
    """Yield the runs that trained a lineage, newest first, until they may hold `most` scores."""
    keys = dict.fromkeys(rows.run_key for rows in reversed(state.consumed))
    for key in list(keys)[: most * _MOST_RUNS]:
        yield Run(snapshot, key)


class Trainings(NamedTuple):
    """The newest trainings: scores of the released ones, oldest first, and how many were released and refused."""

    worth: tuple[Worth, ...]
    released: int
    refused: int


def worth_of_trainings(snapshot: Snapshot, runs: Sequence[Run], most: int) -> Trainings:
    """Return the worth of the newest trainings, at most `most`, with the trainings that the gates refused meanwhile.

    A score without a release before it says nothing about one training, and one without an interval nothing about its
    doubt: both are left out.

    Args:
        runs: runs of the lineage, newest first.

    Raises:
        StoreError: a release or a checkpoint is not readable.
    """
    found: list[Worth] = []
    released = refused = 0
    for run in runs:
        released += run.release is not None
        refused += run.rejected + _replaced(snapshot, run)
        score = run.judgement.forward if run.judgement is not None else None
        worth = _worth(snapshot.store, score) if score is not None and score.metric == MAIN else None
        found += [worth] if worth is not None else []
        if len(found) == most:
            break
    return Trainings(tuple(reversed(found)), released, refused)


def _replaced(snapshot: Snapshot, run: Run) -> int:
    """Return the number of refused trainings that a run trained again: it began a branch instead of theirs."""
    count, branch = 0, run.plan.branch if run.plan is not None else None
    while branch is not None:
        head = lineage.head(snapshot.store, branch.instead_of)
        before = Run(snapshot, head[1].run_key) if head is not None else None
        if before is None or not before.rejected:
            return count
        count, branch = count + 1, before.plan.branch if before.plan is not None else None
    return count


def points_of_more_steps(runs: Sequence[Run], most: int) -> float | None:
    """Return the points expected of twice the steps: the mean gain over the second half of the newest trainings.

    Metrics grow with the logarithm of the steps, about, so the next doubling gains as much as the last one. None if no
    training measured its holdout near its middle.

    Args:
        runs: runs of the lineage, newest first.
    """
    gains: list[float] = []
    for run in runs:
        outcome = run.outcome(Stage.train) if not run.rejected else None
        gain = _last_half(outcome.curve) if isinstance(outcome, TrainOutcome) else None
        gains += [gain] if gain is not None else []
        if len(gains) == most:
            break
    return statistics.fmean(gains) if gains else None


def _worth(store: Store, score: ForwardScore) -> Worth | None:
    if score.previous is None or score.previous_value is None or score.low is None or score.high is None:
        return None
    new, before = _spans(releases.read(store, score.release)), _spans(releases.read(store, score.previous))
    return Worth(
        release=score.release,
        span=score.span,
        spans=max(1, len(new - before)),
        rows=score.rows,
        points=(score.value - score.previous_value) / POINT,
        low=score.low / POINT,
        high=score.high / POINT,
    )


def _spans(release: Release) -> set[str]:
    return {rows.span.name for rows in release.rows}


def _last_half(curve: Sequence[CurvePoint]) -> float | None:
    """Return the gain in points from the middle of the steps to the end; None without a point in between."""
    points = [(point.step, point.metrics[MAIN]) for point in curve if MAIN in point.metrics]
    if len(points) < 3:
        return None
    (first, _), (last, value) = points[0], points[-1]
    _, middle = min(points[1:-1], key=lambda point: abs(point[0] - (first + last) / 2))
    return (value - middle) / POINT


def new_items(store: Store) -> float | None:
    """Return the share of the current catalogue that came with the last training's spans; None if not known."""
    try:
        found = [release.catalogue.items for _, release in zip(range(2), releases.with_new_models(store), strict=False)]
    except StoreError:
        return None
    return max(0, found[0] - found[1]) / found[0] if len(found) == 2 and found[0] else None


# Points. Months of the demo gained 0 to 9 on each other, quarters of reviews 0 (docs/results.md). So before any score
# two of three trainings are taken to gain or lose at most 5. docs/cost.md has the answers with half and twice of it.
PRIOR = 5.0
SPREAD = 1.0  # points by which the gains of trainings differ, about; more if the scores say so
_GRID = 25
_INTERVAL = NormalDist().inv_cdf(0.975)  # half an interval of `Worth`, in standard errors
_POINTS = 100.0  # in all rows


class Posterior(NamedTuple):
    """The mean gain of a training that is released, in points a span: a mixture of normal distributions."""

    weights: tuple[float, ...]
    parts: tuple[NormalDist, ...]

    @property
    def mean(self) -> float:
        return sum(weight * part.mean for weight, part in zip(self.weights, self.parts, strict=True))

    def below(self, points: float) -> float:
        """Return the probability of a mean gain below some points."""
        return sum(weight * part.cdf(points) for weight, part in zip(self.weights, self.parts, strict=True))

    def quantile(self, probability: float) -> float:
        """Return the points that the mean gain stays below with a probability."""
        low, high = (pick(part.inv_cdf(probability) for part in self.parts) for pick in (min, max))
        return _root(lambda points: self.below(points) - probability, low, high)


def gain_of_training(evidence: Sequence[Worth], refused: int, released: int, spans: int, needed: float) -> Gain:
    """Return the gain expected of training some spans, and the probability that it is at least `needed` points.

    A refused training has no score, because nothing of it is released, so only the lucky ones have scores. It
    counts as one that gained nothing, so the expected gain is that of a released one times the share of the released.

    Args:
        evidence: scores of the trainings so far; without one, the gain is known by the prior alone.
        refused: number of trainings that the gates refused meanwhile.
        released: number of trainings that were released.
        spans: number of spans that would be trained together.
    """
    found = posterior(evidence)
    share = released / (released + refused) if released else 1.0
    times = spans * share
    return Gain(
        points=found.mean * times,
        low=found.quantile(1 - SURE) * times,
        high=found.quantile(SURE) * times,
        needed=needed,
        probability=1 - found.below(needed / times),
        points_per_span=found.mean,
        released=released,
        refused=refused,
    )


def posterior(evidence: Sequence[Worth]) -> Posterior:
    """Return the mean gain of a released training after its scores.

    Args:
        evidence: scores with an interval. Two of one release are scores of one training on two spans.
    """
    trainings = _trainings(evidence)
    logs: list[float] = []
    parts: list[NormalDist] = []
    for place in range(_GRID):
        spread = SPREAD * NormalDist().inv_cdf(0.5 + (place + 0.5) / (2 * _GRID))  # equal shares of the half-normal
        weights = [1 / (variance + spread**2 / spans) for _, variance, spans in trainings]
        precision = sum(weights) + PRIOR**-2
        total = sum(weight * points for weight, (points, _, _) in zip(weights, trainings, strict=True))
        squares = sum(weight * points**2 for weight, (points, _, _) in zip(weights, trainings, strict=True))
        # The log likelihood of the scores given the spread; the mean is integrated out.
        logs.append(0.5 * (sum(map(math.log, weights)) - math.log(precision) - squares + total**2 / precision))
        parts.append(NormalDist(total / precision, precision**-0.5))
    most = max(logs)
    likely = [math.exp(each - most) for each in logs]
    return Posterior(tuple(each / sum(likely) for each in likely), tuple(parts))


def standard_error(worth: Worth) -> float:
    """Return the standard error of a score in points, by its interval; at least one row's part.

    A score over few rows may have an interval of no width, since no row differs; one more row could.
    """
    return max((worth.high - worth.low) / (2 * _INTERVAL), _POINTS / worth.rows)


def _trainings(evidence: Sequence[Worth]) -> list[tuple[float, float, int]]:
    """Return the points a span, their variance and the number of spans, of each training."""
    by_release: dict[int, list[Worth]] = {}
    for worth in evidence:
        by_release.setdefault(worth.release, []).append(worth)
    found = []
    for scores in by_release.values():
        precisions = [standard_error(each) ** -2 for each in scores]
        spans, precision = scores[-1].spans, sum(precisions)
        points = sum(each.points * weight for each, weight in zip(scores, precisions, strict=True)) / precision
        found.append((points / spans, 1 / precision / spans**2, spans))
    return found


def _root(of: Callable[[float], float], low: float, high: float) -> float:
    """Return where a rising function crosses zero between two points, by bisection."""
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < 0 else (low, middle)
    return high
