"""Seconds, processor time and memory of validate for one first span, by its number of rows.

    python -m tests.benchmarks.speed.validate [--rows 200000 5000000] [--keep]

The rows are made up, as for `make scale`: five for each item, three in four of them pairs. The stage runs as in a
pipeline, without Prefect: near-duplicates, holdout, suites, profile, keys, and the catalogue.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.planning.next_run import plan_run
from tasks.validate import validate
from tests.benchmarks.figures import add_keep, measuring
from tests.benchmarks.scale_input import ROW_COLUMNS, write_rows

# A made-up query has words of its item.
CONFIG = load_config(None, ("validate.signs.query_of_item.stop=null",))
SPAN = "2026-03"
MOST_GROWTH, LEAST_USE, MOST_MIB = 1.1, 0.8, 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 5_000_000])
    add_keep(parser)
    asked = parser.parse_args()
    cores, first = len(os.sched_getaffinity(0)), None
    with measuring("validate", asked.keep) as sheet:
        sheet.table("rows of the span", "seconds", "microseconds a row", "cores used", "peak memory, MiB")
        for rows in sorted(asked.rows):  # the kernel keeps the peak of all children together
            with tempfile.TemporaryDirectory(prefix="millrace-validate-") as folder:
                seconds, busy, memory = measure(Path(folder), rows)
            each = seconds / rows * 1e6
            first = first or each
            good = each <= MOST_GROWTH * first and busy >= LEAST_USE * cores and memory <= MOST_MIB
            sheet.row(rows, seconds, each, busy, memory, good=good)


def measure(folder: Path, rows: int) -> tuple[float, float, float]:
    """Return the seconds, the cores used on average, and the peak memory in MiB of a stage over `rows` rows."""
    store = DirectoryStore(folder / "workspace")
    columns = {name: column for name, _, column in (pair.partition("=") for pair in ROW_COLUMNS.split(","))}
    ingest(store, write_rows(folder / "rows.jsonl", rows), Format.jsonl, "searched_at", SpanKind.month, columns)
    process = get_context("spawn").Process(target=_validate, args=(folder,))
    before, began = _children(), time.monotonic()
    process.start()
    process.join()
    seconds, after = time.monotonic() - began, _children()
    if process.exitcode:
        raise SystemExit(f"validate of {rows:,} rows failed")
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, busy / seconds, after.ru_maxrss / 1024


def _children() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_CHILDREN)


def _validate(folder: Path) -> None:
    store = DirectoryStore(folder / "workspace")
    validate.fn(plan_run(store, CONFIG, SPAN))


if __name__ == "__main__":
    main()
