"""Known positive pairs, which are never used as negatives, and the positive items of each query.

They come from all rows of the lineage so far, training and holdout, and from the golden set. An item is also relevant
if it shares a normalised text with a relevant item, in any row, as in `tasks.worker.model.relevant`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from infra.store.base import Store
from tasks.contracts.references import RowsRef
from tasks.data.label_columns import pair_mask
from tasks.data.rows import ITEM, ITEM_ID, QUERY, read_rows
from tasks.worker.process.job import Job
from tasks.worker.training.tokenised import KEYS, Column, RecordFile, id_keys, text_keys

ROWS_AT_ONCE = 2**18  # rows in memory
_KEY_BITS = 63
_FILES = ("queries", "offsets", "keys")


@dataclass(frozen=True)
class Positives:
    """The item keys of each query that has several positive items; all arrays int64.

    `queries` (Q,): keys of these queries, ascending. `offsets` (Q + 1,): the items of query number q are
    `keys[offsets[q]:offsets[q + 1]]`, distinct and ascending.
    """

    queries: np.ndarray
    offsets: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, query_key: np.ndarray, key: np.ndarray) -> Positives:
        """Return the positives of pairs, int64 (pairs,) each, not negative; pairs may repeat."""
        both = distinct(np.stack([query_key, key], axis=1))
        queries, counts = np.unique(both[:, 0], return_counts=True)
        several = counts > 1  # a query's only item is its own, excluded anyway
        offsets = np.concatenate([[0], np.cumsum(counts[several])]).astype(np.int64)
        return cls(queries[several], offsets, both[np.repeat(several, counts), 1])

    @classmethod
    def open(cls, folder: Path, name: str) -> Positives:
        """Open the files of the `PositivesFile` with this name, which are not read into memory."""
        return cls(*(cast(np.ndarray, Column(RecordFile(folder / f"{name}.{each}", np.int64))) for each in _FILES))

    def lists(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the items of some queries, concatenated: the place of each one's query in `queries`, and its key.

        Args:
            queries: int64 (n,), distinct and ascending; unknown queries have no item.
        """
        place = np.searchsorted(self.queries, queries)
        there = place < len(self.queries)
        there[there] = self.queries[place[there]] == queries[there]
        begins, counts = (np.zeros(len(queries), dtype=np.int64) for _ in range(2))
        begins[there] = self.offsets[place[there]]
        counts[there] = self.offsets[place[there] + 1] - begins[there]
        return np.repeat(np.arange(len(queries)), counts), self.keys[ranges(begins, counts)]

    def among(self, query_key: np.ndarray, batch_key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return places in `query_key` and in `batch_key`, int64: each query with an item that is its positive.

        Search time grows with the positives of these queries, not with the product of queries and items.
        """
        queries, row_of = np.unique(query_key, return_inverse=True)
        whose, wanted = self.lists(queries)
        columns = np.argsort(batch_key, kind="stable")
        keys = batch_key[columns]
        first = np.searchsorted(keys, wanted)
        hit = np.flatnonzero(np.append(keys, -1)[first] == wanted)  # keys are not negative
        first, whose = first[hit], whose[hit]
        same = np.searchsorted(keys, wanted[hit], side="right") - first
        column, whose = columns[ranges(first, same)], np.repeat(whose, same)
        rows = np.argsort(row_of, kind="stable")
        asked = np.bincount(row_of, minlength=len(queries))
        row = rows[ranges((np.cumsum(asked) - asked)[whose], asked[whose])]
        return row, np.repeat(column, asked[whose])

    def part(self, queries: np.ndarray) -> Positives:
        """Return the positives of some queries, int64 (n,), distinct and ascending, in memory."""
        whose, keys = self.lists(queries)
        counts = np.bincount(whose, minlength=len(queries))
        several = counts > 0
        return Positives(queries[several], np.append(0, np.cumsum(counts[several])), keys)


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the numbers of some ranges, one after the other, int64; `begins` and `counts` int64 (ranges,)."""
    return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


class PositivesFile:
    """Writes positives query by query to files: `<name>.queries`, `<name>.offsets` and `<name>.keys`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files: list[BinaryIO] = [(folder / f"{name}.{each}").open("wb") for each in _FILES]
        self._total = 0
        np.zeros(1, dtype=np.int64).tofile(self._files[1])

    def add(self, query_key: np.ndarray, key: np.ndarray) -> None:
        """Add pairs, as in `Positives.of`; their query keys must be larger than all before."""
        found = Positives.of(query_key, key)
        for file, values in zip(self._files, (found.queries, found.offsets[1:] + self._total, found.keys), strict=True):
            values.tofile(file)
        self._total += len(found.keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            file.close()


class Buckets:
    """Sorts many records of a few keys, with one bucket in memory at a time.

    A record's bucket is given by the first bits of its first key, which is a hash. Buckets are in the order of the
    keys, and each is sorted on its own, so all records come out sorted.
    """

    def __init__(self, folder: Path, name: str, rows: int, keys: int) -> None:
        """Prepare the buckets, temporary files in `folder`; `rows`: upper limit of the records."""
        self._bits = max(0, (rows // ROWS_AT_ONCE).bit_length())
        self._paths = [folder / f"{name}.bucket-{number}" for number in range(2**self._bits)]
        self._keys = keys

    def add(self, records: np.ndarray) -> None:
        """Add records, int64 (n, keys), not negative."""
        records = distinct(records)  # search logs repeat a lot
        bucket = records[:, 0] >> (_KEY_BITS - self._bits)
        ends = np.cumsum(np.bincount(bucket, minlength=len(self._paths)))
        for path, some in zip(self._paths, np.split(records, ends[:-1]), strict=True):
            if len(some):
                with path.open("ab") as file:
                    some.tofile(file)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the records of each bucket, int64 (n, keys), distinct and ascending, and delete the bucket."""
        for path in self._paths:
            if path.exists():
                records = np.fromfile(path, dtype=np.int64).reshape(-1, self._keys)
                path.unlink()
                yield distinct(records)


def distinct(records: np.ndarray) -> np.ndarray:
    """Return the distinct records, int64 (n, keys), sorted by the first key, then the next."""
    records = records[np.lexsort(records.T[::-1])]
    new = np.ones(len(records), dtype=bool)
    new[1:] = (records[1:] != records[:-1]).any(axis=1)
    return records[new]


ROW_KEYS = np.dtype([*((name, "<i8") for name in KEYS), ("pair", "?")])  # a row's keys; True if it is a pair
MADE = "known"  # file with the path of the folder that the machine's first worker has written
_TEXTS = "item_texts"


class KnownPositives(NamedTuple):
    """The relevant items of each query: by `item_key`, and by `text_key`."""

    items: Positives
    texts: Positives

    def part(self, queries: np.ndarray) -> KnownPositives:
        """Return the relevant items of some queries, int64 (n,), distinct and ascending, in memory."""
        return KnownPositives(self.items.part(queries), self.texts.part(queries))

    @classmethod
    def open(cls, folder: Path) -> KnownPositives:
        """Open the files of `write_known`, which are not read into memory."""
        return cls(Positives.open(folder, "item_key"), Positives.open(folder, "text_key"))


@dataclass(frozen=True)
class LineageKeys:
    """The keys of all rows of some spans and the golden set, read again in each iteration.

    `golden`: the key of the golden set, whose rows are all pairs, if any.
    """

    store: Store
    refs: Sequence[RowsRef]
    golden: str | None
    heads: HeadsConfig

    @property
    def rows(self) -> int:
        """Number of rows of the spans."""
        return sum(ref.rows for ref in self.refs)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield ROW_KEYS (rows,), some thousand rows at a time."""
        for table in read_rows(self.store, self.refs, []):
            yield _row_keys(table, pair_mask(table, self.heads))
        if self.golden is not None:
            table = pq.read_table(self.store.local(self.golden))
            yield _row_keys(table, np.ones(table.num_rows, dtype=bool))


def open_known(job: Job, keys: LineageKeys, barrier: Callable[[], object]) -> KnownPositives:
    """Return the known positives, in files that one worker of each machine writes for all.

    The files are deleted once all workers have opened them: the system keeps them while they are in use.

    Args:
        barrier: waits for every worker of the stage.
    """
    rank = job.rank
    if rank.local:
        known = KnownPositives.open(Path(job.machine.wait_for(MADE, "the known pairs").decode()))
        barrier()
        return known
    began = time.monotonic()
    with job.scratch() as folder:
        write_known(folder, keys, keys.rows)
        known = KnownPositives.open(folder)
        if rank.world > 1:  # through a file: the work can exceed a process group's timeout
            job.machine.publish(MADE, str(folder).encode())
        barrier()
    print(f"the pairs of {keys.rows} rows are known; {time.monotonic() - began:.1f} s", flush=True)
    return known


def find_known_positives(keys: Iterable[np.ndarray], rows: int) -> KnownPositives:
    """Return the known positives of some rows, ROW_KEYS; `rows`: upper limit of their number."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        write_known(Path(name), keys, rows)
        return KnownPositives.open(Path(name))


def write_known(folder: Path, keys: Iterable[np.ndarray], rows: int) -> None:
    """Write the known positives into files of `folder`, with some hundred thousand rows in memory.

    Args:
        keys: ROW_KEYS (n,), of all rows.
        rows: upper limit of their number.
    """
    texts, pairs = Buckets(folder, _TEXTS, rows, 2), Buckets(folder, "pairs", rows, 3)
    for some in _gathered(keys):
        texts.add(_columns(some, "item_key", "text_key"))
        pairs.add(_columns(some[some["pair"]], "query_key", "item_key", "text_key"))
    with PositivesFile(folder, _TEXTS) as several:
        for bucket in texts:
            several.add(bucket[:, 0], bucket[:, 1])
    of_item = Positives.open(folder, _TEXTS)
    with PositivesFile(folder, "item_key") as by_item, PositivesFile(folder, "text_key") as by_text:
        for bucket in pairs:
            queries, item, text = bucket.T
            by_item.add(queries, item)
            items, number = np.unique(item, return_inverse=True)
            pair, others = _expanded(number, *of_item.lists(items), len(items))
            by_text.add(np.concatenate([queries, queries[pair]]), np.concatenate([text, others]))
    for path in folder.glob(f"{_TEXTS}.*"):
        path.unlink()


def _expanded(number: np.ndarray, whose: np.ndarray, values: np.ndarray, lists: int) -> tuple[np.ndarray, np.ndarray]:
    """Replace each list number in `number` with the values of that list; return places in `number`, and the values."""
    counts = np.bincount(whose, minlength=lists)
    begins = np.cumsum(counts) - counts
    each = counts[number]
    return np.repeat(np.arange(len(number)), each), values[ranges(begins[number], each)]


def _gathered(keys: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the same rows in larger pieces, so that buckets get many at a time."""
    waiting: list[np.ndarray] = []
    for some in keys:
        waiting.append(some)
        if sum(map(len, waiting)) >= ROWS_AT_ONCE:
            yield np.concatenate(waiting)
            waiting = []
    if waiting:
        yield np.concatenate(waiting)


def _columns(keys: np.ndarray, *names: str) -> np.ndarray:
    return np.stack([keys[name] for name in names], axis=1)


def _row_keys(table: pa.Table, pair: np.ndarray) -> np.ndarray:
    keys = np.empty(table.num_rows, dtype=ROW_KEYS)
    keys["query_key"], keys["text_key"] = text_keys(table[QUERY]), text_keys(table[ITEM])
    keys["item_key"], keys["pair"] = id_keys(table[ITEM_ID]), pair
    return keys
