"""The processor time and memory that reading one small damaged file may take."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

PROCESSOR_SECONDS = 20.0  # of this process; other work on the machine does not count
MEMORY_MIB = 256.0


@contextlib.contextmanager
def bounded(seconds: float = PROCESSOR_SECONDS, mib: float = MEMORY_MIB) -> Iterator[None]:
    """Raise AssertionError if what is done here takes more processor time, or at any moment more memory.

    Memory is the kernel's high-water mark, so what is allocated outside of Python counts too. It needs Linux.
    """

    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"it takes more than {seconds:.0f} s of processor time")

    status, marks = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    marks.write_text("5")  # the high-water mark begins again
    before, handler = _mib(status, "VmRSS"), signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        grown = _mib(status, "VmHWM") - before
        assert grown < mib, f"it took {grown:.0f} MiB, where {mib:.0f} are allowed"


def _mib(status: Path, field: str) -> float:
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024
