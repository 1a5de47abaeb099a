"""`millrace warmup --compare-optlevel`: the table by which a level is chosen."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from configs.load import load_config
from flows.console import display
from infra.store import Store
from tasks.errors import ConfigError

if TYPE_CHECKING:
    from tasks.optlevels import LevelReport


def compare(store: Store, span: str, levels: str, place: Path | None, overrides: list[str]) -> LevelReport:
    """Raises ConfigError for `levels` that are no list like 1,2,3; else as `compare_levels`."""
    try:
        wanted = [int(level) for level in levels.split(",")]
    except ValueError as error:
        raise ConfigError(f"--compare-optlevel {levels!r}: write it as 1,2,3") from error
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # the display tells it all

    from tasks.optlevels import compare_levels  # not before: Prefect reads the environment when imported
    from tasks.stage import listening

    with display() as listener, listening(listener):
        return compare_levels(store, load_config(place, overrides), span, wanted)


def show(report: LevelReport) -> None:
    """As people read it."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    headings = ("level", "graphs", "compile seconds", "step seconds", "largest loss difference", "of a metric")
    for name in headings:
        table.add_column(name, justify="right")
    for line in report.levels:
        table.add_row(
            f"O{line.level}",
            str(line.graphs),
            f"{line.compile_seconds:.1f}",
            f"{line.step_seconds:.4f}",
            f"{line.loss_difference:.2e}",
            f"{line.metric_difference:.2e}",
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(
        f"{report.accelerator} over {report.span.name}; differences are relative to O{report.levels[0].level}",
        highlight=False,
    )
    console.print(table)
    console.print("Choose with --set compiler.optlevel=N, or in the file of your place", highlight=False)
