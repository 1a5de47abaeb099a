"""`millrace goodput`: failures expected before a run, by number of nodes.

A table and a figure, and the numbers that it rests on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions
from flows.presentation.figures import line_styles
from flows.presentation.model import Figure, Parts, Section, facts, table
from flows.presentation.wording import NONE, dollars, duration, share
from tasks.laboratory.goodput import NODES, AtNodes, Goodput, expect_goodput, failure_model, price_of_node

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_COLUMNS = (">nodes", ">a failure each", ">checkpoint each", ">goodput", ">failures", ">time", ">cost")


def goodput_section(found: Goodput) -> Section:
    """Return the expectation for each number of nodes."""
    price = "The price of a node is not known, so costs are not given."
    if found.dollars_per_node_hour is not None:
        price = f"A node costs {dollars(found.dollars_per_node_hour)} an hour."
    lines = (
        f"A training of {duration(found.hours * 3600)} without failures, simulated with failures of nodes. The "
        f"interval between checkpoints is the one that loses the least time. {price}",
    )
    model = found.model
    rests = (
        (
            "one node fails each",
            f"{duration(3600 * model.node_hours_between.value)}; {model.node_hours_between.source}",
        ),
        ("a checkpoint stalls for", f"{model.save_seconds.value:.2f} s; {model.save_seconds.source}"),
        ("a restart takes", f"{duration(model.restart_seconds.value)}; {model.restart_seconds.source}"),
        ("and waits for machines", f"{duration(model.queued_seconds.value)}; {model.queued_seconds.source}"),
        ("failures that are hangs", f"{share(model.hang_share.value)}; {model.hang_share.source}"),
        ("a hang is noticed after", f"{duration(model.notice_seconds.value)}; {model.notice_seconds.source}"),
    )
    return Section(
        "Failures expected in a training",
        lines,
        id="failures",
        short="Failures",
        figures=(_figure(found),),
        tables=(table("By number of nodes", _COLUMNS, map(_row, found.rows)), facts(rests, "It rests on")),
    )


def _row(row: AtNodes) -> tuple[str, ...]:
    never = row.goodput is None
    return (
        f"{row.nodes:,}",
        duration(row.seconds_between_failures),
        duration(row.interval_seconds),
        "never ends" if never else share(row.goodput),
        NONE if row.failures is None else f"{row.failures:,.1f}",
        NONE if row.hours is None else duration(3600 * row.hours),
        dollars(row.dollars),
    )


def _figure(found: Goodput) -> Figure:
    known = [(row.nodes, row.goodput) for row in found.rows if row.goodput is not None]
    ends = f"from {share(known[0][1])} to {share(known[-1][1])}" if known else "nowhere known"

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        (style,) = line_styles(1)
        axes.plot([nodes for nodes, _ in known], [100 * value for _, value in known], **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks([row.nodes for row in found.rows], [str(row.nodes) for row in found.rows])
        axes.set_ylim(0, 102)
        axes.set_xlabel("nodes")
        axes.set_ylabel("goodput, %")

    return Figure(
        "Goodput by number of nodes", "share of the paid time that is work which was kept",
        f"Goodput {ends} over {len(known)} numbers of nodes", draw,
    )  # fmt: skip


def goodput_page(output: Goodput) -> Parts:
    """Yield the expectation for each number of nodes, and the numbers that it rests on."""
    yield goodput_section(output)


@command(goodput_page)
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
