"""Two stores in memory, with the rules of a bucket and of a directory; each request is a turn of the scheduler.

The bucket is a client of S3 below the real `S3Store`: conditional writes, 412, 409, lost replies, and listings by page,
as https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-requests.html describes them. The directory has the
steps of `infra/store/directory.py`, with kernel locks that a dead holder leaves at once.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import functools
import hashlib
import io
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from infra.store.aws import PAUSES_SECONDS
from infra.store.base import Conflict, Holder, InUse, Lock
from infra.store.kernel_lock import KernelLock
from infra.store.s3_store import S3Store
from tasks.foundation.errors import StoreError
from tests.simulation.objects import Objects, Stored
from tests.simulation.scheduler import START, Disturbances

BUCKET = "sim"
_UNDISTURBED = Disturbances()


# A bucket


class SimulatedBucket(S3Store):
    """The real store on a simulated bucket."""

    def __init__(self, objects: Objects, uri: str = "s3://sim") -> None:
        self._bucket, self._parts, self.uri = BUCKET, (), uri
        self._client: Any = Client(objects)

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        """Return a copy in a folder of its own; a mirror would show one process the files of another."""
        self._full(key)
        there = [found.key for found in self.entries(key)]
        wanted = [each for each in there if names is None or each.removeprefix(f"{key}/") in names]
        return copy_of(key, {each: self.read(each) for each in wanted})

    def _copy(self, key: str, copies: dict[str, str]) -> None:
        for name, new in copies.items():
            self._client.copy(name, new)


class Client:
    """The requests of boto3's client that the store sends. Errors are botocore's own."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._undecided = Counter[str]()  # by key: answers of 409 in a row

    def get_object(self, Bucket: str, Key: str, Range: str = "") -> dict[str, Any]:  # noqa: N803
        self.objects.turn("get", Key)
        self._may_fail("GetObject")
        found = self._found(Key, "GetObject")
        data = found.data[int(Range.removeprefix("bytes=").rstrip("-")) :] if Range else found.data
        return {"Body": io.BytesIO(data), "ETag": found.tag, "Metadata": dict(found.metadata)}

    def put_object(
        self,
        Bucket: str,  # noqa: N803
        Key: str,  # noqa: N803
        Body: Any,  # noqa: N803
        Metadata: Mapping[str, str] | None = None,  # noqa: N803
        IfNoneMatch: str = "",  # noqa: N803
        IfMatch: str = "",  # noqa: N803
    ) -> None:
        data = Body if isinstance(Body, bytes) else Body.read()
        rates = self._rates()
        while True:
            self.objects.turn("put if" if IfNoneMatch or IfMatch else "put", Key)
            self._may_fail("PutObject")
            # S3 decides soon; a command whose writes all collide may end as STORE, and one in a million would.
            collides = (IfNoneMatch or IfMatch) and self.objects.draws(rates.undecided)
            if collides and self._undecided[Key] < len(PAUSES_SECONDS):
                self._undecided[Key] += 1
                raise _error("ConditionalRequestConflict", 409, "PutObject")
            self._undecided[Key] = 0
            self._require(Key, IfNoneMatch, IfMatch)
            self.objects.put(Key, data, etag(data), Metadata)
            self._may_fail("PutObject")  # though it wrote
            if not self.objects.draws(rates.lost_replies):
                return  # else the reply is lost, and botocore sends the request again

    def head_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        self.objects.turn("head", Key)
        found = self._found(Key, "HeadObject")
        date = dt.datetime.fromtimestamp(START + self.objects.time, dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"HTTPHeaders": {"date": date}}
        said = {"ContentLength": len(found.data), "ETag": found.tag, "LastModified": _date(found.at)}
        return said | {"ResponseMetadata": headers}

    def list_objects_v2(self, Bucket: str, Prefix: str, MaxKeys: int) -> dict[str, Any]:  # noqa: N803
        self.objects.turn("list", Prefix)
        return {"Contents": [self._entry(key) for key in self.objects.below(Prefix, most=MaxKeys)]}

    def get_paginator(self, _: str) -> Client:
        return self

    def paginate(self, Bucket: str, Prefix: str, PaginationConfig: dict[str, int]) -> Iterator[dict[str, Any]]:  # noqa: N803
        """Each page shows the bucket at its own moment."""
        after, size = "", PaginationConfig["PageSize"]
        while True:
            self.objects.turn("list", Prefix)
            keys = self.objects.below(Prefix, after, size + 1)
            yield {"Contents": [self._entry(key) for key in keys[:size]]}
            if len(keys) <= size:
                return
            after = keys[size - 1]

    def delete_object(self, Bucket: str, Key: str, IfMatch: str) -> None:  # noqa: N803
        self.objects.turn("del if", Key)
        self._may_fail("DeleteObject")
        self._require(Key, "", IfMatch)
        self.objects.remove(Key)

    def delete_objects(self, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803
        """One request; S3 deletes its objects one by one."""
        for each in Delete["Objects"]:
            self.objects.turn("delete", each["Key"])
            self.objects.remove(each["Key"])
        return {}

    def copy(self, name: str, new: str) -> None:
        self.objects.turn("copy", new)
        found = self._found(name, "CopyObject")
        self.objects.put(new, found.data, found.tag, found.metadata)

    def _found(self, key: str, operation: str) -> Stored:
        found = self.objects.files.get(key)
        if found is None:
            raise _error("NoSuchKey", 404, operation)
        return found

    def _require(self, key: str, if_none_match: str, if_match: str) -> None:
        found = self.objects.files.get(key)
        if if_match and found is None:
            raise _error("NoSuchKey", 404, "PutObject")
        if (if_none_match and found is not None) or (if_match and found is not None and found.tag != if_match):
            raise _error("PreconditionFailed", 412, "PutObject")

    def _entry(self, key: str) -> dict[str, Any]:
        found = self.objects.files[key]
        return {"Key": key, "Size": len(found.data), "ETag": found.tag, "LastModified": _date(found.at)}

    def _rates(self) -> Disturbances:
        scheduler = self.objects.scheduler
        return scheduler.disturbances if scheduler is not None else _UNDISTURBED

    def _may_fail(self, operation: str) -> None:
        """Answer as an overloaded bucket does to the last of botocore's tries."""
        if self.objects.draws(self._rates().failures):
            raise _error("SlowDown", 503, operation)


@functools.lru_cache(maxsize=10_000)
def etag(data: bytes) -> str:
    """Return the tag that a bucket gives these bytes."""
    return f'"{hashlib.md5(data).hexdigest()}"'


@functools.lru_cache(maxsize=100_000)
def _date(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(START + at), dt.UTC)  # S3 gives whole seconds


def _error(code: str, status: int, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)  # type: ignore[arg-type]


# A directory


class SimulatedDirectory:
    """The rules of a directory: no conditions, but links that refuse a taken name, renames and kernel locks."""

    def __init__(self, objects: Objects, uri: str = "dir://sim") -> None:
        self.objects, self.uri = objects, uri
        self._locks: dict[str, str] = {}  # name of a lock -> its holder
        self._terms: dict[str, int] = {}
        self._held: set[str] = set()  # locks of swaps

    def read(self, key: str) -> bytes:
        self._turn("read", key)
        found = self.objects.files.get(key)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", f"{self.uri}/{key}")
        return found.data

    def exists(self, key: str) -> bool:
        self._turn("exists", key)
        return key in self.objects.files

    def list(self, prefix: str) -> list[str]:
        """The folders below are walked one by one, so a listing is of no single moment."""
        return sorted(self._walked(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {key: len(found.data) for key in self._walked(prefix) if (found := self.objects.files.get(key))}

    def tags(self, prefix: str) -> dict[str, str]:
        self._turn("tags", prefix)
        keys = [prefix] if prefix in self.objects.files else self._walked(prefix)
        return {key: found.tag for key in keys if (found := self.objects.files.get(key))}

    def write(self, key: str, data: bytes) -> None:
        self._turn("rename", key)
        self.objects.put(key, data)

    def create(self, key: str, data: bytes) -> None:
        self._turn("link", key)
        if key in self.objects.files:
            raise Conflict(f"{self.uri}/{key} exists already")
        self.objects.put(key, data)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        with self._swapping(key):
            self._turn("compare", key)
            found = self.objects.files.get(key)
            if (found.data if found else None) != expected:
                raise Conflict(f"{self.uri}/{key} was changed by another process; read it again and decide again")
            self.write(key, data)

    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None:
        if instead_of is None:
            self.create(key, source.read_bytes())
            return
        with self._swapping(key):
            self._turn("compare", key)
            found = self.objects.files.get(key)
            if (found.tag if found else None) != instead_of:
                raise Conflict(f"{self.uri}/{key} was changed by another process; look at it again")
            self.write(key, source.read_bytes())

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        self._turn("local", key)
        keys = (key, *self.objects.below(f"{key}/"))
        return copy_of(key, {each: found.data for each in keys if (found := self.objects.files.get(each)) is not None})

    def move(self, prefix: str, target: str) -> None:
        self._checked(target)
        self._turn("move", prefix)
        if target in self.objects.files or self.objects.below(f"{target}/"):
            raise Conflict(f"{self.uri}/{target} exists already")
        found = [key for key in (prefix, *self.objects.below(f"{prefix}/")) if key in self.objects.files]
        if not found:
            raise FileNotFoundError(errno.ENOENT, "No such file", f"{self.uri}/{prefix}")
        for key in found:
            stored = self.objects.files[key]
            self.objects.remove(key)
            self.objects.put(target + key[len(prefix) :], stored.data, stored.tag)

    def copy(self, prefix: str, target: str, names: Collection[str]) -> None:
        for key in (prefix, target):
            self._checked(key)
        raise AssertionError("no command copies in a workspace")

    def delete(self, prefix: str) -> None:
        self._turn("unlink", prefix)
        if prefix in self.objects.files:
            self.objects.remove(prefix)
            return
        for key in reversed(self.objects.below(f"{prefix}/")):  # in no promised order; manifests need not be first
            self._turn("unlink", key)
            self.objects.remove(key)

    def discard(self, prefix: str, seen: Mapping[str, str]) -> None:
        there = self.tags(prefix)
        if there == seen:
            self.delete(prefix)
            return
        for key in sorted(there.keys() & seen.keys()):
            if there[key] == seen[key]:
                self.delete(key)

    def age_seconds(self, key: str) -> float | None:
        return None

    def peek(self, key: str) -> Holder | None:
        self._turn("peek", key)
        holder = self._locks.get(key)
        return Holder(holder, None) if holder is not None else None

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[Lock]:
        self._turn("flock", key)
        if key in self._locks:
            raise InUse(f"{self.uri}/{key}", self._locks[key])
        strand = self.objects.scheduler.current if self.objects.scheduler is not None else None
        self._locks[key] = f"process {strand.process.name}" if strand is not None else "process"
        self._terms[key] = self._terms.get(key, 0) + 1
        try:
            yield KernelLock(self._terms[key])
        finally:
            del self._locks[key]

    @contextlib.contextmanager
    def _swapping(self, key: str) -> Iterator[None]:
        self._checked(key)
        while key in self._held:
            self.objects.wait(lambda: key not in self._held)
        self._held.add(key)
        try:
            yield
        finally:
            self._held.discard(key)

    def _walked(self, prefix: str) -> list[str]:
        self._turn("walk", prefix)
        return self.objects.below(f"{prefix}/" if prefix else "")

    def _turn(self, what: str, key: str) -> None:
        self._checked(key)
        self.objects.turn(what, key)

    def _checked(self, key: str) -> None:
        if key.startswith("/") or ".." in key.split("/"):
            raise StoreError(f"key {key!r} leaves the workspace {self.uri}")


RULES: dict[str, Callable[[Objects], Any]] = {"bucket": SimulatedBucket, "directory": SimulatedDirectory}


# Local copies of objects, for readers: a folder for each content, all removed when this process ends

MOST_FOLDERS = 500

_folders: dict[tuple[tuple[str, bytes], ...], Path] = {}
_root: list[tempfile.TemporaryDirectory[str]] = []


def copy_of(key: str, contents: Mapping[str, bytes]) -> Path:
    """Return the path of `key` in a folder that holds these objects, which nobody changes."""
    if not _root:
        _root.append(tempfile.TemporaryDirectory(prefix="millrace-simulated-"))
    known = tuple(contents.items())
    if (folder := _folders.get(known)) is None:
        folder = _folders[known] = Path(tempfile.mkdtemp(dir=_root[0].name))
        for name, data in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return folder / key


def make_own_copies() -> None:
    """Share no folder with the process that this one was forked from; that one removes all of them at its end."""
    copy_of("", {})
    _folders.clear()


def limit_copies() -> None:
    """Remove all copies if there are many; nobody reads one between two interleavings."""
    if len(_folders) > MOST_FOLDERS:
        for folder in _folders.values():
            shutil.rmtree(folder)
        _folders.clear()
