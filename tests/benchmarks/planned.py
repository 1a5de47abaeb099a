"""Planned against actual: seconds of runs after three runs of history, and the peak memory of a training worker.

    python -m tests.benchmarks.planned [--only demo|reviews|batch] [--reviews path/to/reviews.jsonl.gz]

Each subject is a lineage of spans: the demo's shop, product reviews from MiniLM's weights, and the shop on the emulated
AWS Batch. Prints tables as Markdown; a figure beyond its limit is marked, and the exit code is then 1. Timings need a
quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flows.cli.running import RunOutput, run
from flows.cli.terminal.options import RunOptions
from flows.demo.search_log import write_shop
from infra.prefect_server import client_environment, down, up
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.costs import Against
from tasks.contracts.outcomes import WarmupOutcome
from tasks.contracts.spans import SpanKind
from tasks.contracts.stages import Stage
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.data.span_versions import list_spans
from tasks.planning.next_run import plan_run
from tasks.preflight.enough import enough
from tasks.preflight.memory import train_memory
from tasks.runs.run import Run, against
from tasks.runs.snapshot import Snapshot
from tests.support.cloud.batch_demo import SETTINGS
from tests.support.cloud.cloud import open_cloud
from tests.support.cloud.s3 import S3Server

ROOT = Path(__file__).resolve().parents[2]
SHOP = {"id": "query_id", "query": "query", "item": "product", "item_id": "product_id", "label": "bought"}
REVIEWS = {"id": "review_id", "query": "text", "item": "product_title", "label": "rating"}
HISTORY, MEASURED = 3, 2  # runs before the first one that counts, and runs that count
SECONDS_LIMIT, MEMORY_LIMIT = 0.25, 0.15


class Subject(NamedTuple):
    """Runs of a lineage."""

    config: str
    settings: tuple[str, ...] = ()
    batch: bool = False


SUBJECTS = {
    "demo": Subject("demo.yaml"),
    "reviews": Subject("reviews.yaml", ("train.epochs=1",)),
    "batch": Subject("demo.yaml", SETTINGS, batch=True),
}


class Memory(NamedTuple):
    """The peak of a warmup against its plan, in GiB."""

    where: str
    planned: float
    actual: float

    @property
    def error(self) -> float:
        return self.planned / self.actual - 1


def main() -> int:
    """Run, print the tables; return 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SUBJECTS, action="append")
    parser.add_argument("--reviews", type=Path, default=ROOT / "../shared/data/amazon-reviews-sample/reviews.jsonl.gz")
    arguments = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory(prefix="millrace-planned-") as name:
        home = Path(name) / "prefect"
        os.environ.pop("PREFECT_API_URL", None)
        os.environ.update(client_environment(up(home)))
        try:
            print("| subject | span | stage | planned, s | actual, s | error |\n|---|---|---|---:|---:|---:|")
            for title in arguments.only or SUBJECTS:
                if title != "reviews" or arguments.reviews.exists():
                    missed |= measure(title, Path(name), arguments.reviews)
        finally:
            down(home)
    return int(missed)


def measure(title: str, folder: Path, reviews: Path) -> bool:
    """Run a subject's spans, print a line for each stage; return True if a limit was missed."""
    subject, missed, peaks = SUBJECTS[title], False, list[Memory]()
    with workspace(subject, folder / title) as store:
        fill(store, title, folder, reviews)
        spans = [span.name for span in list_spans(store)][: HISTORY + MEASURED]
        for place, span in enumerate(spans):
            options = RunOptions(store, ROOT / "configs" / subject.config, subject.settings)
            plan = plan_run(store, options.config(), span)
            estimated = train_memory(store, plan, enough(store, plan).tokens_a_row)
            output = run(options, span)
            assert isinstance(output, RunOutput)
            assert output.report is not None
            ran = Run(Snapshot(store), output.report.run_key)
            if place >= HISTORY:
                missed |= show(title, span, against(ran))
            warm = ran.outcome(Stage.warmup)
            if estimated is not None and isinstance(warm, WarmupOutcome):
                peaks.append(Memory(f"{title} {span}", estimated.total_gib, warm.peak_memory_gib))
    print("\n| memory of a worker | planned, GiB | actual, GiB | error |\n|---|---:|---:|---:|")
    for peak in peaks:
        missed |= abs(peak.error) > MEMORY_LIMIT
        print(f"| {peak.where} | {peak.planned:.2f} | {peak.actual:.2f} | {marked(peak.error, MEMORY_LIMIT)} |")
    print(flush=True)
    return missed


def show(title: str, span: str, compared: tuple[Against, ...]) -> bool:
    """Print a run's stages; return True if the whole is beyond its limit. Single stages have none."""
    for each in compared:
        error = marked(each.error, SECONDS_LIMIT if each is compared[-1] else None)
        print(
            f"| {title} | {span} | {each.name} | {each.planned_seconds} | {each.actual_seconds} | {error} |", flush=True
        )
    whole = compared[-1].error
    return whole is None or abs(whole) > SECONDS_LIMIT


def marked(error: float | None, limit: float | None) -> str:
    if error is None:
        return "not known"
    beyond = " (!)" if limit is not None and abs(error) > limit else ""
    return f"{error:+.0%}{beyond}".replace("%", " %")


@contextlib.contextmanager
def workspace(subject: Subject, folder: Path) -> Iterator[Store]:
    """Open a workspace on this machine, or a bucket next to the emulated AWS Batch."""
    if not subject.batch:
        yield open_store(str(folder))
        return
    os.environ.update(AWS_ACCESS_KEY_ID="none", AWS_SECRET_ACCESS_KEY="none", AWS_DEFAULT_REGION="us-east-1")
    s3 = S3Server()
    try:
        with open_cloud(s3) as cloud:
            yield open_store(cloud.s3.new_workspace())
    finally:
        s3.stop()


def fill(store: Store, title: str, folder: Path, reviews: Path) -> None:
    """Ingest enough spans of a subject."""
    if title == "reviews":
        ingest(store, reviews, Format.jsonl, "timestamp", SpanKind.quarter, REVIEWS)
        return
    source = folder / f"{title}.jsonl.gz"
    write_shop(source, HISTORY + MEASURED, 2000, seed=7)
    ingest(store, source, None, "searched_at", SpanKind.month, SHOP)


if __name__ == "__main__":
    sys.exit(main())
