"""The workers of this node as one child process, torchrun, whose output passes through and whose end is reported."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tasks import progress
from tasks.contracts import JobSpec
from tasks.hosts import HOST
from tasks.records import Record
from tasks.worker.launch.place import Place, processes_per_node
from tasks.worker.launch.torchrun import REPORT, AgentReport
from tasks.worker.stop import RUNNER_PID

TAIL_LINES = 20
TAIL_CHARACTERS = 500  # of one line
_DRAIN_SECONDS = 2.0  # for the last lines, where a process that a worker left behind still holds the pipe


class Report(Record):
    """How the workers of one node ended. `code` is torchrun's; negative: killed by that signal."""

    code: int
    agent: AgentReport
    tail: tuple[str, ...]

    @property
    def well(self) -> bool:
        return self.code == 0


class Workers:
    """torchrun with its workers. To be made in the main thread: with the thread that made it, it dies."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        read_end, write_end = os.pipe()
        self._report_pipe = os.fdopen(read_end, "rb")
        try:
            self._popen = subprocess.Popen(
                command,
                env={**environment, REPORT: str(write_end), RUNNER_PID: str(os.getpid())},
                pass_fds=[write_end],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # what is sent to the launcher's group is for the launcher
            )
        finally:
            os.close(write_end)
        assert self._popen.stdout is not None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._relay = threading.Thread(target=_relay, args=(self._popen.stdout, self._tail), daemon=True)
        self._relay.start()
        self._kill_at: float | None = None
        self._report: Report | None = None

    def poll(self) -> Report | None:
        """How it ended; None: it still runs. Kills it when the time to end by itself is over."""
        if self._report is None:
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self.kill()
            if (code := self._popen.poll()) is not None:
                self._report = self._read_report(code)
        return self._report

    def ask_to_end(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL for what still runs after `seconds`. Asked again, only the earlier time counts."""
        kill_at = time.monotonic() + seconds
        if self._kill_at is None:
            self._popen.terminate()  # torchrun passes it on to its workers
        self._kill_at = min(kill_at, self._kill_at or kill_at)

    def kill(self) -> None:
        """SIGKILL for torchrun and all below it: its workers have sessions of their own."""
        if self._popen.poll() is None:
            below = _descendants(self._popen.pid)
            self._popen.kill()
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._popen.wait()

    def _read_report(self, code: int) -> Report:
        self._relay.join(_DRAIN_SECONDS)
        with self._report_pipe as pipe:
            told = pipe.read()
        agent = AgentReport.model_validate_json(told) if told else AgentReport()
        return Report(code=code, agent=agent, tail=tuple(self._tail))


def torchrun_command(place: Place, spec: JobSpec, uri: str) -> list[str]:
    """torchrun for this node's workers, whose spec is at `uri`."""
    options = [
        f"--nnodes={place.nodes}",
        f"--node-rank={place.node}",
        f"--nproc-per-node={processes_per_node(spec)}",
        f"--master-addr={place.main_address}",
        f"--master-port={place.torch_port}",
        f"--rdzv-id={place.job}",
        "--max-restarts=0",
    ]
    worker = ["-m", "tasks.worker", spec.stage.value, "--spec", uri]
    return [sys.executable, "-m", "tasks.worker.launch.torchrun", *options, *worker]


def torchrun_environment(place: Place, spec: JobSpec, host: str, started_at: float) -> dict[str, str]:
    """This process's environment and what the workers are to know of their runner; times since the epoch."""
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "MILLRACE_STARTED_AT": repr(started_at),
        # torchrun's own; each worker sets what it needs by itself. Bound to a core, torchrun would hand that core on.
        "OMP_NUM_THREADS": "1",
        HOST: host,
    }
    environment.pop("OMP_PROC_BIND", None)
    environment.pop("OMP_PLACES", None)
    if place.array_index is not None:
        environment["MILLRACE_ARRAY_INDEX"] = str(place.array_index)
        environment["MILLRACE_ARRAY_SIZE"] = str(spec.workers // processes_per_node(spec))
    return environment


def _relay(stream: IO[bytes], tail: deque[str]) -> None:
    """Pass lines on as they come, each in one piece; keep the last ones."""
    with stream:
        for line in stream:
            text = line.decode(errors="replace").rstrip("\n")
            if text and progress.parse(text) is None:
                tail.append(text[:TAIL_CHARACTERS])
            with contextlib.suppress(OSError):  # nobody reads any more, but the workers must not wait for that
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()


def _descendants(pid: int) -> list[int]:
    """All processes below a process. Empty where there is no /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while this was read
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found, look_at = [], [pid]
    while look_at:
        below = children[look_at.pop()]
        found += below
        look_at += below
    return found
