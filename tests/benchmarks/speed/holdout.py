"""Whether an evaluation grows with the history: seconds and peak memory of evaluate over few spans and over many.

    python -m tests.benchmarks.speed.holdout [--few 8] [--many 104] [--rows 10000] [--max-rows 20000] [--keep]

Spans are made up and go through what validate writes of them; a tiny model, trained for a few steps, is measured as
challenger and champion. Each evaluation is a process of its own, and both sizes take turns; the least of each count.
The items are the same few hundred in all spans, so that the number of spans is the only difference. The sample's recall
is compared with that of all holdout rows of the many spans.
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

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import EvaluateInputs
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
SHARE = 0.25  # of a span's rows that are held out
TURNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, default in (("few", 8), ("many", 104), ("rows", 10_000), ("max-rows", 20_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    add_keep(parser)
    parser.add_argument("--evaluate", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.evaluate:
        print(json.dumps(measured(*arguments.evaluate)))
        return
    with tempfile.TemporaryDirectory(prefix="millrace-holdout-") as folder:
        given = made(Path(folder), arguments.many, arguments.rows)
        runs: dict[int, list[dict[str, Any]]] = {arguments.few: [], arguments.many: []}
        for _ in range(TURNS):
            for spans, found in runs.items():
                found.append(apart(given, spans, arguments.max_rows))
        everything = apart(given, arguments.many, 10**9)
    with measuring("holdout", arguments.keep) as sheet:
        add_table(sheet, runs, everything)


def made(folder: Path, spans: int, rows: int) -> Path:
    """Write a workspace with validated spans and a trained model; return the file with the inputs of all spans."""
    config = config_of(1)
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


def config_of(max_rows: int) -> Config:
    """Return the settings of the tiny model."""
    return tiny_config(f"evaluate.max_rows={max_rows}", f"evaluate.holdout_share={SHARE}", "train.epochs=1")


def apart(given: Path, spans: int, max_rows: int) -> dict[str, Any]:
    """Evaluate over the newest `spans` in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.speed.holdout"]
    command += ["--evaluate", str(given), str(spans), str(max_rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(given: str, spans: str, max_rows: str) -> dict[str, Any]:
    """Return what an evaluation took, and found."""
    store = DirectoryStore(Path(given).parent / "workspace")
    inputs = EvaluateInputs.model_validate_json(Path(given).read_bytes())
    inputs = inputs.model_copy(update={"rows": inputs.rows[-int(spans) :]})
    job = make_job(store, config_of(int(max_rows)), inputs, f"{spans}-{max_rows}")
    began, cpu = time.monotonic(), time.process_time()
    outcome = evaluate.run(job)
    parts = outcome.by_queries[Role.challenger].parts.values()
    return {
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "rows": outcome.holdout_rows,
        "there": outcome.holdout_there,
        "recall": [f"{part.main:.4f} ({part.low:.4f} to {part.high:.4f})" for part in parts],
    }


def add_table(sheet: Sheet, runs: dict[int, list[dict[str, Any]]], everything: dict[str, Any]) -> None:
    """Add the least of all turns, their ratio, and the sample next to all rows."""
    counted = ("there", "rows", "seconds", "cpu", "mib")
    sheet.table(
        "spans", "holdout rows", "measured", "seconds", "CPU seconds", "peak MiB", "recall@10, unseen queries", "seen"
    )
    least = {spans: [min(each[key] for each in found) for key in counted] for spans, found in runs.items()}
    for spans, values in least.items():
        sheet.row(spans, *values, *runs[spans][0]["recall"])
    sheet.row("ratio", *(many / few for few, many in zip(*least.values(), strict=True)), "", "")
    sheet.row("all rows", *(everything[key] for key in counted), *everything["recall"])


if __name__ == "__main__":
    main()
