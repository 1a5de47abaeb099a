"""`millrace reap`: end jobs on AWS Batch that no process waits for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from configs.load import load_config
from flows.cli.terminal.console import say, show_table
from infra import prefect_server
from infra.store.factory import open_store

if TYPE_CHECKING:
    from infra.compute.batch.reap import ReapReport


def reap(
    workspace: str, config_file: Path | None, overrides: Sequence[str], grace_minutes: float, dry_run: bool
) -> ReapReport:
    """Reap as `infra.compute.batch.reap.reap` does. It asks a Prefect server only if one is running."""
    config, store = load_config(config_file, overrides), open_store(workspace)
    server = prefect_server.running(prefect_server.state_home())
    if server is not None:
        os.environ.update(prefect_server.client_environment(server))

    import infra.compute.batch.reap

    return infra.compute.batch.reap.reap(store, config, grace_minutes, dry_run, ask_prefect=server is not None)


def show(report: ReapReport) -> None:
    """Print the output for people."""
    if not report.jobs:
        queues = " and ".join(report.queues)
        none = f"no job on {queues}" if queues else "no job: with these settings no stage runs on AWS Batch"
        say(none)
        return
    rows = [(job.job, job.name, job.status, job.action, job.why) for job in report.jobs]
    show_table(("job", "name", "status", "action", "~why"), rows)
