"""How soon a killed training of the demo's model goes on, and how long trainings wait for their checkpoints.

    python -m tests.benchmarks.resume [--rounds 5] [--epochs 320]

A month of the demo's shop is ingested and validated; its training is killed after a checkpoint. Then its worker is
started again and again, on copies of what was left: the seconds count from the request for its process to the end of
its first new step. Last, whole trainings with different intervals say what their checkpoints cost them. Prints tables
as Markdown; a figure beyond its limit is marked, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from configs.load import load_config
from configs.schema.training import AUTO
from flows.demo.__main__ import COLUMNS, CONFIG_FILE, ROWS_PER_SPAN, SEED
from flows.demo.search_log import FIRST_MONTH, write_shop
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import Inputs, JobSpec, TrainInputs, ValidateInputs
from tasks.contracts.outcomes import Phases, TrainOutcome, ValidateOutcome
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.spans import SpanKind
from tasks.contracts.stages import Stage
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.foundation.errors import FailureClass
from tasks.runs import ledger
from tasks.runs.results import read_result
from tasks.worker.__main__ import STARTED_AT

O = TypeVar("O", TrainOutcome, ValidateOutcome)  # noqa: E741

RUN, SPAN = "resume", SpanRef(name=f"{FIRST_MONTH:%Y-%m}", version=1)
FIRST_STEP_SECONDS, STALLED = 10.0, 0.01  # limits
FAILURES, FAILURE_SECONDS = 5, 60.0  # on record, and between them, of the training that fails often
REST = "the interpreter, the door, the rest"


def main() -> int:
    """Measure and print; return 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=320, help="of the trainings whose checkpoints are measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-resume-") as name:
        folder = Path(name)
        inputs = TrainInputs(rows=(_validated(folder / "valid", folder),), history=(), parent=None)
        begun, soon = _copy(folder, "begun"), "train.checkpoint_every=20 steps"
        _work(begun, inputs, "killed", soon)
        starts = []
        for number in range(arguments.rounds):
            again = shutil.copytree(begun, folder / f"again-{number}")
            starts.append(json.loads(_work(again, inputs, "watched", soon).splitlines()[-1]))
        good = _print_starts(starts)
        trained: dict[str, TrainOutcome] = {}
        for number, (every, failing) in enumerate((("50 steps", False), (AUTO, False), (AUTO, True))):
            workspace = _copy(folder, f"trained-{number}")
            if failing:
                _record_failures(DirectoryStore(workspace), inputs)
            _work(workspace, inputs, "whole", f"train.epochs={arguments.epochs}", f"train.checkpoint_every={every}")
            named = f"{every}, after a failure each {FAILURE_SECONDS:.0f} s" if failing else every
            trained[named] = _outcome(workspace, Stage.train, TrainOutcome)
    return 0 if _print_stalls(trained) and good else 1


def _validated(workspace: Path, folder: Path) -> RowsRef:
    """Write, ingest and validate the first month of the demo's shop."""
    write_shop(folder / "shop.jsonl.gz", 1, ROWS_PER_SPAN, SEED)
    store = DirectoryStore(workspace)
    ingest(store, folder / "shop.jsonl.gz", Format.jsonl, "searched_at", SpanKind.month, COLUMNS)
    _work(workspace, ValidateInputs(window=(SPAN,), history=(), feeds=(), bases=()), "whole")
    return _outcome(workspace, Stage.validate, ValidateOutcome).rows[0]


def _copy(folder: Path, name: str) -> Path:
    return shutil.copytree(folder / "valid", folder / name)


def _spec(workspace: Path, inputs: Inputs, attempt: int, *overrides: str) -> JobSpec:
    return JobSpec(
        run_key=RUN, span=SPAN, attempt=attempt, submitted_as=attempt, workspace=str(workspace), workers=1,
        config=load_config(CONFIG_FILE, overrides), inputs=inputs,
    )  # fmt: skip


def _work(workspace: Path, inputs: Inputs, how: str, *overrides: str) -> str:
    """Run a stage in a worker of its own, as tests/benchmarks/started.py says; return what it printed."""
    spec = _spec(workspace, inputs, FAILURES + 1, *overrides)
    key = f"{spec.attempt_prefix}/spec.json"
    DirectoryStore(workspace).write(key, spec.to_json())
    command = [sys.executable, "-m", "tests.benchmarks.started", how, spec.stage.value, "--spec", f"{workspace}#{key}"]
    environment = os.environ | {STARTED_AT: repr(time.time())}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode and how != "killed":
        raise RuntimeError(f"{spec.stage} ended with exit code {ended.returncode}: {ended.stdout}")
    return ended.stdout


def _outcome(workspace: Path, stage: Stage, kind: type[O]) -> O:
    result = read_result(DirectoryStore(workspace), RUN, stage)
    assert result is not None
    assert isinstance(result.outcome, kind)
    return result.outcome


def _record_failures(store: DirectoryStore, inputs: TrainInputs) -> None:
    for attempt in range(1, FAILURES + 1):
        spec = _spec(Path(store.uri), inputs, attempt)
        begun = ledger.OpenAttempt.begin(store, spec).record
        seconds = Phases(lost=FAILURE_SECONDS)
        changes = {"failure": FailureClass.HOST, "ended_at": begun.started_at, "seconds": seconds}
        store.write(f"{spec.attempt_prefix}/ledger.json", begun.model_copy(update=changes).to_json())


def _print_starts(found: list[dict[str, Any]]) -> bool:
    """Print where the seconds went, medians of the rounds; return whether the limit was met."""
    whole = np.median([one["whole"] for one in found], axis=0)
    parts = {part: np.median([one["parts"][part] for one in found], axis=0) for part in found[0]["parts"]}
    parts[REST] = whole - sum(parts.values())
    print(f"| until step {found[0]['step']} is done | seconds | CPU seconds | share of these |\n|---|---:|---:|---:|")
    for part, (seconds, cpu) in parts.items():
        print(f"| {part} | {seconds:.2f} | {cpu:.2f} | {cpu / whole[1]:.0%} |")
    mark = "" if whole[0] < FIRST_STEP_SECONDS else " (missed)"
    least, most = (f"{pick(one['whole'][0] for one in found):.2f}" for pick in (min, max))
    print(
        f"| in all, {len(found)} starts, {least} to {most} s | {whole[0]:.2f}{mark} | {whole[1]:.2f} | 100% |\n",
        flush=True,
    )
    return not mark


def _print_stalls(trained: dict[str, TrainOutcome]) -> bool:
    """Print what checkpoints cost the trainings; return whether `auto` met the limit."""
    print(
        "| checkpoint every | interval | written | training, s | stalled, s | share |\n|---|---:|---:|---:|---:|---:|"
    )
    good = True
    for name, outcome in trained.items():
        use = outcome.checkpoints
        assert use is not None
        mark = " (missed)" if use.stalled_share >= STALLED and use.every == AUTO else ""
        good = good and not mark
        interval = "" if use.seconds is None else f"{use.seconds:.1f} s"
        print(
            f"| {name} | {interval} | {use.written} | {use.training_seconds:.1f} | {use.stalled_seconds:.3f} "
            f"| {use.stalled_share:.2%}{mark} |"
        )
    return good


if __name__ == "__main__":
    sys.exit(main())
