"""`millrace goodput`: failures, goodput and cost of a training before it begins, by number of nodes."""

from typing import Annotated

import typer

from flows.cli.terminal.command import command
from flows.cli.terminal.console import show
from flows.cli.terminal.options import RunOptions
from flows.presentation import terminal
from flows.presentation.goodput import goodput_section
from tasks.contracts.goodput import Goodput
from tasks.costs.failure_model import failure_model, price_of_node
from tasks.costs.goodput import NODES, expect_goodput


def show_goodput(output: Goodput) -> None:
    """Print the expectation for each number of nodes, and the numbers that it rests on."""
    show(terminal.render(goodput_section(output), ""))


@command(show_goodput)
def goodput(
    options: RunOptions,
    hours: Annotated[float, typer.Option(min=0.01, help="Hours of the training without failures.")] = 24.0,
    most_nodes: Annotated[int, typer.Option(min=1, max=4096, help="Most nodes that are tried.")] = 1024,
    node_hours: Annotated[
        float | None,
        typer.Option(min=0.01, help="Hours between two failures of one node; default: by the ledger."),
    ] = None,
) -> Goodput:
    """Simulate the failures of a training: its goodput, dollars and best checkpoint interval by number of nodes."""
    config = options.config()
    nodes = [each for each in NODES if each <= most_nodes] + ([most_nodes] if most_nodes not in NODES else [])
    model = failure_model(options.store, config, node_hours)
    return expect_goodput(hours, model, price_of_node(config), nodes)
