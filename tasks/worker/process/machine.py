"""Local files that the workers of one machine share in one attempt, and one local copy of each bucket object.

Otherwise each of 32 workers would download the same checkpoint, and list the bucket to wait for the others. The last
worker to leave a shared folder removes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, TypeVar

from infra.store.base import Store
from infra.store.directory import NO_LINKS
from infra.store.factory import scheme_of
from infra.store.lease import CheckedStore
from tasks.foundation.errors import HangError
from tasks.worker.process.sigterm import RUNNER_PID

T = TypeVar("T")
_ARRIVED, _BEAT = "arrived-", "beat"


class SharedFolder:
    """One worker's use of the folder, which the first worker creates."""

    def __init__(self, path: Path, workers: int = 1) -> None:
        """Create the folder if needed, and lock it against removal.

        Args:
            workers: the folder is kept until this number of workers has used it, so that late ones find its files.
        """
        self.path = path
        lock = _use(path)
        while not _is_at(lock, path):  # another worker has just removed it
            os.close(lock)
            lock = _use(path)
        if workers > 1:
            (path / f"{_ARRIVED}{uuid.uuid4().hex}").touch()
        self._leave = weakref.finalize(self, _leave, lock, path, workers)

    def leave(self) -> None:
        """Remove the folder unless another worker needs it; a second call does nothing."""
        self._leave()


def _leave(lock: int, path: Path, workers: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if workers == 1 or len([*path.glob(f"{_ARRIVED}*")]) >= workers:
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _use(path: Path) -> int:
    while True:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            folder = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(folder, fcntl.LOCK_SH)  # the kernel releases it if the process dies
        return folder


def _is_at(folder: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), path.stat())
    except FileNotFoundError:
        return False


SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 1.0


def wait_until(
    done: Callable[[], bool], missing: Callable[[], str], seconds: float, sign: Callable[[], object] = lambda: None
) -> None:
    """Poll until `done` is true.

    Args:
        missing: returns the begin of the error's sentence.
        sign: returns another value whenever the awaited work has gone on.

    Raises:
        HangError: `seconds` have passed since the call, or since the last sign.
    """
    deadline, pause, seen = time.monotonic() + seconds, SHORTEST_POLL_SECONDS, sign()
    while not done():
        if (now := sign()) != seen:
            deadline, seen = time.monotonic() + seconds, now
        if time.monotonic() > deadline:
            raise HangError(f"{missing()} within {seconds:g} s; a worker is stuck or has ended")
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_POLL_SECONDS)


def beating(pieces: Iterable[T], beat: Callable[[], object]) -> Iterator[T]:
    """Yield the pieces of a long work, with a call of `beat` before each."""
    for piece in pieces:
        beat()
        yield piece


LONGEST_SECONDS = 4 * 3600.0  # without a sign of work: longer than one fetch, or the compilation of one graph


def once_per_machine(path: Path, make: Callable[[], bytes], what: str) -> bytes:
    """Like `make_once_per_machine`; all workers get the result."""
    make_once_per_machine(path, make, what)
    return path.read_bytes()


def make_once_per_machine(path: Path, make: Callable[[], bytes | memoryview], what: str) -> None:
    """Run `make` in the first worker that calls this, and write its result to a file; the others wait.

    If a worker fails or dies in `make`, the next one runs it.

    Args:
        path: a file in an existing folder that these workers share.
        what: the work in words, for the error.

    Raises:
        HangError: another worker held the lock for LONGEST_SECONDS.
    """
    if path.exists():
        return
    with path.with_name(f"{path.name}.lock").open("wb") as lock:
        wait_until(
            lambda: _locked(lock),
            lambda: f"another worker of this machine has not ended its work, {what},",
            LONGEST_SECONDS,
        )
        if not path.exists():
            publish_file(path, make())


def publish_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file for other workers of this machine, who see it complete or not at all."""
    staged = path.with_name(f"{path.name}.tmp")
    staged.write_bytes(content)
    staged.replace(path)


def _linked(source: str | Path, target: str | Path) -> None:
    """Make a hard link; a copy where the file system of TMPDIR has no links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(source, target)


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


PREFIX = "millrace-machine-"


class Machine:
    """The workers that one launcher started on this machine for one attempt.

    Their folder exists until all have used and left it; if one is killed, until the container ends.
    """

    def __init__(self, workspace: str, attempt: str, first: int, workers: int) -> None:
        """Create no folder yet.

        Args:
            workspace: its URI.
            attempt: the folder of the attempt in the workspace.
            first: rank of this machine's first worker.
            workers: number of workers on this machine.
        """
        self._workers = workers
        name = hashlib.sha256(f"{workspace}#{attempt}#{first}".encode()).hexdigest()[:16]
        runner = os.environ.get(RUNNER_PID, os.getppid())  # each rank may have a warm parent of its own
        self._path = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getuid()}-{runner}-{name}"

    @property
    def folder(self) -> Path:
        """A local folder private to these workers."""
        return self._shared.path

    @cached_property
    def _shared(self) -> SharedFolder:
        return SharedFolder(self._path, self._workers)

    def leave(self) -> None:
        """End this worker's use of the folder."""
        if "_shared" in vars(self):
            vars(self).pop("_shared").leave()

    def beat(self) -> None:
        """Give the workers that wait for this one's file a sign that the work goes on."""
        if self._workers > 1:
            with (self.folder / _BEAT).open("ab") as file:
                file.write(b".")  # a file's time has the resolution of the kernel's clock tick

    def _beats(self) -> int:
        try:
            return (self.folder / _BEAT).stat().st_size
        except FileNotFoundError:
            return 0

    def publish(self, name: str, content: bytes) -> None:
        """Write a file that the others wait for."""
        publish_file(self.folder / name, content)

    def wait_for(self, name: str, what: str, seconds: float = LONGEST_SECONDS) -> bytes:
        """Return the content of a file, once another worker of this machine has published it.

        If that worker fails, the runner ends this one.

        Args:
            what: its content in words, for the error.

        Raises:
            HangError: the file did not exist `seconds` after the call, or after that worker's last `beat`.
        """
        path = self.folder / name
        wait_until(
            path.exists,
            lambda: f"this machine's first worker has neither written {what}, {path}, nor gone on",
            seconds,
            self._beats,
        )
        return path.read_bytes()

    def reads(self, store: Store) -> Store:
        """Return a store for objects that don't change during the attempt, which fetches each one once per machine.

        A local directory is returned as it is.
        """
        return store if scheme_of(store.uri) == "file" else SharedReads(store, self)


class SharedReads(CheckedStore):
    """A bucket with a read cache shared by a machine's workers: the first reader fetches, the others wait for its copy.

    For objects that no worker changes during the attempt: folders of earlier stages, and files written once. All other
    calls go to the store.
    """

    def __init__(self, store: Store, machine: Machine) -> None:
        super().__init__(store, lambda key: None)
        self._machine = machine

    def read(self, key: str) -> bytes:
        """Return the object's bytes. Raises FileNotFoundError if it does not exist; this is not cached."""
        return once_per_machine(self._place(key, ".bytes"), lambda: self._store.read(key), self._what(key))

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        """Return a read-only local copy of the file `key`, or of the folder: with everything below it, or `names`."""
        asked = key if names is None else "\n".join([key, *sorted(names)])
        copy = self._place(asked, "") / Path(key).name
        once_per_machine(self._place(asked, ".copied"), lambda: self._copy(key, copy, names), self._what(key))
        return copy

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of each object below the folder `prefix`, without reading them."""
        place, what = self._place(prefix, ".sizes"), self._what(prefix)
        found: dict[str, int] = json.loads(
            once_per_machine(place, lambda: json.dumps(self._store.sizes(prefix)).encode(), what)
        )
        return found

    def _copy(self, key: str, copy: Path, names: Collection[str] | None) -> bytes:
        """Hard-link the files of this process's own copy, which may be deleted when the process ends."""
        shutil.rmtree(copy.parent, ignore_errors=True)  # partial copy of a killed worker
        copy.parent.mkdir()
        found = self._store.local(key, names)
        if names is not None:
            for name in (each for each in names if (found / each).exists()):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                _linked(found / name, copy / name)
        elif found.is_dir():
            shutil.copytree(found, copy, copy_function=_linked)
        elif found.exists():
            _linked(found, copy)
        return b""

    def _place(self, key: str, suffix: str) -> Path:
        return self._machine.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}{suffix}"

    def _what(self, key: str) -> str:
        return f"to fetch {self.uri}/{key}"
