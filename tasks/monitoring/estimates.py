"""The time and the cost expected of a run, by the last attempts of its lineage; it reads records and writes nothing.

Only successful attempts on machines of the same kind count, so an estimate assumes no failures. Flow runs, deadlines,
budgets and backfills ask it; `millrace plan` has figures of machines that were never used.
"""

import contextlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from configs.prices import price_of, sum_dollars
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.costs import Basis, RunCost, StageCost
from tasks.contracts.kinds import is_refresh
from tasks.contracts.outcomes import InferOutcome, Phases, WarmupOutcome
from tasks.contracts.references import RowsRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import REFRESHING, Place, Stage, place_of
from tasks.foundation.errors import StoreError
from tasks.foundation.nouns import plural
from tasks.runs import releases
from tasks.runs.ledger import LedgerRecord
from tasks.runs.plan import rows_of
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

ATTEMPTS = 5  # the last successful ones of a stage, of which the median is taken

# Settings that graphs depend on.
_OF_GRAPHS = ("accelerator", "compiler", "model", "heads", "features", "train", "infer")


class Facts(NamedTuple):
    """An earlier run besides its ledger."""

    config: Config
    rows: Sequence[int] | None  # ingested rows of each span of its window
    reads_graphs: bool = False  # its warmup left graphs on a runtime that reads compiled ones back
    run: Run | None = None  # its outcomes


class Past(NamedTuple):
    """Input of estimates: attempts, and the facts of their runs by key."""

    records: Sequence[LedgerRecord]
    runs: Mapping[str, Facts]

    def did_so(self, record: LedgerRecord, config: Config) -> bool:
        """Return True if an attempt's run trained the same sides; a refresh trains none."""
        known = self.runs.get(record.run_key)
        return known is None or is_refresh(record.run_key) or known.config.train.sides == config.train.sides

    def not_embedded(self, record: LedgerRecord, config: Config) -> float:
        """Return the productive seconds of an attempt of infer in which it embedded items that are not embedded now.

        A run that trains queries alone keeps the release's vectors: other than one of both sides it embeds new items
        alone, and these are not counted before validate has found them.
        """
        known = self.runs.get(record.run_key)
        if known is None or known.run is None or record.stage is not Stage.infer:
            return 0.0
        if config.train.sides == "both" or self.did_so(record, config):
            return 0.0
        found = known.run.outcome(Stage.infer)
        if not isinstance(found, InferOutcome) or not found.texts_per_second:
            return 0.0
        return min((found.vectors - found.vectors_reused) / found.texts_per_second, record.seconds.productive)

    def was_on(self, record: LedgerRecord, place: Place) -> bool:
        """Return True if an attempt had such machines, or was configured to: AWS Batch may have given it others."""
        known = self.runs.get(record.run_key)
        configured = place_of(known.config, Stage(record.stage)).instance if known is not None else None
        return place.instance in (record.instance, configured)

    def compiled(self, record: LedgerRecord, config: Config) -> bool:
        """Return True if an attempt is the oldest one with the graphs of this configuration: later ones read them."""
        if config.train.sequences is None:  # each span has shapes of its own
            return False
        alike = [one for one in self.records if one.stage is record.stage and self._same_graphs(one, config)]
        return record is min(alike, key=lambda one: one.started_at, default=None)

    def _same_graphs(self, record: LedgerRecord, config: Config) -> bool:
        known = self.runs.get(record.run_key)
        if known is None or not known.reads_graphs or record.failure is not None:
            return False
        return all(getattr(known.config, name) == getattr(config, name) for name in _OF_GRAPHS)


def past(snapshot: Snapshot, history: Sequence[RowsRef], refreshes: bool = False) -> Past:
    """Return the attempts and facts of the last runs in `history`, the spans that a lineage has consumed.

    If none of them did a stage, the runs of the last releases are read too. Runs that can't be read are left out. The
    number of runs that are read is limited, however long the history is.

    Args:
        refreshes: take the last refreshes instead, if any is on record.
    """
    if refreshes and (keys := _released(snapshot.store, refreshes=True)):
        return _past([Run(snapshot, key) for key in keys])
    keys = list(dict.fromkeys(rows.run_key for rows in history))[-ATTEMPTS:]
    runs = [Run(snapshot, key) for key in keys]
    if not {record.stage for run in runs for record in run.attempts if record.failure is None} >= set(Stage):
        runs += [Run(snapshot, key) for key in _released(snapshot.store) if key not in keys]
    return _past(runs)


def _past(runs: Sequence[Run]) -> Past:
    facts = {run.run_key: found for run in runs if (found := _facts(run)) is not None}
    return Past([record for run in runs for record in run.attempts], facts)


def _facts(run: Run) -> Facts | None:
    if run.plan is None:
        return None
    warm = run.outcome(Stage.warmup)
    graphs = warm.graphs if isinstance(warm, WarmupOutcome) else None
    reads = graphs is not None and graphs.readable
    return Facts(run.plan.config, rows_of(run.snapshot.store, run.plan.window), reads, run)


def _released(store: Store, refreshes: bool = False) -> list[str]:
    """Return the run keys of the current and earlier releases, oldest first: of trainings, or of recent refreshes."""
    keys: list[str] = []
    with contextlib.suppress(StoreError):
        found = itertools.islice(releases.current_and_before(store), 2 * ATTEMPTS if refreshes else None)
        wanted = (each for each in found if is_refresh(each.run_key) is refreshes)
        for release in itertools.islice(wanted, ATTEMPTS):
            keys.insert(0, release.run_key)
    return keys


def attempts_of(known: Past, config: Config, stage: Stage, place: Place | None = None) -> list[LedgerRecord]:
    """Return the last successful attempts of a stage, oldest first.

    Attempts of runs that trained the same sides go before others, then attempts on as many machines.

    Args:
        place: machines, of which attempts on others of their kind count too; None: any.
    """
    every = [one for one in known.records if one.stage is stage and one.ended_at is not None and one.failure is None]
    there = [one for one in every if place is None or known.was_on(one, place)]
    done = [one for one in there if known.did_so(one, config)] or there
    alike = [one for one in done if place is not None and one.workers == place.workers]
    return sorted(alike or done, key=lambda one: one.started_at)[-ATTEMPTS:]


def growth(known: Past, record: LedgerRecord, config: Config, stage: Stage, rows: Sequence[int] | None) -> float:
    """Return the rows that a stage reads now over an attempt's; 1 if unknown, or if its time has other reasons.

    Args:
        rows: ingested rows of each span of the window; None: not known.
    """
    then = known.runs.get(record.run_key)
    if then is None or not stage.traits.time_grows_with_rows:
        return 1.0
    epochs = config.train.epochs / then.config.train.epochs if stage is Stage.train else 1.0
    return epochs * (sum(rows) / sum(then.rows) if rows and then.rows and sum(then.rows) else 1.0)


def scaled(known: Past, record: LedgerRecord, config: Config, stage: Stage, rows: Sequence[int] | None) -> Phases:
    """Return the phases of an attempt with other rows: only its productive time grows.

    Graphs that were compiled for these settings are not compiled again.
    """
    if stage is Stage.warmup and known.compiled(record, config):
        return record.seconds.model_copy(update={"compiling": 0.0})
    ratio = growth(known, record, config, stage, rows)
    done = record.seconds.productive - known.not_embedded(record, config)
    return record.seconds.model_copy(update={"productive": done * ratio})


def middle(phases: Iterable[Phases]) -> Phases:
    """Return the phases with the median sum; the mean of the middle two if their number is even."""
    ordered = sorted(phases, key=lambda each: each.total)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return Phases(**{name: (getattr(low, name) + getattr(high, name)) / 2 for name in Phases.model_fields})


def stage_cost(
    known: Past, config: Config, stage: Stage, rows: Sequence[int] | None = None, place: Place | None = None
) -> StageCost:
    """Return the expected time and cost of a stage; unknown without an attempt.

    The time of a training or an inference on other machines tells nothing.

    Args:
        rows: as in `growth`.
        place: machines; None: as configured.
    """
    place = place or place_of(config, stage)
    basis, on_others, done = "measured", "", attempts_of(known, config, stage, place)
    if not done and stage not in (Stage.train, Stage.infer):
        basis, on_others, done = "assumed", ", on other machines", attempts_of(known, config, stage)
    if done:
        phases = middle(scaled(known, one, config, stage, rows) for one in done)
        return priced(config, stage, place, phases, basis, f"{counted(done)} of this workspace{on_others}", len(done))
    where = "this machine" if place.is_local else place.instance
    where = where or "its machines, whose type the configuration does not name"
    return priced(config, stage, place, None, "assumed", f"no attempt of {stage} on {where} is on record", 0)


def priced(
    config: Config, stage: Stage, place: Place, phases: Phases | None, basis: Basis, source: str, attempts: int
) -> StageCost:
    """Return a stage's time with its cost at today's price."""
    price = price_of(place.instance, config.cost)
    return StageCost(
        stage=stage,
        instance=place.instance,
        machines=place.machines,
        phases=phases,
        basis=basis,
        source=source,
        attempts_seen=attempts,
        price=price,
        seconds=round(phases.total, 3) if phases is not None else None,
        dollars=price.dollars(phases.paid * place.machines) if phases is not None and price is not None else None,
    )


def counted(done: Sequence[LedgerRecord]) -> str:
    """Return the number of earlier attempts in words."""
    return plural(len(done), "earlier attempt")


class WorkCost(NamedTuple):
    """The sum of stages, one after the other."""

    seconds: float | None  # None: a stage is not known
    dollars: float | None  # None: the time or the price of a stage is not known
    attempts_seen: int  # fewest of all stages


def add(costs: Iterable[StageCost]) -> WorkCost:
    """Return the sum of stages, one after the other."""
    each = list(costs)
    seconds = [one.seconds for one in each]
    return WorkCost(
        None if None in seconds else round(sum(one for one in seconds if one is not None), 3),
        sum_dollars(one.dollars for one in each),
        min((one.attempts_seen for one in each), default=0),
    )


def work_cost(known: Past, config: Config, stages: Iterable[Stage], rows: Sequence[int] | None = None) -> WorkCost:
    """Return the sum of several stages over one window, one after the other; `rows` as in `growth`."""
    return add(stage_cost(known, config, stage, rows) for stage in stages)


def run_cost(store: Store, plan: RunPlan, stages: Collection[Stage] | None = None) -> RunCost:
    """Return the expected time and cost of the rest of a run or a refresh.

    Args:
        stages: the stages that are wanted; None: all stages of the plan.
    """
    snapshot = Snapshot(store)
    left = stages_left(Run(snapshot, plan.run_key), stages)
    known = past(snapshot, plan.history, refreshes=is_refresh(plan.run_key))
    rows = rows_of(store, plan.window)
    return sum_up([stage_cost(known, plan.config, stage, rows) for stage in left])


def stages_left(run: Run, stages: Collection[Stage] | None = None) -> list[Stage]:
    """Return the stages of a run or a refresh that are not done; `stages` are the wanted ones, None: all."""
    own = REFRESHING if is_refresh(run.run_key) else Stage
    return [stage for stage in own if (stages is None or stage in stages) and not run.stage(stage).done]


def sum_up(costs: Sequence[StageCost]) -> RunCost:
    """Return stages with their sums, and a sentence for each figure that is not known."""
    unknown = [f"seconds of {one.stage}: {one.source}" for one in costs if one.phases is None]
    for name in dict.fromkeys(one.instance for one in costs if one.price is None):
        reason = f"{name} has no price" if name else "the configuration names no instance type"
        unknown.append(f"dollars: {reason}; see cost.prices and cost.dollars_per_worker_hour")
    whole = add(costs)
    return RunCost(stages=tuple(costs), seconds=whole.seconds, dollars=whole.dollars, unknown=tuple(unknown))
