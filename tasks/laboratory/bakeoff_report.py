"""The bake-off report: its records, its sentences, and trainings that others published, at a configuration's prices.

Publications are in configs/published_trainings.yaml. `bakeoff_sides.py` measures and prices the sides.
"""

import datetime as dt
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from configs import prices
from configs.keys import explain
from configs.prices import price_of
from configs.schema.operations import Basis, CostConfig, Price
from configs.yaml_files import read_yaml_file
from tasks.contracts.comparison import CostPoint
from tasks.contracts.references import CurvePoint
from tasks.contracts.workspace import BAKEOFF_PAGE
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.laboratory.equivalence import Equivalence
from tasks.laboratory.parity_report import ParityPoint
from tasks.laboratory.sides import Side, SidesReport

PUBLISHED = Path(prices.__file__).with_name("published_trainings.yaml")


class PublishedTraining(Record):
    """The time of a whole training, to its end or to a target quality."""

    name: str
    instance: str = Field(description="instance type, for example p4de.24xlarge")
    nodes: int = Field(gt=0, description="machines that it held")
    seconds: float = Field(gt=0, description="seconds by the clock")
    basis: Basis | None = Field(default=None, description="basis of its prices, as in `sagemaker`; null: cost.basis")
    date: dt.date = Field(description="day of publication")
    source: str = Field(description="page, file or log that the figures are from")


class PublishedLine(Record):
    """A published training at a price that is looked up."""

    training: PublishedTraining
    billable_seconds: float = Field(description="machine-seconds")
    price: Price | None = Field(description="price of one node with basis, region and date; null: not known")
    dollars: float | None = Field(description="dollars of the whole training; null: no price")


def published_lines(cost: CostConfig) -> tuple[PublishedLine, ...]:
    """Return the published trainings at the prices of a configuration, on SageMaker at SageMaker's.

    Raises:
        ConfigError: the file is damaged; names the key.
    """
    try:
        found = TypeAdapter(tuple[PublishedTraining, ...]).validate_python(read_yaml_file(PUBLISHED))
    except ValidationError as error:
        raise ConfigError(f"{PUBLISHED}: {explain(error, tuple[PublishedTraining, ...])}") from None
    return tuple(_line(cost, training) for training in found)


def _line(cost: CostConfig, training: PublishedTraining) -> PublishedLine:
    price = price_of(training.instance, cost.model_copy(update={"basis": training.basis or cost.basis}))
    held = training.seconds * training.nodes
    return PublishedLine(
        training=training,
        billable_seconds=held,
        price=price,
        dollars=price.dollars(held) if price is not None else None,
    )


class SideTraining(Record):
    """One training of a side. Seconds of machines are added up over the machines; lost work does not count."""

    seed: int = Field(description="seed of the order of rows and of dropout")
    run_key: str
    iterations_per_second: float = Field(description="training steps a second, without evaluations and checkpoints")
    pairs_per_second: float = Field(description="pairs a second, without evaluations and checkpoints")
    billable_seconds: float = Field(description="machine-seconds of train")
    starting_seconds: float = Field(description="machine-seconds of booting and compiling in it")
    before_seconds: float = Field(description="seconds by the clock until its first step")
    stepping_seconds: float = Field(description="seconds by the clock from then on, with evaluations")
    curve: tuple[CurvePoint, ...] = Field(description="holdout metrics by step")


class BakeoffSide(Side):
    """One side. Its machines are held for health and warmup once, then for one training: the mean of its seeds."""

    name: str
    instance: str | None = Field(description="instance type; null: the configuration names none")
    machines: int = Field(description="machines that the training holds")
    price: Price | None = Field(description="price of one machine with basis, region and date; null: not known")
    unpriced: str = Field(description="reason of an unknown price; empty: it is known")
    trainings: tuple[SideTraining, ...] = Field(description="trainings, one for each seed")
    iterations_per_second: float = Field(description="training steps a second, mean of the seeds")
    pairs_per_second: float = Field(description="pairs a second, mean of the seeds")
    value: float = Field(description="metric at the last step, mean of the seeds")
    low: float | None = Field(description="begin of its 95 % interval over the seeds; null: one seed")
    high: float | None = Field(description="end of that interval; null: one seed")
    billable_seconds: float = Field(description="machine-seconds of health, warmup and train; lost work does not count")
    starting_seconds: float = Field(description="machine-seconds of booting and compiling in them")
    lost_seconds: float = Field(description="machine-seconds of failed or killed attempts that were done again")
    points: tuple[CostPoint, ...] = Field(description="curve of the metric: one point for each evaluation")
    target_seconds: float | None = Field(description="seconds to the first evaluation at the target; null: not reached")
    target_dollars: float | None = Field(
        description="dollars to the target; null: not reached, or the price is not known"
    )
    dollars: float | None = Field(
        description="dollars of health, warmup and one training; null: the price is not known"
    )
    dollars_without_start: float | None = Field(description="dollars without booting and compiling")


class BakeoffPair(Record):
    """The quality of a side against that of the first side, at the last step."""

    side: str = Field(description="name of the side that is compared with the first")
    first: str
    quality: Equivalence = Field(description="metric of both, with its interval over the rows and the seeds")
    largest: ParityPoint | None = Field(
        description="holdout metric that differs most at one step of one seed; null: other steps were evaluated"
    )


class BakeoffReport(SidesReport):
    """`bakeoffs/<key>/report.json`."""

    metric: str
    first_step: int = Field(description="global step of the checkpoint that all sides begin from")
    last_step: int = Field(description="global step of the last evaluation")
    seeds: tuple[int, ...] = Field(description="seeds of the trainings of each side")
    target: float | None = Field(
        description="value of the metric that a side has to reach; null: training gained nothing, so all steps count"
    )
    target_is: str = Field(description="origin of the target, in words")
    margin: float = Field(description="relative difference up to which two qualities are equal")
    sides: tuple[BakeoffSide, ...] = Field(description="sides, in the order in which they were named")
    pairs: tuple[BakeoffPair, ...] = Field(description="each other side against the first")
    published: tuple[PublishedLine, ...] = Field(description="figures of others; empty: not asked for")

    @property
    def page(self) -> str:
        """Key of the page with the table and the curves."""
        return BAKEOFF_PAGE.key(key=self.key)

    @property
    def winner(self) -> BakeoffSide | None:
        """The side with the fewest dollars to the target, of sides that all have prices; else the fewest seconds.

        None if no side, or no other than one, is there to win, or none reaches the target.
        """
        there = [side for side in self.sides if side.target_seconds is not None]
        if len(self.sides) < 2 or not there:
            return None
        return min(there, key=lambda side: (side.target_dollars if self.priced else side.target_seconds) or 0.0)

    @property
    def goal(self) -> str:
        """The target in words: `recall@10 0.8731`, or `step 256`."""
        return f"step {self.last_step}" if self.target is None else f"{self.metric} {self.target:.4f}"

    @property
    def priced(self) -> bool:
        """True if the price of every side is known."""
        return all(side.price is not None for side in self.sides)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The winner and its lead, then the quality of each other side against the first."""
        return (_won(self), *(_equal(self, pair) for pair in self.pairs))


def _won(report: BakeoffReport) -> str:
    winner, goal = report.winner, report.goal
    if winner is None:
        return f"No side reaches {goal}." if len(report.sides) > 1 else "One side alone has nothing to win against."
    unit = "dollars" if report.priced else "seconds"
    told = f"{winner.name} needs the fewest {unit} to {goal}: {_amount(report, winner)}"
    for other in report.sides:
        if other is not winner:
            told += f"; {other.name} {_amount(report, other)}{_lead(report, winner, other)}"
    unpriced = "; ".join(f"{side.name}: {side.unpriced}" for side in report.sides if side.price is None)
    return f"{told}.{f' Dollars are not compared ({unpriced}).' if unpriced else ''}"


def _amount(report: BakeoffReport, side: BakeoffSide) -> str:
    if side.target_seconds is None:
        return "does not reach it"
    if not report.priced or side.target_dollars is None:
        return f"{side.target_seconds:,.1f} s"
    return f"${side.target_dollars:,.2f}" if side.target_dollars >= 1 else f"${side.target_dollars:.3g}"


def _lead(report: BakeoffReport, winner: BakeoffSide, other: BakeoffSide) -> str:
    """Return the winner's lead over a side that reaches the target, as in ` (12 % less)`."""
    ours, theirs = (each.target_dollars if report.priced else each.target_seconds for each in (winner, other))
    return f" ({1 - ours / theirs:.0%} less)".replace("%", " %") if ours is not None and theirs else ""


def _equal(report: BakeoffReport, pair: BakeoffPair) -> str:
    seeds = len(report.seeds)
    trained = "one seed, so other seeds may differ" if seeds == 1 else f"{seeds} seeds"
    return (
        f"Quality of {pair.side} against {pair.first} at step {report.last_step}, {trained}: {pair.quality.sentence()}."
    )
