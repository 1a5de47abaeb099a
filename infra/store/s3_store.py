"""A workspace in a bucket, `s3://bucket/prefix`, on S3 or a compatible server.

The bucket decides conditional writes, never this code. Botocore finds endpoint, region and credentials by itself;
this project configures none of them.
"""

import contextlib
import errno
import logging
import random
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.manager import TransferManager

from infra.store.aws import (
    BUSY,
    LOST,
    MISSING,
    PAUSES_SECONDS,
    EndpointBusy,
    code_of,
    convert_errors,
    patient_client,
    retry_conflicts,
)
from infra.store.base import Conflict, Holder, Lock, manifests_apart
from infra.store.lease import TTL_SECONDS, LostLease, hold, look
from infra.store.s3_transfers import AT_ONCE, CUT_OFF, Listed, Object, ObjectStream, mirror_of, upload
from tasks.foundation.clock import sleep
from tasks.foundation.errors import ConfigError, StoreError

KEYS_AT_ONCE = 1000  # S3's limit for one list or delete request
ATTEMPTS = 5
_WRITE_ID = "millrace-write"  # key in an object's metadata: the call that wrote it
_NETWORK = Config(
    retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
    connect_timeout=5,
    read_timeout=30,
    max_pool_connections=16,  # ten transfers at once, and other requests meanwhile
)


class S3Store:
    """A workspace below a prefix of a bucket. Every object is written whole or not at all."""

    def __init__(self, uri: str) -> None:
        """Create the client; sends no request to the bucket.

        Raises:
            ConfigError: `uri` names no bucket, or AWS's own configuration is broken.
            StoreError: the machine's endpoint for credentials is overloaded, or does not answer.
        """
        self._bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self._parts = tuple(part for part in prefix.split("/") if part)
        if not self._bucket or ".." in self._parts:
            raise ConfigError(f"workspace {uri!r}: expected s3://bucket/prefix")
        self.uri = "/".join((f"s3://{self._bucket}", *self._parts))
        try:
            self._client: Any = patient_client("s3", _NETWORK)
        except EndpointBusy as error:
            raise StoreError(f"workspace {uri!r}: the machine gave no credentials for its role: {error}") from error
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"workspace {uri!r}: {error}; correct AWS_PROFILE, AWS_DEFAULT_REGION or AWS_ENDPOINT_URL"
            ) from error

    def read(self, key: str) -> bytes:
        """Return the object's bytes. Raises FileNotFoundError if it is missing."""
        found = self._get(key)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "There is no such object", f"{self.uri}/{key}")
        return found[0]

    def exists(self, key: str) -> bool:
        return self._object(key, alone=True) is not None

    def list(self, prefix: str) -> list[str]:
        """Return all keys below the folder `prefix`, sorted."""
        return sorted(found.key for found in self._below(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of each object below the folder `prefix`."""
        return {found.key: found.bytes for found in self._below(prefix)}

    def entries(self, key: str) -> Sequence[Object]:
        """Return the object `key` alone if it exists, else all objects below it, sorted."""
        return sorted(self._objects(key))

    def stream(self, key: str, size: int) -> ObjectStream:
        """Return an object of `size` bytes as a stream; it sends its first request when it is read."""
        first = ""

        def get(position: int) -> Any:
            nonlocal first
            reply = self._client.get_object(Bucket=self._bucket, Key=self._raw(key), Range=f"bytes={position}-")
            first = first or reply["ETag"]
            if reply["ETag"] != first:
                raise StoreError(f"{self.uri}/{key} was changed while it was read; give the command again")
            return reply["Body"]

        return ObjectStream(size, get, lambda: self._explained(key))

    def write(self, key: str, data: bytes) -> None:
        """Create or replace an object."""
        with self._explained(key):
            self._client.put_object(Bucket=self._bucket, Key=self._full(key), Body=data)

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet. Raises Conflict if it does."""
        if not self._put_if(key, data, IfNoneMatch="*"):
            raise Conflict(f"{self.uri}/{key} exists already")

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        """Replace an object only while it still holds `expected` (None: only while absent).

        Raises:
            Conflict: another process wrote it in between.
        """
        content, etag, _ = self._get(key) or (None, "", "")
        condition = {"IfNoneMatch": "*"} if content is None else {"IfMatch": etag}
        if content != expected or not self._put_if(key, data, **condition):
            raise Conflict(f"{self.uri}/{key} was changed by another process; read it again and decide again")

    def tags(self, prefix: str) -> dict[str, str]:
        """Return the version tag of the object `prefix`, or of each object below the folder `prefix`."""
        return {found.key: found.etag for found in self._objects(prefix)}

    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None:
        """Copy a local file to a free key, or replace the version `instead_of` of an object.

        Raises:
            Conflict: the key holds something else, or the reply to a successful upload was lost.
        """
        full = self._full(key)
        condition = {"IfNoneMatch": "*"} if instead_of is None else {"IfMatch": instead_of}
        with self._explained(key):
            try:
                retry_conflicts(lambda: upload(self._client, self._bucket, full, source, condition))
            except ClientError as error:
                if code_of(error) not in (*LOST, "NoSuchUpload"):
                    raise
                raise Conflict(f"{self.uri}/{key} was changed by another process; look at it again") from error

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        """Return a local copy for reading: a file, or a folder with everything below `key`.

        Args:
            names: files of the folder that are needed, such as `part-00003.parquet`; no other one is fetched. A mapping
                to their SHA-256 lets copies serve: this process's own without a request, or an earlier one's.
        """
        self._full(key)
        mirror = mirror_of(self.uri)
        if isinstance(names, Mapping) and mirror.has(key, names):
            return mirror.path(key)
        there = self._objects(key) if names is None else self._named(key, frozenset(names))

        def fetch(stale: dict[Path, Object]) -> None:
            self._transfer(
                key,
                lambda manager: [
                    manager.download(self._bucket, self._raw(found.key), str(path), subscribers=[Listed(found)])
                    for path, found in stale.items()
                ],
            )

        return mirror.refresh(key, tuple(there), fetch, names)

    def move(self, prefix: str, target: str) -> None:
        """Rename a folder or an object. Raises Conflict if `target` exists.

        Everything is copied before anything is deleted. Manifests are copied last and deleted first, so that no reader
        finds an incomplete folder.
        """
        source = self._full(prefix)
        if next(self._objects(target), None):
            raise Conflict(f"{self.uri}/{target} exists already")
        seen = self.tags(prefix)
        moved = [self._raw(key) for key in seen]
        if not moved:
            raise FileNotFoundError(errno.ENOENT, "There is no such object or folder", f"{self.uri}/{prefix}")
        for names in reversed(manifests_apart(moved)):
            copies = {name: self._full(target) + name[len(source) :] for name in names}
            self._copy(prefix, copies)
        self.discard(prefix, seen)

    def copy(self, prefix: str, target: str, names: Collection[str]) -> None:
        """Copy files of a folder into another one, manifests last; their bytes stay in S3."""
        source, into = self._full(prefix), self._full(target)
        for some in reversed(manifests_apart(names)):
            self._copy(prefix, {f"{source}/{name}": f"{into}/{name}" for name in some})

    def delete(self, prefix: str) -> None:
        """Remove an object, or a folder with everything below it; a missing one is no error."""
        self._delete(prefix, [self._raw(found.key) for found in self._objects(prefix)])

    def discard(self, prefix: str, seen: Mapping[str, str]) -> None:
        """Remove the objects at or below `prefix` that still have the version tags in `seen`, manifests first."""
        self._full(prefix)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for names in manifests_apart(list(seen)):
                for _ in pool.map(lambda name: self._discard(name, seen[name]), names):
                    pass

    def _discard(self, key: str, tag: str) -> None:
        with self._explained(key):
            try:
                retry_conflicts(
                    lambda: self._client.delete_object(Bucket=self._bucket, Key=self._raw(key), IfMatch=tag)
                )
            except ClientError as error:
                if code_of(error) not in LOST:
                    raise

    def age_seconds(self, key: str) -> float | None:
        """Return the seconds since an object was written, by the bucket's clock; None if it is gone."""
        with self._explained(key):
            try:
                reply = self._client.head_object(Bucket=self._bucket, Key=self._full(key))
            except ClientError as error:
                if code_of(error) in (*MISSING, "404"):
                    return None
                raise
        said = reply["ResponseMetadata"]["HTTPHeaders"].get("date")
        if not said:
            return None
        age: float = (parsedate_to_datetime(said) - reply["LastModified"]).total_seconds()
        return age

    def peek(self, key: str) -> Holder | None:
        """Return the holder of a lock, by the bucket's clock; None if it is free. Only reads."""
        return look(self, f".locks/{key}")

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[Lock]:
        """Hold a lock by name: a lease, which a dead holder keeps for a minute.

        Raises:
            Conflict: another process holds it.
            LostLease: at the end of the block, if it was lost meanwhile.
        """
        with hold(self, f".locks/{key}", TTL_SECONDS) as held:
            yield held
            try:
                held.confirm()
            except LostLease:
                raise
            except StoreError:  # writes are safe without the lock, so finished work stays valid
                logging.getLogger("millrace").warning(
                    "the work under the lock %s/%s is finished, but whether it was held to the end is not known: %s",
                    self.uri, key, held.trouble or "it was not renewed in time",
                )  # fmt: skip

    def _full(self, key: str) -> str:
        """Return the object's name in the bucket. Raises StoreError for a key that would leave the workspace."""
        parts = PurePosixPath(key).parts
        if key.startswith("/") or ".." in parts:
            raise StoreError(f"key {key!r} leaves the workspace {self.uri}")
        return "/".join((*self._parts, *parts))

    def _raw(self, listed: str) -> str:
        """Return the object's name for a key from a listing, unchecked: other programs may have written it."""
        return "/".join((*self._parts, listed))

    def _get(self, key: str, attempts: int = ATTEMPTS) -> tuple[bytes, str, str] | None:
        """Return an object's bytes, and the ETag and write id that belong to them; None if it is missing."""
        with self._explained(key):
            try:
                reply = self._client.get_object(Bucket=self._bucket, Key=self._full(key))
            except ClientError as error:
                if code_of(error) in MISSING:
                    return None
                raise
            try:
                with contextlib.closing(reply["Body"]) as body:
                    return body.read(), reply["ETag"], reply["Metadata"].get(_WRITE_ID, "")
            except CUT_OFF:  # botocore does not retry the body
                if attempts == 1:
                    raise
        return self._get(key, attempts - 1)

    def _put_if(self, key: str, data: bytes, **condition: str) -> bool:
        """Do a conditional write; return True if it succeeded.

        If the reply of a successful write is lost, botocore's retry fails the condition, so the write id is compared.
        """
        full, write_id = self._full(key), uuid.uuid4().hex
        with self._explained(key):
            try:
                retry_conflicts(
                    lambda: self._client.put_object(
                        Bucket=self._bucket, Key=full, Body=data, Metadata={_WRITE_ID: write_id}, **condition
                    )
                )
            except ClientError as error:
                if code_of(error) not in LOST:
                    raise
                found = self._get(key)
                return found is not None and (found[0], found[2]) == (data, write_id)
        return True

    def _object(self, key: str, alone: bool = False) -> Object | None:
        """Return the object of exactly this name; None if the bucket has no such object.

        By a HEAD request, which costs a twelfth of a listing. Other failures than 404 are left to a listing, since only
        that says in its body how it was refused.

        Args:
            alone: no listing of a folder follows, which would notice that the bucket is missing: a GET tells that.
        """
        if not PurePosixPath(key).parts:
            return None
        full = self._full(key)
        with self._explained(key):
            try:
                said = self._client.head_object(Bucket=self._bucket, Key=full)
                return Object(key, said["ContentLength"], said["ETag"], said["LastModified"])
            except ClientError as error:
                if code_of(error) in MISSING and (not alone or self._get(key) is None):
                    return None
            reply = self._client.list_objects_v2(Bucket=self._bucket, Prefix=full, MaxKeys=1)
        first = next(iter(reply.get("Contents", ())), None)
        return self._listed(first) if first and first["Key"] == full else None

    def _below(self, prefix: str) -> Iterator[Object]:
        """Yield the objects below a folder, without names that end in a slash, some tools' marks of empty folders."""
        full = self._full(prefix)
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{full}/" if full else "", PaginationConfig={"PageSize": KEYS_AT_ONCE}
        )
        with self._explained(prefix):
            for page in pages:
                yield from (self._listed(entry) for entry in page.get("Contents", ()) if not entry["Key"].endswith("/"))

    def _objects(self, key: str) -> Iterator[Object]:
        """Return the object `key`, or all objects below the folder `key`."""
        found = self._object(key)
        return iter((found,)) if found else self._below(key)

    def _named(self, folder: str, names: frozenset[str]) -> Iterator[Object]:
        if len(names) == 1:  # a listing costs twelve times as much
            found = self._object(f"{folder}/{next(iter(names))}", alone=True)
            return iter((found,) if found else ())
        return (found for found in self._below(folder) if found.key.removeprefix(f"{folder}/") in names)

    def _listed(self, entry: dict[str, Any]) -> Object:
        key = entry["Key"].removeprefix("".join(f"{part}/" for part in self._parts))
        return Object(key, entry["Size"], entry["ETag"], entry["LastModified"])

    def _delete(self, key: str, names: Sequence[str]) -> None:
        for some in manifests_apart(names):
            for start in range(0, len(some), KEYS_AT_ONCE):
                self._delete_few(key, some[start : start + KEYS_AT_ONCE])

    def _delete_few(self, key: str, names: Sequence[str]) -> None:
        """Delete objects by one request; ask again for keys that it names as not deleted, as by a busy bucket."""
        pauses = iter(PAUSES_SECONDS)
        with self._explained(key):
            while names:
                batch = {"Objects": [{"Key": name} for name in names], "Quiet": True}
                refused = self._client.delete_objects(Bucket=self._bucket, Delete=batch).get("Errors", ())
                names = [each["Key"] for each in refused]
                pause = next(pauses, None)
                for each in refused:
                    if pause is None or each["Code"] not in BUSY:
                        raise ClientError({"Error": each}, "DeleteObjects")
                if pause is not None and names:
                    sleep(pause * random.uniform(0.5, 1.5))

    def _copy(self, key: str, copies: dict[str, str]) -> None:
        def start(manager: TransferManager) -> Sequence[Any]:
            return [
                manager.copy({"Bucket": self._bucket, "Key": name}, self._bucket, new) for name, new in copies.items()
            ]

        self._transfer(key, start)

    def _transfer(self, key: str, start: Callable[[TransferManager], Sequence[Any]]) -> None:
        """Wait for all transfers that `start` begins; many run at once, large ones in pieces."""
        with self._explained(key), TransferManager(self._client) as manager:
            for transfer in start(manager):
                transfer.result()

    def _explained(self, key: str) -> contextlib.AbstractContextManager[None]:
        return convert_errors(self._bucket, f"{self.uri}/{key}".rstrip("/"))
