"""The store behind a workspace URI. A new store is a new file in this folder and an entry in `STORES`."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.foundation.disks import not_utf8
from tasks.foundation.errors import ConfigError, StoreError

_ALMOST_A_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:(?!//)")
_NOT_ALLOWED = "workspace {uri!r}: this user may not {what} {path}; change its permissions, or name another workspace"


def open_store(uri: str) -> Store:
    """Return the store behind a workspace URI; a path without a scheme is a local directory.

    Raises:
        ConfigError: the scheme is unknown, an s3:// URI names no bucket, or the path is a file or none at all.
        StoreError: no permission to read the folder.
    """
    if not uri.strip():
        raise ConfigError("workspace: the name is empty; give a local directory or s3://bucket/prefix")
    if _ALMOST_A_SCHEME.match(uri):
        raise ConfigError(f"workspace {uri!r}: two slashes follow a scheme, as in s3://bucket/prefix")
    scheme = scheme_of(uri)
    if scheme not in STORES:
        raise ConfigError(f"workspace {uri!r}: unknown scheme {scheme!r}; use a local directory or s3://bucket/prefix")
    return STORES[scheme](uri)


def scheme_of(uri: str) -> str:
    """Return the kind of store of a workspace URI, the key in `STORES`."""
    scheme, separator, _ = uri.partition("://")
    return scheme if separator else "file"


def console_page(uri: str, key: str) -> str:
    """Return the URL of a key in AWS's console; empty for a local directory."""
    if scheme_of(uri) != "s3":
        return ""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    inside = "/".join(part for part in (prefix.strip("/"), key) if part)
    is_file = key.endswith((".json", ".html", ".parquet", ".svg"))
    inside += "/" if inside and not is_file else ""
    kind = "object" if is_file else "buckets"
    return f"https://s3.console.aws.amazon.com/s3/{kind}/{bucket}?prefix={quote(inside)}"


def _directory(uri: str) -> Store:
    try:
        root = Path(uri.removeprefix("file://")).expanduser().resolve()
        there = next(path for path in (root, *root.parents) if path.exists())
    except PermissionError as error:
        raise StoreError(_NOT_ALLOWED.format(uri=uri, path=error.filename, what="read")) from error
    except OSError as error:
        raise ConfigError(f"workspace: this can be no path ({error.strerror}); name another: {uri}") from error
    except RuntimeError as error:  # links in a circle, or ~ of nobody
        raise ConfigError(f"workspace {uri!r}: {str(error).rstrip('.')}; mend that, or name another") from error
    if problem := not_utf8(root):
        raise ConfigError(f"workspace: {problem}")
    if not there.is_dir():
        raise ConfigError(f"workspace {uri!r}: {there} is a file; a workspace is a folder, so name another")
    if there == root and not os.access(root, os.R_OK | os.X_OK):
        raise StoreError(_NOT_ALLOWED.format(uri=uri, path=root, what="read"))
    if there != root and not os.access(there, os.W_OK | os.X_OK):
        raise StoreError(_NOT_ALLOWED.format(uri=uri, path=there, what="write to"))
    return DirectoryStore(root)


def _s3(uri: str) -> Store:
    from infra.store.s3_store import S3Store  # it loads boto3, which a local directory does not need

    return S3Store(uri)


STORES: dict[str, Callable[[str], Store]] = {"file": _directory, "s3": _s3}
