"""The plan of a run: each stage, its machines, and the source of each figure; then planned against actual.

The decision about a span before it: the answer, its arithmetic, the gain expected of a training, and its evidence.
"""

from collections.abc import Iterator, Sequence

from flows.presentation.model import Cell, Command, Section, Table, facts, table
from flows.presentation.wording import MINUS, NONE, count, dollars, duration, moment, plural, share
from infra.store.base import Store
from tasks.contracts.costs import CostPlan, MachinePlan, RunCost, TrainingSpeed, TrainMemory
from tasks.contracts.runs import RunPlan
from tasks.planning.decisions import Action, Decision, Finding, Option, Worth, find
from tasks.runs.run import Run, against

_PARTS = ("weights", "gradients", "optimizer", "average", "activations", "logits", "batch", "exchange", "process")
_LEAST_GIB = 0.05  # smaller parts are left out


def costs(plan: CostPlan) -> tuple[Section, ...]:
    """Return the comparison of the choices, then each figure of the best one, which is the cheapest or the first."""
    best = next((each for each in plan.choices if each.nodes == plan.cheapest), plan.choices[0])
    compared = (_compared(plan),) if len(plan.choices) > 1 else ()
    return (*compared, stages(best.cost, _where(best)), *_training(best.cost))


def stages(cost: RunCost, where: str = "") -> Section:
    """Return the expected time and cost of each stage."""
    rows = [
        (
            one.stage.value,
            f"{one.machines} x {one.instance}" if one.instance else NONE,
            duration(one.seconds),
            dollars(one.dollars),
            f"{one.basis}: {one.source}",
        )
        for one in cost.stages
    ]
    rows.append(("all", "", duration(cost.seconds), dollars(cost.dollars), ""))
    return Section(
        f"Planned{where}",
        tuple(f"Not known: {each}." for each in cost.unknown),
        id="planned",
        tables=(table("", ("stage", "machines", ">time", ">cost", "~source"), rows),),
    )


def against_actual(run: Run) -> tuple[Section, ...]:
    """Return the planned and the actual seconds and dollars of a run's stages; nothing without a recorded plan."""
    found = against(run)
    if not found:
        return ()
    rows = [
        (
            each.name,
            duration(each.planned_seconds),
            duration(each.actual_seconds),
            f"{each.error:+.0%}".replace("%", " %") if each.error is not None else NONE,
            dollars(each.planned_dollars),
            dollars(each.actual_dollars),
        )
        for each in found
    ]
    columns = ("stage", ">planned", ">actual", ">error", ">planned cost", ">actual cost")
    lines = ("Recorded before the first stage. Actual figures are of the attempts that succeeded.",)
    return (Section("Planned and actual", lines, id="planned", short="Planned", tables=(table("", columns, rows),)),)


def memory(found: TrainMemory) -> str:
    """Return the memory of training, its largest parts, and a way out if there is less."""
    one = found.measured_gib or found.total_gib
    who = f"{found.workers} workers of " if found.workers > 1 else ""
    there = ""
    if found.device_gib is not None:
        there = f", of {found.device_gib:.1f} GiB on the device of each"
    elif found.free_gib is not None:
        there = f", of {found.free_gib:.1f} GiB free"
    if found.measured_gib is not None:
        basis = f"measured in run {found.measured_in}"
    else:
        parts = {name: getattr(found, f"{name}_gib") for name in _PARTS}
        largest = sorted((name for name in parts if parts[name] >= _LEAST_GIB), key=lambda name: -parts[name])
        basis = ", ".join(f"{name} {parts[name]:.1f}" for name in largest) or "all parts are small"
    sentence = f"{who}{'' if found.measured_gib else 'about '}{one:.1f} GiB{there}: {basis}"
    return f"{sentence}; more than there is: {found.way_out}" if found.is_short else sentence


def _where(choice: MachinePlan) -> str:
    return f" on {choice.nodes} x {choice.instance}" if choice.instance else ""


def _compared(plan: CostPlan) -> Section:
    rows = [
        (
            str(each.nodes),
            _brief(each.cost.training.seconds) if each.cost.training else NONE,
            duration(each.cost.seconds),
            dollars(each.cost.dollars),
            share(each.cost.training.efficiency if each.cost.training else None),
            share(each.cost.training.share if each.cost.training else None),
            {True: Cell("in time", "✓", "good"), False: Cell("late", "!", "bad"), None: Cell(NONE)}[each.in_time],
        )
        for each in plan.choices
    ]
    columns = (">nodes", ">steps", ">in all", ">cost", ">efficiency", ">communication", "deadline")
    caption = f"A batch of {count(plan.batch_rows)} rows on each number of {plan.choices[0].instance or 'machines'}"
    return Section("Number of machines", tuple(_verdicts(plan)), tables=(table(caption, columns, rows),))


def _verdicts(plan: CostPlan) -> Iterator[str]:
    if plan.cheapest is not None:
        yield f"Cheapest: {plural(plan.cheapest, 'node')}."
    limit = f"the deadline of {plan.deadline_hours:g} h"
    if plan.fewest_in_time is not None:
        yield f"The fewest that meet {limit}: {plural(plan.fewest_in_time, 'node')}."
    elif any(each.in_time is False for each in plan.choices):
        yield f"None meets {limit}."


def _training(cost: RunCost) -> Iterator[Section]:
    """Yield the formula of the training, and its memory."""
    rows = [*(_formula(cost.training) if cost.training else ())]
    if cost.memory is not None:
        rows.append(("memory", memory(cost.memory)))
    if rows:
        yield Section("Training", (cost.training.warning,) if cost.training and cost.training.warning else (),
                      tables=(facts(rows),))  # fmt: skip


def _formula(found: TrainingSpeed) -> Iterator[tuple[str, str]]:
    if found.steps:
        yield "steps", f"{count(found.steps)}, each {_brief(found.seconds / found.steps)}"
    yield "tokens", f"{count(found.tokens)} with padding, {found.operations:.3g} operations"
    mfu = f", {share(found.speed.mfu)} of its peak" if found.speed.mfu is not None else ""
    speed = f"{found.speed.operations_per_second / 1e12:,.3g} TFLOP/s a machine{mfu}"
    yield "speed", f"{speed}; {found.speed.basis}: {found.speed.source}"
    if found.efficiency < 1:
        yield "machines", f"together at {share(found.efficiency)} of one's speed times their number; published"
    if found.exchange is not None:
        part = f", {share(found.share)} of a step" if found.share is not None else ""
        each = ("gradients", found.exchange.gradient_bytes), ("vectors", found.exchange.vector_bytes)
        whole = " and ".join(f"{size / 1e6:,.0f} MB of {name}" for name, size in each if size)
        yield (
            "communication",
            f"{whole} in {_brief(found.exchange.seconds)} over NeuronLink or NVLink and EFA{part}; published",
        )


def _brief(seconds: float) -> str:
    """Format seconds, in milliseconds if they are less than one."""
    return duration(seconds) if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


_CAN_NOT_KNOW = "Train {0}: nobody can know yet if it is worth it"
_SAYS = {
    Action.train: "Train {0}",
    Action.longer: "Train {0} longer, with twice the epochs",
    Action.refresh: "Let {0} wait for the next span, and refresh",
    Action.skip: "Let {0} wait for the next span, and refresh nothing",
}
POINT = "A point is 0.01 of recall@10 on the span after a training, which its model has not seen."


def decision_section(decision: Decision) -> Section:
    """Return the decision with the four answers and the trainings that it is based on."""
    ruled = ()
    if decision.overruled is not None:
        ruled = (f"The rule says: {decision.action}. {decision.reason}",)
    forecast = "" if decision.arrived else f"{decision.span.name} has not arrived; it is taken to be as the last span."
    waits = f"It would be trained together with {', '.join(decision.window[:-1])}." if decision.window[1:] else ""
    over = Command(
        "To overrule it, with any of train, longer, refresh, skip:",
        (f'millrace decide --span {decision.span.name} --overrule train --reason "..."',),
    )
    unsure = decision.taken is Action.train and decision.overruled is None and decision.finding is Finding.unknown
    return Section(
        (_CAN_NOT_KNOW if unsure else _SAYS[decision.taken]).format(decision.span.name),
        tuple(filter(None, (decision.why, *ruled, " ".join(filter(None, (waits, forecast))), POINT))),
        id="decision",
        short="Decision",
        tables=(_options(decision), _gain(decision), *_evidence(decision.evidence)),
        commands=(over,) if decision.taken.waits or not decision.arrived else (),
    )


def decision_sections(store: Store, plan: RunPlan) -> tuple[Section, ...]:
    """Return the decisions on record about the spans of a run, oldest first.

    Raises:
        StoreError: a decision is not readable.
    """
    found = (find(store, plan.config.lineage, span) for span in plan.window)
    return tuple(
        Section(made.title, made.lines, id=f"decision-{one.span.name}", short=f"Decision {one.span.name}",
                tables=made.tables)
        for one in found
        if one is not None and (made := decision_section(one))
    )  # fmt: skip


def _options(decision: Decision) -> Table:
    rows = [_option(one, decision) for one in decision.options]
    return table(
        f"Decided {moment(decision.at)} UTC", ("answer", ">points", ">time", ">cost", ">above a refresh"), rows
    )


def _gain(decision: Decision) -> Table:
    gain = decision.gain
    rows = [
        (
            decision.finding.value,
            points(gain.points) if decision.evidence else NONE,
            f"{points(gain.low)} to {points(gain.high)}",
            points(gain.needed),
            f"{gain.probability:.2f}",
            f"{gain.released} of {gain.released + gain.refused}" if gain.released else NONE,
        )
    ]
    columns = ("is it", ">points", "each bound with 0.95", ">needed", ">probability of that", ">trainings released")
    return table("Gain expected of the training", columns, rows)


def _option(one: Option, decision: Decision) -> tuple[Cell | str, ...]:
    taken = one.action is decision.taken
    refresh = next((each.dollars for each in decision.options if each.action is Action.refresh), None)
    above = one.dollars - refresh if one.dollars and refresh else None
    return (
        Cell(one.action.value, "→" if taken else "", "going" if taken else ""),
        points(one.points) if one.points else NONE,
        duration(one.seconds) if one.seconds else NONE,
        dollars(one.dollars) if one.dollars else NONE,
        dollars(above) if above is not None and above > 0 else NONE,
    )


def _evidence(evidence: Sequence[Worth]) -> tuple[Table, ...]:
    if not evidence:
        return ()
    rows = [
        (
            str(one.release),
            one.span,
            str(one.spans),
            points(one.points),
            f"{points(one.low)} to {points(one.high)}",
        )
        for one in evidence
    ]
    columns = (">release", "on the span after it", ">spans trained", ">points", "95 % interval")
    return (table("Worth of the last trainings", columns, rows),)


def points(value: float | None) -> str:
    """Format points with their sign, as in `+1.5`."""
    return NONE if value is None else f"{value:+.2f}".replace("-", MINUS)
