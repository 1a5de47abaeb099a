"""The free memory of this machine, or of the container that this process is in."""

import os
from pathlib import Path


def free_host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes available without swapping; the page cache counts as free, as the kernel reclaims it."""
    try:
        fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text(encoding="utf-8").splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except OSError:  # not Linux: only the total is known
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="utf-8"))
        used = int((cgroup / "memory.current").read_text(encoding="utf-8"))
        cached = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="utf-8").splitlines())
        return min(free, limit - used + int(cached["inactive_file"]))
    except (OSError, ValueError):  # no container, or "max": no limit
        return free
