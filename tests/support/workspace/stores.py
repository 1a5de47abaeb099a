"""The kinds of store, for tests of what all of them must do. A new kind joins by one more line in `STORES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store

STORES: dict[str, Callable[[pytest.FixtureRequest], Store]] = {
    "directory": lambda request: DirectoryStore(request.getfixturevalue("tmp_path") / "workspace"),
    "s3": lambda request: open_store(request.getfixturevalue("s3").new_workspace()),
}


def everything_below(folder: Path) -> set[str]:
    """The files of a local folder, temporary ones and all."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
