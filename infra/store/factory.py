"""The store behind a workspace URI. A new store is a new file in this folder and an entry in `STORES`."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError


def open_store(uri: str) -> Store:
    """Return the store behind a workspace URI; a path without a scheme is a local directory.

    Raises:
        ConfigError: the scheme is unknown, or an s3:// URI names no bucket.
    """
    scheme = scheme_of(uri)
    if scheme not in STORES:
        raise ConfigError(f"workspace {uri!r}: unknown scheme {scheme!r}; use a local directory or s3://bucket/prefix")
    return STORES[scheme](uri)


def scheme_of(uri: str) -> str:
    """Return the kind of store of a workspace URI, the key in `STORES`."""
    scheme, separator, _ = uri.partition("://")
    return scheme if separator else "file"


def console_page(uri: str, key: str) -> str:
    """Return the page of a key in AWS's console; empty for a local directory, which no page can link to."""
    if scheme_of(uri) != "s3":
        return ""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    inside = "/".join(part for part in (prefix.strip("/"), key) if part)
    is_file = key.endswith((".json", ".html", ".parquet", ".svg"))
    inside += "/" if inside and not is_file else ""
    kind = "object" if is_file else "buckets"
    return f"https://s3.console.aws.amazon.com/s3/{kind}/{bucket}?prefix={quote(inside)}"


def _directory(uri: str) -> Store:
    return DirectoryStore(Path(uri.removeprefix("file://")).expanduser())


def _s3(uri: str) -> Store:
    from infra.store.s3_store import S3Store  # it loads boto3, which a local directory does not need

    return S3Store(uri)


STORES: dict[str, Callable[[str], Store]] = {"file": _directory, "s3": _s3}
