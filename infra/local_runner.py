"""Stages as processes on this machine, one per worker, with torchrun's environment variables.

The workers die with the runner: a killed orchestrator leaves nothing behind. The failure of one worker ends the
others, and the earliest error among them is the one that is raised.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import NoReturn

from infra.runner import Listener
from infra.store import Store
from tasks import progress
from tasks.contracts import JobSpec, WorkerFailure
from tasks.errors import ERRORS, FailureClass, StageError, from_exit_code

ROOT = Path(__file__).resolve().parent.parent
GRACE_SECONDS = 10.0
TAIL_LINES = 20
# What a worker may report only because another one is gone; CODE, because not every library's words for it are known.
_CONSEQUENCES = {FailureClass.HOST, FailureClass.HANG, FailureClass.CANCELLED, FailureClass.CODE}


class LocalRunner:
    """Runs a stage as `spec.workers` processes of `python -m tasks.worker`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run(self, spec: JobSpec, listener: Listener) -> None:
        """See `Runner.run`. Raises the error of the earliest failure; on any interruption ends the workers first."""
        processes: list[subprocess.Popen[str]] = []
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        try:
            # Not a comprehension: where one can't be started, those before it are in the list and get ended.
            processes.extend(self._start(spec, environment) for environment in _environments(spec.workers))
            _relay(processes, listener, tail)
            codes = [process.poll() for process in processes]  # None: did not end by itself after another's failure
        finally:
            _end(processes)
        if any(codes):
            self._raise_root_cause(spec, codes, tail)

    def _start(self, spec: JobSpec, environment: dict[str, str]) -> subprocess.Popen[str]:
        uri = f"{self.store.uri}#{spec.attempt_prefix}/spec.json"
        return subprocess.Popen(
            [sys.executable, "-m", "tasks.worker", spec.stage.value, "--spec", uri],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _raise_root_cause(self, spec: JobSpec, codes: list[int | None], tail: deque[str]) -> NoReturn:
        records = [
            WorkerFailure.model_validate_json(self.store.read(key))
            for key in self.store.list(spec.attempt_prefix)
            if key.rpartition("/")[2].startswith("error-rank")
        ]
        first = min(records, key=lambda record: record.at, default=None)
        wordless = set(range(spec.workers)) - {record.rank for record in records}
        silent = next(((rank, code) for rank, code in enumerate(codes) if code and rank in wordless), None)
        if silent and (first is None or FailureClass(first.failure) in _CONSEQUENCES):
            raise _wordless_death(spec, *silent, tail)
        assert first is not None, "some worker failed"
        where = f" (worker {first.rank} of {spec.workers})" if spec.workers > 1 else ""
        raise ERRORS[FailureClass(first.failure)](f"{first.message}{where}")


def _environments(workers: int) -> list[dict[str, str]]:
    """For each rank, torchrun's variables and those that tell a worker about its runner."""
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MILLRACE_STARTED_AT": repr(time.time()),
        "MILLRACE_RUNNER_PID": str(os.getpid()),
    }
    return [shared | _threads(rank, workers) | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers)]


def _threads(rank: int, workers: int) -> dict[str, str]:
    """Each worker's share of the cores, its threads bound to them.

    Left to the scheduler, two threads of one worker at times stay on one core: steps then take several times as long.
    """
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // workers)
    own = [cores[(rank * share + number) % len(cores)] for number in range(share)]
    places = ",".join(f"{{{core}}}" for core in own)
    return {"OMP_NUM_THREADS": str(share), "OMP_PROC_BIND": "true", "OMP_PLACES": places}


def _wordless_death(spec: JobSpec, rank: int, code: int, tail: deque[str]) -> StageError:
    """The error for a worker that could not write its own; what the others wrote is a consequence of its end."""
    died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    last_lines = "\n".join(tail) or "(none)"
    return ERRORS[from_exit_code(code)](
        f"{spec.stage.value}: worker {rank} of {spec.workers} {died} without a word; last lines:\n{last_lines}"
    )


def _relay(processes: list[subprocess.Popen[str]], listener: Listener, tail: deque[str]) -> None:
    """Pass on all output, until every process has ended or one has failed and the grace time is over."""
    lines: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    for rank, process in enumerate(processes):
        threading.Thread(target=_read_lines, args=(rank, process, lines), daemon=True).start()
    deadline = None
    open_streams = len(processes)
    while open_streams or any(process.poll() is None for process in processes):
        codes = [process.poll() for process in processes]
        if deadline is None and (any(codes) or None not in codes):
            # The others see the loss themselves, or are ended; the output of the ended is read, or a child holds it.
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return
        try:
            rank, line = lines.get(timeout=0.2)  # short: Prefect cancels between two waits
        except queue.Empty:
            continue
        if line is None:
            open_streams -= 1
        elif (found := progress.parse(line)) is not None:
            listener.progress(found)
        elif line:
            tail.append(line)
            listener.log(f"[{rank}] {line}" if len(processes) > 1 else line)


def _read_lines(rank: int, process: subprocess.Popen[str], lines: queue.SimpleQueue[tuple[int, str | None]]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put((rank, line.rstrip("\n")))
    lines.put((rank, None))


def _end(processes: list[subprocess.Popen[str]]) -> None:
    """SIGTERM, then SIGKILL after the grace time, for whichever still runs."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in running:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
