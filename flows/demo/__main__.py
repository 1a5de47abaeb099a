"""`make demo`: four spans of an invented shop, from raw rows to released vectors, and a table of the results.

Safe to repeat: finished stages show as cached. It works as a user does: ingest, then one run for each span.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flows.cli.results.outputs import RunOutput
from flows.cli.terminal import console
from flows.cli.terminal.errors import explain
from flows.cli.work import running
from flows.demo.shop import write_shop
from flows.presentation.wording import NONE, count, number
from infra import prefect_server
from infra.store.factory import open_store
from tasks.contracts.spans import SpanKind
from tasks.data.ingest import ingest
from tasks.data.sources import Format
from tasks.data.span_versions import list_spans

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("workspace/demo-shop.jsonl.gz")
CONFIG_FILE = ROOT / "configs" / "demo.yaml"
COLUMNS = {"id": "query_id", "query": "query", "item": "product", "item_id": "product_id", "label": "bought"}
SPANS, ROWS_PER_SPAN, SEED = 4, 2000, 7


def main(accelerator: str = "cpu") -> None:
    """Run the demo in the current directory. The Prefect server keeps running, for a look at its pages."""
    workspace = Path("workspace") / ("demo" if accelerator == "cpu" else f"demo-{accelerator}")
    show(str(workspace), f"accelerator={accelerator}")
    console.say(
        f'Search it:    .venv/bin/millrace search "waterproof anorak" --workspace {workspace}',
        f"Look around:  .venv/bin/millrace status --workspace {workspace}   (also: releases, report, rollback)",
        f"TensorBoard:  .venv/bin/tensorboard --logdir {workspace}/runs",
        "Stop:         make down",
    )


def show(workspace: str, *overrides: str) -> None:
    """Run the demo in a workspace, with settings over those of configs/demo.yaml, and print its table."""
    began = time.monotonic()
    store = open_store(workspace)
    with ThreadPoolExecutor(max_workers=1) as background:
        server = background.submit(prefect_server.up, prefect_server.state_home())  # slow to start the first time
        console.note(f"writing the searches of a small shop over {SPANS} months to {SOURCE}")
        SOURCE.parent.mkdir(parents=True, exist_ok=True)
        write_shop(SOURCE, spans=SPANS, rows_per_span=ROWS_PER_SPAN, seed=SEED)
        summary = ingest(store, SOURCE, Format.jsonl, "searched_at", SpanKind.month, COLUMNS)
        console.note(f"{summary.rows} rows in {len(summary.spans)} spans in {workspace}")
        console.note("starting the Prefect server, whose pages show the runs")
        server.result()
    outputs = []
    for span in list_spans(store):
        console.note(f"span {span.name}")
        outputs.append((span.name, running.run(store, span.name, CONFIG_FILE, overrides, verbose=False)))
    _print_table(outputs, time.monotonic() - began)


def _print_table(outputs: list[tuple[str, RunOutput]], seconds: float) -> None:
    columns = ("span", "state", ">recall@10", ">champion", ">nDCG@10", ">champion", ">AUC", ">release", ">vectors",
               ">stages", ">seconds")  # fmt: skip
    rows = []
    for span, output in outputs:
        report = output.report
        assert report is not None
        metrics, champion = report.metrics or {}, report.champion or {}
        cached = len(report.cached)
        rows.append(
            (
                span,
                report.state,
                number(metrics.get("recall@10")),
                number(champion.get("recall@10")),
                number(metrics.get("ndcg@10")),
                number(champion.get("ndcg@10")),
                number(metrics.get("auc")),
                str(report.release or NONE),
                count(report.vectors) if report.vectors else NONE,
                f"{cached} cached" if cached else f"{len(output.stages)} run",
                count(report.seconds),
            )
        )
    console.show_table(columns, rows)
    url = outputs[-1][1].ui_url
    console.say(f"{seconds:.0f} s in all. The runs are in the Prefect UI: {url}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(explain(error))
