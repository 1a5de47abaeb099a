"""A span of a source compared with the version that the workspace has, row by row, and the two merged.

Rows are paired by their key: the row id, or for an item feed the item id and the time. Of rows with the same key, the
first is paired with the first. Keys and hashes are on disk, so memory does not grow with the span.
"""

import enum
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from tasks.data.rows import CORE, ITEM_ID, ROW_ID, TIME
from tasks.data.spool import Columns, row_of
from tasks.foundation.records import Record

_BATCH_ROWS = 256
_CACHE_KIB = 16_384
_KINDS = {"double": "float64", "bool": "bool", "string": "string"}
_PLACE = {column: place for place, column in enumerate(CORE)}


class Known(enum.Enum):
    """What becomes of a span that the workspace has with other rows."""

    replace = "replace"  # the source has the whole span
    merge = "merge"  # the source has some of its rows


class Difference(Record):
    """A span of a source against the newest version in the workspace, in rows."""

    before: int = Field(description="rows of the version before")
    changed: int = Field(description="rows of the source with an id of the version before and other content")
    added: int = Field(description="rows of the source with a new id")
    gone: int = Field(description="rows of the version before that are not in the source")
    merged: int = Field(description="rows of both together")

    @property
    def is_none(self) -> bool:
        return not (self.changed or self.added or self.gone)


class Comparison(NamedTuple):
    """`merged`: a spool of the rows of the version before that stay, then those of the source that are new."""

    difference: Difference
    merged: Path
    columns: Columns  # of `merged`


class _Met(enum.IntEnum):
    alone = 0  # no row has the key
    same = 1
    changed = 2
    extra = 3  # the key has fewer rows on the other side


def compare(
    parts: Sequence[Path],
    spool: Path,
    columns: Columns,
    empty: Set[str],
    scratch: Path,
    by_item: bool = False,
    elsewhere: Callable[[str], bool] | None = None,
) -> Comparison:
    """Compare the rows of a spool with those of a version, and merge them; new rows win.

    Args:
        parts: the Parquet files of the version before, at least one.
        columns: of the spool; `empty` are the source columns among them with only nulls, whose type means nothing.
        scratch: an empty folder, for `merged` and for a database.
        by_item: pair rows by item and time, as in a feed; else by row id.
        elsewhere: whether the source has an item in any span, so that its old row is not gone.
    """
    together = _together(columns, empty, parts)
    before = kept = gone = 0
    with _Pairs(scratch / "pairs.sqlite") as pairs, (scratch / "merged.jsonl").open("wb") as merged:
        for line in _lines(spool):
            pairs.add(*_identity(line, together, by_item))
        pairs.rewind()
        for line in _old_lines(parts, together):
            before += 1
            key, digest = _identity(line, together, by_item)
            met = pairs.meet(key, digest)
            if met in (_Met.alone, _Met.same):
                merged.write(line)
                kept += 1
            there = elsewhere is not None and elsewhere(json.loads(line)[_PLACE[ITEM_ID]])
            gone += met in (_Met.alone, _Met.extra) and not there
        pairs.rewind()
        for line in _lines(spool):
            if not pairs.is_same(_identity(line, together, by_item)[0]):
                merged.write(line)
        changed, added = pairs.count(_Met.changed), pairs.count(_Met.alone)
        difference = Difference(before=before, changed=changed, added=added, gone=gone, merged=kept + changed + added)
    return Comparison(difference, scratch / "merged.jsonl", together)


class _Pairs:
    """The rows of the spool by key and place among the rows of the same key, with the hash of their content."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(
            "CREATE TABLE rows (key TEXT, place INTEGER, digest BLOB, met INTEGER, PRIMARY KEY (key, place)) "
            "WITHOUT ROWID"
        )
        self._database.execute("CREATE TABLE passed (key TEXT PRIMARY KEY, last INTEGER) WITHOUT ROWID")
        self._database.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._database.close()

    def add(self, key: str, digest: bytes) -> None:
        row = (key, self._place(key), digest, _Met.alone)
        self._database.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", row)

    def rewind(self) -> None:
        """Begin to count the rows of each key again."""
        self._database.execute("DELETE FROM passed")

    def meet(self, key: str, digest: bytes) -> _Met:
        """Pair the next row of the version before."""
        place = self._place(key)
        found = self._database.execute("SELECT digest FROM rows WHERE key = ? AND place = ?", (key, place)).fetchone()
        if found is None:
            return _Met.extra if place and self._has(key) else _Met.alone
        met = _Met.same if found[0] == digest else _Met.changed
        self._database.execute("UPDATE rows SET met = ? WHERE key = ? AND place = ?", (met, key, place))
        return met

    def is_same(self, key: str) -> bool:
        """Return whether the next row of the spool met its equal."""
        at = (key, self._place(key))
        (met,) = self._database.execute("SELECT met FROM rows WHERE key = ? AND place = ?", at).fetchone()
        return met == _Met.same

    def count(self, met: _Met) -> int:
        return int(self._database.execute("SELECT count(*) FROM rows WHERE met = ?", (met,)).fetchone()[0])

    def _has(self, key: str) -> bool:
        return self._database.execute("SELECT 1 FROM rows WHERE key = ?", (key,)).fetchone() is not None

    def _place(self, key: str) -> int:
        counted = "INSERT INTO passed VALUES (?, 0) ON CONFLICT (key) DO UPDATE SET last = last + 1 RETURNING last"
        return int(self._database.execute(counted, (key,)).fetchone()[0])


def _identity(line: bytes, columns: Columns, by_item: bool) -> tuple[str, bytes]:
    """Return the key of a line, and a hash of its content."""
    row = row_of(line, columns)
    key = f"{row[_PLACE[ITEM_ID]]}\n{row[_PLACE[TIME]]}" if by_item else str(row[_PLACE[ROW_ID]])
    return key, hashlib.blake2b(json.dumps(row).encode(), digest_size=16).digest()


def _lines(spool: Path) -> Iterator[bytes]:
    with spool.open("rb") as lines:
        yield from lines


def _old_lines(parts: Sequence[Path], columns: Columns) -> Iterator[bytes]:
    """Yield the rows of Parquet files as lines of a spool with these columns."""
    sources = {name: source for source, (name, _) in columns.items()}
    for part in parts:
        with pq.ParquetFile(part, pre_buffer=False) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                time = batch.schema.get_field_index(TIME)
                batch = batch.set_column(time, TIME, batch.column(time).cast(pa.int64()))
                for row in batch.to_pylist():
                    core: list[Any] = [row.pop(column) for column in CORE]
                    others = {sources[name]: value for name, value in row.items() if value is not None}
                    yield json.dumps([*core, others], ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _together(columns: Columns, empty: Set[str], parts: Sequence[Path]) -> Columns:
    """Return the columns of both, by source column; where the types differ, the type is string."""
    kinds = {name: None if source in empty else kind for source, (name, kind) in columns.items()}
    for name, kind in _columns_of(parts).items():
        other = kinds.get(name)
        kinds[name] = kind if other is None else other if kind in (None, other) else "string"
    sources = {name: source for source, (name, _) in columns.items()}
    named = {sources.get(name, name): (name, kind or "float64") for name, kind in kinds.items()}
    return dict(sorted(named.items()))


def _columns_of(parts: Sequence[Path]) -> dict[str, str | None]:
    """Return name -> type of the columns of a span that are not core columns; None where all values are null."""
    kinds: dict[str, str | None] = {}
    for part in parts:
        with pq.ParquetFile(part, pre_buffer=False) as file:
            schema = file.schema_arrow
            others = [name for name in schema.names if name not in CORE]
            kinds.update(dict.fromkeys(name for name in others if name not in kinds))
            for batch in file.iter_batches(_BATCH_ROWS, columns=others) if others else ():
                for name in [name for name in others if kinds[name] is None]:
                    if batch.column(name).null_count < batch.num_rows:
                        kinds[name] = _KINDS[str(schema.field(name).type)]
    return kinds
