"""The running process: the version and the folders of its code, its free memory, its streams, its garbage collector.

It is apart because every command imports it at its start: it needs the standard library alone.
"""

import codecs
import gc
import hashlib
import importlib.util
import io
import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("configs", "infra", "tasks")  # a worker's code; its image has no other folders


def code_version(root: Path = ROOT) -> str:
    """Return the version in pyproject.toml, with a hash over the paths and the bytes of the Python files."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    digest = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (root / folder).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{version}+{digest.hexdigest()[:12]}"


def laboratory_is_here() -> bool:
    """Return whether the control plane has the folders that no run needs: a team may have deleted them."""
    found = importlib.util.find_spec("flows.laboratory")
    return found is not None and found.origin is not None  # a folder with nothing but __pycache__ has no origin


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


def speak_utf8() -> None:
    """Read and write the standard streams as UTF-8 in any locale: so does the process at their other end."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # None, if it is closed. One that speaks it stays as it is: in a forked worker it may have become a pipe, and
        # can't be changed any more.
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(encoding="utf-8")


def collect_rarely() -> None:
    """Collect after 100,000 new objects instead of 700. Imports of torch and transformers take 20 % less time."""
    gc.set_threshold(100_000, 50, 50)
