"""`millrace bakeoff` and `parity`: one span trained on several machines, or with several settings, and compared."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from flows.cli.flow_runs import run_flow
from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions, spans
from flows.laboratory import bakeoff_page, parity_page
from flows.presentation.model import Parts
from infra.store.base import Store
from tasks.foundation.records import Record
from tasks.laboratory.bakeoff_report import BakeoffReport
from tasks.laboratory.parity_report import ParityReport
from tasks.laboratory.sides import plan_sides


class SidesOutput(Record):
    """Sides that were trained and compared."""

    run_url: str = Field(description="address of the flow run's page, with its log")
    compare: str = Field(description="command that compares the sides query by query")


class BakeoffOutput(SidesOutput):
    """`millrace bakeoff`."""

    sentences: tuple[str, ...] = Field(description="the winner, then the quality of each other side against the first")
    winner: str | None = Field(description="side with the fewest dollars to the target, or seconds without prices")
    page: str = Field(description="address of the page with the table and the curves")
    report: BakeoffReport


def bakeoff_parts(output: BakeoffOutput) -> Parts:
    """Yield the result, the tables, and the address of the page with the curves."""
    yield bakeoff_page.bakeoff_page(output.report, output.page.removesuffix(f"/{output.report.page}"))
    yield f"page: {output.page}"
    yield f"to compare by query: {output.compare}"


@command(bakeoff_parts)
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
    done = run_flow(
        "laboratory.bakeoff", verbose, options.store.uri, span, sides, seeds, published, *options.flow_settings()
    )
    report = done.value
    assert isinstance(report, BakeoffReport)
    return BakeoffOutput(
        sentences=report.sentences,
        winner=report.winner.name if report.winner is not None else None,
        run_url=done.run_url,
        compare=_compare(options.store, [side.trainings[0].run_key for side in report.sides]),
        page=f"{options.store.uri}/{report.page}",
        report=report,
    )


def _compare(store: Store, run_keys: Sequence[str]) -> str:
    return shlex.join(["millrace", "compare", *run_keys, "--workspace", store.uri])


class ParityOutput(SidesOutput):
    """`millrace parity`. Every state is a normal result."""

    state: Literal["Agreed", "Rejected", "Undecided"] = Field(
        description="Agreed: every holdout metric is equal within the margin; Rejected: one is not; Undecided: the "
        "rows can't tell"
    )
    sentence: str
    ui_url: str
    plot: str = Field(description="key of the plot of the curves, an SVG")
    report: ParityReport


def parity_parts(output: ParityOutput) -> Parts:
    """Yield where each metric differs most, and the verdict."""
    report = output.report
    yield f"parity {report.key} over {report.span.name}, lineage {report.lineage}: {output.run_url}"
    yield parity_page.section(report)
    yield f"to compare by query: {output.compare}"


@command(parity_parts)
def parity(
    options: RunOptions,
    span: Annotated[str, typer.Option(autocompletion=spans, help="For example 2022-Q4; may be trained already.")],
    left: Annotated[str, typer.Option(help="Accelerator: cpu, cuda, neuron or xla.")] = "cpu",
    right: Annotated[str, typer.Option(help="Accelerator to compare with it.")] = "xla",
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
) -> ParityOutput:
    """Train one span on two accelerators from the same checkpoint, and compare the holdout metrics."""
    plan_sides(options.store, options.config(), span, (left, right))  # report errors before a server starts
    done = run_flow("laboratory.parity", verbose, options.store.uri, span, left, right, *options.flow_settings())
    report = done.value
    assert isinstance(report, ParityReport)
    return ParityOutput(
        state=report.state,
        sentence=report.sentence,
        ui_url=done.ui_url,
        run_url=done.run_url,
        compare=_compare(options.store, [report.left.run_key, report.right.run_key]),
        plot=f"{options.store.uri}/{report.plot}",
        report=report,
    )
