"""Work that is done once for all workers of a machine: the first that comes does it, and the others get its result."""

import fcntl
from collections.abc import Callable
from pathlib import Path


def once_per_machine(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return what `make` returned to the first worker that came here; later ones wait until it is done.

    A worker that fails or dies in `make` leaves the work to the next one.

    Args:
        path: a file in a folder that these workers share and that is there; its text is the result.
    """
    with path.with_name(f"{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            publish_file(path, make())
        return path.read_bytes()


def publish_file(path: Path, content: bytes) -> None:
    """Write a file for other workers of this machine, who see it complete or not at all."""
    staged = path.with_name(f"{path.name}.tmp")
    staged.write_bytes(content)
    staged.replace(path)
