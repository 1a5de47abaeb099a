"""Background processes, which outlive the command that started them; each has its own session and is ended by pid."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

STOP_SECONDS = 15.0

_children: dict[int, subprocess.Popen[bytes]] = {}  # started by this process, which must reap them


def start(command: Sequence[str], output: BinaryIO, cwd: Path, environment: Mapping[str, str]) -> int:
    """Start a process whose output goes to a file; return its pid."""
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        start_new_session=True,
    )  # fmt: skip
    _children[process.pid] = process
    return process.pid


def status(pid: int) -> int | None:
    """Return the exit status of a process that `start` started here; None while it runs, or for any other process."""
    child = _children.get(pid)
    return child.poll() if child else None


def is_running(pid: int, *words: str) -> bool:
    """Return True if the process exists and its command line has these words, since pids are reused."""
    if child := _children.get(pid):  # its command line is empty for a moment, while it starts
        return child.poll() is None
    command = command_line(pid)
    return bool(command) and all(each in command for each in words)


def end(pid: int, *words: str) -> None:
    """Send SIGTERM to the process's session, and SIGKILL after `STOP_SECONDS`. `words` as in `is_running`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while is_running(pid, *words) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(pid, signal.SIGKILL)
    if child := _children.pop(pid, None):
        child.wait()


def command_line(pid: int) -> str:
    """Return the command line of a process; empty if it doesn't exist or is a zombie."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    return subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, encoding="utf-8"
    ).stdout
