"""How many of 200 runs come to a result when a fifth of all attempts fails by transient faults.

    python -m tests.benchmarks.success [--runs 200] [--seed 20261123] [--attempts N]

Each run is the real flow on a real Prefect server, with its own tries, plan, locks, records and gates, over a span of
its own in one lineage. Its workers are real processes without arithmetic, see tests/support/processes/short_workers.py.
The delays before a retry are a thousandth of the real ones, and no pages are made. The rate is read from the ledger.
"""

from __future__ import annotations

import argparse
import datetime as dt
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import infra.compute.factory
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.monitoring.ledger_report import LedgerReport, read_ledger
from tests.benchmarks.disturbed.command import end_at_sigterm
from tests.benchmarks.disturbed.page import table
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.prefect_server import PrefectServer
from tests.support.processes.short_workers import CLASSES, Fault, Faults, FlakyStore, ShortWorkers

RUNS, SEED, SHARE, LIMIT = 200, 20261123, 0.2, 0.995
FIRST = dt.date(2026, 1, 1)


class Measured(NamedTuple):
    """The ledger's sums, and the faults injected into the attempts."""

    ledger: LedgerReport
    injected: Counter[Fault]
    seconds: float


def measure(folder: Path, server: PrefectServer, runs: int, seed: int, *settings: str) -> Measured:
    """Run the pipeline over so many days, one run after the other, each once."""
    store, faults = FlakyStore(DirectoryStore(folder)), Faults(seed, SHARE)
    days = [(FIRST + dt.timedelta(days=number)).isoformat() for number in range(runs)]
    ingest(store, *days)
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch, server.in_use():
        patch.setattr(infra.compute.factory, "make_runner", lambda config, _, stage: ShortWorkers(store, faults))
        patch.setattr("tasks.running.stage.open_store", lambda _: store)
        for failure, policy in POLICIES.items():
            patch.setitem(POLICIES, failure, policy._replace(delay_seconds=policy.delay_seconds / 1000))
        for name in ("make_stage_page", "write_run_report"):
            patch.setattr(f"flows.orchestration.recorded_invocation.{name}", lambda *_: None)
        for number, day in enumerate(days):
            print(f"{number} of {runs} runs, {sum(faults.injected.values())} faults", file=sys.stderr, flush=True)
            pipeline(store.uri, day, overrides=("model.scratch.layers=1", *settings), return_state=True)
    return Measured(read_ledger(store), faults.injected, time.monotonic() - began)


def by_class(injected: Counter[Fault]) -> dict[FailureClass, int]:
    """Return the injected faults by the class that the ledger should have for them."""
    found: Counter[FailureClass] = Counter()
    for fault, count in injected.items():
        found[CLASSES[fault]] += count
    return dict(found)


def counted(counts: Mapping[Any, int]) -> str:
    """Return `3 HANG, 5 HOST` for counts by name."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def main() -> None:
    """Measure, and print a table as Markdown.

    Raises:
        SystemExit: fewer runs succeeded than should, or a fault has no record.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--attempts", type=int, help="retry.attempts; default: that of base.yaml")
    asked = parser.parse_args()
    end_at_sigterm()
    logging.disable(logging.ERROR)
    settings = (f"retry.attempts={asked.attempts}",) if asked.attempts else ()
    with tempfile.TemporaryDirectory(prefix="millrace-success-") as name:
        server = PrefectServer(Path(name) / "prefect", Path(name) / "tables.db")
        try:
            measured = measure(Path(name) / "workspace", server, asked.runs, asked.seed, *settings)
        finally:
            server.stop()
    whole, injected = measured.ledger.whole, by_class(measured.injected)
    recovery = whole.mean_seconds_to_recover
    print(f"seed {asked.seed}, {measured.seconds:.0f} s, {measured.seconds / asked.runs:.1f} s a run")
    failed = whole.attempts - whole.succeeded
    runs = f"{whole.runs_succeeded} of {whole.runs_over}: {whole.run_success_rate:.1%}"
    rows = {
        "runs that came to a result": runs,
        "attempts that failed": f"{failed} of {whole.attempts}: {failed / whole.attempts:.1%}",
        "by class": counted(whole.attempts_by_class),
        "injected": counted(measured.injected),
        "outages that are over, and their mean": f"{whole.recoveries}, {recovery or 0.0:.2f} s",
    }
    print(table(("of the ledger", ">"), rows.items()))
    if whole.attempts_by_class != injected or (whole.run_success_rate or 0.0) < LIMIT:
        raise SystemExit(f"at least {LIMIT:.1%} of the runs should succeed, and every injected fault be on record")


if __name__ == "__main__":
    main()
