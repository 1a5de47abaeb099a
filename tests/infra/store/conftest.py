"""Each kind of store in turn, a store in a directory, and a file to upload."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tests.support.workspace.stores import STORES

KINDS = (*STORES, "directory without hard links")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> Store:
    if request.param not in STORES:
        monkeypatch, rename = request.getfixturevalue("monkeypatch"), os.rename
        monkeypatch.setattr(os, "link", no_links(errno.EOPNOTSUPP))
        # A slow disk: others get their turn between a look at a key and the rename to it.
        monkeypatch.setattr(os, "rename", lambda *paths: (time.sleep(0.01), rename(*paths)))
        return STORES["directory"](request)
    return STORES[request.param](request)


def no_links(number: int) -> Callable[..., None]:
    """`os.link` of a file system without hard links, as exFAT, SMB and many FUSE mounts: see link(2)."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    return refuse


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"new content")
    return path
