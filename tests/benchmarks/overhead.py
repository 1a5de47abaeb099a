"""What the orchestrator adds to the workers' own time, and how long a run takes in which everything is done.

    python -m tests.benchmarks.overhead [--keep]

Runs of a tiny shop through the installed command, on a server that is warm. A worker's own time is what the ledger has
for its attempt: from the start of its processes to their end. Everything else is ours: the command's start, planning,
Prefect, pages and reports.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from infra.prefect_server import client_environment, down, up
from infra.store.directory import DirectoryStore
from tasks.runs import ledger
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.support.processes.services import MILLRACE
from tests.support.workspace.shop import SPANS, STAGES, Shop, open_shop

STAGE_LIMIT, RUN_LIMIT, DONE_LIMIT = 0.5, 10.0, 5.0  # seconds
ROUNDS = 3


class Timed(NamedTuple):
    """Seconds of one run: of the command, of its workers, and, by stage, of the task runs beyond their workers."""

    wall: float
    workers: float
    stages: dict[str, float]

    @property
    def added(self) -> float:
        return self.wall - self.workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_keep(parser)
    with measuring("overhead", parser.parse_args().keep) as sheet:
        measure(sheet)


def measure(sheet: Sheet) -> None:
    """Run, and add a table of the stages and one of whole runs."""
    with tempfile.TemporaryDirectory(prefix="millrace-overhead-") as folder:
        home = Path(folder) / "prefect"
        os.environ.pop("PREFECT_API_URL", None)
        os.environ.update(client_environment(up(home)))
        try:
            shop = open_shop(Path(folder), home, rows_per_span=100)
            runs = [measured(shop, span) for span in SPANS]
            again = [seconds(shop, SPANS[-1]) for _ in range(ROUNDS)]
        finally:
            down(home)
    sheet.table("stage", "added seconds, median", "at most", "limit")
    for stage in STAGES:
        _add(sheet, stage, [run.stages[stage] for run in runs], STAGE_LIMIT)
    sheet.table("run", "seconds, median", "at most", "limit")
    _add(sheet, "added to the workers' own time", [run.added for run in runs], RUN_LIMIT)
    outside = [run.added - sum(run.stages.values()) for run in runs]
    _add(sheet, "of them before the first and after the last stage", outside, None)
    _add(sheet, "a fully cached run", again, DONE_LIMIT)


def _add(sheet: Sheet, name: str, seconds: list[float], limit: float | None) -> None:
    most = max(seconds)
    sheet.row(name, statistics.median(seconds), most, limit or "", good=limit is None or most <= limit)


def measured(shop: Shop, span: str) -> Timed:
    """Run a span, then ask Prefect how long its tasks took, and the ledger how long their workers did."""
    wall = seconds(shop, span)
    own = {
        record.stage.value: record.wall_seconds
        for record in ledger.records(DirectoryStore(shop.workspace))
        if record.span == span
    }
    return Timed(wall, sum(own.values()), {stage: whole - own[stage] for stage, whole in task_seconds(span).items()})


def seconds(shop: Shop, span: str) -> float:
    """Wall time of `millrace run`, from the start of its process to its end."""
    environment = os.environ | {"MILLRACE_WORKSPACE": str(shop.workspace)}
    command = [str(MILLRACE), "run", "--span", span, "--config", str(shop.config_file), "--json"]
    began = time.monotonic()
    subprocess.run(command, env=environment, capture_output=True, check=True)
    return time.monotonic() - began


def task_seconds(span: str) -> dict[str, float]:
    """Seconds of each stage's task run by name, once the server knows the end of all."""
    from prefect.client.orchestration import get_client

    names = {f"{stage} {span}": stage for stage in STAGES}
    deadline = time.monotonic() + 60
    while True:
        with get_client(sync_client=True) as client:
            found = {run.name: run for run in client.read_task_runs() if run.name in names}
        if all(name in found and found[name].end_time for name in names):
            return {names[name]: found[name].total_run_time.total_seconds() for name in names}
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server knows only {sorted(found)}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
