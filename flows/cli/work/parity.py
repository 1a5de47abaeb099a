"""`millrace parity`: check the plan, run the flow, and show where the two accelerators differ."""

from typing import Literal

from pydantic import Field

from flows.cli.terminal import console
from flows.cli.terminal.run_options import RunOptions
from flows.cli.work.running import run_flow
from flows.presentation import parity as presentation
from flows.presentation import terminal
from tasks.foundation.records import Record
from tasks.upkeep.parity_report import ParityReport
from tasks.upkeep.parity_runs import plan_parity_runs


class ParityOutput(Record):
    """`millrace parity`. Accelerators that do not agree are a result like any other."""

    state: Literal["Agreed", "Rejected"] = Field(description="Agreed: every difference is below the threshold")
    sentence: str
    ui_url: str
    run_url: str = Field(description="the flow run's page, with its log and artifacts")
    plot: str = Field(description="where the plot of the curves is stored, an SVG")
    report: ParityReport


def parity(options: RunOptions, span: str, left: str, right: str, verbose: bool) -> ParityOutput:
    """Train on both accelerators, unless that is done already, and compare.

    Raises:
        StageError: planning or a stage failed; its class says why.
    """
    plan_parity_runs(options.store, options.config(), span, left, right)  # what can't be planned needs no server
    done = run_flow("parity", verbose, options.store.uri, span, left, right, *options.flow_settings())
    report = done.value
    assert isinstance(report, ParityReport)
    return ParityOutput(
        state="Agreed" if report.passed else "Rejected",
        sentence=report.sentence,
        ui_url=done.ui_url,
        run_url=done.run_url,
        plot=f"{options.store.uri}/{report.plot}",
        report=report,
    )


def show(output: ParityOutput) -> None:
    """Print where each metric differs most, and the verdict."""
    report = output.report
    console.say(f"parity {report.key} over {report.span.name}, lineage {report.lineage}: {output.run_url}")
    console.show(terminal.render(presentation.section(report), output.plot.removesuffix(f"/{report.plot}")))
