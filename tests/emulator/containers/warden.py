"""Kills every process that a container left: all that inherited its mark in the environment.

As a program it waits for its standard input to close, which happens when the emulator ends, in whatever way, and
then kills all that carry the mark, and removes their folder. Sessions and parents don't matter: torchrun gives each
worker a session.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "BATCH_EMULATOR_CONTAINER"
PATIENCE_SECONDS = 10.0


def kill_marked(mark: str) -> None:
    """SIGKILL for each process whose environment holds a mark that starts with `mark`, until none is left."""
    wanted = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + PATIENCE_SECONDS
    dying: set[int] = set()  # a dying process loses its environment before it is dead
    while found := {*_marked(wanted), *filter(_alive, dying)}:
        for pid in found:
            _kill(pid)
        dying |= found
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} outlive SIGKILL")


def _marked(wanted: bytes) -> list[int]:
    processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(process.name) for process in processes if wanted in _environment(process)]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()  # empty for one that is dead and not yet waited for
    except OSError:  # gone meanwhile, or another user's
        return b""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.stdin.read()
    kill_marked(sys.argv[1])
    shutil.rmtree(sys.argv[2], ignore_errors=True)
