"""Memory of this machine, or of the container that the process runs in."""

import os
import resource
import sys
from pathlib import Path


def peak_host_bytes() -> int:
    """Return the most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory available without swapping. The page cache counts as free: the kernel gives it back."""
    try:
        fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except OSError:  # not Linux: only the whole memory is known
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        cached = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(cached["inactive_file"]))
    except (OSError, ValueError):  # no container, or "max": no limit
        return free
