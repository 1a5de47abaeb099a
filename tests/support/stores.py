"""The kinds of store, for tests of what all of them must do. A new kind joins by one more line in `STORES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from infra.store import DirectoryStore, Store

STORES: dict[str, Callable[[Path], Store]] = {"directory": lambda folder: DirectoryStore(folder / "workspace")}


def everything_below(folder: Path) -> set[str]:
    """The files of a local folder, temporary ones and all."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
