"""The vectors of a folder, divided among the workers of release, each of which reads and searches a share alone.

The first worker gets the id and a hash of the text of each item, and asks for the texts and vectors of few. As each
partition is searched in the same batches by any worker, the answers are those of one worker, bit for bit.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.manifest import (
    commit_by_content,
    expect_manifest,
    open_file,
    open_manifest,
    read_fact,
    read_manifest,
)
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.search import ListedItem
from tasks.contracts.workspace import ASKED_FOLDER
from tasks.data.layers import layers_of
from tasks.data.rows import CONTENT, ITEM_ID, TEXT
from tasks.foundation.records import Record
from tasks.worker.catalogue.reuse import expect_vectors
from tasks.worker.model.relevant import hash_texts
from tasks.worker.process.job import Job
from tasks.worker.process.shared_work import Asking, Question, Share, divide
from tasks.worker.search.index import Index, Nearest, Scan

_KIND = "vectors asked for"
_QUESTION, _VECTORS = "question.json", "vectors.npy"
_ARRAYS = "arrays.npz"
_ITEMS, _TEXTS = "items.parquet", "texts.parquet"
_HASH = "text_hash"
_BATCH = 2**16
Wanted = Literal["items", "texts", "vectors", "nearest"]


class VectorQuestion(Record):
    """A question about vectors, whose places and queries are in the arrays beside it."""

    wanted: Wanted
    prefix: str
    sha256: str
    version: str  # the model's
    shares: tuple[tuple[int, ...], ...]  # partitions
    starts: tuple[int, ...] = ()  # the first place of each share, and the end; empty: not known yet


class DividedIndex(Index):
    """The vectors of one folder, opened and searched by all workers."""

    def __init__(self, job: Job, asked: Asking, prefix: str, model_version: str, sha256: str | None = None) -> None:
        """Let each worker open its share, and compare every file of it with its checksum.

        Raises:
            MissingFolder, CorruptFolder: as of `Index`.
        """
        inputs = job.spec.inputs
        assert isinstance(inputs, ReleaseInputs)
        self._job, self._inputs, self._asking = job, inputs, asked
        manifest = read_manifest(job.store, prefix)
        expect_manifest(job.store, prefix, manifest, sha256)
        expect_vectors(job.store, prefix, manifest, model_version)
        self.width = read_fact(job.store, prefix, "width", int)
        self.max_tokens = read_fact(job.store, prefix, "max_tokens", int)
        layers = layers_of(manifest)
        sizes = [sum(entry.bytes for entry in of) for of in layers.values()]
        shares = tuple(divide([*layers], sizes, job.share.of))
        self._of = VectorQuestion(
            wanted="items", prefix=prefix, sha256=manifest.sha256, version=model_version, shares=shares
        )
        self._items = self._answers("items", _ITEMS)
        counts = [pq.read_metadata(file).num_rows for file in self._items]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._of = self._of.model_copy(update={"starts": tuple(self._starts.tolist())})
        self.vectors = int(self._starts[-1])

    def _answers(self, wanted: Wanted, name: str, **arrays: np.ndarray) -> list[Path]:
        """Ask all workers; return the file of each share's answer."""
        store = self._job.store
        with self._job.scratch() as folder:
            (folder / _QUESTION).write_bytes(self._of.model_copy(update={"wanted": wanted}).to_json())
            np.savez_compressed(folder / _ARRAYS, **arrays)  # type: ignore[arg-type]
            key = ASKED_FOLDER.of(self._job.spec, folder=wanted)
            made_of = [self._of.prefix, *(ref.prefix for ref in self._inputs.rows)]  # vectors of their queries, too
            question = Question(folder=commit_by_content(store, key, folder, _KIND, {"of": made_of}))
        self._asking.ask(question)
        return [open_file(store, of, manifest, name) for of, manifest in self._asking.answers(question)]

    def scan(self, wanted: Scan) -> Nearest:
        """See `Index.scan`."""
        arrays = {name: np.asarray(value) for name, value in wanted._asdict().items() if value is not None}
        best = Nearest.none(len(wanted.queries), wanted.k)
        for first, file in zip(self._starts, self._answers("nearest", _ARRAYS, **arrays), strict=False):
            best.add(Nearest(**_arrays(file)), int(first))
        return best

    def at(self, places: np.ndarray) -> np.ndarray:
        """See `Index.at`."""
        wanted = np.unique(places[places >= 0])
        answers = [np.zeros((1, self.width), np.float32)]
        if len(wanted):
            answers += [np.load(file) for file in self._answers("vectors", _VECTORS, places=wanted)]
        # A place of -1 lies before the first one that is wanted, and so on the zeros.
        return np.concatenate(answers)[np.searchsorted(wanted, places, side="right")]

    def items(self, places: np.ndarray) -> dict[int, ListedItem]:
        """See `Index.items`."""
        wanted = np.unique(places[places >= 0])
        if not len(wanted):
            return {}
        rows = pa.concat_tables(pq.read_table(file) for file in self._answers("texts", _TEXTS, places=wanted))
        listed = (ListedItem(item_id=row[ITEM_ID], text=row[TEXT]) for row in rows.to_pylist())
        return dict(zip(wanted.tolist(), listed, strict=True))

    def tables(self, columns: Sequence[str], wanted: np.ndarray | None = None) -> Iterator[tuple[int, pa.Table]]:
        """See `Index.tables`; there are ids and hashes of contents."""
        place = 0
        for file in self._items:
            with pq.ParquetFile(file) as rows:
                for batch in rows.iter_batches(_BATCH, columns=list(columns)):
                    yield place, pa.Table.from_batches([batch])
                    place += batch.num_rows

    def text_hashes(self) -> Iterator[tuple[int, np.ndarray]]:
        """See `Index.text_hashes`."""
        for first, rows in self.tables([_HASH]):
            yield first, rows[_HASH].to_numpy()


class VectorShares:
    """The shares of the questions about vectors; one that was opened stays open."""

    def __init__(self, job: Job) -> None:
        self._store = job.store
        self._opened: dict[tuple[str, tuple[int, ...]], Index] = {}

    @contextlib.contextmanager
    def of(self, question: Question) -> Iterator[list[Share]]:
        """Yield the shares of a question."""
        folder = question.folder
        assert folder is not None
        manifest = open_manifest(self._store, folder, _KIND)
        asked = VectorQuestion.model_validate_json(open_file(self._store, folder, manifest, _QUESTION).read_bytes())
        arrays = open_file(self._store, folder, manifest, _ARRAYS)
        yield [
            Share.by(
                [folder, str(number)],
                [folder, asked.prefix],
                f"{asked.wanted} of share {number + 1} of {len(asked.shares)}",
                functools.partial(self._write, asked, number, arrays),
            )
            for number in range(len(asked.shares))
        ]

    def _write(self, asked: VectorQuestion, number: int, arrays: Path, folder: Path) -> None:
        """Write the answer of one share.

        Raises:
            MissingFolder, CorruptFolder: its vectors are missing or damaged.
        """
        index = self._open(asked, asked.shares[number])
        if asked.wanted == "items":
            _write_items(index, folder / _ITEMS)
            return
        first, end = asked.starts[number : number + 2]
        given = _arrays(arrays)
        if asked.wanted == "nearest":
            fields: dict[str, Any] = {"limits": None, "below": None} | given | {"k": int(given["k"])}
            scan = Scan(**fields)
            np.savez_compressed(folder / _ARRAYS, **index.scan(scan.part(first, end))._asdict())
            return
        places = given["places"]
        places = places[(places >= first) & (places < end)] - first
        if asked.wanted == "vectors":
            np.save(folder / _VECTORS, index.at(places))
            return
        found = index.items(places)
        rows = [found[place].model_dump() for place in places.tolist()]
        schema = pa.schema({ITEM_ID: pa.string(), TEXT: pa.string()})
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / _TEXTS)

    def _open(self, asked: VectorQuestion, partitions: tuple[int, ...]) -> Index:
        key = asked.prefix, partitions
        if key not in self._opened:
            self._opened[key] = Index(self._store, asked.prefix, asked.version, 0, asked.sha256, partitions=partitions)
        return self._opened[key]


def _write_items(index: Index, file: Path) -> None:
    schema = pa.schema({ITEM_ID: pa.string(), CONTENT: pa.string(), _HASH: pa.uint64()})
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        for _, rows in index.tables([ITEM_ID, CONTENT, TEXT]):
            hashes = pa.array(hash_texts(rows[TEXT].to_pylist()))
            writer.write_table(rows.drop_columns(TEXT).append_column(_HASH, hashes).cast(schema))


def _arrays(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)
