"""The only entry point of the worker plane: `python -m tasks.worker <stage> --spec URI`.

The same command runs in a local process, under torchrun and in a Batch container. It writes `result.json` last; after
a failure it writes `error-rank<n>.json` and exits with the failure class's code. It never talks to Prefect.
"""

import argparse
import importlib
import io
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from configs.load import config_hash
from infra.store.factory import open_store
from infra.store.lease import FencedStore
from tasks.contracts.jobs import cut_address
from tasks.contracts.outcomes import Outcome, StageResult
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import RESULT
from tasks.foundation.errors import POLICIES, HostError, cause_of, classify
from tasks.foundation.process import collect_rarely, speak_utf8
from tasks.worker.process import sigterm
from tasks.worker.process.job import Job, PhaseClock, Rank, read_spec
from tasks.worker.process.machine import Machine
from tasks.worker.process.sigterm import die_with_parent, terminate
from tasks.worker.process.threads import QUIET, bind_threads, keep_freed_memory, name_user

STARTED_AT = "MILLRACE_STARTED_AT"  # set by the runner: time of the process's request, seconds since the epoch


def main() -> int:
    """Run one stage or chore; return the exit code of the process."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker", description=__doc__)
    parser.add_argument("stage", choices=[work.value for work in (*Stage, *Chore)])
    parser.add_argument("--spec", required=True, help="WORKSPACE#KEY of the job spec, or WORKSPACE#KEY#SHA256")
    arguments = parser.parse_args()
    os.environ.update(QUIET)
    name_user()
    collect_rarely()
    speak_utf8()
    die_with_parent()
    _write_whole_lines()
    signal.signal(signal.SIGTERM, terminate)
    now = time.time()
    clock = PhaseClock(booting=max(0.0, now - float(os.environ.get(STARTED_AT, now))))
    rank = Rank.from_environment()

    try:
        workspace, key = cut_address(arguments.spec)
        machine = Machine(workspace, key.rpartition("/")[0], rank.first_of_machine, rank.local_world)
        store = open_store(workspace)
        spec = read_spec(machine.reads(store), key, arguments.stage)
    except Exception as error:  # without a spec no folder exists for an error file
        print(f"{classify(error)}: {error}", file=sys.stderr)
        return POLICIES[classify(error)].exit_code
    if not sigterm.forked_from:  # else torch is loaded, and the warm parent's binding holds
        bind_threads(spec.config.accelerator)  # both before a stage imports torch and starts threads
    if spec.config.accelerator == "xla":
        keep_freed_memory(in_all_threads=True)
    job = Job(spec, FencedStore(store, spec.fences, spec.job_prefix), rank, clock, joined=machine)
    try:
        stage = importlib.import_module(f"tasks.worker.{spec.stage.module}")
        outcome: Outcome | None = stage.run(job)  # None: another worker returns the outcome, or a tool runs this
        if outcome is not None and job.share.index == 0:  # the others have the same
            _write_result(job, outcome)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process ends anyway, and must first write the cause
        return job.fail(_cause(error))
    finally:
        machine.leave()
    return 0


def _cause(error: BaseException) -> BaseException:
    """Return the error to record: a worker that ends with its runner was stopped by no person."""
    if isinstance(error, SystemExit) and sigterm.runner_is_gone():
        return HostError("the process that started this worker was killed, and the worker ended with it")
    return cause_of(error, Path(tempfile.gettempdir()))


def _write_result(job: Job, outcome: Outcome) -> None:
    spec = job.spec
    result = StageResult(
        run_key=spec.run_key,
        attempt=spec.attempt,
        config_sha256=config_hash(spec.config),
        phases=job.clock.read(),
        outcome=outcome,
    )
    job.store.write(RESULT.of(spec), result.to_json())


def _write_whole_lines() -> None:
    """Flush output by line, each in one piece: other workers may write to the same pipe."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def end_process() -> NoReturn:
    """Run `main` and end the process with its exit code."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Library threads (gloo, TensorBoard) must not delay a finished worker, or abort and so replace the exit code of a
    # failure class.
    os._exit(code)


if __name__ == "__main__":
    end_process()
