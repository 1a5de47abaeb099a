"""The bake-off report: speed, quality, billable seconds and dollars of the sides that `sides.py` trains.

Measurements come from results and ledger. Prices are looked up anew, so an old bake-off is priced as of today.
"""

import hashlib
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from configs.prices import price_of
from configs.schema.config import Config
from configs.schema.metrics import METRICS
from configs.schema.prices import Price
from infra.store.base import Store
from tasks.backfill.trying import own_run
from tasks.contracts.checkpoints import CurvePoint
from tasks.contracts.evaluation import main_metric
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.contracts.stages import Stage, compute_of
from tasks.contracts.workspace import BAKEOFF, BAKEOFF_PAGE
from tasks.foundation.errors import CodeError, DataError
from tasks.foundation.records import Record
from tasks.runs import branches, ledger
from tasks.runs.ledger import LedgerRecord
from tasks.runs.results import read_result
from tasks.upkeep.bakeoff_published import PublishedLine
from tasks.upkeep.parity_report import THRESHOLD, ParityPoint, paired, percent, relative_difference
from tasks.upkeep.sides import SideRuns, Trained

DOUBT = 0.05  # share outside an interval over seeds, half of it at each end


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


class SidePoint(Record):
    """The mean of a side over its seeds at one evaluation."""

    step: int
    seconds: float = Field(description="seconds by the clock since health began, evenly spread over the steps")
    dollars: float | None = Field(description="dollars until this step; null: the price is not known")
    value: float


class BakeoffSide(Record):
    """One side. Its machines are held for health and warmup once, then for one training: the mean of its seeds."""

    name: str
    accelerator: str
    device: str
    precision: str
    workers: int
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
    points: tuple[SidePoint, ...] = Field(description="curve of the metric: one point for each evaluation")
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
    difference: float = Field(description="metric of the side minus that of the first")
    relative_difference: float = Field(description="divided by the larger magnitude")
    low: float | None = Field(description="begin of the difference's 95 % interval, paired by seed; null: one seed")
    high: float | None = Field(description="end of the interval; null: one seed")
    equal: bool = Field(description="true: the relative difference is below the threshold")
    within: bool | None = Field(description="true: the interval holds zero; null: one seed")
    largest: ParityPoint | None = Field(
        description="holdout metric that differs most at one step of one seed; null: other steps were evaluated"
    )


class BakeoffReport(Record):
    """`bakeoffs/<key>/report.json`."""

    version: Literal[1] = 1
    key: str = Field(description="key of the bake-off")
    span: SpanRef
    lineage: str
    parent: CheckpointRef | None = Field(description="checkpoint that all sides started from; null: none")
    metric: str
    first_step: int = Field(description="global step of the checkpoint that all sides begin from")
    last_step: int = Field(description="global step of the last evaluation")
    seeds: tuple[int, ...] = Field(description="seeds of the trainings of each side")
    target: float | None = Field(
        description="value of the metric that a side has to reach; null: training gained nothing, so all steps count"
    )
    target_is: str = Field(description="origin of the target, in words")
    threshold: float = Field(description="relative difference below which qualities are equal")
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


def save_report(store: Store, report: BakeoffReport, page: bytes) -> None:
    """Write the page, and then the report."""
    store.write(report.page, page)
    store.write(BAKEOFF.key(key=report.key), report.to_json())


def report_bakeoff(
    store: Store, runs: SideRuns, trained: Iterable[Trained], published: Sequence[PublishedLine] = ()
) -> BakeoffReport:
    """Measure and price the trained sides.

    Args:
        published: figures of others to stand beside them.

    Raises:
        CodeError: the sides took different steps.
        DataError: no row is held out, so there is no metric to compare.
        StoreError: a record is not readable.
    """
    by_side: dict[str, list[Trained]] = {}
    for each in trained:
        by_side.setdefault(each.run.side, []).append(each)
    one = next(iter(by_side.values()))[0]
    metric = _metric(one)
    target, target_is = _target(store, runs, by_side, metric)
    sides = tuple(_side(store, name, found, metric, target) for name, found in by_side.items())
    first, *others = by_side
    return BakeoffReport(
        key=hashlib.sha256(" ".join(run.plan.run_key for run in runs.runs).encode()).hexdigest()[:16],
        span=one.plan.span,
        lineage=runs.lineage,
        parent=one.plan.parent,
        metric=metric,
        first_step=one.outcome.first_step,
        last_step=_last_step(by_side),
        seeds=tuple(each.run.seed for each in by_side[first]),
        target=target,
        target_is=target_is,
        threshold=THRESHOLD,
        sides=sides,
        pairs=tuple(_pair(by_side[first], by_side[other], metric) for other in others),
        published=tuple(published),
    )


def better(metric: str, value: float, than: float) -> bool:
    """Return True if a value of a metric is at least as good as another."""
    return value >= than if METRICS[metric].better == "higher" else value <= than


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean and its 95 % interval by Student's t; no interval for one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    from scipy.special import stdtrit  # a tenth of a second, for this alone

    half = float(stdtrit(len(values) - 1, 1 - DOUBT / 2)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def _metric(one: Trained) -> str:
    curve = one.outcome.curve
    metric = main_metric(curve[-1].metrics) if curve else None
    if metric is None:
        raise DataError(
            f"span {one.plan.span.name}: no row is held out, so there is no metric to compare; compare "
            "on a larger span, or in a new lineage with a higher evaluate.holdout_share"
        )
    return metric


def _target(store: Store, runs: SideRuns, by_side: dict[str, list[Trained]], metric: str) -> tuple[float | None, str]:
    """Return the champion's metric less a tolerance, and its origin in words; None if training gained nothing.

    The champion is the lineage's own run over the span, measured on the same rows in the same way; without one it is
    the first side. The tolerance is that of the gate, and at most a tenth of the gain: where all sides start from may
    be within the gate's.
    """
    first = next(iter(by_side))
    start = statistics.fmean(each.outcome.curve[0].metrics[metric] for each in by_side[first])
    own = own_run(store, branches.active(store, runs.lineage), runs.common.span.name)
    result = read_result(store, own, Stage.train) if own is not None else None
    outcome = result.outcome if result is not None else None
    if isinstance(outcome, TrainOutcome) and outcome.curve and metric in outcome.curve[-1].metrics:
        value, whose = outcome.curve[-1].metrics[metric], f"the lineage's own run {own}"
    else:
        value = statistics.fmean(_last(each, metric) for each in by_side[first])
        whose = f"{first} at the last step"
    sign = 1 if METRICS[metric].better == "higher" else -1
    gain = sign * (value - start)
    if gain <= 0:
        return None, f"the last step: {whose} is at {value:.4f}, and all sides start at {start:.4f}"
    tolerance = min(_tolerance(runs.common.config, metric, value), gain / 10)
    less = f" less {tolerance:.2g}" if tolerance else ""
    return value - sign * tolerance, f"{whose}, {value:.4f}{less}"


def _tolerance(config: Config, metric: str, value: float) -> float:
    for gate in config.evaluate.gates:
        if gate.metric == metric and gate.baseline == "champion" and gate.slice is None and gate.rows == "holdout":
            return abs(gate.threshold * value if gate.relative else gate.threshold)
    return 0.0


def _last_step(by_side: dict[str, list[Trained]]) -> int:
    steps = {name: found[0].outcome.last_step for name, found in by_side.items()}
    if len(set(steps.values())) > 1:
        told = ", ".join(f"{name} to step {step}" for name, step in steps.items())
        raise CodeError(f"the sides trained different batches: {told}")
    return next(iter(steps.values()))


def _last(trained: Trained, metric: str) -> float:
    return trained.outcome.curve[-1].metrics[metric]


def _side(store: Store, name: str, found: Sequence[Trained], metric: str, target: float | None) -> BakeoffSide:
    first = found[0]
    cost, ledgers = first.plan.config.cost, [ledger.records(store, each.plan.run_key) for each in found]
    common = [record for record in ledgers[0] if record.stage != Stage.train]
    trainings = tuple(_training(each, records) for each, records in zip(found, ledgers, strict=True))
    last = [record for record in ledgers[0] if record.stage == Stage.train][-1]
    price = price_of(last.instance, cost)
    held = sum(map(_kept, common)) + statistics.fmean(each.billable_seconds for each in trainings)
    starting = sum(map(_starting, common)) + statistics.fmean(each.starting_seconds for each in trainings)
    before = sum(map(_clock, common)) + statistics.fmean(each.before_seconds for each in trainings)
    stepping = statistics.fmean(each.stepping_seconds for each in trainings)
    value, low, high = mean_and_interval([_last(each, metric) for each in found])
    points = []
    for place, point in enumerate(first.outcome.curve):
        share = (point.step - first.outcome.first_step) / max(1, first.outcome.last_step - first.outcome.first_step)
        seconds = before + share * stepping
        mean = statistics.fmean(each.outcome.curve[place].metrics[metric] for each in found)
        dollars = price.dollars(seconds * last.machines) if price is not None else None
        points.append(SidePoint(step=point.step, seconds=round(seconds, 3), dollars=dollars, value=mean))
    after = points[1:] if target is not None else points[-1:]
    reached = next((point for point in after if target is None or better(metric, point.value, target)), None)
    return BakeoffSide(
        name=name,
        accelerator=first.plan.config.accelerator,
        device=first.device,
        precision=first.outcome.precision,
        workers=last.workers,
        instance=last.instance,
        machines=last.machines,
        price=price,
        unpriced="" if price is not None else _unpriced(last.instance, first.plan.config),
        trainings=trainings,
        iterations_per_second=statistics.fmean(each.iterations_per_second for each in trainings),
        pairs_per_second=statistics.fmean(each.pairs_per_second for each in trainings),
        value=value,
        low=low,
        high=high,
        billable_seconds=round(held, 3),
        starting_seconds=round(starting, 3),
        lost_seconds=round(sum(_lost(record) for records in ledgers for record in records), 3),
        points=tuple(points),
        target_seconds=reached.seconds if reached is not None else None,
        target_dollars=reached.dollars if reached is not None else None,
        dollars=price.dollars(held) if price is not None else None,
        dollars_without_start=price.dollars(held - starting) if price is not None else None,
    )


def _training(trained: Trained, records: Sequence[LedgerRecord]) -> SideTraining:
    outcome, own = trained.outcome, [record for record in records if record.stage == Stage.train]
    stepping = sum(record.seconds.productive for record in own)
    return SideTraining(
        seed=trained.run.seed,
        run_key=trained.plan.run_key,
        iterations_per_second=outcome.pairs_per_second / trained.plan.config.train.batch_rows,
        pairs_per_second=outcome.pairs_per_second,
        billable_seconds=round(sum(map(_kept, own)), 3),
        starting_seconds=round(sum(map(_starting, own)), 3),
        before_seconds=round(sum(map(_clock, own)) - stepping, 3),
        stepping_seconds=round(stepping, 3),
        curve=outcome.curve,
    )


def _clock(record: LedgerRecord) -> float:
    """Return the seconds of an attempt by the clock, without waiting and lost work."""
    return record.seconds.paid - record.seconds.lost


def _kept(record: LedgerRecord) -> float:
    """Return the machine-seconds of an attempt without lost work."""
    return record.billable_seconds - _lost(record)


def _lost(record: LedgerRecord) -> float:
    return _share(record, record.seconds.lost)


def _starting(record: LedgerRecord) -> float:
    return _share(record, record.seconds.booting + record.seconds.compiling)


def _share(record: LedgerRecord, seconds: float) -> float:
    """Return machine-seconds of some of an attempt's seconds."""
    return record.billable_seconds * seconds / record.seconds.paid if record.seconds.paid else 0.0


def _unpriced(instance: str | None, config: Config) -> str:
    if compute_of(config, Stage.train) == "local":
        return "set cost.dollars_per_worker_hour for the price of a local worker"
    if instance is None:
        return "the configuration names no batch.accelerator_instance"
    return f"no price of {instance} in {config.cost.region} ({config.cost.basis.replace('_', ' ')})"


def _pair(first: Sequence[Trained], other: Sequence[Trained], metric: str) -> BakeoffPair:
    pairs = list(zip(first, other, strict=True))
    differences = [_last(b, metric) - _last(a, metric) for a, b in pairs]
    mean, low, high = mean_and_interval(differences)
    values = [statistics.fmean(_last(each, metric) for each in side) for side in (first, other)]
    relative = relative_difference(*values)
    try:
        points = [point for a, b in pairs for point in paired(a.outcome.curve, b.outcome.curve, "holdout evaluation")]
    except CodeError:  # a compiler or a precision may evaluate elsewhere; the last step is compared in any case
        points = []
    return BakeoffPair(
        side=other[0].run.side,
        first=first[0].run.side,
        difference=mean,
        relative_difference=relative,
        low=low,
        high=high,
        equal=relative < THRESHOLD,
        within=low <= 0 <= high if low is not None and high is not None else None,
        largest=max(points, key=lambda point: point.relative_difference, default=None),
    )


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
    sides = {side.name: side for side in report.sides}
    a, b = sides[pair.first], sides[pair.side]
    verdict = "is equal" if pair.equal else "is not equal"
    told = (
        f"Quality of {b.name} and {a.name} {verdict} within {percent(report.threshold)}: {report.metric} {b.value:.4f} "
        f"and {a.value:.4f} at step {report.last_step}, a difference of {percent(pair.relative_difference)}"
    )
    if pair.low is None or pair.high is None:
        return f"{told}. One seed gives no interval."
    holds = "holds" if pair.within else "does not hold"
    return (
        f"{told}. The 95 % interval of the difference over {len(report.seeds)} seeds, {pair.low:+.4f} to "
        f"{pair.high:+.4f}, {holds} zero."
    )
