"""The process that this one was started by, and must not outlive."""

from __future__ import annotations

import ctypes
import signal
import sys

from tasks.worker.stop import runner_is_gone


def die_with_the_runner() -> None:
    """Ask the kernel for SIGTERM when the parent dies, so that no worker outlives a killed orchestrator.

    Raises:
        SystemExit: the runner that asked for this process died before it began.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if runner_is_gone():
        raise SystemExit("the runner died before this worker began")
