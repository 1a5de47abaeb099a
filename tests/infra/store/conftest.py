"""Each kind of store in turn, a store in a directory or a bucket, and a file to upload."""

from __future__ import annotations

import errno
import os
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store import aws
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.s3_store import S3Store
from tests.support.cloud.s3 import S3Server
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
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setattr("botocore.endpoint.time", types.SimpleNamespace(sleep=lambda seconds: None))  # between tries
    monkeypatch.setattr(aws, "PAUSES_SECONDS", [0.0] * len(aws.PAUSES_SECONDS))
    return S3Store(s3.new_workspace())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"new content")
    return path
