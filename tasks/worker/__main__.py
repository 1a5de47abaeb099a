"""The one door into the worker plane: `python -m tasks.worker <stage> --spec URI`.

The same command runs in a local process, under torchrun and in a Batch container. It writes `result.json` last,
or `error-rank<n>.json` and the exit code of the failure class. It never talks to Prefect.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import time

from configs.load import config_hash
from infra.store import Store, open_store
from tasks.contracts import Chore, JobSpec, Outcome, Stage, StageResult
from tasks.errors import POLICIES, classify
from tasks.worker.job import Job, PhaseClock, Rank, read_spec
from tasks.worker.parent import die_with_the_runner
from tasks.worker.stop import terminate
from tasks.worker.threads import bind_threads

# Libraries of the worker plane never reach out and never draw bars into a log.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "USE_TORCH_XLA": "0",  # transformers has no use for it here, and importing it decides what device it will be
}
STARTED_AT = "MILLRACE_STARTED_AT"  # set by the runner: seconds since the epoch when the process was asked for
APART = {Stage.infer}  # its workers never meet; elsewhere all have the outcome, and rank 0 tells it


def main() -> int:
    """Run one stage or chore; returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker", description=__doc__)
    parser.add_argument("stage", choices=[work.value for work in (*Stage, *Chore)])
    parser.add_argument("--spec", required=True, help="WORKSPACE#KEY of the job spec")
    arguments = parser.parse_args()
    os.environ.update(QUIET)
    die_with_the_runner()
    bind_threads()
    _write_whole_lines()
    signal.signal(signal.SIGTERM, terminate)
    now = time.time()
    clock = PhaseClock(booting=max(0.0, now - float(os.environ.get(STARTED_AT, now))))
    rank = Rank.from_environment()

    workspace, _, key = arguments.spec.partition("#")
    try:
        store = open_store(workspace)
        spec = read_spec(store, key, arguments.stage)
    except Exception as error:  # without a spec there is no place to write an error file to
        print(f"{classify(error)}: {error}", file=sys.stderr)
        return POLICIES[classify(error)].exit_code
    job = Job(spec, store, rank, clock)
    try:
        stage = importlib.import_module(f"tasks.worker.{spec.stage.name}")  # the name: a chore's value has a hyphen
        outcome: Outcome | None = stage.run(job)  # None: another worker tells it, or nobody inside a tool
        if outcome is not None and (rank.is_main or spec.stage in APART):
            _write_result(store, spec, outcome, clock)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyhow, and should say why
        return job.fail(error)
    return 0


def _write_result(store: Store, spec: JobSpec, outcome: Outcome, clock: PhaseClock) -> None:
    result = StageResult(
        run_key=spec.run_key,
        attempt=spec.attempt,
        config_sha256=config_hash(spec.config),
        phases=clock.read(),
        outcome=outcome,
    )
    store.write(f"{spec.stage_prefix}/result.json", result.to_json())


def _write_whole_lines() -> None:
    """Let a line leave this process at once and in one piece: other workers may write to the same pipe."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


if __name__ == "__main__":
    # os._exit: libraries' threads (gloo, TensorBoard) must not hold a finished worker back, nor turn a class's
    # exit code into an abort on the way out.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
