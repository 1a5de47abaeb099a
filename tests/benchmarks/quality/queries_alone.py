"""A release of queries that were trained alone beside one of both sides, from the same parent on the same month.

    python -m tests.benchmarks.quality.queries_alone [--reviews path/to/reviews.jsonl.gz]

The demo's shop: two months of both sides, then the third both ways, each in a copy of the workspace. The reviews: all
quarters up to 2021-Q1 from MiniLM's weights, then 2021-Q2. Every run is a whole one, by real workers.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from flows.cli.running import RunOutput, run
from flows.cli.terminal.options import RunOptions
from flows.demo.search_log import write_shop
from infra.store.factory import open_store
from tasks.contracts.evaluation import PartMetrics, Role
from tasks.contracts.outcomes import EvaluateOutcome, InferOutcome, TrainOutcome
from tasks.contracts.spans import SpanKind
from tasks.contracts.stages import Stage
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.runs import releases
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot
from tests.benchmarks.reviews import COLUMNS, CONFIG_FILE

DEMO = CONFIG_FILE.with_name("demo.yaml")
SHOP = {"id": "query_id", "query": "query", "item": "product", "item_id": "product_id", "label": "bought"}
ROWS_PER_SPAN, SEED = 2000, 7
HEAD = """\
| data | trained | recall@10, unseen | seen | items embedded | training, s | tokens in training | release |
|---|---|---:|---:|---:|---:|---:|---|"""


def main() -> None:
    """Run, and print the table as Markdown on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=Path, help="reviews as JSONL, plain or gzip")
    parser.add_argument("--workspace", type=Path, default=Path("workspace/queries-alone"))
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    arguments.workspace.mkdir(parents=True, exist_ok=True)
    shop = arguments.workspace / "shop.jsonl.gz"
    write_shop(shop, 3, ROWS_PER_SPAN, SEED)
    compare("demo", arguments.workspace / "demo", shop, "searched_at", SpanKind.month, SHOP, DEMO, 2)
    if arguments.reviews is not None:
        folder = arguments.workspace / "reviews"
        compare("reviews", folder, arguments.reviews, "timestamp", SpanKind.quarter, COLUMNS, CONFIG_FILE, 1)


def compare(
    data: str, folder: Path, source: Path, time: str, kind: SpanKind, columns: dict[str, str], config: Path, before: int
) -> None:
    """Print a row for the last run of both sides, and one for each way to train the next span.

    Args:
        before: runs of both sides; the first one of reviews takes all quarters up to its own.
    """
    store = open_store(str(folder))
    spans = [span.name for span in ingest(store, source, Format.jsonl, time, kind, columns).spans]
    spans = spans[spans.index("2021-Q1") :] if "2021-Q1" in spans else spans
    parents = [run(RunOptions(store, config), span) for span in spans[:before]]
    print(row(data, "parent, of both", folder, parents[-1]), flush=True)
    for sides in ("both", "queries"):
        own = folder.with_name(f"{folder.name}-{sides}")
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(folder, own)
        made = run(RunOptions(open_store(str(own)), config, (f"train.sides={sides}",)), spans[before])
        if sides == "both":
            print(row(data, "not yet: the champion", own, made, Role.champion), flush=True)
        print(row(data, sides, own, made), flush=True)


def row(data: str, trained: str, folder: Path, output: object, role: Role = Role.challenger) -> str:
    """Return a row of the table; all but the parent's own run are measured on the last span's holdout."""
    assert isinstance(output, RunOutput)
    assert output.report is not None
    store = open_store(str(folder))
    of = Run(Snapshot(store), output.report.run_key)
    train, evaluated, inferred = (of.outcome(each) for each in (Stage.train, Stage.evaluate, Stage.infer))
    assert isinstance(train, TrainOutcome)
    assert isinstance(evaluated, EvaluateOutcome)
    assert train.tokens is not None
    parts = evaluated.by_queries[role].parts
    embedded = inferred.vectors - inferred.vectors_reused if isinstance(inferred, InferOutcome) else 0
    seconds = train.checkpoints.training_seconds if train.checkpoints is not None else 0.0
    current = releases.current(store)
    made = f"{current.number}, {current.vectors:,} vectors" if current is not None else "none"
    return (
        f"| {data} | {trained} | {recall(parts['unseen'])} | {recall(parts['seen'])} | {embedded:,} | {seconds:.1f} "
        f"| {train.tokens.computed:,} | {made} |"
    )


def recall(part: PartMetrics) -> str:
    """Return recall@10 with its 95 % interval."""
    return f"{part.metrics['recall@10']:.4f} ({part.low:.3f} to {part.high:.3f})"


if __name__ == "__main__":
    main()
