"""The kinds of store, for tests of what all of them must do. A new kind joins by one more line in `STORES`.

Requests that a workspace in a directory gets, as a bucket would count them, with each key that a listing returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
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


_CALLS = ("read", "exists", "write", "create", "swap", "upload", "move", "delete", "discard")


def count_requests(patch: pytest.MonkeyPatch) -> Counter[str]:
    """From now on, count what any store in a directory is asked for, by folder; those inside others count as well."""
    seen: Counter[str] = Counter()

    def counted(name: str) -> None:
        real = getattr(DirectoryStore, name)

        def call(self: DirectoryStore, key: object, *arguments: object, **more: object) -> object:
            seen[f"{name} {str(key).split('/')[0]}"] += 1
            return real(self, key, *arguments, **more)

        patch.setattr(DirectoryStore, name, call)

    def files(self: DirectoryStore, prefix: str) -> Iterator[Path]:
        seen[f"list {prefix.split('/')[0]}"] += 1
        for path in real_files(self, prefix):
            seen[f"list {prefix.split('/')[0]}"] += 1
            yield path

    real_files = DirectoryStore._files  # pyright: ignore[reportPrivateUsage]
    patch.setattr(DirectoryStore, "_files", files)
    for name in _CALLS:
        counted(name)
    return seen
