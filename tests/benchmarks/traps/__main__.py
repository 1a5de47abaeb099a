"""`make traps`: wrong and honest months through the real pipeline, after four months of the demo's shop; docs/traps.md.

    python -m tests.benchmarks.traps [--folder workspace/traps] [--only NAME ...] [--jobs 2] [--list]

Each month is ingested into a copy of one workspace, or as the first of an empty one, and run by the command, with
real workers and the settings of configs/demo.yaml. What came of it is kept in the folder, and a month that is there is
not run again: delete its file after a change of code, or name it. The page is written once all are there; the exit code
is 1 if a wrong month was released in silence, or an honest one refused.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from flows.demo.search_log import Row, month_start, write_shop
from infra.store.directory import DirectoryStore
from infra.store.manifest import open_files, read_manifest
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import DATA_REPORT
from tasks.data.layers import open_layers
from tasks.data.rows import VECTORS_KIND
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.runs import releases
from tasks.runs.plan import planned_runs
from tasks.runs.results import read_judgement, read_result
from tests.benchmarks.traps.months import BEFORE, FIRST, MONTH, MONTHS, ROWS, SEED, clean_rows
from tests.benchmarks.traps.months import rows_of as month_rows
from tests.benchmarks.traps.page import PAGE, Failed, Outcome, page, read, rows_of, write

MILLRACE = Path(sys.executable).with_name("millrace")
CONFIG = "configs/demo.yaml"
COLUMNS = "query=query,item=product,id=query_id,item_id=product_id,label=bought"
QUERIES = 400  # clean ones that the current release is searched with
TOP = 10


def main() -> int:
    """Run the months that are not done; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("workspace/traps"))
    parser.add_argument("--only", choices=MONTHS, nargs="+", help="some months, again if they are done")
    parser.add_argument("--jobs", type=int, default=1, help="months at once")
    parser.add_argument("--list", action="store_true", help="print the names of the months that are not done")
    options = parser.parse_args()
    left = [name for name in MONTHS if not _kept(options.folder, name).exists()]
    if options.list:
        print("\n".join(left))
        return 0
    if options.only:
        left = list(options.only)
    before = _before(options.folder)

    def run(name: str) -> None:
        outcome = run_month(options.folder, before, name)
        print(f"{name}: {outcome.state}; {'; '.join(each.name for each in outcome.failed)}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, left))
    if options.only:
        return 0
    found = {
        name: Outcome.model_validate_json(_kept(options.folder, name).read_text(encoding="utf-8")) for name in MONTHS
    }
    write(rows_of(found, (name for name, month in MONTHS.items() if month.wrong)))
    PAGE.write_text(page())
    return 0 if all(row.holds for row in read()) else 1


def run_month(folder: Path, before: Path, name: str) -> Outcome:
    """Ingest the month into a copy of the workspace `before`, or into none, run it, and keep what came of it."""
    place = folder / "now" / _kept(folder, name).stem
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if not MONTHS[name].first:
        shutil.copytree(before, place / "workspace")
    store = DirectoryStore(place / "workspace")
    earlier = set(planned_runs(store))
    source = place / "month.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in MONTHS[name].change(month_rows(BEFORE))))
    done = _millrace(folder, store, "ingest", "--source", str(source), *_FORM, check=False)
    if done.returncode:
        outcome = _not_ingested(store, done)
    else:
        done = _millrace(folder, store, "run", "--config", CONFIG, "--span", MONTH, "--json", check=False)
        (key,) = [e for e in planned_runs(store) if e not in earlier and not e.startswith("refresh")] or [""]
        outcome = _outcome(store, key, done)
    _kept(folder, name).write_text(outcome.to_json().decode())
    shutil.rmtree(place)
    return outcome


def _before(folder: Path) -> Path:
    """Return the workspace with the months before, made unless it is there."""
    workspace = folder / "before"
    store = DirectoryStore(workspace)
    current = releases.current(store) if workspace.exists() else None
    if current is None or current.number < BEFORE:
        shutil.rmtree(workspace, ignore_errors=True)
        source = folder / "before.jsonl.gz"
        write_shop(source, BEFORE, ROWS, SEED, FIRST)
        _millrace(folder, store, "ingest", "--source", str(source), *_FORM)
        for month in range(BEFORE):
            span = f"{month_start(FIRST, month):%Y-%m}"
            _millrace(folder, store, "run", "--config", CONFIG, "--span", span)
    return workspace


_FORM = ("--format", "jsonl", "--time-column", "searched_at", "--span", "month", "--map", COLUMNS)


def _millrace(folder: Path, store: DirectoryStore, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    environment = os.environ | {"PREFECT_HOME": str((folder / "prefect").resolve()), "MILLRACE_WORKSPACE": store.uri}
    done = subprocess.run([str(MILLRACE), *arguments], env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"millrace {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done


def _not_ingested(store: DirectoryStore, done: subprocess.CompletedProcess) -> Outcome:
    """Return the outcome of a month that ingest refused, by its last line."""
    if done.returncode != POLICIES[FailureClass.DATA].exit_code:
        sys.exit(f"ingest failed:\n{done.stderr[-3000:]}")
    said = done.stderr.strip().splitlines()[-1]
    return _with_release(store, "Refused by ingest", [Failed(name="ingest", severity="critical", sentence=said)])


def _outcome(store: DirectoryStore, run_key: str, done: subprocess.CompletedProcess) -> Outcome:
    result = read_result(store, run_key, Stage.validate) if run_key else None
    if result is not None and isinstance(result.outcome, ValidateOutcome):
        checks = result.outcome.checks
        state = json.loads(done.stdout)["state"] if done.stdout.startswith("{") else f"Failed, {done.returncode}"
    elif run_key and store.exists(report := DATA_REPORT.key(run=run_key, attempt=1)):
        checks = ValidateOutcome.model_validate_json(store.read(report)).checks
        state = "Stopped"
    else:
        sys.exit(f"the run has no checks:\n{done.stderr[-3000:]}")
    if state.startswith("Failed"):
        sys.exit(f"the run failed:\n{done.stderr[-3000:]}")
    judged = read_judgement(store, run_key)
    failed = [Failed(name=e.name, severity=e.severity, sentence=e.sentence) for e in checks if not e.passed]
    failed += [
        Failed(name=f"gate {v.metric}{f', {v.where}' if v.where else ''}{f' against {v.against}' if v.against else ''}",
               severity=v.severity, sentence=v.sentence)
        for v in (judged.all_verdicts if judged else ()) if v.answer == "fail"
    ]  # fmt: skip
    auc = judged.outcome.challenger.get("auc") if judged is not None else None
    if judged is not None and auc is not None and judged.auc_by_chance is not None and auc <= judged.auc_by_chance:
        failed.append(Failed(name="head has learnt", severity="warning", sentence="as the page of evaluate says"))
    return _with_release(store, state, failed)


def _with_release(store: DirectoryStore, state: str, failed: Sequence[Failed]) -> Outcome:
    current = releases.current(store)
    recall = None
    if current is not None:  # mostly the release before the month, measured once
        recall = _recalls.get(current.vectors_prefix)
        recall = _recalls[current.vectors_prefix] = _recall(store, current) if recall is None else recall
    return Outcome(state=state, failed=tuple(failed), vectors=current.vectors if current else 0, recall=recall)


_recalls: dict[str, float] = {}  # by the prefix of the vectors


def _recall(store: DirectoryStore, release: Release) -> float:
    """Return recall@10 of clean queries by the ids of the products, over all vectors of a release."""
    from tasks.worker.search.consumer import Consumer

    rows: list[Row] = clean_rows()[:QUERIES]
    table = pa.table({name: [row[name] for row in rows] for name in ("query", "locale")})
    queries = Consumer(store.local(release.model_prefix)).queries(table)
    manifest = read_manifest(store, release.vectors_prefix)
    parts = open_layers(manifest, open_files(store, release.vectors_prefix, VECTORS_KIND))
    items = pa.concat_tables([part.table(["item_id", "vector"]) for part in parts.values()])
    vectors = np.stack(items["vector"].to_numpy()).astype(np.float32)
    nearest = np.argpartition(-(queries @ vectors.T), TOP, axis=1)[:, :TOP]
    ids = np.array(items["item_id"].to_pylist(), dtype=object)[nearest]
    return float(np.mean([row["product_id"] in found for row, found in zip(rows, ids, strict=True)]))


def _kept(folder: Path, name: str) -> Path:
    results = folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    return results / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.json"


if __name__ == "__main__":
    sys.exit(main())
