"""Seconds and dollars of a stage on its machines, by the workspace's own ledger: phases, operations, rows.

Only successful attempts count, so an estimate assumes no failures. Without one, tasks/costs/published.py answers.
"""

import contextlib
import datetime as dt
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, assert_never

from configs.instances import Instance, instances
from configs.schema.config import Config
from configs.schema.operations import LOCAL_WORKER
from infra.store.base import Store
from tasks.contracts.costs import Speed
from tasks.contracts.kinds import is_refresh
from tasks.contracts.outcomes import HealthOutcome, InferOutcome, Phases, StageResult, TrainOutcome, WarmupOutcome
from tasks.contracts.references import RowsRef
from tasks.contracts.stages import Queue, Rows, Stage, instance_of, machines_of, workers_of
from tasks.costs.published import Arithmetic, Work, machine_of
from tasks.costs.step_time import Point, efficiency, operations
from tasks.foundation.errors import ConfigError, StoreError
from tasks.preflight.encoder import EncoderSize, encoder_size
from tasks.runs import releases
from tasks.runs.ledger import LedgerRecord
from tasks.runs.plan import rows_of
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot


class Place(NamedTuple):
    """The machines of a stage."""

    instance: str | None  # instance type, or LOCAL_WORKER; None: the configuration names none
    machines: int  # a local worker counts as one
    workers: int

    @property
    def machine(self) -> Instance | None:
        """The published figures of one machine; None if there are none, as for a local worker."""
        return machine_of(self.instance)

    @property
    def is_local(self) -> bool:
        return self.instance == LOCAL_WORKER


class Asked(NamedTuple):
    """Machines that a plan asks for in place of the configured ones, for all stages of accelerator_queue."""

    instance: str | None = None  # None: as configured
    nodes: int | None = None  # None: as configured


AS_CONFIGURED = Asked()


def place_of(config: Config, stage: Stage, asked: Asked = AS_CONFIGURED) -> Place:
    """Return the machines of a stage.

    Raises:
        ConfigError: another instance is asked for, but configs/instances.yaml does not know it.
    """
    workers = workers_of(config, stage)
    own = Place(instance_of(config, stage), machines_of(config, stage, workers), workers)
    if stage.traits.queue is not Queue.accelerator or asked == AS_CONFIGURED:
        return own
    if asked.instance is None or asked.instance == own.instance:
        nodes = asked.nodes or own.machines
        return Place(own.instance, nodes, max(1, own.workers // own.machines) * nodes)
    machine = machine_of(asked.instance)
    if machine is None:
        known = ", ".join(instances())
        raise ConfigError(f"the plan has no figures of {asked.instance}; it knows {known}")
    nodes = asked.nodes or (1 if own.is_local else own.machines)
    return Place(asked.instance, nodes, machine.workers * nodes)


def arithmetic_of(config: Config, work: str, place: Place) -> Arithmetic:
    """Return the arithmetic of an encoder's products; `auto` is bf16, except on a processor, whose speed decides."""
    precision = config.infer.precision if work == "embed" else config.train.precision
    machine = place.machine
    if precision == "fp32":
        cast = config.compiler.auto_cast != "none" and machine is not None and machine.on_neuron
        return "bf16" if cast else "fp32"
    return "fp32" if precision == "auto" and machine is None else "bf16"


ATTEMPTS = 5  # the last successful ones of a stage, of which the median is taken
_ENCODES: dict[Stage, Work] = {Stage.train: "train", Stage.infer: "embed"}


class Encoded(NamedTuple):
    """The work of an attempt that trained or embedded."""

    amount: float  # train: tokens with padding; infer: texts
    seconds: float  # part of the attempt's productive seconds
    batch_rows: int


class Encoding(NamedTuple):
    """The work of the encoder that a stage is expected to have, and the speed behind its seconds."""

    amount: float  # as in `Encoded`
    seconds: float
    speed: Speed


class Facts(NamedTuple):
    """An earlier run besides its ledger."""

    config: Config
    size: EncoderSize | None
    rows: Sequence[int] | None  # ingested rows of each span of its window
    encoded: Mapping[tuple[Stage, int], Encoded]  # by stage and number of the attempt
    reads_graphs: bool = False  # its warmup left graphs on a runtime that reads compiled ones back


# Settings that graphs depend on.
_OF_GRAPHS = ("accelerator", "compiler", "model", "heads", "features", "train", "infer")


class Past(NamedTuple):
    """Input of estimates: attempts, and the facts of their runs by key."""

    records: Sequence[LedgerRecord]
    runs: Mapping[str, Facts]

    def rows(self, record: LedgerRecord) -> Sequence[int] | None:
        known = self.runs.get(record.run_key)
        return known.rows if known else None

    def encoded(self, record: LedgerRecord) -> Encoded | None:
        known = self.runs.get(record.run_key)
        return known.encoded.get((Stage(record.stage), record.attempt)) if known else None

    def did_so(self, record: LedgerRecord, config: Config) -> bool:
        """Return True if an attempt's run trained the same sides; a refresh trains none."""
        known = self.runs.get(record.run_key)
        return known is None or is_refresh(record.run_key) or known.config.train.sides == config.train.sides

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


class Load(NamedTuple):
    """The amounts of a run; each None is taken from the earlier runs, by rows."""

    rows: Sequence[int] | None = None  # ingested rows of each span of the window
    tokens: float | None = None  # computed by train, with padding
    steps: int | None = None  # training steps
    items: int | None = None  # distinct items of the window, for a first run of infer
    text_tokens: float = 32.0  # tokens of an item's text
    earlier: int = 0  # rows of the spans that were trained on before


def past(snapshot: Snapshot, history: Sequence[RowsRef], refreshes: bool = False) -> Past:
    """Return the attempts and facts of the last runs in `history`, the spans that a lineage has consumed.

    If none of those did a stage, the runs of the last releases are read too. Runs that can't be read are left out. The
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


def done_before(known: Past, config: Config, stage: Stage, place: Place) -> list[LedgerRecord]:
    """Return the last successful attempts of a stage: on as many of these machines, else on any.

    Attempts of runs that trained the same sides go before others.
    """
    every = [one for one in known.records if one.stage is stage and one.ended_at is not None and one.failure is None]
    done = [one for one in every if known.did_so(one, config)] or every
    same = [one for one in done if one.instance == place.instance]
    alike = [one for one in same if one.workers == place.workers]
    return sorted(alike or same or done, key=lambda one: one.started_at)[-ATTEMPTS:]


def speeds(known: Past, load: Load) -> list[Point]:
    """Return the speeds at which earlier attempts trained and embedded, each reduced to one machine alone."""
    found = []
    for record in known.records:
        work, facts = (
            _ENCODES.get(Stage(record.stage)) if record.stage in _ENCODES else None,
            known.runs.get(record.run_key),
        )
        encoded = known.encoded(record) if facts else None
        if work is None or facts is None or facts.size is None or encoded is None or not encoded.seconds:
            continue
        if work == "train" and facts.config.train.sides == "queries":  # its items have no backward pass
            continue
        stage, size = Stage(record.stage), facts.size
        place = place_of(facts.config, stage)
        if place.instance is None:
            continue
        done = encoder_operations(facts.config, stage, size, encoded.amount, load.text_tokens)
        alone = done / encoded.seconds / place.machines / efficiency(place.machines, batch_grows=True)
        found.append(
            Point(
                work, place.instance, arithmetic_of(facts.config, work, place), sequence_of(facts.config, stage),
                size.hidden, size.layers, alone, dt.datetime.fromisoformat(record.started_at), record.run_key, own=True,
            )
        )  # fmt: skip
    return found


class ArithmeticUse(NamedTuple):
    """The encoder's operations a second of all workers, and their share of two limits."""

    operations_per_second: float
    peak_share: float | None  # share of the published peak; None: none is published, as for a local worker
    bare_share: float | None  # share of the bare matrix products that health timed on the workers; None: not timed


def training_use(config: Config, outcome: TrainOutcome, health: HealthOutcome | None) -> ArithmeticUse | None:
    """Return the use of the devices by a training, padding included; None if its time or encoder is not known.

    Args:
        health: outcome of the same run's health; None: not known.
    """
    size, tokens, took = encoder_size(config), outcome.tokens, outcome.checkpoints
    if size is None or tokens is None or took is None or not took.training_seconds:
        return None
    speed = encoder_operations(config, Stage.train, size, tokens.computed, 0) / took.training_seconds
    place = place_of(config, Stage.train)
    machine = place.machine
    peak = machine.peak(arithmetic_of(config, "train", place)) * place.machines if machine is not None else None
    bare = 1e9 * sum(health.matmul_gflops) if health is not None else 0.0
    return ArithmeticUse(speed, speed / peak if peak else None, speed / bare if bare else None)


def encoder_operations(config: Config, stage: Stage, size: EncoderSize, amount: float, text_tokens: float) -> float:
    """Return the operations of a stage's encoder.

    Args:
        amount: train: tokens with padding; infer: texts of `text_tokens` each.
    """
    tokens = amount if stage is Stage.train else amount * text_tokens
    return operations(size, tokens, sequence_of(config, stage), training=stage is Stage.train)


def sequence_of(config: Config, stage: Stage) -> int:
    """Return the tokens of a packed sequence in train or infer."""
    return config.train.sequence_tokens if stage is Stage.train else config.infer.sequence_tokens


def by_ratio(stage: Stage, rows: Sequence[int] | None, then: Sequence[int] | None) -> float:
    """Return the ratio of the input now to the input then; 1 if unknown, or if it doesn't matter."""
    if not rows or not then:
        return 1.0
    match stage.traits.time_grows_with:
        case Rows.window:
            now, before = sum(rows), sum(then)
        case Rows.span:
            now, before = rows[-1], then[-1]
        case Rows.none:
            return 1.0
        case unknown:
            assert_never(unknown)
    return now / before if before else 1.0


def amount_of(known: Past, config: Config, stage: Stage, load: Load) -> float | None:
    """Return the tokens that train computes, or the texts that infer embeds; None if not known.

    Tokens are taken from earlier runs and scaled by rows, else from `load`, which has an estimate by the texts' bytes.
    A catalogue is expected to grow as it grew last; a run that trains queries alone embeds the new items.
    """
    done = sorted(known.records, key=lambda record: record.started_at)
    before = [
        (record, each)
        for record in done
        if record.stage is stage
        and (each := known.encoded(record)) is not None
        and (stage is Stage.train or known.did_so(record, config))
    ]
    if stage is Stage.infer:
        texts = [each.amount for _, each in before]
        if config.train.sides == "queries":
            return texts[-1] if texts else load.items
        return texts[-1] + max(0.0, texts[-1] - texts[-2]) if len(texts) > 1 else texts[-1] if texts else load.items
    scaled_by_rows = [
        each.amount
        * by_ratio(stage, load.rows, known.rows(record))
        * (config.train.epochs / known.runs[record.run_key].config.train.epochs)
        for record, each in before
    ]
    return statistics.median(scaled_by_rows[-ATTEMPTS:]) if scaled_by_rows else load.tokens


def scaled(
    known: Past, record: LedgerRecord, config: Config, stage: Stage, load: Load, encoding: Encoding | None
) -> Phases:
    """Return the phases of an attempt with another load; only its productive time grows.

    Args:
        config: the settings now; graphs that were compiled for them are not compiled again.
        encoding: the encoder's work now, in place of that attempt's; None: it grows with the rows.
    """
    ratio, encoded = by_ratio(stage, load.rows, known.rows(record)), known.encoded(record)
    productive = record.seconds.productive
    if stage is Stage.warmup and known.compiled(record, config):
        return record.seconds.model_copy(update={"compiling": 0.0})
    if encoded is None or encoding is None:
        return record.seconds.model_copy(update={"productive": productive * ratio})
    if stage is Stage.infer:  # its shards are read, embedded and written in the encoder's seconds
        ratio = 1.0
    rest = max(0.0, productive - encoded.seconds)
    return record.seconds.model_copy(update={"productive": rest * ratio + encoding.seconds})


def middle(phases: Iterable[Phases]) -> Phases:
    """Return the phases with the median sum; the mean of the middle two if their number is even."""
    ordered = sorted(phases, key=lambda each: each.total)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return Phases(**{name: (getattr(low, name) + getattr(high, name)) / 2 for name in Phases.model_fields})


def _facts(run: Run) -> Facts | None:
    if run.plan is None:
        return None
    encoded = {}
    for stage in _ENCODES:
        result = run.stage(stage).result
        found = _encoded(run.plan.config, result) if result is not None else None
        if result is not None and found is not None:
            encoded[stage, result.attempt] = found
    config = run.plan.config
    warm = run.outcome(Stage.warmup)
    graphs = warm.graphs if isinstance(warm, WarmupOutcome) else None
    reads = graphs is not None and graphs.readable
    return Facts(config, encoder_size(config), rows_of(run.snapshot.store, run.plan.window), encoded, reads)


def _encoded(config: Config, result: StageResult) -> Encoded | None:
    match result.outcome:
        case TrainOutcome(tokens=tokens, checkpoints=use) if tokens is not None:
            seconds = use.training_seconds if use is not None else result.phases.productive
            return Encoded(tokens.computed, min(seconds, result.phases.productive), config.train.batch_rows)
        case InferOutcome(vectors=vectors, vectors_reused=reused, texts_per_second=speed) if vectors > reused and speed:
            seconds = (vectors - reused) / speed
            return Encoded(vectors - reused, min(seconds, result.phases.productive), 0)
        case _:
            return None


def _released(store: Store, refreshes: bool = False) -> list[str]:
    """Return the run keys of the current and earlier releases, oldest first: of trainings, or of recent refreshes."""
    keys: list[str] = []
    with contextlib.suppress(StoreError):
        found = itertools.islice(releases.current_and_before(store), 2 * ATTEMPTS if refreshes else None)
        wanted = (each for each in found if is_refresh(each.run_key) is refreshes)
        for release in itertools.islice(wanted, ATTEMPTS):
            keys.insert(0, release.run_key)
    return keys
