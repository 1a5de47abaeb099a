"""The store behind a workspace URI. A new store is a new file in this folder and an entry in `STORES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError


def open_store(uri: str) -> Store:
    """Return the store behind a workspace URI; a path without a scheme is a local directory.

    Raises:
        ConfigError: the scheme is unknown, or an s3:// URI names no bucket.
    """
    scheme, separator, _ = uri.partition("://")
    scheme = scheme if separator else "file"
    if scheme not in STORES:
        raise ConfigError(f"workspace {uri!r}: unknown scheme {scheme!r}; use a local directory or s3://bucket/prefix")
    return STORES[scheme](uri)


def _directory(uri: str) -> Store:
    return DirectoryStore(Path(uri.removeprefix("file://")).expanduser())


def _s3(uri: str) -> Store:
    from infra.store.s3_store import S3Store  # it loads boto3, which a local directory does not need

    return S3Store(uri)


STORES: dict[str, Callable[[str], Store]] = {"file": _directory, "s3": _s3}
