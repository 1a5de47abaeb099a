"""Local copies of simulated objects, for readers: a folder for each content, all removed when this process ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

MOST_FOLDERS = 500

_folders: dict[tuple[tuple[str, bytes], ...], Path] = {}
_root: list[tempfile.TemporaryDirectory[str]] = []


def copy_of(key: str, contents: Mapping[str, bytes]) -> Path:
    """Return the path of `key` in a folder that holds these objects, which nobody changes."""
    if not _root:
        _root.append(tempfile.TemporaryDirectory(prefix="millrace-simulated-"))
    known = tuple(contents.items())
    if (folder := _folders.get(known)) is None:
        folder = _folders[known] = Path(tempfile.mkdtemp(dir=_root[0].name))
        for name, data in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return folder / key


def make_own_copies() -> None:
    """Share no folder with the process that this one was forked from; that one removes all of them at its end."""
    copy_of("", {})
    _folders.clear()


def limit_copies() -> None:
    """Remove all copies if there are many; nobody reads one between two interleavings."""
    if len(_folders) > MOST_FOLDERS:
        for folder in _folders.values():
            shutil.rmtree(folder)
        _folders.clear()
