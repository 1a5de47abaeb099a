"""The store behind a workspace URI, and the refusal of a place that can not hold a workspace.

A new store is a new file in this folder and an entry in `STORES`. A place is tried before the first stage, by requests
under a scratch key.
"""

import errno
import os
import re
import shlex
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from infra.store.base import Conflict, Store
from infra.store.directory import NOT_WRITABLE, DirectoryStore, flush, read_only
from infra.store.temporary import PREFIX, temporary_file
from tasks.foundation.errors import ConfigError, FailureClass, StoreError, classify, not_utf8

_ALMOST_A_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:(?!//)")
_NOT_ALLOWED = "workspace {uri!r}: this user may not read {path}; change its permissions, or name another workspace"


def open_store(uri: str) -> Store:
    """Return the store behind a workspace URI; a path without a scheme is a local directory.

    Raises:
        ConfigError: the scheme is unknown, an s3:// URI names no bucket, or the path is a file or none at all.
        StoreError: no permission to read the folder.
        ReadOnlyError: the folder is not there, and may not be made.
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
        raise StoreError(_NOT_ALLOWED.format(uri=uri, path=error.filename)) from error
    except OSError as error:
        raise ConfigError(f"workspace: this can be no path ({error.strerror}); name another: {uri}") from error
    except RuntimeError as error:  # links in a circle, or ~ of nobody
        raise ConfigError(f"workspace {uri!r}: {str(error).rstrip('.')}; mend that, or name another") from error
    if problem := not_utf8(root):
        raise ConfigError(f"workspace: {problem}")
    if not there.is_dir():
        raise ConfigError(f"workspace {uri!r}: {there} is a file; a workspace is a folder, so name another")
    if there == root and not os.access(root, os.R_OK | os.X_OK):
        raise StoreError(_NOT_ALLOWED.format(uri=uri, path=root))
    if there != root and not os.access(there, os.W_OK | os.X_OK):
        raise read_only(there, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    return DirectoryStore(root)


def _s3(uri: str) -> Store:
    from infra.store.s3_store import S3Store  # it loads boto3, which a local directory does not need

    return S3Store(uri)


STORES: dict[str, Callable[[str], Store]] = {"file": _directory, "s3": _s3}


def drop_copy(store: Store, key: str) -> None:
    """Delete this process's local copy of a bucket's file, to free the disk; the file of a directory stays."""
    if scheme_of(store.uri) == "s3":
        from infra.store.s3_transfers import mirror_of

        mirror_of(store.uri).drop(key)


_LEVELS = 2  # folders this deep are searched for links; Millrace itself makes the deeper ones

_fit: set[Path] = set()


def require_fit(store: Store) -> None:
    """Check once a process that the folder of a workspace has no links, and its file system all that a store needs.

    A bucket is checked by the stage health. Everything written is deleted.

    Raises:
        ConfigError: a folder is a link, or the file system lacks an operation.
        ReadOnlyError: nothing may be written there.
        StoreError: the file system does not answer.
        OSError: the disk is full.
    """
    if not isinstance(store, DirectoryStore) or store.root in _fit or not store.root.is_dir():
        return
    for link in _linked(store.root, _LEVELS):
        there = shlex.join(["mount", "--bind", str(link.resolve()), str(link)])
        raise ConfigError(
            f"{link} is a link to another folder, which a workspace does not follow: move that folder here, or "
            f"mount it in the place of the link: {there}"
        )
    _try_operations(store.root)
    _fit.add(store.root)


def _linked(folder: Path, levels: int) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and entry.is_dir():
                yield Path(entry.path)
            elif levels > 1 and entry.is_dir(follow_symlinks=False):
                yield from _linked(Path(entry.path), levels - 1)


def _try_operations(root: Path) -> None:
    """Do all that a store does with files, except hard links, for which it has a replacement."""
    does = "lock a file"
    try:
        with temporary_file(root) as staged:
            does = "write a folder to the disk (fsync)"
            flush(root)
            does = "rename a file"
            renamed = root / f"{PREFIX}{uuid.uuid4().hex}"
            os.rename(staged, renamed)
            renamed.unlink()
    except OSError as error:
        if does == "lock a file" and error.errno in NOT_WRITABLE:
            raise read_only(root, error) from error
        failure = classify(error)
        if failure is FailureClass.DISK:
            raise
        lacks = failure is not FailureClass.STORE or error.errno == errno.EPERM  # EPERM: by some that lack it
        kind = ConfigError if lacks else StoreError
        raise kind(_lacks(root, does, error)) from error


def _lacks(root: Path, does: str, error: OSError) -> str:
    return (
        f"the file system of {root} can't {does}: {error.strerror}. A workspace needs that; use a local disk, or "
        "another file system of the table in docs/operations.md"
    )


def find_broken_guarantee(store: Store, key: str) -> str:
    """Return the broken guarantee of the store; empty if it keeps all. The caller deletes `key`.

    Raises:
        StoreError, OSError: an operation failed.
    """
    store.create(key, b"1")
    if store.read(key) != b"1":
        return "an object reads differently than it was written"
    if succeeds(lambda: store.create(key, b"2")):
        return "an existing object was created again"
    store.swap(key, b"2", expected=b"1")
    if store.read(key) != b"2" or key not in store.list(key.rpartition("/")[0]):
        return "a swapped object is not read or listed as swapped"
    if succeeds(lambda: store.swap(key, b"3", expected=b"1")):
        return "an object was swapped although it had changed"
    return ""


def succeeds(act: Callable[[], None]) -> bool:
    """Return True if a conditional operation succeeds, False for a Conflict."""
    try:
        act()
    except Conflict:
        return False
    return True
