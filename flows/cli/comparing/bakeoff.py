"""`millrace bakeoff`: check the plan, run the flow, and show speed, quality and dollars of the sides."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from flows.cli.flow_runs import run_flow
from flows.cli.terminal import console
from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions, spans
from flows.presentation import bakeoff as presentation
from flows.presentation import terminal
from tasks.foundation.records import Record
from tasks.upkeep.bakeoff_report import BakeoffReport
from tasks.upkeep.sides import plan_sides


class BakeoffOutput(Record):
    """`millrace bakeoff`."""

    sentences: tuple[str, ...] = Field(description="the winner, then the quality of each other side against the first")
    winner: str | None = Field(description="side with the fewest dollars to the target, or seconds without prices")
    run_url: str = Field(description="address of the flow run's page, with its log")
    page: str = Field(description="address of the page with the table and the curves")
    report: BakeoffReport


def show(output: BakeoffOutput) -> None:
    """Print the result, the tables, and the address of the page with the curves."""
    report, workspace = output.report, output.page.removesuffix(f"/{output.report.page}")
    shown = presentation.bakeoff_page(report, workspace)
    console.show(terminal.page(shown))
    console.say(f"page: {output.page}")


@command(show)
def bakeoff(
    options: RunOptions,
    span: Annotated[str, typer.Option(autocompletion=spans, help="For example 2022-Q4; may be trained already.")],
    side: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="A side, two to eight: cpu, or 'bf16:accelerator=cpu,train.precision=bf16'.  [default: cpu, xla]",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="Trainings of each side, each with its own seed.")] = 1,
    prices: Annotated[Path | None, typer.Option(help="YAML file with price lists, over configs/prices.yaml.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Also show figures of AWS and MLPerf, at the same prices.")
    ] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
) -> BakeoffOutput:
    """Train one span on several machines or precisions from one checkpoint; compare speed, quality and dollars."""
    if prices is not None:
        options = RunOptions(options.store, options.config_file, (*options.overrides, f"cost.prices=[{prices}]"))
    sides = tuple(side or ("cpu", "xla"))
    plan_sides(options.store, options.config(), span, sides, seeds)  # report errors before a server starts
    done = run_flow("bakeoff", verbose, options.store.uri, span, sides, seeds, published, *options.flow_settings())
    report = done.value
    assert isinstance(report, BakeoffReport)
    return BakeoffOutput(
        sentences=report.sentences,
        winner=report.winner.name if report.winner is not None else None,
        run_url=done.run_url,
        page=f"{options.store.uri}/{report.page}",
        report=report,
    )
