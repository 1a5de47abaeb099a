"""Run stages as processes on this machine, one per worker, with torchrun's environment variables.

The workers die with the runner: a killed orchestrator leaves no processes behind. If one worker fails, the others are
ended, and the earliest error is raised.
"""

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from configs.schema.config import Config
from infra import prefect_password
from infra.compute.warm_parents import ForkedWorker, begin, fork_worker
from infra.root_cause import LogTail, root_cause
from infra.store.base import Store
from infra.store.scratch import ATTEMPT, scratch_folder
from tasks.contracts import runner
from tasks.contracts.jobs import JobSpec, ValidateInputs, address
from tasks.contracts.runner import Waiter
from tasks.contracts.stages import REFRESHING, Libraries, Stage, Work, compute_of, workers_of
from tasks.contracts.workspace import SPEC

ROOT = Path(__file__).resolve().parents[2]
GRACE_SECONDS = 10.0
Process = subprocess.Popen[str] | ForkedWorker


class LocalRunner:
    """Runs a stage as `spec.workers` processes of `python -m tasks.worker`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def found(self, spec: JobSpec) -> bool:
        """Return False: workers on this machine end with the process that started them."""
        return False

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        """See `Runner.run`. Raises the error of the earliest failure; on any interruption ends the workers first."""
        processes: list[Process] = []
        tail = LogTail()
        with scratch_folder(ATTEMPT) as scratch:
            if isinstance(spec.inputs, ValidateInputs):
                begin_warm_parents(spec.config, refresh=not spec.inputs.window)
            try:
                # extend, not a comprehension: if a start fails, the processes already in the list are ended.
                processes.extend(self._start(spec, each) for each in _environments(spec.workers, scratch))
                _relay(processes, waiter, tail)
                codes = [process.poll() for process in processes]  # None: still running after another worker's failure
            finally:
                _end(processes)
        if any(codes):
            raise root_cause(self.store, spec, dict(enumerate(codes)), tail.lines).error

    def _start(self, spec: JobSpec, environment: dict[str, str]) -> Process:
        words = (spec.stage.value, "--spec", address(self.store.uri, f"{SPEC.of(spec)}#{spec.sha256}"))
        libraries = _libraries(spec.config, spec.stage)
        forked = fork_worker(libraries, words, environment) if libraries else None
        return forked or subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.worker", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            encoding="utf-8",
        )


def begin_warm_parents(config: Config, refresh: bool = False) -> None:
    """Let the libraries of the stages on this machine load in processes of their own, and return at once.

    Args:
        refresh: load only the modules that a refresh needs.
    """
    begun = set[Libraries]()
    for stage in REFRESHING if refresh else Stage:
        libraries = _libraries(config, stage)
        if libraries and libraries not in begun and compute_of(config, stage) == "local":
            begun.add(libraries)
            for environment in _environments(workers_of(config, stage)):
                begin(libraries, environment, refresh)


def _libraries(config: Config, work: Work) -> Libraries | None:
    """Return None on XLA and CUDA too: they start threads and devices that a fork would share."""
    return work.traits.libraries if config.accelerator == "cpu" else None


def _environments(workers: int, scratch: Path | None = None) -> list[dict[str, str]]:
    """Return the environment of each rank: the variables of torchrun and of its runner, and TMPDIR.

    The password of the Prefect server is left out: a worker never needs it, and it runs the code of models.
    """
    shared = {
        **{name: value for name, value in os.environ.items() if name != prefect_password.OF_CLIENT},
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # as -P, for child processes
        "PYTHONUTF8": "1",  # logs too, whatever the locale
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MILLRACE_STARTED_AT": repr(time.time()),
        "MILLRACE_RUNNER_PID": str(os.getpid()),
        **({"TMPDIR": str(scratch)} if scratch else {}),
    }
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers)]


def _relay(processes: list[Process], waiter: Waiter, tail: LogTail) -> None:
    """Pass on all output until every process has ended, or one has failed and the grace time is over."""
    lines: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    for rank, process in enumerate(processes):
        threading.Thread(target=_read_lines, args=(rank, process, lines), daemon=True).start()
    deadline = None
    open_streams = len(processes)
    while open_streams or any(process.poll() is None for process in processes):
        waiter.pulse()
        codes = [process.poll() for process in processes]
        if deadline is None and (any(codes) or None not in codes):
            # Time for the others to notice the failure, and for remaining output; a child may hold the pipe open.
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return
        try:
            # Short: Prefect cancels between two waits. After the last line the exit codes follow at once.
            rank, line = lines.get(timeout=0.2 if open_streams else 0.01)
        except queue.Empty:
            continue
        if line is None:
            open_streams -= 1
        elif (found := runner.parse(line)) is not None:
            waiter.progress(found)
        elif line:
            tail.append(line)
            waiter.log(f"[{rank}] {line}" if len(processes) > 1 else line)


def _read_lines(rank: int, process: Process, lines: queue.SimpleQueue[tuple[int, str | None]]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put((rank, line.rstrip("\n")))
    lines.put((rank, None))


def _end(processes: list[Process]) -> None:
    """Send SIGTERM to running processes, then SIGKILL after the grace time."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in running:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(GRACE_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
