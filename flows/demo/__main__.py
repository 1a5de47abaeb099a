"""`make demo`: four months of a synthetic shop, from raw rows to a search of released vectors.

The third month's export is broken, and the gates refuse its model; the corrected export passes. Safe to repeat:
finished stages show as cached. The steps are a user's: ingest, a run for each month, a backfill of the correction.
"""

import datetime as dt
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flows.cli.backfilling import BackfillOutput, backfill
from flows.cli.report import RunReport, report_of
from flows.cli.running import RunOutput, run
from flows.cli.serving import background_pages
from flows.cli.terminal import console
from flows.cli.terminal.ending import explain
from flows.cli.terminal.options import RunOptions
from flows.demo.search_log import month_start, write_shop
from flows.presentation.model import Cell, state, table
from flows.presentation.queries import OF_QUERIES, truly_seen
from flows.presentation.wording import NONE, count, now, number
from infra import prefect_server
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.runs import RunState
from tasks.contracts.spans import SpanKind, first_day
from tasks.data.ingest import IngestOptions, ingest
from tasks.data.new_versions import Known
from tasks.data.span_versions import latest_version, list_spans
from tasks.foundation.errors import HostError
from tasks.runs.run import Run, read_runs
from tasks.runs.snapshot import Snapshot

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("workspace/demo-shop.jsonl.gz")
CORRECTED = Path("workspace/demo-shop-corrected.jsonl.gz")
CONFIG_FILE = ROOT / "configs" / "demo.yaml"
COLUMNS = {"id": "query_id", "query": "query", "item": "product", "item_id": "product_id", "label": "bought"}
SPANS, ROWS_PER_SPAN, SEED = 4, 2000, 7
BROKEN = 2  # index of the month with a broken first export
REASON = "each row had the query of the row before"
QUERY = "waterproof+anorak"


def main(accelerator: str = "cpu") -> None:
    """Run the demo in the current directory. The Prefect server and the pages keep running afterwards."""
    workspace = Path("workspace") / ("demo" if accelerator == "cpu" else f"demo-{accelerator}")
    show(str(workspace), last_months(now()), f"accelerator={accelerator}")
    millrace = ".venv/bin/millrace"
    try:
        pages = background_pages.up(open_store(str(workspace)), prefect_server.state_home())
        console.say(f"Search it:     {pages}/?q={QUERY}", f"What changed:  {pages}/changes")
    except HostError as error:  # the port may be taken; the results are not affected
        console.say(f"{error}", f"Search it:     {millrace} serve --port 4281 --workspace {workspace}")
    around = f"export MILLRACE_WORKSPACE={workspace} MILLRACE_CONFIG={CONFIG_FILE.relative_to(ROOT)}"
    console.say(f"Look around:   {around}; {millrace} status; {millrace} freshness", "Stop:          make down")


def last_months(today: dt.datetime) -> dt.date:
    """Return the first of the demo's months; the last one is the month before today's."""
    return month_start(today, -SPANS).date()


def show(workspace: str, first: dt.date, *overrides: str) -> None:
    """Run the demo in a workspace, with settings over configs/demo.yaml, and print its table.

    Args:
        first: the first month; a workspace with the demo in it keeps its months.
    """
    began = time.monotonic()
    store = open_store(workspace)
    with ThreadPoolExecutor(max_workers=1) as background:
        server = background.submit(prefect_server.up, prefect_server.state_home())  # slow to start the first time
        console.note(f"writing the searches of a small shop over {SPANS} months to {CORRECTED.parent}")
        months = _ingest(store, first)
        console.note("starting the Prefect server, whose pages show the runs")
        prefect = server.result()
    reports = list(_reports(store, months, overrides))
    _print_table(reports)
    console.say(f"{time.monotonic() - began:.0f} s in all. The runs are in the Prefect UI: {prefect.ui_url}")
    console.say(*([f"It asks for a password: cat {prefect.password_file}"] if prefect.password_file else []), "")


def _ingest(store: Store, first: dt.date) -> list[str]:
    """Ingest the months up to the broken one, unless the correction is ingested; return the names of all months."""
    there = list_spans(store)
    first = first_day(there[0].name) if there else first
    write_shop(SOURCE, BROKEN + 1, ROWS_PER_SPAN, SEED, first, broken=BROKEN)
    write_shop(CORRECTED, SPANS, ROWS_PER_SPAN, SEED, first)
    months = [f"{month_start(first, month):%Y-%m}" for month in range(SPANS)]
    if (latest_version(store, months[BROKEN]) or 0) < 2:
        _ingest_file(store, SOURCE)
    return months


def _ingest_file(store: Store, source: Path) -> None:
    replace = IngestOptions(known=Known.replace)  # each export has all rows of its months
    summary = ingest(store, source, None, "searched_at", SpanKind.month, COLUMNS, options=replace)
    new = [f"{span.name} v{span.version}" for span in summary.spans if span.new]
    console.note(f"{source}: {summary.rows} rows; new: {', '.join(new) or 'nothing'}")


def _reports(store: Store, months: Sequence[str], overrides: Sequence[str]) -> Iterator[RunReport]:
    """Yield the report of each run: the months before the broken one, it, its correction, and the months after it."""
    broken = months[BROKEN]
    for month in months[:BROKEN]:
        yield _run(store, month, overrides)
    if latest_version(store, broken) == 1:
        yield _run(store, broken, overrides)
    else:  # a repeated demo, whose lineage has continued from the correction
        runs = read_runs(Snapshot(store), ())
        yield report_of(next(run for run in runs if (run.span, run.state) == (broken, RunState.REJECTED)), cached=())
    console.note(f"the export of {broken} is corrected, so it is ingested and trained again: {REASON}")
    _ingest_file(store, CORRECTED)
    done = backfill(RunOptions(store, CONFIG_FILE, overrides), broken, broken, parallel=1, reason=REASON)
    assert isinstance(done, BackfillOutput)
    corrected = done.backfill.spans[-1]
    assert corrected.run_key is not None
    yield report_of(Run(Snapshot(store), corrected.run_key), cached=())
    for month in months[BROKEN + 1 :]:
        yield _run(store, month, overrides)


def _run(store: Store, month: str, overrides: Sequence[str]) -> RunReport:
    console.note(f"span {month}")
    done = run(RunOptions(store, CONFIG_FILE, overrides), month)
    assert isinstance(done, RunOutput)
    assert done.report is not None
    return done.report


def _print_table(reports: Sequence[RunReport]) -> None:
    recalls = [f">{name}" for queries in OF_QUERIES.values() for name in (queries, "champion")]
    columns = ("span", "state", *recalls, ">release", ">vectors", ">seconds")
    rows: list[tuple[Cell | str, ...]] = []
    for place, report in enumerate(reports):
        both = (report.by_queries, report.champion_by_queries)
        found = [each.parts[part].main if each else None for part in OF_QUERIES for each in both]
        rows.append(
            (
                f"{report.span} v2" if place == BROKEN + 1 else report.span,
                state(report.state),
                *map(number, found),
                str(report.release or NONE),
                count(report.vectors) if report.vectors else NONE,
                count(report.seconds),
            )
        )
    console.say("Recall@10 of held-out queries: unseen, of which training has no row, and seen; beside the champion's.")
    console.show([table("", columns, rows)])
    console.say(
        "",
        *(truly_seen(last) if (last := reports[-1].by_queries) else ()),
        _judged(reports[BROKEN]),
        f"Its export was broken: {REASON}. The champion stayed released; new items waited for the correction.",
        _judged(reports[-1]),
    )


def _judged(report: RunReport) -> str:
    """Return a sentence with a run's result and the verdicts of its first gate, on unseen and on seen queries."""
    said = " ".join(verdict.sentence for verdict in report.verdicts[: len(OF_QUERIES)])
    return f"{report.span} was {report.state.lower()}: {said}"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(explain(error))
