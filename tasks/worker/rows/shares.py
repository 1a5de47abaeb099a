"""The earlier rows that a window meets, found by all workers of validate, each in a share of the earlier spans.

Signatures of earlier rows grow with the weeks, and the comparison needs few: a row must share a key with a row of the
window. The first worker judges the window and asks: it writes the keys of a span's rows. Then each worker leases a
share and writes the signatures that are met. From these the first one finds the rows that it would find in all.

A share with a folder is done, in this attempt or an earlier one, and a lost worker's share is reassigned. If nobody
comes, the first worker does all shares. Others leave once it has failed, or shows no sign of life.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    """The questions of the first worker: one for each span of the window, with a clean row."""

    keys: tuple[str, ...] = Field(default=(), description="folders of the keys of the spans' rows, oldest span first")
    over: bool = Field(default=False, description="true: no further question comes")


class Share(NamedTuple):
    """Consecutive earlier spans, in the order of their keys, and the folder for those of their rows that are met."""

    spans: tuple[Signed, ...]
    key: str


def divide(files: Sequence[Signed], workers: int) -> list[tuple[Signed, ...]]:
    """Return consecutive files in the order of their spans' keys, about as many bytes for each worker; at least one."""
    shares, before = [list[Signed]() for _ in range(workers)], 0
    total = max(1, sum(each.entry.bytes for each in files))
    for each in sorted(files, key=lambda signed: signed.sides):
        middle = 2 * before + each.entry.bytes
        shares[min(workers - 1, middle * workers // (2 * total))].append(each)
        before += each.entry.bytes
    return [tuple(some) for some in shares if some]


class Shares:
    """The shares of the earlier spans, and this worker's part in them."""

    def __init__(self, job: Job) -> None:
        inputs = job.spec.inputs
        assert isinstance(inputs, ValidateInputs)
        self._job, self._store = job, job.store
        self._spans = divide(signed_rows(job.store, inputs.history), job.share.of)

    def __len__(self) -> int:
        return len(self._spans)

    def work(self, keys: str) -> None:
        """Do shares, the own one first, until all are done by some worker.

        Args:
            keys: the folder of a question.

        Raises:
            MissingFolder, CorruptFolder: the question, or signatures of the history, are missing or damaged.
        """
        shares = self._of(keys)
        first = self._job.share.index % max(1, len(shares))
        shares = shares[first:] + shares[:first]
        with self._job.scratch() as scratch, connect(scratch) as database:
            loaded = False
            while left := [share for share in shares if not self._done(share)]:
                if not loaded:
                    manifest = open_manifest(self._store, keys, _KEYS_KIND)
                    load_keys(database, open_file(self._store, keys, manifest, _KEYS_FILE))
                    loaded = True
                if not sum(self._do(database, share, keys, scratch / share.key) for share in left):
                    sleep(WAIT_SECONDS)

    def met(self, keys: str) -> list[Signed]:
        """Return the signatures that all shares have found; a damaged share is done again.

        Raises:
            MissingFolder, CorruptFolder: as `work`.
        """
        self.work(keys)
        found = list[Signed]()
        for share in self._of(keys):
            folder = MET.of(self._job.spec, key=share.key)
            try:
                _, manifest = open_folder(self._store, folder, _MET_KIND)
            except CorruptFolder:
                quarantine(self._store, folder)
                self.work(keys)
                manifest = open_manifest(self._store, folder, _MET_KIND)
            there = {entry.name: entry for entry in manifest.files}
            files = ((of, there.get(_file_name(number))) for number, of in enumerate(share.spans))
            found += [Signed(of.sides, of.span, folder, entry) for of, entry in files if entry is not None]
        return found

    def _of(self, keys: str) -> list[Share]:
        """Return the shares of a question. A folder's name follows from all that its rows are found by."""
        made = []
        for spans in self._spans:
            of = [keys, *([each.sides, each.entry.sha256] for each in spans)]
            made.append(Share(spans, hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]))
        return made

    def _done(self, share: Share) -> bool:
        return self._store.exists(f"{MET.of(self._job.spec, key=share.key)}/{MANIFEST}")

    def _do(self, database: duckdb.DuckDBPyConnection, share: Share, keys: str, folder: Path) -> bool:
        """Do a share that no other worker has; return True if it is done.

        Raises:
            StoreError: the lease was lost; another worker has the share.
        """
        spec = self._job.spec
        try:
            with hold(self._store, MET_LEASE.of(spec, key=share.key), LEASE_SECONDS) as lease:
                if not self._done(share):
                    began = uptime()
                    folder.mkdir()
                    rows = _write_met(self._store, database, share, folder)
                    lease.check()
                    facts = {"of": [keys, *(each.sides for each in share.spans)], "rows": rows}
                    commit(self._store, MET.of(spec, key=share.key), folder, _MET_KIND, facts)
                    shutil.rmtree(folder)
                    seconds = uptime() - began
                    print(
                        f"earlier spans compared: {len(share.spans)}; {rows} rows are met; {seconds:.0f} s", flush=True
                    )
        except Conflict:  # another worker has it
            return False
        return True


def _write_met(store: Store, database: duckdb.DuckDBPyConnection, share: Share, folder: Path) -> int:
    """Write the signatures that are met, a file for each span with any; return their number.

    These are the rows that the comparison would take from these spans, if it took from no others.
    """
    begin(database)
    rows = number = 0
    for files in some_at_once(store, share.spans):
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
                rows += table.num_rows
        number += len(files)
    return rows


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
        self._asked = Asked(keys=(*self._asked.keys, keys))
        self._say()
        return self._shares.met(keys)

    def end(self) -> None:
        """Let the others leave. If that fails, they leave once this worker shows no sign of life."""
        with contextlib.suppress(OSError, StoreError):
            self._asked = self._asked.model_copy(update={"over": True})
            self._say()

    def _say(self) -> None:
        settle(self._job.store, _of_job(ASKED, self._job), self._asked.to_json())


@contextlib.contextmanager
def asking(job: Job) -> Iterator[Asking | None]:
    """Yield the questions to the other workers of validate; None if it has one worker, or no earlier span.

    Inside the block the first worker shows a sign of life.
    """
    if job.share.of == 1 or not (shares := Shares(job)):
        yield None
        return
    with wait_for(job.store, _of_job(ASKING, job), SIGN_SECONDS, say=print):
        asked = Asking(job, shares)
        try:
            yield asked
        finally:
            asked.end()


def answer(job: Job) -> None:
    """Work on the questions of the first worker, as one of the others, until no more can come."""
    inputs = job.spec.inputs
    assert isinstance(inputs, ValidateInputs)
    if not inputs.window or not (shares := Shares(job)):
        return
    for number in range(len(inputs.window)):
        if (keys := _wait(job, number)) is None:
            return
        with job.clock.phase("productive"):
            shares.work(keys)


def _wait(job: Job, number: int) -> str | None:
    """Return the folder of a question once it is asked; None if it will not be."""
    seen = uptime()
    while True:
        asked = find_record(job.store, _of_job(ASKED, job), Asked, "delete it, and start the run again")
        if asked is not None and number < len(asked.keys):
            return asked.keys[number]
        if asked is not None and asked.over:
            return None
        if look(job.store, _of_job(ASKING, job)) is not None:
            seen = uptime()
        elif uptime() - seen > PATIENCE_SECONDS:
            print(f"no sign of the first worker for {PATIENCE_SECONDS:.0f} s; it works alone", flush=True)
            return None
        sleep(WAIT_SECONDS)


def _of_job(kind: Kind, job: Job) -> str:
    """Return a key that the tries of a job share, on all its machines."""
    return kind.key(run=job.spec.run_key, attempt=job.spec.submitted_as)
