"""Seconds and dollars of a run on machines that it may never have used, and on several numbers of them.

A stage that was done on these machines takes the time of tasks/monitoring/estimates.py. Writes nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pydantic import Field

from configs.instances import instances, machine_of
from configs.prices import price_of
from configs.schema.config import Config
from configs.schema.operations import LOCAL_WORKER, Price
from infra.store.base import Store
from tasks.contracts.costs import RunCost, StageCost
from tasks.contracts.outcomes import Phases
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Place, Queue, Stage, place_of
from tasks.contracts.usage import MOST_COMMUNICATION
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.laboratory.encoding_time import Encoding, Known, Load, amount_of, scaled, speeds, with_work
from tasks.laboratory.host_time import host_seconds
from tasks.laboratory.published import published
from tasks.laboratory.step_time import Exchange, Speed, Wanted, efficiency, exchange, published_points, speed_of
from tasks.monitoring.estimates import attempts_of, counted, middle, past, priced, stages_left, sum_up
from tasks.monitoring.estimates import stage_cost as own_cost
from tasks.preflight.encoder_size import (
    EncoderSize,
    Work,
    arithmetic_of,
    encoder_operations,
    encoder_size,
    gathered_bytes,
    sequence_of,
)
from tasks.preflight.enough import Enough, enough
from tasks.preflight.memory import TrainMemory, sequences_a_step, train_memory
from tasks.runs.ledger import LedgerRecord
from tasks.runs.plan import rows_of
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot


class Asked(NamedTuple):
    """Machines that a plan asks for in place of the configured ones, for all stages of accelerator_queue."""

    instance: str | None = None  # None: as configured
    nodes: int | None = None  # None: as configured


AS_CONFIGURED = Asked()


def place_for(config: Config, stage: Stage, asked: Asked) -> Place:
    """Return the machines of a stage.

    Raises:
        ConfigError: another instance is asked for, but configs/instances.yaml does not know it.
    """
    own = place_of(config, stage)
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


class TrainingSpeed(Record):
    """The formula of a training: operations, speed, and the part of a step that is communication."""

    tokens: float = Field(description="tokens with padding of all steps")
    operations: float = Field(description="operations of the encoder over them, forward and backward")
    speed: Speed = Field(description="speed of one machine alone")
    efficiency: float = Field(description="speed of all machines as a share of one's times their number")
    seconds: float = Field(description="seconds of all steps")
    steps: int | None = Field(description="training steps; null: rows were not counted")
    exchange: Exchange | None = Field(description="collectives of one step; null: one worker, or no known network")
    share: float | None = Field(description="collectives as a share of a step; null: not known")

    @property
    def warning(self) -> str:
        """A warning if the collectives take too much of a step; else empty."""
        if self.share is None or self.share <= MOST_COMMUNICATION:
            return ""
        return f"communication takes {self.share:.0%} of a step: fewer machines, or a larger train.batch_rows"


class SpotCost(Record):
    """Stage infer on Spot machines of its own, which boot; a stage of several nodes can't use them."""

    price: Price = Field(description="a quote of one machine")
    seconds: float = Field(description="wall time without a machine that is taken back")
    dollars: float = Field(description="dollars of the stage at `price`")
    instead_of: float = Field(description="dollars of the stage at `cost.basis`")


class PlannedCost(RunCost):
    """The expected time and cost of a run, with the memory and the formula of its training."""

    memory: TrainMemory | None = Field(
        description="memory of a training worker; null: nothing to train, or the encoder is not on this machine"
    )
    training: TrainingSpeed | None = Field(description="null: nothing to train, or no formula for these machines")
    spot: SpotCost | None = Field(description="null: infer is done, or no list has a quote of its machines")


class MachinePlan(Record):
    """A run on a number of machines."""

    instance: str | None = Field(description="instance type of the training; null: the configuration names none")
    nodes: int = Field(description="machines of the training; a local worker counts as one")
    cost: PlannedCost = Field(description="cost of the run there")
    in_time: bool | None = Field(description="true: it ends within freshness.deadline_hours; null: not known")


class CostPlan(Record):
    """A run on each requested number of machines, before it begins."""

    run_key: str
    span: str
    rows: int = Field(description="ingested rows of the window")
    batch_rows: int = Field(description="rows of the global batch, the same on any number of machines")
    deadline_hours: float = Field(description="freshness.deadline_hours")
    choices: tuple[MachinePlan, ...] = Field(description="the run on each number of machines, in the order asked for")
    cheapest: int | None = Field(description="nodes of the cheapest choice; null: no cost is known")
    fewest_in_time: int | None = Field(description="nodes of the smallest choice within the deadline; null: none")


def planned_cost(store: Store, plan: RunPlan, amounts: Enough, asked: Asked = AS_CONFIGURED) -> PlannedCost:
    """Return the expected time, cost and memory of the rest of a run.

    Args:
        amounts: the counted rows of the run.

    Raises:
        ConfigError: another instance is asked for, but its figures are not known.
    """
    snapshot, config = Snapshot(store), plan.config
    left = stages_left(Run(snapshot, plan.run_key))
    known, load = with_work(snapshot, past(snapshot, plan.history)), _load(store, plan, amounts)
    training = training_speed(known, config, load, asked) if Stage.train in left and plan.window else None
    memory = train_memory(store, plan, amounts.tokens_a_row, place_for(config, Stage.train, asked))
    whole = sum_up(list(stage_costs(known, config, left, load, asked)))
    spot = next((found for each in whole.stages if (found := on_spot(config, each)) is not None), None)
    return PlannedCost(**dict(whole), memory=memory, training=training, spot=spot)


def _load(store: Store, plan: RunPlan, amounts: Enough) -> Load:
    return Load(
        rows=rows_of(store, plan.window),
        tokens=amounts.steps * sequences_a_step(plan.config, amounts.tokens_a_row) * plan.config.train.sequence_tokens,
        steps=amounts.steps,
        items=amounts.items,
        earlier=sum(each.rows for each in plan.history),
    )


def stage_costs(
    known: Known, config: Config, stages: Iterable[Stage], load: Load, asked: Asked = AS_CONFIGURED
) -> Iterator[StageCost]:
    """Yield the expected time and cost of stages, one after the other: each may find the machines of the one before."""
    before: Place | None = None
    for stage in stages:
        place = place_for(config, stage, asked)
        there = before is not None and before.instance == place.instance and before.machines >= place.machines
        yield stage_cost(known, config, stage, load, asked, there)
        before = place


def stage_cost(
    known: Known, config: Config, stage: Stage, load: Load, asked: Asked = AS_CONFIGURED, there: bool = False
) -> StageCost:
    """Return the expected time and cost of one stage.

    Args:
        there: True if the stage before has just left enough of these machines, which AWS Batch keeps for some minutes.
    """
    place = place_for(config, stage, asked)
    done = attempts_of(known.past, config, stage, place)
    if done and done[-1].workers == place.workers:
        return own_cost(known.past, config, stage, load.rows, place)
    same, encoding = bool(done), _encoding(known, config, stage, load, place)
    done = done or attempts_of(known.past, config, stage)
    if done and (same or encoding is not None or stage not in (Stage.train, Stage.infer)):
        phases = middle(
            _on_machines(scaled(known, one, config, stage, load, encoding), one, config, load, place) for one in done
        )
        basis, source = "measured", f"{counted(done)} of this workspace"
        if encoding is not None:
            basis, source = encoding.speed.basis, encoding.speed.source
        if not same:
            phases = _elsewhere(phases, stage, place, there)
            if basis == "measured":
                basis, source = "assumed", f"{source}, on other machines"
        elif stage is Stage.validate:
            basis, source = "assumed", f"{source}, on another number of machines"
        return priced(config, stage, place, phases, basis, source, len(done))
    if place.is_local or place.instance is None:
        return own_cost(known.past, config, stage, load.rows, place)  # unknown, and it says why
    host = host_seconds(config, stage, load, place, encoder_size(config))
    return _first_cost(config, stage, place, encoding, host, there)


def _on_machines(phases: Phases, one: LedgerRecord, config: Config, load: Load, place: Place) -> Phases:
    """Return the phases of an attempt on another number of machines, of which validate divides a part of its work."""
    if one.stage is not Stage.validate or place.is_local:
        return phases
    was = place._replace(machines=1 if one.instance == LOCAL_WORKER else one.machines)
    now, then = (host_seconds(config, one.stage, load, each, None) for each in (place, was))
    return phases.model_copy(update={"productive": phases.productive * now / then}) if then else phases


def on_spot(config: Config, cost: StageCost) -> SpotCost | None:
    """Return the cost of infer on Spot machines; None for other stages, without a quote, or if it is not known."""
    if cost.stage is not Stage.infer or cost.dollars is None or cost.phases is None:
        return None
    price = price_of(cost.instance, config.cost.model_copy(update={"basis": "spot"}))
    if price is None or cost.price is None or cost.price.basis in ("spot", "stated"):
        return None
    boot = max(cost.phases.booting, published().fixed["boot"].seconds)
    phases = cost.phases.model_copy(update={"booting": boot})
    return SpotCost(
        price=price,
        seconds=round(phases.total, 3),
        dollars=price.dollars(phases.paid * cost.machines),
        instead_of=cost.dollars,
    )


def training_speed(known: Known, config: Config, load: Load, asked: Asked = AS_CONFIGURED) -> TrainingSpeed | None:
    """Return the formula of a training; None if its tokens, its encoder or the speed of its machines is not known."""
    place, size = place_for(config, Stage.train, asked), encoder_size(config)
    tokens = amount_of(known, config, Stage.train, load)
    found = _encoding(known, config, Stage.train, load, place)
    if size is None or tokens is None or found is None:
        return None
    done, shared = (
        encoder_operations(config, Stage.train, size, tokens, load.text_tokens),
        _exchange(config, size, place),
    )
    return TrainingSpeed(
        tokens=tokens,
        operations=done,
        speed=found.speed,
        efficiency=round(done / found.speed.operations_per_second / place.machines / found.seconds, 4),
        seconds=round(found.seconds, 3),
        steps=load.steps,
        exchange=shared,
        share=round(shared.seconds * load.steps / found.seconds, 4) if shared and load.steps else None,
    )


def _encoding(known: Known, config: Config, stage: Stage, load: Load, place: Place) -> Encoding | None:
    """Return the seconds of the encoder in train or infer, and the speed behind them; None if not known."""
    if stage not in (Stage.train, Stage.infer) or place.instance is None:
        return None
    work: Work = "train" if stage is Stage.train else "embed"
    size, amount = encoder_size(config), amount_of(known, config, stage, load)
    if size is None or amount is None:
        return None
    arithmetic, length = arithmetic_of(config, work, place), sequence_of(config, stage)
    wanted = Wanted(work, place.instance, arithmetic, length, size.hidden, size.layers)
    speed = speed_of(wanted, [*speeds(known, load), *published_points()])
    if speed is None:
        return None
    done = encoder_operations(config, stage, size, amount, load.text_tokens)
    ideal = done / speed.operations_per_second / place.machines
    seconds = ideal / _efficiency(config, stage, place)
    shared = _exchange(config, size, place) if stage is Stage.train and speed.basis != "fitted" else None
    if shared is not None and load.steps:  # a step is no shorter than its operations and its collectives
        seconds = max(seconds, ideal + load.steps * shared.seconds)
    return Encoding(amount, seconds, speed)


def _exchange(config: Config, size: EncoderSize, place: Place) -> Exchange | None:
    """Return the collectives of a training step; None for one worker, or without a known network."""
    machine = machine_of(place.instance)
    if machine is None or place.workers == 1:
        return None
    number = 2 if config.train.precision == "bf16-weights" else 4  # bytes of a gradient
    head = config.heads.contrastive
    negatives = head.negatives.per_query if head is not None and head.negatives is not None else 0
    width = config.model.embedding_width or size.hidden
    vectors = gathered_bytes(head, config.train.batch_rows, negatives, width)
    return exchange(size.parameters * number, vectors, machine, place.machines)


def _efficiency(config: Config, stage: Stage, place: Place) -> float:
    """Return the speed of all machines as a share of one's times their number; infer's machines are independent.

    On more machines than configured the global batch stays, so each has a smaller part of it.
    """
    if stage is Stage.infer:
        return 1.0
    own = place_of(config, stage)
    configured = own.machines if own.instance == place.instance else 1
    grown = efficiency(configured, batch_grows=True)
    if place.machines == configured:
        return grown
    return grown * efficiency(place.machines, batch_grows=False) / efficiency(configured, batch_grows=False)


def _first_cost(
    config: Config, stage: Stage, place: Place, encoding: Encoding | None, host: float, there: bool
) -> StageCost:
    """Return the cost of a stage that was never done, by published figures.

    Args:
        host: seconds of the host's own work, as in `host_seconds`.
        there: as in `stage_cost`.
    """
    if stage in (Stage.train, Stage.infer):
        if encoding is None:
            return priced(config, stage, place, None, "assumed", f"no speed of {place.instance} is known", 0)
        phases = _elsewhere(Phases(restoring=host, productive=encoding.seconds), stage, place, there)
        return priced(config, stage, place, phases, encoding.speed.basis, encoding.speed.source, 0)
    work = published().fixed["work"]
    phases = _elsewhere(Phases(productive=work.seconds + host), stage, place, there)
    return priced(config, stage, place, phases, "assumed", work.source, 0)


def _elsewhere(phases: Phases, stage: Stage, place: Place, there: bool) -> Phases:
    """Return the phases on machines without a record: boot and compilation as published; `there` as in `stage_cost`."""
    if place.is_local:
        return phases
    fixed, machine = published().fixed, machine_of(place.instance)
    compiles = stage is Stage.warmup and machine is not None and machine.on_neuron
    compiling = fixed["compile"].seconds if compiles else 0.0
    booting = fixed["start" if there else "boot"].seconds
    return phases.model_copy(update={"queued": 0.0, "booting": booting, "compiling": compiling})


def plan_costs(store: Store, plan: RunPlan, instance: str | None = None, nodes: Sequence[int] = ()) -> CostPlan:
    """Return the cost of a run on each number of machines; write nothing.

    The global batch stays the same, so that the run takes the same steps on any number of machines.

    Args:
        instance: instance type of all stages of accelerator_queue; None: as configured.
        nodes: numbers of machines; empty: as configured.

    Raises:
        ConfigError: no figures of that instance are known; or the training runs on this machine, which is one.
        CorruptFolder, MissingFolder: a span is damaged or gone.
    """
    amounts, limit = enough(store, plan), plan.config.freshness.deadline_hours
    choices = []
    for number in nodes or (None,):
        asked = Asked(instance, number)
        place = place_for(plan.config, Stage.train, asked)
        _check(place, number)
        cost = planned_cost(store, plan, amounts, asked)
        in_time = None if cost.seconds is None else cost.seconds <= limit * 3600
        choices.append(MachinePlan(instance=place.instance, nodes=place.machines, cost=cost, in_time=in_time))
    return CostPlan(
        run_key=plan.run_key,
        span=plan.span.name,
        rows=amounts.rows,
        batch_rows=plan.config.train.batch_rows,
        deadline_hours=limit,
        choices=tuple(choices),
        cheapest=_cheapest(choices),
        fewest_in_time=min((each.nodes for each in choices if each.in_time), default=None),
    )


def _check(place: Place, number: int | None) -> None:
    if number is not None and place.is_local:
        raise ConfigError(
            f"the training runs on this machine, so there are no {number} nodes to plan; name their type, as in "
            "--instance trn1.32xlarge"
        )


def _cheapest(choices: Iterable[MachinePlan]) -> int | None:
    priced = [(each.cost.dollars, each.nodes) for each in choices if each.cost.dollars is not None]
    return min(priced)[1] if priced else None
