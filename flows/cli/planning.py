"""`millrace plan` and `decide`: a run's cost before it begins, and whether it is worth it.

A person may overrule the decision to train the next span or to let it wait.
"""

from typing import Annotated, Literal

import typer

from flows.cli.terminal.command import command
from flows.cli.terminal.console import say, show
from flows.cli.terminal.options import RunOptions, spans
from flows.presentation import terminal
from flows.presentation.run.planned import costs, decision_section
from tasks.contracts.costs import CostPlan
from tasks.costs import weekly
from tasks.costs.run_cost import plan_costs
from tasks.foundation.errors import ConfigError
from tasks.planning.decisions import Action, Decision, overrule
from tasks.planning.next_run import plan_run


def show_plan(output: CostPlan) -> None:
    """Print the choices, then each figure of the cheapest with its source."""
    for section in costs(output):
        show(terminal.render(section, ""))


@command(show_plan)
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
) -> CostPlan:
    """Print what a run would take: memory of a device, seconds and dollars of each stage. Runs nothing."""
    return plan_costs(options.store, plan_run(options.store, options.config(), span), instance, _numbers(nodes))


def _numbers(words: str) -> tuple[int, ...]:
    """Return the numbers of `1,2,4`. Raises ConfigError: one is not a positive number."""
    found = [word.strip() for word in words.split(",") if word.strip()]
    if wrong := next((word for word in found if not word.isdecimal() or int(word) < 1), None):
        raise ConfigError(f"--nodes has {wrong!r}; give numbers of machines, as in --nodes 1,2,4")
    return tuple(dict.fromkeys(int(word) for word in found))


ANSWERS = {"train": Action.train, "longer": Action.longer, "refresh": Action.refresh, "skip": Action.skip}


def show_decision(output: Decision) -> None:
    """Print the answer, its arithmetic and its evidence."""
    show(terminal.render(decision_section(output), ""))
    if output.overruled is not None:
        say(
            f"recorded: scheduled runs with decide.scheduled follow it; by hand: millrace run --span {output.span.name}"
        )


@command(show_decision)
def decide(
    options: RunOptions,
    span: Annotated[
        str | None, typer.Option(help="For example 2022-Q4; default: the next that is not decided, or will arrive.")
    ] = None,
    over: Annotated[
        Literal["train", "longer", "refresh", "skip"] | None,
        typer.Option("--overrule", help="Your answer instead of the rule's. Needs --reason."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Reason of --overrule, shown with the decision.")] = None,
) -> Decision:
    """Weigh the points that training the next span is worth against its cost: train it, or let it wait.

    A span that waits is trained together with the next one. Nothing is written without --overrule; scheduled runs
    follow the decision if `decide.scheduled` is set, and `millrace run --span SPAN` always trains.
    """
    if (over is None) != (reason is None):
        raise ConfigError("give --overrule ANSWER and --reason TEXT together: both are recorded")
    made = weekly.decide(options.store, options.config(), span)
    if over is None or reason is None:
        return made
    return overrule(options.store, made, ANSWERS[over], reason)
