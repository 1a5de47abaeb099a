"""The one door into the worker plane: `python -m tasks.worker <stage> --spec URI`.

The same command runs in a local process, under torchrun and in a Batch container. It writes `result.json` last,
or `error-rank<r>.json` and the exit code of the failure class. It never talks to Prefect.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import signal
import sys
import time
import traceback

from pydantic import ValidationError

from configs.load import config_hash
from infra.store import Store, open_store
from tasks.contracts import Chore, JobSpec, Outcome, Stage, StageResult, WorkerFailure
from tasks.errors import POLICIES, ConfigError, StageError, classify
from tasks.worker.job import Job, PhaseClock, Rank
from tasks.worker.neuron.errors import classify_runtime_log

# Libraries of the worker plane never reach out and never draw bars into a log.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "USE_TORCH_XLA": "0",  # transformers has no use for it here, and importing it decides what device it will be
}
STARTED_AT = "MILLRACE_STARTED_AT"  # set by the runner: seconds since the epoch when the process was asked for
RUNNER_PID = "MILLRACE_RUNNER_PID"  # set by a runner whose child this process is


def main() -> int:
    """Run one stage or chore; returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker", description=__doc__)
    parser.add_argument("stage", choices=[work.value for work in (*Stage, *Chore)])
    parser.add_argument("--spec", required=True, help="WORKSPACE#KEY of the job spec")
    arguments = parser.parse_args()
    os.environ.update(QUIET)
    _die_with_the_runner()
    signal.signal(signal.SIGTERM, _terminate)
    now = time.time()
    clock = PhaseClock(booting=max(0.0, now - float(os.environ.get(STARTED_AT, now))))
    rank = Rank.from_environment()

    workspace, _, key = arguments.spec.partition("#")
    try:
        store = open_store(workspace)
        spec = _read_spec(store, key, arguments.stage)
    except Exception as error:  # without a spec there is no place to write an error file to
        print(f"{classify(error)}: {error}", file=sys.stderr)
        return POLICIES[classify(error)].exit_code
    try:
        stage = importlib.import_module(f"tasks.worker.{spec.stage.name}")  # the name: a chore's value has a hyphen
        outcome: Outcome | None = stage.run(Job(spec, store, rank, clock))  # None: a trial run inside a tool
        if rank.is_main and outcome is not None:
            _write_result(store, spec, outcome, clock)
    except BaseException as error:
        return _fail(store, spec, rank, clock, error)
    return 0


def _read_spec(store: Store, key: str, stage: str) -> JobSpec:
    try:
        spec = JobSpec.model_validate_json(store.read(key))
    except FileNotFoundError as error:
        raise ConfigError(f"no job spec at {store.uri}/{key}") from error
    except ValidationError as error:
        raise ConfigError(f"{store.uri}/{key} is not a job spec that this version understands: {error}") from error
    if spec.stage.value != stage:
        raise ConfigError(f"{store.uri}/{key} is a spec for {spec.stage.value}, not for {stage}")
    return spec


def _write_result(store: Store, spec: JobSpec, outcome: Outcome, clock: PhaseClock) -> None:
    result = StageResult(
        run_key=spec.run_key,
        attempt=spec.attempt,
        config_sha256=config_hash(spec.config),
        phases=clock.read(),
        outcome=outcome,
    )
    store.write(f"{spec.stage_prefix}/result.json", result.to_json())


def _fail(store: Store, spec: JobSpec, rank: Rank, clock: PhaseClock, error: BaseException) -> int:
    runtime = classify_runtime_log(str(error)) if isinstance(error, RuntimeError) else None  # Neuron's status codes
    failure, meaning = runtime or (classify(error), "")
    text = f"{meaning}\n{error}".strip() or type(error).__name__
    known = isinstance(error, StageError)
    record = WorkerFailure(
        rank=rank.index,
        at=time.time(),
        failure=failure.value,
        message=text if known else f"{type(error).__name__}: {text}",
        traceback="".join(traceback.format_exception(error)),
        phases=clock.read(),
    )
    print(record.message if known else record.traceback, file=sys.stderr, flush=True)
    try:
        store.write(f"{spec.attempt_prefix}/error-rank{rank.index}.json", record.to_json())
    except OSError as unwritable:  # a full disk must not hide the first error
        print(f"the error file could not be written: {unwritable}", file=sys.stderr)
    return POLICIES[failure].exit_code


def _terminate(signum: int, frame: object) -> None:
    raise SystemExit(f"stopped by signal {signum}")


def _die_with_the_runner() -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that no worker outlives a killed orchestrator."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if (runner := os.environ.get(RUNNER_PID)) and os.getppid() != int(runner):
        raise SystemExit("the runner died before this worker began")


if __name__ == "__main__":
    # os._exit: libraries' threads (gloo, TensorBoard) must not hold a finished worker back, nor turn a class's
    # exit code into an abort on the way out.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
