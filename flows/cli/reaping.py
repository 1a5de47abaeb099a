"""`millrace reap`: what became of the jobs on AWS Batch, and the end of those that nobody waits for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from configs.load import load_config
from infra import prefect_server

if TYPE_CHECKING:
    from tasks.reap import ReapReport


def reap(place: Path | None, overrides: Sequence[str], grace_minutes: float, dry_run: bool) -> ReapReport:
    """As `tasks.reap.reap`. A Prefect server is asked if there is one; none is started for it."""
    config = load_config(place, overrides)
    server = prefect_server.running(prefect_server.state_home())
    if server is not None:
        os.environ.update(prefect_server.client_environment(server))

    import tasks.reap  # not before: Prefect reads the environment when imported

    return tasks.reap.reap(config, grace_minutes, dry_run, ask_prefect=server is not None)


def show(report: ReapReport) -> None:
    """As people read it."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    if not report.jobs:
        queues = " and ".join(report.queues)
        none = f"no job on {queues}" if queues else "no stage of these settings runs on AWS Batch, so there is no job"
        console.print(none, highlight=False)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("job", "name", "status", "", "why"):
        table.add_column(heading, overflow="fold")
    for job in report.jobs:
        table.add_row(job.job, job.name, job.status, job.action, job.why)
    console.print(table)
