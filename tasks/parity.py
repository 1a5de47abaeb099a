"""Parity: do two accelerators train the same model from the same start with the same data, step for step?

What is compared here are the curves that two trainings left; how each side is planned and trained is `tasks/sides.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from infra.store import Store
from tasks import curves
from tasks.contracts import CheckpointRef, CurvePoint, RunPlan, SpanRef, TrainOutcome
from tasks.errors import CodeError, DataError
from tasks.records import Record

THRESHOLD = 0.001


class ParityPoint(Record):
    """One number of both sides at one global step. The difference is relative to the larger magnitude."""

    step: int
    metric: str
    left: float
    right: float
    relative_difference: float


class ParitySide(Record):
    """What one side trained on."""

    accelerator: str
    run_key: str
    device: str
    precision: str
    workers: int


class ParityReport(Record):
    """`parity/<key>/report.json`. The gate is on the holdout metrics; the losses are told beside them."""

    version: Literal[1] = 1
    key: str
    span: SpanRef
    lineage: str
    parent: CheckpointRef | None = Field(description="where both trainings began; null: from nothing")
    left: ParitySide
    right: ParitySide
    passed: bool
    threshold: float = Field(description="the largest relative difference must be below this")
    largest: ParityPoint = Field(description="the holdout metric that differs most, and where")
    largest_loss: ParityPoint | None = Field(description="the same of the training losses; null where none was logged")
    points: tuple[ParityPoint, ...] = Field(description="holdout metrics at every evaluation, by step")
    losses: tuple[ParityPoint, ...]

    @property
    def prefix(self) -> str:
        return f"parity/{self.key}"

    @property
    def plot(self) -> str:
        """Key of the plot of the curves."""
        return f"{self.prefix}/curves.svg"

    @property
    def sentence(self) -> str:
        """For people."""
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


class Trained(NamedTuple):
    """One side once it was trained; `lineage` of `plan` is the side's own."""

    plan: RunPlan
    device: str
    outcome: TrainOutcome


def compare(lineage: str, left: Trained, right: Trained) -> ParityReport:
    """Hold the curves of two trainings of `lineage`'s next step against each other; a refused gate is a result.

    Raises:
        CodeError: the sides were evaluated at other steps or by other metrics, so that they are no two of a kind.
        DataError: there is no holdout, and so nothing that could agree.
    """
    points = paired(left.outcome.curve, right.outcome.curve, "holdout evaluation")
    if not points:
        raise DataError(
            f"span {left.plan.span.name}: none of its rows is held out, so there is no metric to compare; raise "
            "evaluate.holdout_share, or compare over a larger span"
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
    """The numbers of two curves side by side, by step.

    Raises:
        CodeError: they have other steps, or other metrics at a step; names the first that one side lacks.
    """
    ours, theirs = ({point.step: point.metrics for point in curve} for curve in (left, right))
    if differing := sorted(ours.keys() ^ theirs.keys()):
        has, lacks = ("left", "right") if differing[0] in ours else ("right", "left")
        raise CodeError(f"the {has} side has a {what} at step {differing[0]}, and the {lacks} side has none there")
    points = []
    for step, metrics in sorted(ours.items()):
        if odd := sorted(metrics.keys() ^ theirs[step].keys()):
            has, lacks = ("left", "right") if odd[0] in metrics else ("right", "left")
            raise CodeError(f"the {what} at step {step} has {odd[0]} on the {has} side, and not on the {lacks} side")
        points.extend(_point(step, name, value, theirs[step][name]) for name, value in metrics.items())
    return tuple(points)


def relative_difference(left: float, right: float) -> float:
    """The difference over the larger magnitude; 0 for equal numbers, infinite where a number is none."""
    if not (math.isfinite(left) and math.isfinite(right)):
        return math.inf
    return 0.0 if left == right else abs(left - right) / max(abs(left), abs(right))


def save_report(store: Store, report: ParityReport) -> bytes:
    """Write the plot, and the report last; returns the plot, an SVG. Asked again for the same, it writes the same."""
    plot = curves.draw(report)
    store.write(report.plot, plot)
    store.write(f"{report.prefix}/report.json", report.to_json())
    return plot


def percent(share: float) -> str:
    """A share as people read it, with two digits that count: 0.1 %, 0.000052 %."""
    if share == 0 or math.isinf(share):
        return "0 %" if share == 0 else "infinite"
    decimals = max(0, 1 - math.floor(math.log10(100 * share)))
    text = f"{100 * share:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def worst_by_metric(points: Sequence[ParityPoint]) -> list[ParityPoint]:
    """Of each metric the point where the sides differ most; where they never do, the last."""
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
