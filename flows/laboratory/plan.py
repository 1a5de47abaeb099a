"""`millrace plan`: a run's cost before it begins, also on machines that were never used, and on several numbers.

The sections show the choices, then each figure of the best one with its source.
"""

from collections.abc import Iterator
from typing import Annotated

import typer

from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions, spans
from flows.presentation.model import Cell, Parts, Section, facts, table
from flows.presentation.run.planned import stages
from flows.presentation.wording import NONE, count, dollars, duration, share
from tasks.foundation.errors import ConfigError
from tasks.foundation.nouns import plural
from tasks.laboratory.machine_plan import CostPlan, MachinePlan, PlannedCost, SpotCost, TrainingSpeed, plan_costs
from tasks.planning.next_run import plan_run
from tasks.runs.plan import Idle, NothingToDo


def plan_page(output: CostPlan | Idle) -> Parts:
    """Return the comparison of the choices, then each figure of the best one, which is the cheapest or the first."""
    if isinstance(output, Idle):
        return (output.sentence,)
    best = next((each for each in output.choices if each.nodes == output.cheapest), output.choices[0])
    compared = (_compared(output),) if len(output.choices) > 1 else ()
    return (*compared, stages(best.cost, _where(best)), *_on_spot(best.cost.spot), *_training(best.cost))


@command(plan_page)
def plan(
    options: RunOptions,
    span: Annotated[
        str | None,
        typer.Option(autocompletion=spans, help="For example 2022-Q4; default: the oldest not yet trained."),
    ] = None,
    instance: Annotated[
        str | None, typer.Option(help="Machines in place of the configured ones, e.g. trn1.32xlarge.")
    ] = None,
    nodes: Annotated[str, typer.Option(help="Numbers of machines to compare, e.g. 1,2,4.", show_default=False)] = "",
) -> CostPlan | Idle:
    """Print what a run would take: memory of a device, seconds and dollars of each stage. Runs nothing."""
    numbers = _numbers(nodes)
    try:
        planned = plan_run(options.store, options.config(), span)
    except NothingToDo as nothing:
        return Idle(sentence=str(nothing))
    return plan_costs(options.store, planned, instance, numbers)


def _numbers(words: str) -> tuple[int, ...]:
    """Return the numbers of `1,2,4`. Raises ConfigError: one is not a positive number."""
    found = [word.strip() for word in words.split(",") if word.strip()]
    if wrong := next((word for word in found if not word.isdecimal() or int(word) < 1), None):
        raise ConfigError(f"--nodes has {wrong!r}; give numbers of machines, as in --nodes 1,2,4")
    return tuple(dict.fromkeys(int(word) for word in found))


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


def _on_spot(found: SpotCost | None) -> Iterator[Section]:
    if found is not None:
        saved = f"{dollars(found.dollars)} in place of {dollars(found.instead_of)}"
        yield Section("Spot", (f"Infer on Spot machines: {saved}, in {duration(found.seconds)}; {found.price.says}.",))


def _training(cost: PlannedCost) -> Iterator[Section]:
    """Yield the formula of the training, and its memory."""
    rows = [*(_formula(cost.training) if cost.training else ())]
    if cost.memory is not None:
        rows.append(("memory", cost.memory.sentence))
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
