"""`make demo`: four spans of a made-up shop, from raw rows to released vectors, and a table of what came of it.

Safe to repeat: what is done shows as cached. It uses the same doors as a user: ingest, then one run for each span.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from flows.cli import running
from flows.cli.errors import explain
from flows.cli.outputs import RunOutput
from flows.demo.shop import write_shop
from infra import prefect_server
from infra.store import open_store
from tasks.catalog import list_spans
from tasks.ingest import ingest
from tasks.sources import Format
from tasks.spans import SpanKind

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("workspace/demo-shop.jsonl.gz")
PLACE = ROOT / "configs" / "demo.yaml"
COLUMNS = {"id": "query_id", "query": "query", "item": "product", "item_id": "product_id", "label": "bought"}
SPANS, ROWS_PER_SPAN, SEED = 4, 2000, 7


def main(accelerator: str = "cpu") -> None:
    """Run the demo in the current directory, and leave the Prefect server running to be looked at."""
    workspace = Path("workspace") / ("demo" if accelerator == "cpu" else f"demo-{accelerator}")
    show(str(workspace), f"accelerator={accelerator}")
    Console(width=None if sys.stdout.isatty() else 120).print(
        f"Look around:  .venv/bin/millrace status --workspace {workspace}   (also: releases, report, rollback)\n"
        f"TensorBoard:  .venv/bin/tensorboard --logdir {workspace}/runs\n"
        "Stop:         make down",
        highlight=False,
        soft_wrap=True,
    )


def show(workspace: str, *overrides: str) -> None:
    """The demo in any workspace, with settings over those of configs/demo.yaml."""
    began = time.monotonic()
    store = open_store(workspace)
    with ThreadPoolExecutor(max_workers=1) as background:
        server = background.submit(prefect_server.up, prefect_server.state_home())  # slow to start the first time
        _say(f"writing {SPANS} months of a small shop's searches to {SOURCE}")
        SOURCE.parent.mkdir(parents=True, exist_ok=True)
        write_shop(SOURCE, spans=SPANS, rows_per_span=ROWS_PER_SPAN, seed=SEED)
        summary = ingest(store, SOURCE, Format.jsonl, "searched_at", SpanKind.month, COLUMNS)
        _say(f"{summary.rows} rows in {len(summary.spans)} spans in {workspace}")
        _say("starting the Prefect server, where the runs can be watched")
        server.result()
    outputs = []
    for span in list_spans(store):
        _say(f"span {span.name}")
        outputs.append((span.name, running.run(store, span.name, PLACE, overrides, verbose=False)))
    _print_table(outputs, time.monotonic() - began)


def _print_table(outputs: list[tuple[str, RunOutput]], seconds: float) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="Millrace demo")
    for heading in ("span", "state"):
        table.add_column(heading)
    for heading in ("recall@10", "champion", "nDCG@10", "champion", "AUC", "release", "vectors", "stages", "seconds"):
        table.add_column(heading, justify="right")
    for span, output in outputs:
        report = output.report
        assert report is not None
        metrics, champion = report.metrics or {}, report.champion or {}
        cached = len(report.cached)
        table.add_row(
            span,
            report.state,
            _number(metrics.get("recall@10")),
            _number(champion.get("recall@10")),
            _number(metrics.get("ndcg@10")),
            _number(champion.get("ndcg@10")),
            _number(metrics.get("auc")),
            str(report.release or "-"),
            str(report.vectors or "-"),
            f"{cached} cached" if cached else f"{len(output.stages)} run",
            f"{report.seconds:.0f}",
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    url = outputs[-1][1].ui_url
    console.print(f"{seconds:.0f} s in all. The runs are in the Prefect UI: {url}", highlight=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(explain(error))
