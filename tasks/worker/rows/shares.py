"""The earlier rows that a window meets, found by all workers of validate, each in a share of the earlier spans.

Signatures and keys of earlier rows grow with the weeks, and few are needed: a row must share a key with a row of the
window, a pair its query. The first worker judges the window and asks: it writes the keys of a span's rows. Then each
worker leases a share and writes the earlier rows that are met. In these the first finds what it would find in all.

A share with a folder is done, in this attempt or an earlier one, and a lost worker's share is reassigned. If nobody
comes, the first worker does all shares. Others leave once it has failed, or shows no sign of life.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.lease import hold, look, wait_for
from infra.store.manifest import (
    MANIFEST,
    CorruptFolder,
    Manifest,
    commit,
    commit_by_content,
    open_file,
    open_folder,
    open_manifest,
    quarantine,
)
from infra.store.records import find_record, settle
from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.kinds import Kind
from tasks.contracts.references import RowsRef
from tasks.contracts.workspace import ASKED, ASKED_KEYS, ASKING, MET, MET_LEASE
from tasks.data.holdout import HELD
from tasks.foundation.clock import sleep, uptime
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record
from tasks.worker.catalogue.records import connect
from tasks.worker.process.job import Job
from tasks.worker.rows.duplicates import OTHER_SIDE, Signed, begin, load_keys, signed_rows, some_at_once, take
from tasks.worker.rows.holdout import tables_of
from tasks.worker.rows.signatures import KEYS, PLACE

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

LEASE_SECONDS = 60.0  # before a lost worker's share is reassigned
SIGN_SECONDS = 60.0  # life of a sign
WAIT_SECONDS = 5.0  # between two looks at a question, or at shares that others have
PATIENCE_SECONDS = 900.0  # without a sign of the first worker, whose machine may boot later, or be replaced
_KEYS_KIND, _MET_KIND = "asked keys", "met"
_KEYS_FILE = "keys.parquet"


class Asked(Record):
    """The questions of the first worker."""

    keys: tuple[str, ...] = Field(
        default=(), description="folders with the keys of a span's rows, whose near-duplicates are asked for"
    )
    rows: tuple[RowsRef, ...] = Field(
        default=(), description="spans of the window, whose pairs in earlier spans are asked for; empty: not yet"
    )
    over: bool = Field(default=False, description="true: no further question comes")


P = TypeVar("P")
WriteKeys = Callable[[Sequence[RowsRef], Sequence[RowsRef], Path, Path], None]


def divide(parts: Sequence[P], sizes: Sequence[int], workers: int) -> list[tuple[P, ...]]:
    """Return consecutive parts, about as much for each worker; none is empty."""
    shares, before, total = [list[P]() for _ in range(workers)], 0, max(1, sum(sizes))
    for part, size in zip(parts, sizes, strict=True):
        shares[min(workers - 1, (2 * before + size) * workers // (2 * total))].append(part)
        before += size
    return [tuple(some) for some in shares if some]


class Share(NamedTuple):
    """Some earlier spans, whose rows that are met are one folder of the workspace."""

    key: str  # key of the folder, made from all that the rows are found by
    of: tuple[str, ...]  # folders of rows, of the window and of the earlier spans
    spans: int
    write: Callable[[Path], None]  # writes them into an empty local folder

    @classmethod
    def by(cls, made_of: Sequence[str], of: Sequence[str], spans: int, write: Callable[[Path], None]) -> Share:
        """Return the share that is named by the folders and files it is `made_of`."""
        return cls(hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16], tuple(of), spans, write)


class Shares:
    """The shares of the earlier spans, and this worker's part in them."""

    def __init__(self, job: Job, write_keys: WriteKeys) -> None:
        inputs = job.spec.inputs
        assert isinstance(inputs, ValidateInputs)
        self._job, self._store, self._write_keys = job, job.store, write_keys
        signed, workers = sorted(signed_rows(job.store, inputs.history)), job.share.of
        self._signed = divide(signed, [each.entry.bytes for each in signed], workers)
        self._refs = divide(inputs.history, [ref.rows for ref in inputs.history], workers)

    def near(self, keys: str) -> list[Signed]:
        """Return the signatures of earlier rows that a span meets, once all shares are done.

        Args:
            keys: folder of the keys of the span's rows.

        Raises:
            MissingFolder, CorruptFolder: that folder, or signatures of the history, are missing or damaged.
        """
        found = list[Signed]()
        with self._near(keys) as shares:
            for of, (folder, manifest) in zip(self._signed, self._opened(shares), strict=True):
                there = {entry.name: entry for entry in manifest.files}
                files = ((each, there.get(_file_name(number))) for number, each in enumerate(of))
                found += [Signed(each.sides, each.span, folder, entry) for each, entry in files if entry is not None]
        return found

    def pairs(self, rows: Sequence[RowsRef]) -> list[Path]:
        """Return local folders of the earlier keys that the known positives of the window's queries are made of.

        Args:
            rows: spans of the window.

        Raises:
            MissingFolder, CorruptFolder: the keys of these, or of earlier rows, are missing or damaged.
        """
        return [self._store.local(folder) for folder, _ in self._opened(self._pairs(rows))]

    def help(self, asked: Asked, done: int) -> None:
        """Work on the questions from number `done` on."""
        for keys in asked.keys[done:]:
            with self._near(keys) as shares:
                self._work(shares)
        if asked.rows:
            self._work(self._pairs(asked.rows))

    @contextlib.contextmanager
    def _near(self, keys: str) -> Iterator[list[Share]]:
        loaded = list[str]()
        with self._job.scratch() as scratch, connect(scratch) as database:

            def write(spans: Sequence[Signed], folder: Path) -> None:
                if not loaded:
                    manifest = open_manifest(self._store, keys, _KEYS_KIND)
                    load_keys(database, open_file(self._store, keys, manifest, _KEYS_FILE))
                    loaded.append(keys)
                _write_met(self._store, database, spans, folder)

            yield [
                Share.by(
                    [keys, *(f"{each.sides} {each.entry.sha256}" for each in spans)],
                    [keys, *(each.sides for each in spans)],
                    len(spans),
                    functools.partial(write, spans),
                )
                for spans in self._signed
            ]

    def _pairs(self, rows: Sequence[RowsRef]) -> list[Share]:
        def write(refs: Sequence[RowsRef], folder: Path) -> None:
            with self._job.scratch() as scratch:
                self._write_keys(rows, refs, folder, scratch)

        return [
            Share.by(
                [ref.row_keys or ref.prefix for ref in (*rows, *refs)],
                [ref.prefix for ref in (*rows, *refs)],
                len(refs),
                functools.partial(write, refs),
            )
            for refs in self._refs
        ]

    def _work(self, shares: Sequence[Share]) -> None:
        """Do shares, the own one first, until all are done by some worker."""
        first = self._job.share.index % max(1, len(shares))
        shares = [*shares[first:], *shares[:first]]
        while left := [share for share in shares if not self._done(share)]:
            if not sum(self._do(share) for share in left):
                sleep(WAIT_SECONDS)

    def _opened(self, shares: Sequence[Share]) -> list[tuple[str, Manifest]]:
        """Return the folders of shares, once all are done; a damaged one is done again."""
        self._work(shares)
        opened = []
        for share in shares:
            folder = MET.of(self._job.spec, key=share.key)
            try:
                _, manifest = open_folder(self._store, folder, _MET_KIND)
            except CorruptFolder:
                quarantine(self._store, folder)
                self._work(shares)
                _, manifest = open_folder(self._store, folder, _MET_KIND)
            opened.append((folder, manifest))
        return opened

    def _done(self, share: Share) -> bool:
        return self._store.exists(f"{MET.of(self._job.spec, key=share.key)}/{MANIFEST}")

    def _do(self, share: Share) -> bool:
        """Do a share that no other worker has; return True if it is done.

        Raises:
            StoreError: the lease was lost; another worker has the share.
        """
        spec, began = self._job.spec, uptime()
        try:
            with hold(self._store, MET_LEASE.of(spec, key=share.key), LEASE_SECONDS) as lease:
                if not self._done(share):
                    with self._job.scratch() as folder:
                        share.write(folder)
                        lease.check()
                        commit(self._store, MET.of(spec, key=share.key), folder, _MET_KIND, {"of": [*share.of]})
                    print(f"earlier spans compared: {share.spans}; {uptime() - began:.0f} s", flush=True)
        except Conflict:  # another worker has it
            return False
        return True


def _write_met(store: Store, database: duckdb.DuckDBPyConnection, spans: Sequence[Signed], folder: Path) -> None:
    """Write the signatures that are met, a file for each span with any.

    These are the rows that the comparison would take from these spans, if it took from no others.
    """
    begin(database)
    number = 0
    for files in some_at_once(store, spans):
        theirs = take(database, files, OTHER_SIDE)
        met = f"""
            SELECT t.* EXCLUDE (filename), file FROM {theirs} t JOIN spans USING (filename)
            SEMI JOIN few ON few.filename = t.filename AND few.place = t.place
        """
        schema = database.sql(f"{met} LIMIT 0").to_arrow_table().schema
        with contextlib.ExitStack() as opened:
            writers: dict[int, pq.ParquetWriter] = {}
            for table in tables_of(database, f"{met} ORDER BY file, t.place", schema):
                for file in pc.unique(table["file"]).to_pylist():
                    some = table.filter(pc.equal(table["file"], file)).drop_columns("file")
                    if file not in writers:
                        path = folder / _file_name(number + file)
                        writers[file] = opened.enter_context(pq.ParquetWriter(path, some.schema, compression="zstd"))
                    writers[file].write_table(some)
        number += len(files)


def _file_name(number: int) -> str:
    """Return the name of the file with the rows of a share's span."""
    return f"{number:05d}.parquet"


class Asking:
    """The questions of the first worker."""

    def __init__(self, job: Job, shares: Shares) -> None:
        self._job, self._shares, self._asked = job, shares, Asked()
        self._say()

    def meet(self, ref: RowsRef, drafted: Path) -> list[Signed]:
        """Return the signatures of the history that a span must be compared with.

        Args:
            drafted: the signatures of the span's own rows.
        """
        store, spec = self._job.store, self._job.spec
        with self._job.scratch() as folder:
            with pq.ParquetFile(drafted) as file:
                columns = [PLACE, HELD, KEYS]
                schema = pa.schema([file.schema_arrow.field(name) for name in columns])
                with pq.ParquetWriter(folder / _KEYS_FILE, schema, use_dictionary=False, compression="zstd") as writer:
                    for batch in file.iter_batches(columns=columns):
                        writer.write_batch(batch.select(columns))
            facts = {"span": ref.span.name, "of": [ref.prefix]}
            name = ASKED_KEYS.of(spec, folder=ref.span.name)
            keys = commit_by_content(store, name, folder, _KEYS_KIND, facts)
        self._ask(keys=(*self._asked.keys, keys))
        return self._shares.near(keys)

    def ask_pairs(self, rows: Sequence[RowsRef]) -> None:
        """Let the others begin to look for the pairs of the window's queries in earlier spans."""
        self._ask(rows=tuple(rows))

    def pairs(self) -> list[Path]:
        """Return local folders of the earlier keys that the known positives of these queries are made of."""
        return self._shares.pairs(self._asked.rows)

    def end(self) -> None:
        """Let the others leave. If that fails, they leave once this worker shows no sign of life."""
        with contextlib.suppress(OSError, StoreError):
            self._ask(over=True)

    def _ask(self, **more: object) -> None:
        self._asked = self._asked.model_copy(update=more)
        self._say()

    def _say(self) -> None:
        settle(self._job.store, _of_job(ASKED, self._job), self._asked.to_json())


@contextlib.contextmanager
def asking(job: Job, write_keys: WriteKeys) -> Iterator[Asking | None]:
    """Yield the questions to the other workers of validate; None if it has one worker, or no earlier span.

    Inside the block the first worker shows a sign of life.

    Args:
        write_keys: writes the keys of earlier spans that are met by spans of the window. Its arguments are these spans,
            the earlier ones, an empty folder for the keys, and one for temporary files.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, ValidateInputs)
    if job.share.of == 1 or not inputs.history:
        yield None
        return
    with wait_for(job.store, _of_job(ASKING, job), SIGN_SECONDS, say=print):
        asked = Asking(job, Shares(job, write_keys))
        try:
            yield asked
        finally:
            asked.end()


def answer(job: Job, write_keys: WriteKeys) -> None:
    """Work on the questions of the first worker, as one of the others, until no more can come.

    Args:
        write_keys: as in `asking`.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, ValidateInputs)
    if not inputs.window or not inputs.history:
        return
    shares, done = Shares(job, write_keys), 0
    while (asked := _wait(job, done)) is not None:
        with job.clock.phase("productive"):
            shares.help(asked, done)
        if asked.rows:
            return
        done = len(asked.keys)


def _wait(job: Job, done: int) -> Asked | None:
    """Return the questions once there are more than `done`; None if no more will be."""
    seen = uptime()
    while True:
        asked = find_record(job.store, _of_job(ASKED, job), Asked, "delete it, and start the run again")
        if asked is not None and asked.over:
            return None
        if asked is not None and (len(asked.keys) > done or asked.rows):
            return asked
        if look(job.store, _of_job(ASKING, job)) is not None:
            seen = uptime()
        elif uptime() - seen > PATIENCE_SECONDS:
            print(f"no sign of the first worker for {PATIENCE_SECONDS:.0f} s; it works alone", flush=True)
            return None
        sleep(WAIT_SECONDS)


def _of_job(kind: Kind, job: Job) -> str:
    """Return a key that the tries of a job share, on all its machines."""
    return kind.key(run=job.spec.run_key, attempt=job.spec.submitted_as)
