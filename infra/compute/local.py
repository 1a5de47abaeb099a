"""Run stages as processes on this machine, one per worker, with torchrun's environment variables.

The workers die with the runner: a killed orchestrator leaves no processes behind. If one worker fails, the others are
ended, and the earliest error is raised. On Linux, workers are forked from parents that have loaded their libraries
(tasks/worker/warm_parent.py) and serve all stages of this process; a fork with Apple's libraries is not safe.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from configs.schema.config import Config
from infra.prefect_health import PASSWORD_OF_CLIENT
from infra.root_cause import LogTail, root_cause
from infra.store.base import Store
from infra.store.temporary import ATTEMPT, scratch_folder
from tasks.contracts.jobs import JobSpec, ValidateInputs, Waiter, address, parse_progress
from tasks.contracts.stages import REFRESHING, Libraries, Stage, Work, compute_of, workers_of
from tasks.contracts.workspace import SPEC

# Variables that no library reads while it is imported, or that `QUIET` sets; a worker gets its own values. All others
# decide which warm parent a worker is forked from.
_OF_A_WORKER = ("MASTER_PORT", "TMPDIR", "NO_PROXY", "no_proxy", "DO_NOT_TRACK")
_OF_OURS = ("MILLRACE_", "PREFECT_", "PYTEST_")
# Threads are bound to the rank's cores when OpenMP is loaded.
_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_POLL_SECONDS = 0.01
_ROOM = 1000 * "-"  # for the command that `ps` shows for a worker


class ForkedWorker:
    """A worker's process, with the part of `subprocess.Popen` that the runner uses."""

    def __init__(self, parent: _WarmParent, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Ask the warm parent for the worker. Raises OSError: the parent has ended, or the environment is too large."""
        self._parent = parent
        self._pidfd: int | None = None
        self._code: int | None = None
        read_end, write_end = os.pipe()
        self.stdout: IO[str] = os.fdopen(read_end, errors="replace", encoding="utf-8")
        self._news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._news.setblocking(False)  # Python 3.11's recv_fds ignores MSG_DONTWAIT
        try:
            parent.request({"words": words, "environment": environment}, [write_end, theirs.fileno()])
        except OSError:
            self.stdout.close()
            self._news.close()
            raise
        finally:
            os.close(write_end)
            theirs.close()

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while it runs. See `subprocess.Popen.poll`."""
        while self._code is None:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._news, 64, 1)
            except BlockingIOError:
                return None
            except ConnectionError:
                message, descriptors = b"", []
            if descriptors:
                self._pidfd = descriptors[0]
            elif message:
                self._finish(int(message))
            elif self._pidfd is None or select.select([self._pidfd], [], [], 0)[0]:
                self._finish(-signal.SIGKILL)  # the parent was killed, and the worker with it
            else:
                return None
        return self._code

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked worker", timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is not None:
            return
        if self._pidfd is None:  # not begun: its parent still loads libraries, or hangs
            self._parent.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _finish(self, code: int) -> None:
        self._code = code
        self._news.close()
        self._parent.workers.discard(self)
        if self._pidfd is not None:
            os.close(self._pidfd)


class _WarmParent:
    def __init__(self, libraries: Libraries, environment: Mapping[str, str], refresh: bool) -> None:
        self.refresh = refresh
        self.workers: set[ForkedWorker] = set()  # still running
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(self._channel.close)
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "tasks.worker.warm_parent", str(theirs.fileno()), libraries),
                    *("refresh" if refresh else "run", _ROOM),
                ],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a library that can't be loaded fails again in the worker, into its log
            )
            unless_started.pop_all()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def request(self, request: Mapping[str, object], descriptors: list[int]) -> None:
        """Ask for a worker. Raises OSError: the process has ended, or the request is too large for a message."""
        socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)

    def kill(self) -> None:
        """End the process, which may still load libraries, and its workers with it."""
        self._process.kill()
        self._channel.close()
        self._process.wait()


_Key = tuple[Libraries, tuple[tuple[str, str], ...]]
_parents: dict[_Key, _WarmParent] = {}
_lock = threading.Lock()  # a backfill runs several stages at a time


def begin_parents(libraries: Libraries, environment: Mapping[str, str], refresh: bool) -> None:
    """Start the warm parent of later workers with these libraries and variables, unless it runs already.

    Args:
        refresh: load only the modules that a refresh needs; a later call without it replaces the idle parent.
    """
    if _forks_here():
        with _lock, contextlib.suppress(OSError):
            parent = _parent_with(libraries, environment, refresh)
            if parent.refresh and not refresh and not parent.workers:
                parent.kill()
                _parent_with(libraries, environment, refresh)


def fork_worker(libraries: Libraries, words: Sequence[str], environment: Mapping[str, str]) -> ForkedWorker | None:
    """Return a worker of `python -m tasks.worker WORDS`, forked from a warm parent; None if this machine has no forks.

    Unless `begin` has started the warm parent, the first call does; it takes as long to load as a worker would.

    Args:
        environment: the worker's variables.
    """
    if not _forks_here():
        return None
    with _lock:
        try:
            parent = _parent_with(libraries, environment, refresh=False)
            worker = ForkedWorker(parent, words, environment)
        except OSError:
            return None
        parent.workers.add(worker)
        return worker


def _forks_here() -> bool:
    """Return True on Linux with pidfd_open: a kernel from 5.3 on, and no container that blocks it."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _varies(name: str) -> bool:
    return name in _OF_A_WORKER or name.startswith(_OF_OURS)


def _parent_with(libraries: Libraries, environment: Mapping[str, str], refresh: bool) -> _WarmParent:
    lasting = {name: value for name, value in environment.items() if not _varies(name)}
    key = (libraries, (*sorted(lasting.items()), ("", str(Path.cwd()))))
    for other, parent in list(_parents.items()):
        if not parent.alive or (not parent.workers and _machine(other) != _machine(key)):
            _parents.pop(other).kill()
    if key not in _parents:
        _parents[key] = _WarmParent(libraries, environment, refresh)
    return _parents[key]


def _machine(key: _Key) -> tuple[tuple[str, str], ...]:
    return tuple(one for one in key[1] if one[0] not in _OF_A_RANK)


@atexit.register
def end_parents() -> None:
    """End the warm parents, and their workers with them."""
    while _parents:
        _parents.popitem()[1].kill()


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
                begin_parents(libraries, environment, refresh)


def _libraries(config: Config, work: Work) -> Libraries | None:
    """Return None on XLA and CUDA too: they start threads and devices that a fork would share."""
    return work.traits.libraries if config.accelerator == "cpu" else None


def _environments(workers: int, scratch: Path | None = None) -> list[dict[str, str]]:
    """Return the environment of each rank: the variables of torchrun and of its runner, and TMPDIR.

    The password of the Prefect server is left out: a worker never needs it, and it runs the code of models.
    """
    shared = {
        **{name: value for name, value in os.environ.items() if name != PASSWORD_OF_CLIENT},
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
        elif (found := parse_progress(line)) is not None:
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
