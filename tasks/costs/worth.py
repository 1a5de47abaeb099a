"""The worth of earlier trainings in points: by their forward scores, and by the end of their curves.

A point is 0.01 of recall@10.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from infra.store.base import Store
from tasks.contracts.checkpoints import CheckpointState, CurvePoint
from tasks.contracts.evaluation import MAIN, ForwardScore
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.foundation.errors import StoreError
from tasks.planning.decisions import Worth
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
