"""The holdout metric of a training by seconds and dollars: its evaluations, spread over the time of its attempts."""

from collections.abc import Sequence

from configs.schema.gates import METRICS
from configs.schema.operations import Price
from tasks.contracts.comparison import CostPoint
from tasks.contracts.stages import Stage
from tasks.runs.ledger import LedgerRecord

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
