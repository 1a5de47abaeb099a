"""Measure and price the sides of a bake-off, which `sides.py` trains; results in a `BakeoffReport`.

Measurements come from results and ledger. Prices are looked up anew, so an old bake-off is priced as of today.
"""

import math
import statistics
from collections.abc import Iterable, Sequence

from configs.prices import price_of
from configs.schema.config import Config
from configs.schema.gates import METRICS
from infra.store.base import Store
from tasks.campaigns.trying import own_run
from tasks.contracts.evaluation import main_metric
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.stages import Stage, compute_of
from tasks.contracts.workspace import BAKEOFF
from tasks.foundation.errors import CodeError
from tasks.laboratory.bakeoff_report import (
    BakeoffPair,
    BakeoffReport,
    BakeoffSide,
    PublishedLine,
    SideTraining,
)
from tasks.laboratory.equivalence import CONFIDENCE, MARGIN, Bounds, equivalence, paired_answers
from tasks.laboratory.parity_report import paired
from tasks.laboratory.sides import SideRuns, Trained, no_holdout, work_of
from tasks.runs import branches, ledger
from tasks.runs.ledger import LedgerRecord
from tasks.runs.metric_by_cost import clock_seconds, cost_points, reached, seconds_of
from tasks.runs.results import read_result

DOUBT = 0.05  # share outside an interval over seeds, half of it at each end


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
        **work_of(runs.lineage, [run.plan for run in runs.runs]),
        metric=metric,
        first_step=one.outcome.first_step,
        last_step=_last_step(by_side),
        seeds=tuple(each.run.seed for each in by_side[first]),
        target=target,
        target_is=target_is,
        margin=MARGIN,
        sides=sides,
        pairs=tuple(_pair(store, by_side[first], by_side[other], metric) for other in others),
        published=tuple(published),
    )


def mean_and_interval(values: Sequence[float], doubt: float = DOUBT) -> tuple[float, float | None, float | None]:
    """Return the mean and its interval by Student's t; no interval for one value.

    Args:
        doubt: share outside the interval, half of it at each end.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    from scipy.special import stdtrit  # its import takes a tenth of a second, for this alone

    half = float(stdtrit(len(values) - 1, 1 - doubt / 2)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def bounds_over_seeds(differences: Sequence[float]) -> Bounds | None:
    """Return the bounds of the mean difference with the seeds as units; None for one seed."""
    _, low, high = mean_and_interval(differences, 2 * (1 - CONFIDENCE))
    return Bounds(low, high) if low is not None and high is not None else None


def _metric(one: Trained) -> str:
    curve = one.outcome.curve
    metric = main_metric(curve[-1].metrics) if curve else None
    if metric is None:
        raise no_holdout(one.plan.span)
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
    sign = METRICS[metric].sign
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
    before = sum(map(clock_seconds, common)) + statistics.fmean(each.before_seconds for each in trainings)
    stepping = statistics.fmean(each.stepping_seconds for each in trainings)
    value, low, high = mean_and_interval([_last(each, metric) for each in found])
    means = [
        (point.step, statistics.fmean(each.outcome.curve[place].metrics[metric] for each in found))
        for place, point in enumerate(first.outcome.curve)
    ]
    steps = first.outcome.first_step, first.outcome.last_step
    points = cost_points(means, steps, (before, stepping), price, last.machines)
    there = reached(points, metric, target) if target is not None else points[-1]
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
        points=points,
        target_seconds=there.seconds if there is not None else None,
        target_dollars=there.dollars if there is not None else None,
        dollars=price.dollars(held) if price is not None else None,
        dollars_without_start=price.dollars(held - starting) if price is not None else None,
    )


def _training(trained: Trained, records: Sequence[LedgerRecord]) -> SideTraining:
    outcome, own = trained.outcome, [record for record in records if record.stage == Stage.train]
    before, stepping = seconds_of(own)
    return SideTraining(
        seed=trained.run.seed,
        run_key=trained.plan.run_key,
        iterations_per_second=outcome.pairs_per_second / trained.plan.config.train.batch_rows,
        pairs_per_second=outcome.pairs_per_second,
        billable_seconds=round(sum(map(_kept, own)), 3),
        starting_seconds=round(sum(map(_starting, own)), 3),
        before_seconds=round(before, 3),
        stepping_seconds=round(stepping, 3),
        curve=outcome.curve,
    )


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


def _pair(store: Store, first: Sequence[Trained], other: Sequence[Trained], metric: str) -> BakeoffPair:
    pairs = list(zip(first, other, strict=True))
    mine, theirs = ([_last(each, metric) for each in side] for side in (first, other))
    differences = [b - a for a, b in zip(mine, theirs, strict=True)]
    rows = paired_answers(store, first, other)
    try:
        points = [point for a, b in pairs for point in paired(a.outcome.curve, b.outcome.curve, "holdout evaluation")]
    except CodeError:  # a compiler or a precision may evaluate elsewhere; the last step is compared in any case
        points = []
    return BakeoffPair(
        side=other[0].run.side,
        first=first[0].run.side,
        quality=equivalence(metric, mine, theirs, rows, bounds_over_seeds(differences)),
        largest=max(points, key=lambda point: point.relative_difference, default=None),
    )
