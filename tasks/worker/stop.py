"""SIGTERM ends a worker at once; in the training loop it is held back, until what was trained can be kept.

What is kept, and at which step, is decided by the loop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import NoReturn

RUNNER_PID = "MILLRACE_RUNNER_PID"  # set by a runner whose child this process is
SAME_SECONDS = 2.0  # a service manager and the runner that it stops both send one, and mean the same


def terminate(signum: int, frame: object) -> NoReturn:
    """The handler of SIGTERM."""
    raise SystemExit(f"stopped by signal {signum}")


def runner_is_gone() -> bool:
    """Whether the runner whose child this process was has died. Another may start the same work at any moment."""
    runner = os.environ.get(RUNNER_PID)
    return bool(runner) and os.getppid() != int(runner)


class StopRequest:
    """Remembers a SIGTERM that came while it was held back."""

    def __init__(self) -> None:
        self._asked_at: float | None = None

    @property
    def asked(self) -> bool:
        return self._asked_at is not None

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Inside the block only a second SIGTERM ends the process, or one that tells of the runner's death."""
        before = signal.signal(signal.SIGTERM, self._remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _remember(self, signum: int, frame: object) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at > SAME_SECONDS or runner_is_gone():
            terminate(signum, frame)
