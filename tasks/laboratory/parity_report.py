"""The parity report: did two accelerators train the same model, step for step?

It compares the curves of two finished trainings, which `sides.py` plans.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.references import CurvePoint
from tasks.contracts.workspace import PARITY, PARITY_PLOT
from tasks.foundation.errors import CodeError
from tasks.foundation.records import Record
from tasks.laboratory.equivalence import (
    MARGIN,
    Equivalence,
    Finding,
    all_equal,
    equivalence,
    paired_answers,
    percent,
    relative_difference,
)
from tasks.laboratory.sides import Side, SidesReport, Trained, no_holdout, work_of


class ParityPoint(Record):
    """One number of both sides at one global step. The difference is divided by the larger magnitude."""

    step: int
    metric: str
    left: float
    right: float
    relative_difference: float


class ParitySide(Side):
    """The accelerator and run of one side."""

    run_key: str


class ParityReport(SidesReport):
    """`parity/<key>/report.json`. Holdout metrics after the last step decide; the curves and losses are shown only."""

    left: ParitySide
    right: ParitySide
    finding: Finding = Field(description="equal if every metric is, different if one is")
    qualities: tuple[Equivalence, ...] = Field(description="holdout metrics after the last step, with their intervals")
    margin: float = Field(description="relative difference up to which two qualities are equal")
    largest: ParityPoint = Field(description="holdout metric that differs most, and its step")
    largest_loss: ParityPoint | None = Field(description="training loss that differs most; null: no loss was logged")
    points: tuple[ParityPoint, ...] = Field(description="holdout metrics of every evaluation, by step")
    losses: tuple[ParityPoint, ...] = Field(description="training losses, by step")

    @property
    def state(self) -> Literal["Agreed", "Rejected", "Undecided"]:
        """The state in which the comparison ends."""
        if self.finding is Finding.equal:
            return "Agreed"
        return "Rejected" if self.finding is Finding.different else "Undecided"

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
        sides, where = f"{self.left.accelerator} and {self.right.accelerator}", f"on span {self.span.name}"
        largest = (
            f"The largest relative difference at any step is {percent(self.largest.relative_difference)} "
            f"({self.largest.metric} at step {self.largest.step})."
        )
        if self.finding is Finding.equal:
            told = f"{sides} agree {where}"
            if self.largest.relative_difference == 0:
                steps = len({point.step for point in self.points})
                return f"{told}: every holdout metric is equal at all {steps} evaluations."
            return f"{told}: every holdout metric is equal within {percent(self.margin)} after the last step. {largest}"
        named = max(
            (each for each in self.qualities if each.finding is self.finding),
            key=lambda each: (each.rows_needed or 0, each.relative_difference),
        )
        if self.finding is Finding.different:
            return f"{sides} do not agree {where}: {named.sentence()}. {largest}"
        return f"It is not decided if {sides} agree {where}: {named.sentence()}. {largest}"


def with_one_precision(config: Config) -> Config:
    """Return the settings with `train.precision: fp32` for `auto`, which can mean a different one on each side."""
    if config.train.precision != "auto":
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"precision": "fp32"})})


def compare(store: Store, lineage: str, left: Trained, right: Trained) -> ParityReport:
    """Compare the curves of two trainings of one span of `lineage`. Disagreement is a result, not an error.

    Raises:
        CodeError: the two sides were evaluated at different steps or with different metrics.
        DataError: no row is held out, so there is no metric to compare.
        StoreError: the answers of a side are not readable.
    """
    points = paired(left.outcome.curve, right.outcome.curve, "holdout evaluation")
    if not points:
        raise no_holdout(left.plan.span)
    losses = paired(left.outcome.losses, right.outcome.losses, "loss")
    largest = _largest(points)
    qualities = _qualities(store, left, right)
    return ParityReport(
        **work_of(lineage, (left.plan, right.plan)),
        left=_side(left),
        right=_side(right),
        finding=all_equal(qualities),
        qualities=qualities,
        margin=MARGIN,
        largest=largest,
        largest_loss=_largest(losses) if losses else None,
        points=points,
        losses=losses,
    )


def _qualities(store: Store, left: Trained, right: Trained) -> tuple[Equivalence, ...]:
    rows = paired_answers(store, [left], [right])
    ours, theirs = (each.outcome.curve[-1].metrics for each in (left, right))
    return tuple(equivalence(name, [value], [theirs[name]], rows, tests=len(ours)) for name, value in ours.items())


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


def save_report(store: Store, report: ParityReport, plot: bytes) -> None:
    """Write the plot, an SVG, and then the report."""
    store.write(report.plot, plot)
    store.write(PARITY.key(key=report.key), report.to_json())


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
