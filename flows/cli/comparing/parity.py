"""`millrace parity`: check the plan, run the flow, and show the differences of the two accelerators."""

from typing import Annotated, Literal

import typer
from pydantic import Field

from flows.cli.flow_runs import run_flow
from flows.cli.terminal import console
from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions, spans
from flows.presentation import parity as presentation
from flows.presentation import terminal
from tasks.foundation.records import Record
from tasks.upkeep.parity_report import ParityReport
from tasks.upkeep.sides import plan_sides


class ParityOutput(Record):
    """`millrace parity`. Every state is a normal result."""

    state: Literal["Agreed", "Rejected", "Undecided"] = Field(
        description="Agreed: every holdout metric is equal within the margin; Rejected: one is not; Undecided: the "
        "rows can't tell"
    )
    sentence: str
    ui_url: str
    run_url: str = Field(description="address of the flow run's page, with its log and artifacts")
    plot: str = Field(description="key of the plot of the curves, an SVG")
    report: ParityReport


def show(output: ParityOutput) -> None:
    """Print where each metric differs most, and the verdict."""
    report = output.report
    console.say(f"parity {report.key} over {report.span.name}, lineage {report.lineage}: {output.run_url}")
    console.show(terminal.render(presentation.section(report), output.plot.removesuffix(f"/{report.plot}")))


@command(show)
def parity(
    options: RunOptions,
    span: Annotated[str, typer.Option(autocompletion=spans, help="For example 2022-Q4; may be trained already.")],
    left: Annotated[str, typer.Option(help="Accelerator: cpu, cuda or xla.")] = "cpu",
    right: Annotated[str, typer.Option(help="Accelerator to compare with it.")] = "xla",
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
) -> ParityOutput:
    """Train one span on two accelerators from the same checkpoint, and compare the holdout metrics."""
    plan_sides(options.store, options.config(), span, (left, right))  # report errors before a server starts
    done = run_flow("parity", verbose, options.store.uri, span, left, right, *options.flow_settings())
    report = done.value
    assert isinstance(report, ParityReport)
    return ParityOutput(
        state=report.state,
        sentence=report.sentence,
        ui_url=done.ui_url,
        run_url=done.run_url,
        plot=f"{options.store.uri}/{report.plot}",
        report=report,
    )
