"""Objects of a bucket on their way: read as a stream, uploaded on a condition, kept as local copies.

A stream needs bounded memory. An upload is in pieces if the file is large; boto3's own transfers support no conditions.
Copies lie in a temporary folder of this process that is deleted at its end; only changed objects are downloaded again.
"""

import atexit
import contextlib
import datetime as dt
import functools
import io
import os
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from botocore.exceptions import FlexibleChecksumError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError
from s3transfer.futures import TransferFuture
from s3transfer.subscribers import BaseSubscriber

from infra.store.base import sha256_of
from infra.store.kept_copies import keep, take
from infra.store.temporary import DOWNLOADS, claim_folder
from tasks.foundation.errors import StoreError

CUT_OFF = (FlexibleChecksumError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
ATTEMPTS = 5  # in a row without a byte; botocore does not retry a body


class ObjectStream(io.RawIOBase):
    """The bytes of one version of an object. After a broken connection a new one goes on at the same byte."""

    def __init__(
        self, size: int, get: Callable[[int], Any], explained: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Send no request yet.

        Args:
            size: of the object, in bytes.
            get: requests the object from a position on, and returns the body.
            explained: converts the errors of requests.
        """
        self._size = size
        self._get = get
        self._explained = explained
        self._body: Any = None
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, perhaps in part; return the number of bytes, 0 at the end.

        Raises:
            StoreError, ConfigError: the object can't be read, or is another one by now.
        """
        failures = 0
        while self._position < self._size:
            with self._explained():
                try:
                    self._body = self._body or self._get(self._position)
                    content = self._body.read(min(len(buffer), self._size - self._position))
                except CUT_OFF:
                    content, failures = b"", failures + 1
                    if failures == ATTEMPTS:
                        raise
            if content:
                buffer[: len(content)] = content
                self._position += len(content)
                return len(content)
            self._close_body()
        return 0

    def close(self) -> None:
        self._close_body()
        super().close()

    def _close_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


PIECE_BYTES = 8 * 2**20
AT_ONCE = 10
_MOST_PIECES = 10_000  # S3's limit
_SUM = "ChecksumCRC32"


def upload(client: Any, bucket: str, name: str, source: Path, condition: dict[str, str]) -> None:
    """Upload a file; the object appears only when it is complete. Raises ClientError, also if the condition fails."""
    size = source.stat().st_size
    if size <= PIECE_BYTES:
        with source.open("rb") as body:
            client.put_object(Bucket=bucket, Key=name, Body=body, **condition)
        return
    asked = {"Bucket": bucket, "Key": name}
    begun = client.create_multipart_upload(**asked, ChecksumAlgorithm="CRC32")
    asked["UploadId"] = begun["UploadId"]
    length = max(PIECE_BYTES, -(-size // _MOST_PIECES))

    def send(number: int) -> dict[str, Any]:
        with source.open("rb") as handle:
            handle.seek((number - 1) * length)
            piece = handle.read(length)
        reply = client.upload_part(**asked, PartNumber=number, Body=piece, ChecksumAlgorithm="CRC32")
        sums = {_SUM: reply[_SUM]} if _SUM in reply else {}
        return {"PartNumber": number, "ETag": reply["ETag"], **sums}

    try:
        parts = _all(send, -(-size // length))
        client.complete_multipart_upload(**asked, MultipartUpload={"Parts": parts}, **condition)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error counts; a lifecycle rule removes leftover pieces
            client.abort_multipart_upload(**asked)
        raise


def _all(send: Callable[[int], dict[str, Any]], count: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sent = [pool.submit(send, number) for number in range(1, count + 1)]
        try:
            return [each.result() for each in sent]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class Object(NamedTuple):
    """One object of the workspace, as a listing shows it."""

    key: str
    bytes: int
    etag: str
    modified: dt.datetime  # in UTC


class Listed(BaseSubscriber):
    """Tells a download the size and ETag of a listing, so that no request asks for them again."""

    def __init__(self, found: Object) -> None:
        self._found = found

    def on_queued(self, future: TransferFuture, **_: Any) -> None:
        meta: Any = future.meta  # by its type it may be None
        meta.provide_transfer_size(self._found.bytes)
        meta.provide_object_etag(self._found.etag)


class Mirror:
    """The copies of one workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copies: dict[Path, tuple[str, int, int]] = {}  # ETag, bytes, and modification time of the copy
        self._lock = threading.Lock()

    def refresh(
        self,
        key: str,
        there: Sequence[Object],
        fetch: Callable[[dict[Path, Object]], None],
        names: Collection[str] | None = None,
    ) -> Path:
        """Make the copy of `key`, an object or a folder, hold exactly the objects in `there`.

        Args:
            names: files of the folder that `there` is limited to, so that copies of others stay; None: no limit. With
                their SHA-256, as a mapping, copies that an earlier process kept take the place of downloads.
            fetch: downloads objects to the given paths; a replaced file must keep its old bytes for readers that have
                it open.

        Raises:
            StoreError: an object's key leads out of the folder.
        """
        wanted = {self.path(found.key): found for found in there}
        path = self.path(key)
        with self._lock:
            for present in [path, *path.rglob("*")] if names is None else [path / name for name in names]:
                if present not in wanted and present.is_file():
                    present.unlink()
            stale = {place: found for place, found in wanted.items() if not self._holds(place, found)}
            for place in stale:
                place.parent.mkdir(parents=True, exist_ok=True)
            sums = {path / name: sha256 for name, sha256 in names.items()} if isinstance(names, Mapping) else {}
            kept = take({place: sums[place] for place in stale.keys() & sums.keys()})
            if missing := {place: found for place, found in stale.items() if place not in kept}:
                fetch(missing)
                keep({place: sums[place] for place in missing.keys() & sums.keys()})
            for place, found in stale.items():
                self._copies[place] = (found.etag, found.bytes, place.stat().st_mtime_ns)
        return path

    def has(self, folder: str, names: Mapping[str, str]) -> bool:
        """Return True if the copies of a folder's files that were fetched before have these SHA-256."""
        paths = {self.path(f"{folder}/{name}"): sha256 for name, sha256 in names.items()}
        return all(
            path in self._copies and path.is_file() and sha256_of(path) == sha256 for path, sha256 in paths.items()
        )

    def drop(self, key: str) -> None:
        """Delete the copy of an object, if any."""
        path = self.path(key)
        with self._lock:
            self._copies.pop(path, None)
            path.unlink(missing_ok=True)

    def path(self, key: str) -> Path:
        """Return the place of the copy of a key. Raises StoreError: its name leads out of the folder."""
        if ".." in key.split("/"):
            raise StoreError(f"object {key!r} cannot be copied here: its name leaves the workspace; remove it")
        return self.folder / key.lstrip("/")

    def _holds(self, path: Path, found: Object) -> bool:
        if not path.is_file():
            return False
        seen = path.stat()
        return self._copies.get(path) == (found.etag, found.bytes, seen.st_mtime_ns) and seen.st_size == found.bytes


_mirrors: dict[str, Mirror] = {}
_making = threading.Lock()


def mirror_of(uri: str) -> Mirror:
    """Return this process's mirror of a workspace."""
    with _making:
        if uri not in _mirrors:
            _mirrors[uri] = Mirror(_folder() / str(len(_mirrors)))
        return _mirrors[uri]


@functools.cache
def _folder() -> Path:
    folder, _ = claim_folder(DOWNLOADS)  # the lock is held until this process ends, killed or not
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork that inherited the handler
        shutil.rmtree(folder, ignore_errors=True)
