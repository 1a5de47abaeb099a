"""The earlier rows that a window meets, found by all workers of validate, each in a share of the earlier spans.

Signatures and keys of earlier rows grow with the weeks, and few are needed: a row must share a key with a row of the
window, a pair its query. The first worker judges the window and asks: it writes the keys of a span's rows. Then all
workers write the earlier rows that are met. In these the first finds what it would find in all.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import commit_by_content, open_file, open_manifest
from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.references import RowsRef
from tasks.contracts.workspace import ASKED_FOLDER
from tasks.data.holdout import HELD
from tasks.foundation.nouns import plural
from tasks.worker.catalogue.records import connect
from tasks.worker.process import shared_work
from tasks.worker.process.job import Job
from tasks.worker.process.shared_work import Question, Share, divide
from tasks.worker.rows.duplicates import OTHER_SIDE, Signed, begin, load_keys, signed_rows, some_at_once, take
from tasks.worker.rows.holdout import tables_of
from tasks.worker.rows.signatures import KEYS, PLACE

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_KEYS_KIND = "asked keys"
_KEYS_FILE = "keys.parquet"

WriteKeys = Callable[[Sequence[RowsRef], Sequence[RowsRef], Path, Path], None]


class EarlierSpans:
    """The earlier spans, divided among the workers."""

    def __init__(self, job: Job, write_keys: WriteKeys) -> None:
        """Divide them.

        Args:
            write_keys: writes the keys of earlier spans that are met by spans of the window. Its arguments are these
                spans, the earlier ones, an empty folder for the keys, and one for temporary files.
        """
        inputs = job.spec.inputs
        assert isinstance(inputs, ValidateInputs)
        self._job, self._store, self._write_keys = job, job.store, write_keys
        signed, workers = sorted(signed_rows(job.store, inputs.history)), job.share.of
        self.signed = divide(signed, [each.entry.bytes for each in signed], workers)
        self._refs = divide(inputs.history, [ref.rows for ref in inputs.history], workers)

    @contextlib.contextmanager
    def shares(self, question: Question) -> Iterator[list[Share]]:
        """Yield a share for each part: of the pairs of a question's rows, else of the signatures that its keys meet."""
        if question.folder is None:
            yield self._pairs(question.rows)
            return
        loaded, keys = list[str](), question.folder
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
                    f"{plural(len(spans), 'earlier span')} compared",
                    functools.partial(write, spans),
                )
                for spans in self.signed
            ]

    def _pairs(self, rows: Sequence[RowsRef]) -> list[Share]:
        def write(refs: Sequence[RowsRef], folder: Path) -> None:
            with self._job.scratch() as scratch:
                self._write_keys(rows, refs, folder, scratch)

        return [
            Share.by(
                [ref.row_keys or ref.prefix for ref in (*rows, *refs)],
                [ref.prefix for ref in (*rows, *refs)],
                f"pairs of {plural(len(refs), 'earlier span')} looked up",
                functools.partial(write, refs),
            )
            for refs in self._refs
        ]


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
    """The questions of the first worker of validate."""

    def __init__(self, job: Job, asked: shared_work.Asking, earlier: EarlierSpans) -> None:
        self._job, self._asked, self._earlier = job, asked, earlier
        self._of_pairs: Question | None = None
        self.end = asked.end

    def meet(self, ref: RowsRef, drafted: Path) -> list[Signed]:
        """Return the signatures of the history that a span must be compared with.

        Args:
            drafted: the signatures of the span's own rows.

        Raises:
            MissingFolder, CorruptFolder: signatures of the history are missing or damaged.
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
            name = ASKED_FOLDER.of(spec, folder=ref.span.name)
            question = Question(folder=commit_by_content(store, name, folder, _KEYS_KIND, facts))
        self._asked.ask(question)
        found = list[Signed]()
        for of, (folder_of, manifest) in zip(self._earlier.signed, self._asked.answers(question), strict=True):
            there = {entry.name: entry for entry in manifest.files}
            files = ((each, there.get(_file_name(number))) for number, each in enumerate(of))
            found += [Signed(each.sides, each.span, folder_of, entry) for each, entry in files if entry is not None]
        return found

    def ask_pairs(self, rows: Sequence[RowsRef]) -> None:
        """Let the others begin to look for the pairs of the window's queries in earlier spans, and then leave."""
        self._of_pairs = Question(rows=tuple(rows))
        self._asked.ask(self._of_pairs, last=True)

    def pairs(self) -> list[Path]:
        """Return local folders of the earlier keys that the known positives of these queries are made of.

        Raises:
            MissingFolder, CorruptFolder: keys of rows are missing or damaged.
        """
        assert self._of_pairs is not None
        return [self._job.store.local(folder) for folder, _ in self._asked.answers(self._of_pairs)]


@contextlib.contextmanager
def asking(job: Job, write_keys: WriteKeys) -> Iterator[Asking | None]:
    """Yield the questions to the other workers of validate; None if it has one worker, or no earlier span.

    Args:
        write_keys: as of `EarlierSpans`.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, ValidateInputs)
    if job.share.of == 1 or not inputs.history:
        yield None
        return
    earlier = EarlierSpans(job, write_keys)
    with shared_work.asking(job, earlier.shares) as asked:
        yield None if asked is None else Asking(job, asked, earlier)


def answer(job: Job, write_keys: WriteKeys) -> None:
    """Work on the questions of the first worker, as one of the others.

    Args:
        write_keys: as of `EarlierSpans`.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, ValidateInputs)
    if inputs.window and inputs.history:
        shared_work.answer(job, EarlierSpans(job, write_keys).shares)
