"""Copies of a bucket's files that outlive the process, by checksum: a second `search` fetches no shard again.

Only the commands that search keep copies: their processes have MILLRACE_CACHE. Jobs run on machines of their own, for
which nothing would be left. A copy is a hard link to the file of the process that fetched it, so it costs no second
disk, and stays whole for its readers when another process deletes it here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

CACHE = "MILLRACE_CACHE"  # folder of the copies
SHARE = 0.5  # at most, of the disk's room that is free or taken by copies
LEFT_SECONDS = 3600.0  # until a copy that is still being made counts as left by a killed process


def environment() -> dict[str, str]:
    """Return the environment for a process that keeps copies, by default in ~/.cache/millrace."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {**os.environ, CACHE: os.environ.get(CACHE, str(home / "millrace"))}


def take(wanted: Mapping[Path, str]) -> set[Path]:
    """Put the kept copies of files at their paths, by SHA-256; return the paths that got one."""
    folder = _folder()
    return set() if folder is None else {path for path, sha256 in wanted.items() if _link(folder / sha256, path)}


def keep(fetched: Mapping[Path, str]) -> None:
    """Keep copies of files, and delete the copies that were not used for longest, until they fit again.

    A folder that can't be written, or a full disk, costs the next process the fetching, and this one nothing.
    """
    folder = _folder()
    if folder is None or not fetched:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for path, sha256 in fetched.items():
            _put(path, folder / sha256)
        _trim(folder)


def forget(sha256: str) -> bool:
    """Delete a damaged copy; return True if there was one."""
    folder = _folder()
    there = folder is not None and (folder / sha256).exists()
    if there and folder is not None:
        shutil.rmtree(folder / sha256, ignore_errors=True)
    return there


def forget_where(holds: Callable[[Path], bool], delete: bool = True) -> int:
    """Delete the copies of this machine for whose file `holds` is true, or only count them; return how many."""
    folder = Path(environment()[CACHE])
    found = [kept for kept in folder.glob("*") if (kept / "file").is_file() and holds(kept / "file")]
    for kept in found if delete else ():
        shutil.rmtree(kept)
    return len(found)


def _folder() -> Path | None:
    return Path(os.environ[CACHE]) if os.environ.get(CACHE) else None


def _link(kept: Path, path: Path) -> bool:
    staged = path.with_name(f".{uuid.uuid4().hex}")
    try:
        _linked(kept / "file", staged)
        staged.replace(path)  # a reader of a file that was there keeps its bytes
        os.utime(kept)  # the folder's time tells the last use, since the file's own belongs to all links
    except OSError:
        return False
    return True


def _put(path: Path, kept: Path) -> None:
    staged = kept.with_name(f".{uuid.uuid4().hex}")
    staged.mkdir()
    try:
        _linked(path, staged / "file")
        with contextlib.suppress(OSError):  # another process was faster
            staged.rename(kept)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _linked(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _trim(folder: Path) -> None:
    copies = []
    for kept in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process trims too
            used = kept.stat().st_mtime
            if not kept.name.startswith("."):
                copies.append((used, kept, (kept / "file").stat().st_size))
            elif time.time() - used > LEFT_SECONDS:
                shutil.rmtree(kept, ignore_errors=True)
    taken = sum(size for _, _, size in copies)
    most = SHARE * (shutil.disk_usage(folder).free + taken)
    for _, kept, size in sorted(copies):
        if taken <= most:
            return
        shutil.rmtree(kept, ignore_errors=True)
        taken -= size
