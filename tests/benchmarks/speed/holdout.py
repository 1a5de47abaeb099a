"""Whether an evaluation grows with the history: seconds and peak memory of evaluate over few spans and over many.

    python -m tests.benchmarks.speed.holdout [--few 8] [--many 104] [--rows 1000] [--share 0.1] [--max-rows 400]

Spans are made up and go through what validate writes of them; a tiny model, trained for a few steps, is measured as
challenger and champion. Each evaluation is a process of its own, and both sizes take turns. The items are the same few
hundred in all spans, so that the number of spans is the only difference. The sample's recall is compared with that of
all holdout rows of the many spans.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.references import RowsRef
from tasks.worker import evaluate
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.support.workspace.jobs import (
    COLOURS,
    THINGS,
    change_rows,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

ITEMS = 400
TURNS = 2


def main() -> None:
    """Make the spans, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, default in (("few", 8), ("many", 104), ("rows", 1000), ("max-rows", 400)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--share", type=float, default=0.1)
    add_keep(parser)
    parser.add_argument("--evaluate", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.evaluate:
        print(json.dumps(measured(*arguments.evaluate)))
        return
    with tempfile.TemporaryDirectory(prefix="millrace-holdout-") as folder:
        given = made(Path(folder), arguments.many, arguments.rows, arguments.share)
        runs: dict[int, list[dict[str, Any]]] = {arguments.few: [], arguments.many: []}
        for _ in range(TURNS):
            for spans, found in runs.items():
                found.append(apart(given, spans, arguments.max_rows, arguments.share))
        everything = apart(given, arguments.many, 10**9, arguments.share)
    with measuring("holdout", arguments.keep) as sheet:
        add_table(sheet, runs, everything)


def made(folder: Path, spans: int, rows: int, share: float) -> Path:
    """Write a workspace with validated spans and a trained model; return the file with the inputs of all spans."""
    config = config_of(1, share)
    store, first = make_workspace(folder, rows=rows, distinct=ITEMS)
    model = model_of(train_model(store, config, first))
    refs = []
    for number in range(spans):
        name = f"{2000 + number // 12}-{number % 12 + 1:02d}"
        refs += with_held(store, config, change_rows(store, first, name, asked_anew(number), folder))
    catalogue = make_catalogue(store, config, first)
    inputs = EvaluateInputs(rows=tuple(refs), catalogue=catalogue, challenger=model, champion=model)
    file = folder / "inputs.json"
    file.write_bytes(inputs.to_json())
    return file


def asked_anew(number: int) -> Any:
    """Return a change that gives the rows of a span their own ids, and queries of which a tenth is in every span."""

    def change(table: pa.Table) -> pa.Table:
        items = table["item"].to_pylist()
        queries = [
            f"{item}, please"
            if row % 10 == 0
            else f"{item} for {COLOURS[(row + number) % 7]} {THINGS[row % 10]} {number}"
            for row, item in enumerate(items)
        ]
        ids = [f"{number}-{row}" for row in range(len(items))]
        for name, values in (("query", queries), ("row_id", ids)):
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
        return table

    return change


def config_of(max_rows: int, share: float) -> Any:
    """Return the settings of the tiny model."""
    return tiny_config(f"evaluate.max_rows={max_rows}", f"evaluate.holdout_share={share!r}", "train.epochs=1")


def apart(given: Path, spans: int, max_rows: int, share: float) -> dict[str, Any]:
    """Evaluate over the newest `spans` in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.speed.holdout", "--share", repr(share)]
    command += ["--evaluate", str(given), str(spans), str(max_rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(given: str, spans: str, max_rows: str) -> dict[str, Any]:
    """Return what an evaluation took, and found."""
    share = float(sys.argv[sys.argv.index("--share") + 1])
    store = DirectoryStore(Path(given).parent / "workspace")
    inputs = EvaluateInputs.model_validate_json(Path(given).read_bytes())
    rows: tuple[RowsRef, ...] = inputs.rows[-int(spans) :]
    job = make_job(
        store, config_of(int(max_rows), share), inputs.model_copy(update={"rows": rows}), f"{spans}-{max_rows}"
    )
    began, cpu = time.monotonic(), time.process_time()
    outcome = evaluate.run(job)
    parts = outcome.by_queries[Role.challenger].parts.values()
    return {
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "rows": outcome.holdout_rows,
        "there": outcome.holdout_there,
        "recall": [part.main for part in parts],
        "bounds": [(part.low, part.high) for part in parts],
    }


def add_table(sheet: Sheet, runs: dict[int, list[dict[str, Any]]], everything: dict[str, Any]) -> None:
    """Add the medians, their ratio, and the sample next to all rows."""
    best = {}
    for spans, found in runs.items():
        best[spans] = found[0] | {key: min(each[key] for each in found) for key in ("seconds", "cpu", "mib")}
    counted = ("there", "rows", "seconds", "cpu", "mib")
    sheet.table(
        "spans", "holdout rows", "measured", "seconds", "CPU seconds", "peak MiB", "recall@10, unseen queries", "seen"
    )
    for spans, each in best.items():
        sheet.row(spans, *(each[key] for key in counted), *recall_of(each))
    few, many = best.values()
    sheet.row("ratio", *(many[key] / few[key] for key in counted), "", "")
    sheet.row("all rows", *(everything[key] for key in counted), *recall_of(everything))


def recall_of(run: dict[str, Any]) -> list[str]:
    """Return recall@10 on unseen and on seen queries."""
    found = zip(run["recall"], run["bounds"], strict=True)
    return [f"{value:.4f} ({low:.4f} to {high:.4f})" for value, (low, high) in found]


if __name__ == "__main__":
    main()
