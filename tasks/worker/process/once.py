"""Work that is done once for all workers of a machine: the first that comes does it, and the others get its result."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tasks.worker.process.waiting import wait_until

LONGEST_SECONDS = 4 * 3600.0  # no single work of a machine takes longer: tokens of a quarter, a compiler


def once_per_machine(path: Path, make: Callable[[], bytes], what: str) -> bytes:
    """Return what `make` returned to the first worker that came here; later ones wait until it is done.

    A worker that fails or dies in `make` leaves the work to the next one.

    Args:
        path: a file in a folder that these workers share and that is there; its text is the result.
        what: the work in words, for the error.

    Raises:
        HangError: another worker was at it for LONGEST_SECONDS.
    """
    if path.exists():
        return path.read_bytes()
    with path.with_name(f"{path.name}.lock").open("wb") as lock:
        wait_until(
            lambda: _locked(lock),
            lambda: f"another worker of this machine has not ended its work, {what},",
            LONGEST_SECONDS,
        )
        if not path.exists():
            publish_file(path, make())
        return path.read_bytes()


def publish_file(path: Path, content: bytes) -> None:
    """Write a file for other workers of this machine, who see it complete or not at all."""
    staged = path.with_name(f"{path.name}.tmp")
    staged.write_bytes(content)
    staged.replace(path)


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
