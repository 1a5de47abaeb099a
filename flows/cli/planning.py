"""`millrace plan`: a run's cost before it begins.

Alone, since it loads the estimates of costs.
"""

from typing import Annotated

import typer

from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions, spans
from flows.presentation.run.planned import costs
from tasks.contracts.costs import CostPlan
from tasks.costs.run_cost import plan_costs
from tasks.foundation.errors import ConfigError
from tasks.planning.next_run import plan_run


@command(costs)
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
