"""Requests that a workspace in a directory gets, as a bucket would count them, with each key that a listing returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore

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
