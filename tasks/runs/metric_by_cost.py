"""The holdout metric of a training by seconds and dollars: its evaluations, spread over the time of its attempts."""

from collections.abc import Sequence
from typing import NamedTuple

from configs.schema.gates import METRICS
from configs.schema.operations import Price
from tasks.contracts.comparison import CostPoint
from tasks.contracts.evaluation import main_metric
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.stages import Stage
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run

COUNTED = (Stage.health, Stage.warmup, Stage.train)  # validate and evaluate are shared, or the same for all


def better(metric: str, value: float, than: float) -> bool:
    """Return True if a value of a metric is at least as good as another."""
    return METRICS[metric].sign * (value - than) >= 0


def clock_seconds(record: LedgerRecord) -> float:
    """Return the seconds of an attempt by the clock, without waiting and lost work."""
    return record.seconds.paid - record.seconds.lost


def seconds_of(records: Sequence[LedgerRecord]) -> tuple[float, float]:
    """Return the seconds by the clock before the first step and from then on, of the attempts of `COUNTED`."""
    stepping = sum(record.seconds.productive for record in records if record.stage is Stage.train)
    return sum(map(clock_seconds, records)) - stepping, stepping


def cost_points(
    values: Sequence[tuple[int, float]],
    steps: tuple[int, int],
    seconds: tuple[float, float],
    price: Price | None,
    machines: int,
) -> tuple[CostPoint, ...]:
    """Return a metric by seconds and dollars; evaluations count as evenly spread over the steps.

    Args:
        values: global step and value of each evaluation, by step.
        steps: global step before and after the training.
        seconds: as `seconds_of` returns them.
        price: price of one machine; None: not known.
        machines: machines that the training held.
    """
    (first, last), (before, stepping) = steps, seconds
    points = []
    for step, value in values:
        spent = before + (step - first) / max(1, last - first) * stepping
        dollars = price.dollars(spent * machines) if price is not None else None
        points.append(CostPoint(step=step, seconds=round(spent, 3), dollars=dollars, value=value))
    return tuple(points)


def reached(points: Sequence[CostPoint], metric: str, target: float) -> CostPoint | None:
    """Return the first evaluation at the target, after training began; None if the target is not reached."""
    return next((point for point in points[1:] if better(metric, point.value, target)), None)


class RunCosts(NamedTuple):
    """The metric of a training by seconds and dollars, and the first evaluation that is as good as another run."""

    points: tuple[CostPoint, ...] = ()  # empty: no common metric, or the records of its attempts are gone
    target: CostPoint | None = None  # None: not reached


def costs_to_target(runs: Sequence[Run]) -> tuple[str | None, list[RunCosts]]:
    """Return the first run's main metric, and each run's costs until it is as good as the first one after training.

    The metric is None unless all trained one span from one step, and measured it meanwhile.
    """
    trained = [outcome for run in runs if isinstance(outcome := run.outcome(Stage.train), TrainOutcome)]
    begun = {(run.span, each.first_step) for run, each in zip(runs, trained, strict=False)}
    if len(trained) < len(runs) or len(begun) > 1 or not trained[0].curve:
        return None, [RunCosts()] * len(runs)
    metric = main_metric(trained[0].curve[-1].metrics)
    if metric is None or not all(_curve(each, metric) for each in trained):
        return None, [RunCosts()] * len(runs)
    target = _curve(trained[0], metric)[-1][1]
    points = [_points(run, each, metric) for run, each in zip(runs, trained, strict=True)]
    return metric, [RunCosts(each, reached(each, metric, target)) for each in points]


def _curve(trained: TrainOutcome, metric: str) -> list[tuple[int, float]]:
    """Return a holdout metric within the training, by global step."""
    return [(point.step, point.metrics[metric]) for point in trained.curve if metric in point.metrics]


def _points(run: Run, trained: TrainOutcome, metric: str) -> tuple[CostPoint, ...]:
    attempts = [attempt for stage in COUNTED for attempt in run.stage(stage).attempts]
    if not attempts:
        return ()
    last, steps = attempts[-1], (trained.first_step, trained.last_step)
    return cost_points(_curve(trained, metric), steps, seconds_of(attempts), last.price, last.machines)
