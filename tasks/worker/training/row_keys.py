"""Keys of rows, equal for equal queries, item texts or items; the keys of a span are in sorted files, written once.

So no later run reads the texts of a span to know its pairs. Validate writes a span's folder. Its files hold int64,
little-endian, without a header; their records are distinct and ascending:

- PAIRS: the keys of query, item and text of the rows that are pairs;
- TEXTS: the keys of item and text of all rows;
- OTHERS: the keys of the queries of the rows that are no pairs.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, commit_by_content, open_folder
from tasks.contracts.references import RowsRef
from tasks.data.label_columns import pair_mask, pair_rule
from tasks.data.rows import ITEM, ITEM_ID, QUERY, normal_text, read_rows
from tasks.worker.process.cores import Cores

KEYS = ("query_key", "text_key", "item_key")
ROW_KEYS = np.dtype([*((name, "<i8") for name in KEYS), ("pair", "?")])  # a row's keys; True if it is a pair
ROWS_AT_ONCE = 2**18  # rows in memory
_KEY_BITS = 63


def text_keys(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a key of each text, int64 (texts,), not negative; equal if the normalised texts are equal."""
    return _hashes(map(normal_text, texts.to_pylist()))


def id_keys(item_ids: pa.ChunkedArray) -> np.ndarray:
    """Return a key of each item id, int64 (items,), not negative."""
    return _hashes(item_ids.to_pylist())


def _hashes(texts: Iterable[str]) -> np.ndarray:
    """Return 63 hash bits of each text, int64; a collision among ten million texts has odds of 1 to 200,000."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return (np.frombuffer(digests, dtype="<u8") >> np.uint64(1)).astype(np.int64)


def keys_of(table: pa.Table, pair: np.ndarray) -> np.ndarray:
    """Return the keys of a table's rows, ROW_KEYS (rows,); `pair` bool (rows,)."""
    keys = np.empty(table.num_rows, dtype=ROW_KEYS)
    keys["query_key"], keys["text_key"] = text_keys(table[QUERY]), text_keys(table[ITEM])
    keys["item_key"], keys["pair"] = id_keys(table[ITEM_ID]), pair
    return keys


def keyed(table: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return the keys of a table's rows, ROW_KEYS (rows,)."""
    return keys_of(table, pair_mask(table, heads))


@dataclass(frozen=True)
class TextKeys:
    """The keys of all rows of some spans and the golden set, made of their texts, which are read in each iteration.

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
            yield keyed(table, self.heads)
        if self.golden is not None:
            table = pq.read_table(self.store.local(self.golden))
            yield keys_of(table, np.ones(table.num_rows, dtype=bool))


KIND = "keys"
PAIRS, TEXTS, OTHERS = "pairs.int64", "texts.int64", "others.int64"
WIDTHS = {PAIRS: 3, TEXTS: 2, OTHERS: 1}  # keys of a record
_FACTS = "facts.json"
_VERSION = 1  # version of the keys: raise it if an equal text or id gives another one


def write_span_keys(store: Store, ref: RowsRef, heads: HeadsConfig, prefix: str, folder: Path, cores: Cores) -> RowsRef:
    """Write the keys of a span; return the reference with their folder.

    Args:
        prefix: start of the folder's key; a hash of the files follows.
        folder: a new local folder for the files.

    Raises:
        MissingFolder, CorruptFolder: the rows are missing or damaged.
    """
    folder.mkdir(parents=True)
    found = cores.map(functools.partial(keyed, heads=heads), read_rows(store, [ref], []), ref.rows)
    write_keys(folder, (keys for _, keys in found), ref.rows)
    facts = {"span": ref.span.name, "rows": ref.rows, "rule": key_rule(heads), "of": ref.prefix}
    # In a file too, so that other facts give another folder.
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
    return ref.model_copy(update={"row_keys": commit_by_content(store, prefix, folder, KIND, facts)})


def key_rule(heads: HeadsConfig) -> dict[str, Any]:
    """Return the rule of a span's keys, as JSON: the version of the keys, and the rows that are pairs."""
    return {"version": _VERSION, "pair": pair_rule(heads)}


def open_span_keys(store: Store, ref: RowsRef, heads: HeadsConfig) -> Path | None:
    """Return the local folder of a span's keys; None if validate wrote none, or they can't be used.

    They can't be used if they are damaged, or if another rule made them; the log says so.
    """
    if ref.row_keys is None:
        return None
    try:
        folder, manifest = open_folder(store, ref.row_keys, KIND)
    except (MissingFolder, CorruptFolder) as error:
        print(f"{error}; the keys of span {ref.span.name} are made of its texts", flush=True)
        return None
    if manifest.facts.get("rule") != key_rule(heads):
        was = manifest.facts.get("rule")
        print(
            f"{ref.row_keys} was written with the rule {was}, and {key_rule(heads)} holds now; the keys of span "
            f"{ref.span.name} are made of its texts",
            flush=True,
        )
        return None
    return folder


def write_keys(folder: Path, keys: Iterable[np.ndarray], rows: int) -> None:
    """Write the files of a folder of keys, with some hundred thousand rows in memory.

    Args:
        keys: ROW_KEYS (n,), of all rows.
        rows: upper limit of their number.
    """
    buckets = {name: Buckets(folder, name, rows, width) for name, width in WIDTHS.items()}
    for some in _gathered(keys):
        pairs, others = some[some["pair"]], some[~some["pair"]]
        buckets[PAIRS].add(_columns(pairs, "query_key", "item_key", "text_key"))
        buckets[TEXTS].add(_columns(some, "item_key", "text_key"))
        buckets[OTHERS].add(_columns(others, "query_key"))
    for name, sorted_records in buckets.items():
        with (folder / name).open("wb") as file:
            for records in sorted_records:
                records.tofile(file)


class Buckets:
    """Sorts many records of a few keys, with one bucket in memory at a time.

    A record's bucket is given by the first bits of its first key, which is a hash. Buckets are in the order of the
    keys, and each is sorted on its own, so all records come out sorted.
    """

    def __init__(self, folder: Path, name: str, rows: int, keys: int) -> None:
        """Prepare the buckets, temporary files in `folder`; `rows`: upper limit of the records."""
        self._bits = _bits(rows)
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


def _bits(rows: int) -> int:
    """Return the first bits of a hash by which rows fall into parts of at most ROWS_AT_ONCE, in the mean."""
    return max(0, (rows // ROWS_AT_ONCE).bit_length())


def distinct(records: np.ndarray) -> np.ndarray:
    """Return the distinct records, int64 (n, keys), not negative, sorted by the first key, then the next."""
    if not len(records):
        return records
    columns = [np.ascontiguousarray(column) for column in records.T]
    order = np.argsort(columns[0])
    new = _changes(columns[0][order])  # the first of equal records
    for column in columns[1:]:
        # Numbers sort several times faster than records: equal records so far share the first bits of one.
        number = np.cumsum(new)
        bits = _KEY_BITS - int(number[-1]).bit_length()
        order = order[np.argsort((number << bits) | (column[order] >> (_KEY_BITS - bits)))]
        values = column[order]
        if ((values[1:] < values[:-1]) & ~new[1:]).any():  # the other bits decide: never among hashes, in practice
            order = np.lexsort(records.T[::-1])
            records = records[order]
            return records[np.append(True, (records[1:] != records[:-1]).any(axis=1))]
        new |= _changes(values)
    return records[order[new]]


def _changes(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that differ from the one before, bool (values,); the first one does."""
    return np.append(True, values[1:] != values[:-1])


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


_READ_RECORDS = 2**12  # records of one file in memory


class SortedFile:
    """One file of a folder of keys, read once from its begin to its end."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._width = folder / name, WIDTHS[name]
        self._left = self._path.stat().st_size // self._record_bytes
        self._offset = 0
        self._read = np.zeros((0, self._width), dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of records not yet read from the file."""
        return self._left

    def until(self, last: int) -> np.ndarray:
        """Return the next records, int64 (n, keys), with a first key of at most `last`."""
        found = []
        while True:
            end = np.searchsorted(self._read[:, 0], last, side="right")
            found.append(self._read[:end])
            self._read = self._read[end:]
            if len(self._read) or not self._left:
                return np.concatenate(found)
            count = min(self._left, _READ_RECORDS)
            read = np.fromfile(self._path, np.int64, count * self._width, offset=self._offset)
            self._read = read.reshape(count, self._width)
            self._left -= count
            self._offset += count * self._record_bytes

    @property
    def _record_bytes(self) -> int:
        return 8 * self._width


def ranges_of_keys(files: Sequence[SortedFile]) -> Iterator[int]:
    """Yield the last key of each range, ascending: a range has some hundred thousand records of all files."""
    bits = _bits(sum(map(len, files)))
    for number in range(2**bits):
        yield ((number + 1) << (_KEY_BITS - bits)) - 1
