"""A comparison of the compiler's optimisation levels: compile time, step time and numerical differences.

    python -m tests.neuron.optlevels --span SPAN --workspace W --config FILE --set accelerator=xla --levels 1,2,3

Each level runs a warmup with its own compile cache. Nothing is trained, and the lineage does not change.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path

from pydantic import Field

from configs.load import load_config
from configs.schema.config import Config
from flows.cli.terminal import console
from flows.cli.terminal.console import say
from flows.cli.terminal.ending import explain
from flows.cli.terminal.progress_bars import display
from flows.presentation.model import table
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.jobs import WarmupInputs
from tasks.contracts.outcomes import WarmupOutcome
from tasks.contracts.references import SpanRef
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.laboratory.parity_report import relative_difference
from tasks.planning.next_run import plan_work
from tasks.running.context import override_context
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage import run_stage
from tasks.running.stage_output import logger
from tasks.runs.plan import with_settings
from tasks.validate import validate

LEVELS = (1, 2, 3)


class LevelLine(Record):
    """One level. Each difference is the largest relative difference to the first level, over all steps or metrics."""

    level: int
    graphs: int
    compile_seconds: float = Field(
        description="compile time of all graphs, in seconds, also of those an earlier run compiled"
    )
    step_seconds: float = Field(description="seconds of the fastest step of each shape, averaged over the shapes")
    loss_difference: float
    metric_difference: float


class LevelReport(Record):
    """All levels, compared over one span."""

    span: SpanRef
    accelerator: str
    device: str
    levels: tuple[LevelLine, ...]


def compare_levels(store: Store, config: Config, span: str, levels: Sequence[int]) -> LevelReport:
    """Warm up once for each level, from the lineage's checkpoint and on the same rows. A finished warmup is reused.

    Raises:
        ConfigError: a level is unknown, the accelerator compiles nothing ahead of time, or a shape has only one step.
        StageError: of the class that stopped a stage.
    """
    known = ", ".join(map(str, LEVELS))
    if not levels:
        raise ConfigError(f"--levels: no level given; give some of {known}")
    if unknown := [level for level in levels if level not in LEVELS]:
        raise ConfigError(f"--levels: unknown level {unknown[0]}; give some of {known}")
    if config.accelerator != "xla":
        raise ConfigError(
            f"accelerator: {config.accelerator} compiles nothing ahead of time; add --set accelerator=xla"
        )
    if config.warmup.steps < 2:
        raise ConfigError(
            "warmup.steps: the only step is the one that compiles, so a step could not be timed; "
            "add --set warmup.steps=4"
        )
    work = plan_work(store, config, span)
    with hold_lineage(store, f"lineages/{config.lineage}.run", logger().warning):
        rows = validate.fn(work).rows
        outcomes = []
        for level in levels:
            plan = with_settings(work, compiler=work.config.compiler.model_copy(update={"optlevel": level}))
            inputs = WarmupInputs(rows=rows, parent=plan.parent)
            outcomes.append(run_stage(plan, inputs, WarmupOutcome))
    lines = tuple(_line(level, outcome, outcomes[0]) for level, outcome in zip(levels, outcomes, strict=True))
    return LevelReport(span=work.span, accelerator=config.accelerator, device=outcomes[0].device, levels=lines)


def _line(level: int, outcome: WarmupOutcome, first: WarmupOutcome) -> LevelLine:
    assert outcome.compiled is not None, "the accelerator compiles"
    losses = zip(outcome.trial_losses, first.trial_losses, strict=True)
    metrics = [(outcome.trial_metrics[name], value) for name, value in first.trial_metrics.items()]
    return LevelLine(
        level=level,
        graphs=outcome.compiled.graphs,
        compile_seconds=outcome.compiled.seconds,
        step_seconds=round(statistics.mean(shape.step_seconds for shape in outcome.shapes), 4),
        loss_difference=max(starmap(relative_difference, losses), default=0.0),
        metric_difference=max(starmap(relative_difference, metrics), default=0.0),
    )


def show(report: LevelReport) -> None:
    """Print the output for people."""
    say(f"{report.accelerator} over {report.span.name}; differences are relative to O{report.levels[0].level}")
    columns = ("level", ">graphs", ">compile seconds", ">step seconds", ">largest loss difference", ">of a metric")
    rows = [
        (
            f"O{line.level}",
            str(line.graphs),
            f"{line.compile_seconds:.1f}",
            f"{line.step_seconds:.4f}",
            f"{line.loss_difference:.2e}",
            f"{line.metric_difference:.2e}",
        )
        for line in report.levels
    ]
    console.show([table("", columns, rows)])
    say("Choose with --set compiler.optlevel=N, or in your config file")


def main() -> int:
    """Compare the levels of the command line, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--span", required=True, help="its rows are tried; may be trained already")
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument("--workspace", default="./workspace")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # progress shows here
    try:
        config = load_config(given.config, given.set)
        levels = [int(level) for level in given.levels.split(",") if level.isdigit()]
        with display() as listener, override_context(listener=listener):
            show(compare_levels(open_store(given.workspace), config, given.span, levels))
    except Exception as error:
        return explain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
