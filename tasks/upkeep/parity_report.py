"""The parity report: did two accelerators train the same model, step for step?

It compares the curves of two finished trainings, which `sides.py` plans.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.checkpoints import CurvePoint
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.contracts.workspace import PARITY, PARITY_PLOT
from tasks.foundation.errors import CodeError, DataError
from tasks.foundation.records import Record
from tasks.upkeep.sides import Trained

THRESHOLD = 0.001


class ParityPoint(Record):
    """One number of both sides at one global step. The difference is divided by the larger magnitude."""

    step: int
    metric: str
    left: float
    right: float
    relative_difference: float


class ParitySide(Record):
    """The accelerator and run of one side."""

    accelerator: str
    run_key: str
    device: str
    precision: str
    workers: int


class ParityReport(Record):
    """`parity/<key>/report.json`. Holdout metrics are gated; training losses are shown only."""

    version: Literal[1] = 1
    key: str = Field(description="key of the comparison")
    span: SpanRef
    lineage: str
    parent: CheckpointRef | None = Field(description="checkpoint that both sides started from; null: none")
    left: ParitySide
    right: ParitySide
    passed: bool
    threshold: float = Field(description="limit of the largest relative difference")
    largest: ParityPoint = Field(description="holdout metric that differs most, and its step")
    largest_loss: ParityPoint | None = Field(description="training loss that differs most; null: no loss was logged")
    points: tuple[ParityPoint, ...] = Field(description="holdout metrics of every evaluation, by step")
    losses: tuple[ParityPoint, ...] = Field(description="training losses, by step")

    @property
    def prefix(self) -> str:
        return PARITY.within(key=self.key)

    @property
    def plot(self) -> str:
        """Key of the plot of the curves."""
        return PARITY_PLOT.key(key=self.key)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        sides = f"{self.left.accelerator} and {self.right.accelerator}"
        if self.largest.relative_difference == 0:
            steps = len({point.step for point in self.points})
            return f"{sides} agree on span {self.span.name}: every holdout metric is equal at all {steps} evaluations."
        verdict = "agree" if self.passed else "do not agree"
        return (
            f"{sides} {verdict} on span {self.span.name}: the largest relative difference of a holdout metric is "
            f"{percent(self.largest.relative_difference)} ({self.largest.metric} at step {self.largest.step}); "
            f"below {percent(self.threshold)} is required."
        )


def with_one_precision(config: Config) -> Config:
    """Return the settings with `train.precision: fp32` for `auto`, which can mean a different one on each side."""
    if config.train.precision != "auto":
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"precision": "fp32"})})


def compare(lineage: str, left: Trained, right: Trained) -> ParityReport:
    """Compare the curves of two trainings of one span of `lineage`. A failed gate is a result, not an error.

    Raises:
        CodeError: the two sides were evaluated at different steps or with different metrics.
        DataError: no row is held out, so there is no metric to compare.
    """
    points = paired(left.outcome.curve, right.outcome.curve, "holdout evaluation")
    if not points:
        raise DataError(
            f"span {left.plan.span.name}: no row is held out, so there is no metric to compare; compare "
            "on a larger span, or in a new lineage with a higher evaluate.holdout_share"
        )
    losses = paired(left.outcome.losses, right.outcome.losses, "loss")
    largest = _largest(points)
    return ParityReport(
        key=hashlib.sha256(f"{left.plan.run_key} {right.plan.run_key}".encode()).hexdigest()[:16],
        span=left.plan.span,
        lineage=lineage,
        parent=left.plan.parent,
        left=_side(left),
        right=_side(right),
        passed=largest.relative_difference < THRESHOLD,
        threshold=THRESHOLD,
        largest=largest,
        largest_loss=_largest(losses) if losses else None,
        points=points,
        losses=losses,
    )


def paired(left: Sequence[CurvePoint], right: Sequence[CurvePoint], what: str) -> tuple[ParityPoint, ...]:
    """Pair the numbers of two curves, by step. Raises CodeError: one side lacks a step or a metric; names the first."""
    ours, theirs = ({point.step: point.metrics for point in curve} for curve in (left, right))
    if differing := sorted(ours.keys() ^ theirs.keys()):
        has, lacks = ("left", "right") if differing[0] in ours else ("right", "left")
        raise CodeError(f"the {has} side has a {what} at step {differing[0]}, but the {lacks} side has none")
    points = []
    for step, metrics in sorted(ours.items()):
        if odd := sorted(metrics.keys() ^ theirs[step].keys()):
            has, lacks = ("left", "right") if odd[0] in metrics else ("right", "left")
            raise CodeError(f"the {what} at step {step} has {odd[0]} on the {has} side, but not on the {lacks} side")
        points.extend(_point(step, name, value, theirs[step][name]) for name, value in metrics.items())
    return tuple(points)


def relative_difference(left: float, right: float) -> float:
    """Return the difference divided by the larger magnitude; infinite if a number is not finite."""
    if not (math.isfinite(left) and math.isfinite(right)):
        return math.inf
    return 0.0 if left == right else abs(left - right) / max(abs(left), abs(right))


def save_report(store: Store, report: ParityReport, plot: bytes) -> None:
    """Write the plot, an SVG, and then the report."""
    store.write(report.plot, plot)
    store.write(PARITY.key(key=report.key), report.to_json())


def percent(share: float) -> str:
    """Format a share with two significant digits: 0.1 %, 0.000052 %."""
    if share == 0 or math.isinf(share):
        return "0 %" if share == 0 else "infinite"
    decimals = max(0, 1 - math.floor(math.log10(100 * share)))
    text = f"{100 * share:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def worst_by_metric(points: Sequence[ParityPoint]) -> list[ParityPoint]:
    """Return each metric's point with the largest difference; of equal points, the last."""
    worst: dict[str, ParityPoint] = {}
    for point in points:
        before = worst.get(point.metric)
        if before is None or point.relative_difference >= before.relative_difference:
            worst[point.metric] = point
    return list(worst.values())


def _largest(points: Sequence[ParityPoint]) -> ParityPoint:
    return max(points, key=lambda point: point.relative_difference)


def _point(step: int, metric: str, left: float, right: float) -> ParityPoint:
    difference = relative_difference(left, right)
    return ParityPoint(step=step, metric=metric, left=left, right=right, relative_difference=difference)


def _side(trained: Trained) -> ParitySide:
    return ParitySide(
        accelerator=trained.plan.config.accelerator,
        run_key=trained.plan.run_key,
        device=trained.device,
        precision=trained.outcome.precision,
        workers=trained.plan.config.train.workers,
    )
