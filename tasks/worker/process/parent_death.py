"""Ends this process when the process that started it dies."""

import ctypes
import signal
import sys

from tasks.worker.process.sigterm import runner_is_gone


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
