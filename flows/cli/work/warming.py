"""`millrace warmup --compare-optlevel`: a table for choosing the compiler's level."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flows.cli.terminal.console import say, show_table
from flows.cli.terminal.progress_bars import display
from flows.cli.terminal.run_options import RunOptions
from tasks.foundation.errors import ConfigError
from tasks.running.context import within

if TYPE_CHECKING:
    from tasks.upkeep.optlevels import LevelReport


def compare(options: RunOptions, span: str, levels: str) -> LevelReport:
    """Try each of `levels`, as in 1,2,3. Raises ConfigError if it is no such list; else as `compare_levels`."""
    try:
        wanted = [int(level) for level in levels.split(",")]
    except ValueError as error:
        raise ConfigError(f"--compare-optlevel {levels!r}: write it as 1,2,3") from error
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # progress shows here

    from tasks.upkeep.optlevels import compare_levels  # only now: Prefect reads the environment when imported

    with display() as listener, within(listener=listener):
        return compare_levels(options.store, options.config(), span, wanted)


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
    show_table(columns, rows)
    say("Choose with --set compiler.optlevel=N, or in your config file")
