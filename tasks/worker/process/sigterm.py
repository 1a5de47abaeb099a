"""End a worker on SIGTERM, or when its parent dies.

The training loop delays SIGTERM until it has written a checkpoint.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn


def die_with_parent() -> None:
    """Let the kernel send SIGTERM when the parent dies, so that no worker outlives a killed orchestrator.

    Raises:
        SystemExit: the runner that started this process died before this call.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if runner_is_gone():
        raise SystemExit("the runner died before this worker began")


RUNNER_PID = "MILLRACE_RUNNER_PID"  # set by the runner for its child processes
forked_from: int | None = None  # pid of a parent that ends with the runner; None: the runner is the parent
_PF_EXITING = 4  # Linux, include/linux/sched.h
SAME_SECONDS = 2.0  # a service manager and the runner that it stops each send a SIGTERM for one request


def terminate(signum: int, frame: object) -> NoReturn:
    """End the process; the handler of SIGTERM."""
    raise SystemExit(f"stopped by signal {signum}")


def runner_is_gone() -> bool:
    """Return True if the runner that started this process has died; another may start the same work at any moment."""
    parent = forked_from or int(os.environ.get(RUNNER_PID) or os.getppid())
    return os.getppid() != parent or _is_ending(parent)


def _is_ending(pid: int) -> bool:
    """Return True if a process is exiting: until its last thread ends, it stays its children's parent."""
    try:
        flags = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[6])
    except OSError:
        return False
    return bool(flags & _PF_EXITING)


class StopRequest:
    """Remembers a delayed SIGTERM."""

    def __init__(self) -> None:
        self._requested_at: float | None = None

    @property
    def requested(self) -> bool:
        return self._requested_at is not None

    @contextlib.contextmanager
    def delay_sigterm(self) -> Iterator[None]:
        """Delay SIGTERM inside the block; a second one, or one after the runner's death, ends the process at once."""
        before = signal.signal(signal.SIGTERM, self._remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _remember(self, signum: int, frame: object) -> None:
        now = time.monotonic()
        if self._requested_at is None:
            self._requested_at = now
        if now - self._requested_at > SAME_SECONDS or runner_is_gone():
            terminate(signum, frame)
