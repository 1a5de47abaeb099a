"""Places of input files: a local file or folder, or an object or a prefix of a bucket, `s3://bucket/prefix`.

Objects are streamed; nothing is written to a local disk.
"""

import datetime as dt
import io
from collections.abc import Iterable
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from tasks.foundation.errors import ConfigError

if TYPE_CHECKING:
    from infra.store.s3_store import S3Store

BUFFER_BYTES = 2**16
_SCHEME = "s3://"


class S3Path(PurePosixPath):
    """An object or a prefix, `s3://bucket/key`; all methods of a pure path work on it."""

    def __str__(self) -> str:
        return super().__str__().replace("s3:/", _SCHEME, 1)


class Place(NamedTuple):
    """A file that can be read."""

    path: PurePath
    bytes: int
    modified: dt.datetime  # in UTC


class Listing(NamedTuple):
    """The files of a source, sorted by path; one of the path itself, or all below a folder."""

    is_file: bool
    places: tuple[Place, ...]


def source_path(text: str) -> PurePath:
    """Return the path of an input. Raises ConfigError: the scheme is not s3, or no bucket is named."""
    if text.startswith(_SCHEME):
        if not text.removeprefix(_SCHEME).strip("/"):
            raise ConfigError(f"{text!r}: name a bucket, as in s3://bucket/prefix")
        return S3Path(text)
    if "://" in text:
        raise ConfigError(f"{text!r}: a source is a local file or folder, or s3://bucket/prefix")
    return Path(text).expanduser()


def list_source(source: PurePath) -> Listing:
    """Return the files of a source.

    Raises:
        ConfigError: nothing has this path, or it is neither a file nor a folder; the bucket refuses to list it.
        StoreError: the bucket does not answer.
    """
    if isinstance(source, S3Path):
        store, key = _in_bucket(source)
        entries = store.entries(key)
        if not entries:
            raise ConfigError(f"--source {source}: no such object, and none below it")
        bucket = S3Path(store.uri)
        found = tuple(Place(bucket / each.key, each.bytes, each.modified.astimezone(dt.UTC)) for each in entries)
        return Listing(bool(key) and found[0].path == source, found)
    path = Path(source)
    if not path.exists():
        raise ConfigError(f"--source {source}: no such file or folder")
    if path.is_file():
        return Listing(True, tuple(_local([path])))
    if not path.is_dir():
        raise ConfigError(f"--source {source}: neither a file nor a folder")
    return Listing(False, tuple(_local(each for each in sorted(path.rglob("*")) if each.is_file())))


def open_place(place: Place) -> io.BufferedReader:
    """Open a file for reading. Raises ConfigError: it can't be opened."""
    if isinstance(place.path, S3Path):
        store, key = _in_bucket(place.path)
        return io.BufferedReader(store.stream(key, place.bytes), BUFFER_BYTES)
    try:
        return io.BufferedReader(io.FileIO(str(place.path)), BUFFER_BYTES)
    except OSError as error:
        raise ConfigError(f"--source {place.path}: cannot be opened: {error.strerror}") from error


def _local(paths: Iterable[Path]) -> Iterable[Place]:
    for path in paths:
        status = path.stat()
        yield Place(path, status.st_size, dt.datetime.fromtimestamp(status.st_mtime, dt.UTC))


def _in_bucket(path: S3Path) -> "tuple[S3Store, str]":
    """Return the store of the whole bucket, and the key in it."""
    from infra.store.s3_store import S3Store  # it loads boto3, which local files do not need

    _, bucket, *parts = path.parts
    return S3Store(f"{_SCHEME}{bucket}"), "/".join(parts)
