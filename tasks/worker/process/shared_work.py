"""Work that the first worker of a stage divides among all of its workers, which are children of an array.

The first worker asks a question, which is made of shares. Each worker leases a share, and writes its part of the
answer as a folder of the workspace. A share with a folder is done, in this attempt or an earlier one, and a lost
worker's share is reassigned. If nobody comes, the first worker does all shares. Others leave once it has failed, or
shows no sign of life.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import Field

from infra.store.base import Conflict
from infra.store.lease import hold, look, wait_for
from infra.store.manifest import MANIFEST, CorruptFolder, Manifest, MissingFolder, commit, open_folder, quarantine
from infra.store.records import find_record, settle
from tasks.contracts.kinds import Kind
from tasks.contracts.references import RowsRef
from tasks.contracts.workspace import ASKED, ASKING, SHARE, SHARE_LEASE
from tasks.foundation.clock import sleep, uptime
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record
from tasks.worker.process.job import Job

LEASE_SECONDS = 60.0  # before a lost worker's share is reassigned
SIGN_SECONDS = 60.0  # life of a sign
WAIT_SECONDS = 2.0  # between two looks at a question, or at shares that others have
GRACE_SECONDS = 120.0  # before a worker takes another one's share, whose vectors, for example, it would have to fetch
PATIENCE_SECONDS = 900.0  # without a sign of the first worker, whose machine may boot later, or be replaced
_KIND = "share"


P = TypeVar("P")


def divide(parts: Sequence[P], sizes: Sequence[int], workers: int) -> list[tuple[P, ...]]:
    """Return consecutive parts, about as much for each worker; none is empty."""
    shares, before, total = [list[P]() for _ in range(workers)], 0, max(1, sum(sizes))
    for part, size in zip(parts, sizes, strict=True):
        shares[min(workers - 1, (2 * before + size) * workers // (2 * total))].append(part)
        before += size
    return [tuple(some) for some in shares if some]


class Question(Record):
    """A question of the first worker."""

    folder: str | None = Field(default=None, description="content that all workers read")
    rows: tuple[RowsRef, ...] = Field(default=(), description="spans that it is about")


class Asked(Record):
    """The questions of the first worker."""

    questions: tuple[Question, ...] = ()
    last: bool = Field(default=False, description="true: no further question comes")
    over: bool = Field(default=False, description="true: no answer is needed any more")


class Share(NamedTuple):
    """A part of the work for a question; its part of the answer is one folder of the workspace."""

    key: str  # key of the folder, made from all that the answer is found by
    of: tuple[str, ...]  # folders that it is found in
    about: str  # for the log, as in `2 earlier spans compared`
    write: Callable[[Path], None]  # writes the answer into an empty local folder

    @classmethod
    def by(cls, made_of: Sequence[str], of: Sequence[str], about: str, write: Callable[[Path], None]) -> Share:
        """Return the share that is named by the folders and files it is `made_of`."""
        return cls(hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16], tuple(of), about, write)


SharesOf = Callable[[Question], AbstractContextManager[Sequence[Share]]]  # the same shares for each worker


class Workers:
    """All workers of a stage, with this worker's part in their work."""

    def __init__(self, job: Job, shares_of: SharesOf) -> None:
        self._job, self._store, self._shares_of = job, job.store, shares_of
        self._own = {job.share.index}  # numbers of its shares, also of shares that it took from a lost worker

    def help(self, question: Question) -> None:
        """Work on a question until all of its shares are done by some worker."""
        with self._shares_of(question) as shares:
            self._work(shares)

    def answers(self, question: Question) -> list[tuple[str, Manifest]]:
        """Return the folders of a question's shares, once all are done; a damaged one is done again."""
        opened = []
        with self._shares_of(question) as shares:
            self._work(shares)
            for share in shares:
                folder = SHARE.of(self._job.spec, key=share.key)
                try:
                    _, manifest = open_folder(self._store, folder, _KIND)
                except CorruptFolder:
                    quarantine(self._store, folder)
                    self._work(shares)
                    _, manifest = open_folder(self._store, folder, _KIND)
                opened.append((folder, manifest))
        return opened

    def _work(self, shares: Sequence[Share]) -> None:
        """Do the own shares, then shares that nobody does, until all are done by some worker."""
        began = uptime()
        while left := [number for number, share in enumerate(shares) if not self._done(share)]:
            late = uptime() - began > GRACE_SECONDS
            done = {number for number in left if (late or number in self._own) and self._do(shares[number])}
            self._own |= done
            if not done:
                sleep(WAIT_SECONDS)

    def _done(self, share: Share) -> bool:
        return self._store.exists(f"{SHARE.of(self._job.spec, key=share.key)}/{MANIFEST}")

    def _do(self, share: Share) -> bool:
        """Do a share that no other worker has; return True if it is done.

        Raises:
            StoreError: the lease was lost; another worker has the share.
        """
        spec, began = self._job.spec, uptime()
        try:
            with hold(self._store, SHARE_LEASE.of(spec, key=share.key), LEASE_SECONDS) as lease:
                if not self._done(share):
                    with self._job.scratch() as folder:
                        share.write(folder)
                        lease.check()
                        commit(self._store, SHARE.of(spec, key=share.key), folder, _KIND, {"of": [*share.of]})
                    print(f"{share.about}; {uptime() - began:.0f} s", flush=True)
        except Conflict:  # another worker has it
            return False
        return True


class Asking:
    """The questions of the first worker."""

    def __init__(self, job: Job, shares_of: SharesOf) -> None:
        self._job, self._workers, self._asked = job, Workers(job, shares_of), Asked()
        self._say()

    def ask(self, question: Question, last: bool = False) -> None:
        """Let the others begin to work on a question.

        Args:
            last: no other question comes, so they leave once it is answered.
        """
        self._asked = self._asked.model_copy(update={"questions": (*self._asked.questions, question), "last": last})
        self._say()

    def answers(self, question: Question) -> list[tuple[str, Manifest]]:
        """Return the folders of the answers to a question that was asked, one for each share."""
        return self._workers.answers(question)

    def end(self) -> None:
        """Let the others leave. If that fails, they leave once this worker shows no sign of life."""
        self._asked = self._asked.model_copy(update={"over": True})
        with contextlib.suppress(OSError, StoreError):
            self._say()

    def _say(self) -> None:
        settle(self._job.store, _of_job(ASKED, self._job), self._asked.to_json())


@contextlib.contextmanager
def asking(job: Job, shares_of: SharesOf) -> Iterator[Asking | None]:
    """Yield the questions to the other workers of a stage, as the first; None if it has one worker.

    Inside the block the first worker shows a sign of life.
    """
    if job.share.of == 1:
        yield None
        return
    with wait_for(job.store, _of_job(ASKING, job), SIGN_SECONDS, say=print):
        asked = Asking(job, shares_of)
        try:
            yield asked
        finally:
            asked.end()


def answer(job: Job, shares_of: SharesOf) -> None:
    """Work on the questions of the first worker, as one of the others, until no more can come."""
    workers, done = Workers(job, shares_of), 0
    while (asked := _wait(job, done)) is not None:
        with job.clock.phase("productive"):
            for question in asked.questions[done:]:
                try:
                    workers.help(question)
                except (
                    MissingFolder,
                    CorruptFolder,
                ) as error:  # the first worker meets it too
                    print(f"{error}; the share is left to the first worker", flush=True)
        done = len(asked.questions)
        if asked.last:
            return


def _wait(job: Job, done: int) -> Asked | None:
    """Return the questions once there are more than `done`; None if no more will be."""
    seen = uptime()
    while True:
        asked = find_record(job.store, _of_job(ASKED, job), Asked, "delete it, and start the run again")
        if asked is not None and asked.over:
            return None
        if asked is not None and len(asked.questions) > done:
            return asked
        if look(job.store, _of_job(ASKING, job)) is not None:
            seen = uptime()
        elif uptime() - seen > PATIENCE_SECONDS:
            print(f"no sign of the first worker for {PATIENCE_SECONDS:.0f} s; it works alone", flush=True)
            return None
        sleep(WAIT_SECONDS)


def _of_job(kind: Kind, job: Job) -> str:
    """Return a key that the tries of a job share, on all its machines."""
    return kind.key(run=job.spec.run_key, stage=job.spec.stage, attempt=job.spec.submitted_as)
