"""The rows that an erasure looks for, in files with the column, and in files that have the rows' ids or pairs alone.

The spans and feeds tell them, so these are changed last: a second call after a kill finds the same rows.
"""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from tasks.contracts.evaluation import COLUMN, QUERY_KEY
from tasks.contracts.workspace import BAD_ROWS, CATALOGUE, FEED, SPAN, WAITING_ROWS, kind_of
from tasks.data.erased import equal_to
from tasks.data.query_places import QUERY_PLACE, hash_queries, query_places
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID, TEXT
from tasks.foundation.errors import StoreError

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

LIKE_ROW = "like_row_id"  # column of left-out rows that names another row
GONE = "(erased)"
_TELLING = (SPAN, FEED, CATALOGUE, BAD_ROWS, WAITING_ROWS)
_SHORTEST = 6  # characters of an id that is looked for inside sentences


@dataclass
class Wanted:
    """A value of a column to erase, and all that its rows are known by."""

    column: str
    value: str  # as `text_of` gives it
    rows: dict[str, set[str]] = field(default_factory=dict)  # ids of the rows, by span
    texts: set[str] = field(default_factory=set)  # queries or item texts that no other row has
    pairs: set[tuple[int, str]] = field(default_factory=set)  # hash of the query, item id: of no other row
    forms: set[str] = field(default_factory=set)  # texts of the value, as files hold it: in NFC, in NFD, as 7.0

    def __post_init__(self) -> None:
        self.forms |= {unicodedata.normalize(form, self.value) for form in ("NFC", "NFD")}

    @property
    def of_item(self) -> bool:
        """True if an item goes, with its vector; else rows of a log alone."""
        return self.column == ITEM_ID

    def ids(self, span: str | None) -> Collection[str]:
        """Return the ids of the rows of a span; of all spans if it is not known."""
        if span is not None:
            return self.rows.get(span, set())
        return set().union(*self.rows.values())

    @property
    def words(self) -> set[str]:
        """The value and the row ids that are long enough to mean nothing else."""
        ids = {row for rows in self.rows.values() for row in rows}
        found = {word for word in (self.value, *ids) if len(word) >= _SHORTEST and not word.isdecimal()}
        return found | self.forms if self.value in found else found

    def mask(self, table: pa.Table, span: str | None) -> np.ndarray:
        """Return bool (rows,): True for a row that goes.

        Args:
            span: the span of all rows of the file; None if it has rows of several, or does not say so: then a row goes
                if its id is that of a row of any span.
        """
        names, found = table.schema.names, np.zeros(table.num_rows, dtype=bool)
        whole = [name for name in (self.column, f"{COLUMN}{self.column}") if name in names]
        for name in whole:
            found |= equal_to(table[name], self.value)
        if ROW_ID in names and not whole:
            found |= self._by_row(table, span)
        keys = [name for name in (QUERY_PLACE, QUERY_KEY) if name in names]
        if keys and ITEM_ID in names and ROW_ID not in names and self.pairs:
            found |= self._by_pair(table, keys[0])
        return found

    def _by_row(self, table: pa.Table, span: str | None) -> np.ndarray:
        ids = pa.array(sorted(self.ids(span)), pa.string())
        return pc.is_in(table[ROW_ID], value_set=ids).to_numpy(zero_copy_only=False)

    def _by_pair(self, table: pa.Table, key: str) -> np.ndarray:
        of = {(int(place), item) for place, item in self.pairs}
        if key == QUERY_PLACE:
            places = query_places(np.array([key for key, _ in of], dtype=np.int64))
            of = {(int(place), item) for place, (_, item) in zip(places, of, strict=True)}
        pairs = zip(table[key].to_pylist(), table[ITEM_ID].to_pylist(), strict=True)
        return np.array([pair in of for pair in pairs], dtype=bool)


def columns_for(names: Collection[str], wanted: Wanted) -> list[str]:
    """Return the columns of a file that tell which rows go; empty if none does."""
    own = {wanted.column, f"{COLUMN}{wanted.column}", ROW_ID, ITEM_ID, QUERY_PLACE, QUERY_KEY, LIKE_ROW}
    there = [name for name in names if name in own]
    return there if {wanted.column, f"{COLUMN}{wanted.column}", ROW_ID, QUERY_PLACE, QUERY_KEY} & set(there) else []


def find_wanted(store: Store, column: str, value: str) -> Wanted:
    """Read the spans, feeds, catalogues and quarantined rows, and return the search."""
    wanted = Wanted(column, value)
    texts, pairs = set[str](), set[tuple[int, str]]()
    for span, table in _tables(store, wanted):
        found = wanted.mask(table, None) if column in table.schema.names else np.zeros(table.num_rows, dtype=bool)
        if not found.any():
            continue
        gone = table.filter(pa.array(found))
        wanted.forms |= {cell for cell in gone[column].to_pylist() if isinstance(cell, str)}
        if span is not None and ROW_ID in gone.schema.names:
            wanted.rows.setdefault(span, set()).update(filter(None, gone[ROW_ID].to_pylist()))
        texts |= {text for name in _told(wanted, gone) for text in gone[name].to_pylist() if text}
        if not wanted.of_item:
            pairs |= _pairs(gone)
    for _, table in _tables(store, wanted) if texts else ():
        left = table
        if column in table.schema.names:
            left = table.filter(pa.array(~wanted.mask(table, None)))
        texts -= {text for name in _told(wanted, left) for text in left[name].to_pylist() if text in texts}
        if pairs:
            pairs -= _pairs(left)
    wanted.texts, wanted.pairs = texts, pairs
    return wanted


def _told(wanted: Wanted, table: pa.Table) -> list[str]:
    """Return the columns whose texts go with the rows: of an item its own, of other rows their queries."""
    told = (ITEM, TEXT) if wanted.of_item else (QUERY,)
    return [name for name in told if name in table.schema.names]


def _pairs(table: pa.Table) -> set[tuple[int, str]]:
    if not {QUERY, ITEM_ID} <= set(table.schema.names):
        return set()
    queries, items = table[QUERY].to_pylist(), table[ITEM_ID].to_pylist()
    both = [(query, item) for query, item in zip(queries, items, strict=True) if query and item]
    return set(zip(hash_queries([query for query, _ in both]).tolist(), [item for _, item in both], strict=True))


def _tables(store: Store, wanted: Wanted) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the telling columns of all files that have rows with all their columns, with the rows' span if known."""
    for root in ("spans", "items", "catalogue", "runs", "refreshes"):
        for key in store.list(root):
            if not key.endswith(".parquet"):
                continue
            kind, fields = kind_of(key)
            if kind in _TELLING:
                span = fields["span"] if kind is SPAN else None
                with naming_damage(store, key):
                    for table in row_groups(store.local(key), {wanted.column, ROW_ID, QUERY, ITEM, TEXT, ITEM_ID}):
                        yield span, table


@contextlib.contextmanager
def naming_damage(store: Store, key: str) -> Iterator[None]:
    """Raise StoreError with the name and the way out if a Parquet file can't be read inside the block."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise StoreError(
            f"{store.uri}/{key} is damaged, so it may hold the value in a form that no search finds: {error}. Restore "
            "it from a backup; what the current release lacks is made again by millrace refresh --verify, and what no "
            "kept release needs is deleted by millrace prune; then give the same command again"
        ) from error


def row_groups(path: Path, columns: Collection[str] | None = None) -> Iterator[pa.Table]:
    """Yield the row groups of a Parquet file, with its part of `columns`; None: all."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        names = file.schema_arrow.names
        some = None if columns is None else [name for name in names if name in columns]
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, some)


def span_of_folder(facts: Mapping[str, Any]) -> str | None:
    """Return the span that all rows of a folder are of, by its manifest; None if it does not say so."""
    span = facts.get("span")
    return span if isinstance(span, str) else None
