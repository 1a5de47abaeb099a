"""Seconds and dollars of a run before it begins, stage by stage, and on several numbers of machines.

The one estimator: plans, dry-runs, backfills, deadlines and budgets ask it. It reads records and writes nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from configs.prices import price_of, sum_dollars
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.costs import Basis, CostPlan, Exchange, MachinePlan, RunCost, StageCost, TrainingSpeed
from tasks.contracts.kinds import is_refresh
from tasks.contracts.outcomes import Phases
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import REFRESHING, Stage
from tasks.costs.device_memory import sequences_a_step, train_memory
from tasks.costs.host_time import host_seconds
from tasks.costs.published import published
from tasks.costs.stage_time import (
    AS_CONFIGURED,
    Asked,
    Encoding,
    Load,
    Past,
    Place,
    amount_of,
    arithmetic_of,
    done_before,
    encoder_operations,
    middle,
    past,
    place_of,
    scaled,
    sequence_of,
    speeds,
)
from tasks.costs.step_time import Wanted, efficiency, exchange, published_points, speed_of
from tasks.foundation.errors import ConfigError
from tasks.preflight.encoder import EncoderSize, encoder_size, gathered_bytes
from tasks.preflight.enough import Enough, enough
from tasks.runs.plan import rows_of
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot


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


def run_cost(
    store: Store,
    plan: RunPlan,
    amounts: Enough | None = None,
    asked: Asked = AS_CONFIGURED,
    stages: Collection[Stage] | None = None,
) -> RunCost:
    """Return the expected time, cost and memory of the rest of a run or a refresh.

    Args:
        amounts: the counted rows of the run; None: all by the rows of its window, and no memory.
        stages: the stages that are wanted; None: all stages of the plan.

    Raises:
        ConfigError: another instance is asked for, but its figures are not known.
    """
    snapshot = Snapshot(store)
    run = Run(snapshot, plan.run_key)
    left = stages_left(run, stages)
    known = past(snapshot, plan.history, refreshes=is_refresh(plan.run_key))
    load = _load(store, plan, amounts)
    costs = tuple(stage_costs(known, plan.config, left, load, asked))
    whole = add(costs)
    return RunCost(
        stages=costs,
        memory=train_memory(store, plan, amounts.tokens_a_row, asked) if amounts is not None else None,
        training=training_speed(known, plan.config, load, asked) if Stage.train in left and plan.window else None,
        seconds=whole.seconds,
        dollars=whole.dollars,
        unknown=tuple(_unknown(costs)),
    )


def stages_left(run: Run, stages: Collection[Stage] | None = None) -> list[Stage]:
    """Return the stages of a run or a refresh that are not done; `stages` are the wanted ones, None: all."""
    own = REFRESHING if is_refresh(run.run_key) else Stage
    return [stage for stage in own if (stages is None or stage in stages) and not run.stage(stage).done]


def _load(store: Store, plan: RunPlan, amounts: Enough | None) -> Load:
    rows, earlier = rows_of(store, plan.window), sum(each.rows for each in plan.history)
    if amounts is None:
        return Load(rows=rows, earlier=earlier)
    sequences = sequences_a_step(plan.config, amounts.tokens_a_row)
    return Load(
        rows=rows,
        tokens=amounts.steps * sequences * plan.config.train.sequence_tokens,
        steps=amounts.steps,
        items=amounts.items,
        earlier=earlier,
    )


def planned_dollars(store: Store, plan: RunPlan, stages: Collection[Stage] | None = None) -> float | None:
    """Return the expected dollars of the rest of a run; None if the time or the price of a stage is not known."""
    return run_cost(store, plan, stages=stages).dollars


def work_cost(known: Past, config: Config, stages: Iterable[Stage], rows: Sequence[int] | None = None) -> WorkCost:
    """Return the sum of several stages over one window, one after the other."""
    return add(stage_costs(known, config, stages, Load(rows=rows)))


def stage_costs(
    known: Past, config: Config, stages: Iterable[Stage], load: Load, asked: Asked = AS_CONFIGURED
) -> Iterator[StageCost]:
    """Yield the expected time and cost of stages, one after the other: each may find the machines of the one before."""
    before: Place | None = None
    for stage in stages:
        place = place_of(config, stage, asked)
        there = before is not None and before.instance == place.instance and before.machines >= place.machines
        yield stage_cost(known, config, stage, load, asked, there)
        before = place


def stage_cost(
    known: Past, config: Config, stage: Stage, load: Load, asked: Asked = AS_CONFIGURED, there: bool = False
) -> StageCost:
    """Return the expected time and cost of one stage.

    Args:
        there: True if the stage before has just left enough of these machines, which AWS Batch keeps for some minutes.
    """
    place = place_of(config, stage, asked)
    encoding = _encoding(known, config, stage, load, place)
    done = done_before(known, config, stage, place)
    same = bool(done) and done[-1].instance == place.instance
    if done and (same or encoding is not None or stage not in (Stage.train, Stage.infer)):
        phases = middle(scaled(known, one, config, stage, load, encoding) for one in done)
        basis, source = "measured", f"{_attempts(len(done))} of this workspace"
        if encoding is not None and encoding.speed.basis != "fitted":
            basis, source = encoding.speed.basis, encoding.speed.source
        elif encoding is not None:
            basis = "fitted"
        if not same:
            phases = _elsewhere(phases, stage, place, there)
            if basis == "measured":
                basis, source = "assumed", f"{source}, on other machines"
        return _cost(config, stage, place, phases, basis, source, len(done))
    host = host_seconds(config, stage, load, place, encoder_size(config))
    return _first_cost(config, stage, place, encoding, host, there)


def training_speed(known: Past, config: Config, load: Load, asked: Asked = AS_CONFIGURED) -> TrainingSpeed | None:
    """Return the formula of a training; None if its tokens, its encoder or the speed of its machines is not known."""
    place, size = place_of(config, Stage.train, asked), encoder_size(config)
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


def _encoding(known: Past, config: Config, stage: Stage, load: Load, place: Place) -> Encoding | None:
    """Return the seconds of the encoder in train or infer, and the speed behind them; None if not known."""
    if stage not in (Stage.train, Stage.infer) or place.instance is None:
        return None
    work: Literal["train", "embed"] = "train" if stage is Stage.train else "embed"
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
    if place.machine is None or place.workers == 1:
        return None
    number = 2 if config.train.precision == "bf16-weights" else 4  # bytes of a gradient
    head = config.heads.contrastive
    negatives = head.negatives.per_query if head is not None and head.negatives is not None else 0
    width = config.model.embedding_width or size.hidden
    vectors = gathered_bytes(head, config.train.batch_rows, negatives, width)
    return exchange(size.parameters * number, vectors, place.machine, place.machines)


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
    """Return the cost of a stage that was never done, by published figures; unknown on this machine.

    Args:
        host: seconds of the host's own work, as in `host_seconds`.
        there: as in `stage_cost`.
    """
    if place.is_local or place.instance is None:
        where = "this machine" if place.is_local else "its machines, whose type the configuration does not name"
        return _cost(config, stage, place, None, "assumed", f"no attempt of {stage} on {where} is on record", 0)
    if stage in (Stage.train, Stage.infer):
        if encoding is None:
            return _cost(config, stage, place, None, "assumed", f"no speed of {place.instance} is known", 0)
        phases = _elsewhere(Phases(restoring=host, productive=encoding.seconds), stage, place, there)
        return _cost(config, stage, place, phases, encoding.speed.basis, encoding.speed.source, 0)
    work = published().fixed["work"]
    phases = _elsewhere(Phases(productive=work.seconds + host), stage, place, there)
    return _cost(config, stage, place, phases, "assumed", work.source, 0)


def _elsewhere(phases: Phases, stage: Stage, place: Place, there: bool) -> Phases:
    """Return the phases on machines without a record: boot and compilation as published; `there` as in `stage_cost`."""
    if place.is_local:
        return phases
    fixed, machine = published().fixed, place.machine
    compiles = stage is Stage.warmup and machine is not None and machine.on_neuron
    compiling = fixed["compile"].seconds if compiles else 0.0
    booting = fixed["start" if there else "boot"].seconds
    return phases.model_copy(update={"queued": 0.0, "booting": booting, "compiling": compiling})


def _cost(
    config: Config, stage: Stage, place: Place, phases: Phases | None, basis: Basis, source: str, attempts: int
) -> StageCost:
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


def _unknown(stages: Sequence[StageCost]) -> Iterator[str]:
    """Yield a sentence for each figure that is not known."""
    yield from (f"seconds of {one.stage}: {one.source}" for one in stages if one.phases is None)
    for name in dict.fromkeys(one.instance for one in stages if one.price is None):
        reason = f"{name} has no price" if name else "the configuration names no instance type"
        yield f"dollars: {reason}; see cost.prices and cost.dollars_per_worker_hour"


def _attempts(number: int) -> str:
    return f"{number} earlier attempt{'s' if number > 1 else ''}"


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
        place = place_of(plan.config, Stage.train, asked)
        _check(place, number)
        cost = run_cost(store, plan, amounts, asked)
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
