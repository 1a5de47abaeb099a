"""Read the holdout of spans: a number of rows, or the pairs of some queries."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from infra.store.base import Store
from infra.store.manifest import open_file, open_manifest
from tasks.contracts.evaluation import QUERY_KEY, QUERY_TRAINED
from tasks.contracts.references import RowsRef
from tasks.data.label_columns import pair_mask
from tasks.data.rows import CORE, ITEM_ID, below_share
from tasks.foundation.errors import DataError
from tasks.worker.rows.holdout_order import files_of, query_places
from tasks.worker.rows.holdout_write import (
    HELD_KIND,
    HOLD_PLACE,
    NUMBER,
    PAIRS,
    QUERY_PLACE,
    ROWS,
    TEXTS_HASH,
    TRAINED,
    TRAINED_ON,
    file_name,
)

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


S = TypeVar("S")
T = TypeVar("T")
_READERS = 16  # parallel reads: a history has hundreds of small files, and a bucket answers in tens of milliseconds


def at_once(read: Callable[[S], T], spans: Sequence[S]) -> list[T]:
    """Call `read` for each span in parallel; return the results in the order of the spans."""
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(read, spans))


class HeldSpan:
    """The holdout of one span, reduced to a share, in the order of its queries' places.

    Raises:
        MissingFolder, CorruptFolder: on any read, if the folder is missing or damaged.
    """

    def __init__(self, store: Store, ref: RowsRef, share: float) -> None:
        assert ref.held is not None, f"validate wrote the held-out rows of {ref.span.name}"
        self.ref, self.share = ref, share
        self._store, self._prefix = store, ref.held
        self._manifest = open_manifest(store, ref.held, HELD_KIND)
        facts = self._manifest.facts
        self._rows_in, self._pairs_in = facts["rows_in"], facts["pairs_in"]
        self._whole = share >= facts["share"]
        self.kept_out: str | None = facts["kept_out"]  # the golden set whose text pairs no training row has

    def count(self) -> int:
        """Return the number of rows; reads rows only if the share is below the one they were held out with."""
        if self._whole:
            return sum(self._rows_in)
        places = (self._read(ROWS, number, [HOLD_PLACE])[HOLD_PLACE] for number in range(len(self._rows_in)))
        return sum(int(below_share(some.to_numpy(), self.share).sum()) for some in places)

    def rows(self, columns: Sequence[str], most: int) -> pa.Table:
        """Return at most `most` rows, all rows of the queries with the lowest places, in the order of the span.

        The first query is complete even if it has more rows, unless `most` is 0. The table has the core columns, then
        all others of the span, which must include `columns`.

        Raises:
            DataError: the span lacks one of `columns`.
        """
        tables, found = [], 0
        for number in range(len(self._rows_in)):
            table = self._read(ROWS, number)
            if missing := [name for name in columns if name not in table.column_names]:
                raise DataError(
                    f"span {self.ref.span.name}: no column {missing[0]!r}, which the configuration uses as a feature, "
                    f"slice or group; it has {', '.join(self.names(table))}"
                )
            if not self._whole:
                table = table.filter(pa.array(below_share(table[HOLD_PLACE].to_numpy(), self.share)))
            tables.append(table)
            found += table.num_rows
            if found > most:
                break
        table = pa.concat_tables(tables)
        if found > most:
            table = table.slice(0, _whole_queries(table[QUERY_PLACE].to_numpy(), most))
        return table.sort_by(NUMBER).select(self.names(table))

    def pairs(self, places: np.ndarray) -> pa.Table:
        """Return the distinct pairs of some queries in all rows of the span: QUERY_PLACE, ITEM_ID, LABEL, TRAINED_ON.

        Args:
            places: uint64 (queries,), distinct, ascending.
        """
        tables = []
        for number in np.unique(files_of(places, sum(self._pairs_in))):
            table = self._read(PAIRS, int(number))
            there = table[QUERY_PLACE].to_numpy()
            at = np.minimum(np.searchsorted(places, there), len(places) - 1)
            tables.append(table.filter(pa.array(places[at] == there)))
        return pa.concat_tables(tables)

    def trained(self, texts: np.ndarray) -> np.ndarray:
        """Return bool (texts,): True if a training row of the span has the hash; `texts` uint64, as TEXTS_HASH."""
        return np.isin(texts, self.trained_texts())

    def trained_texts(self) -> np.ndarray:
        """Return the distinct TEXTS_HASH of the span's training rows, ascending; uint64."""
        file = open_file(self._store, self._prefix, self._manifest, TRAINED)
        return pq.read_table(file)[TEXTS_HASH].to_numpy()

    @staticmethod
    def names(table: pa.Table) -> list[str]:
        """Return the columns of the span's rows, the core columns first."""
        own = (QUERY_PLACE, HOLD_PLACE, NUMBER)
        return [*CORE, *(name for name in table.column_names if name not in CORE and name not in own)]

    def _read(self, what: str, number: int, columns: list[str] | None = None) -> pa.Table:
        file = open_file(self._store, self._prefix, self._manifest, file_name(what, number))
        return pq.ParquetFile(file).read(columns, use_threads=False)  # faster for small files


def pairs_of_queries(spans: Sequence[HeldSpan], queries: np.ndarray, heads: HeadsConfig) -> pa.Table:
    """Return the items that any row of the spans, training or holdout, pairs with some queries.

    Args:
        queries: int64 (queries,), distinct, from `hash_queries`.

    Returns:
        QUERY_KEY, int64, ITEM_ID, string, and QUERY_TRAINED, bool; a pair of two spans is there twice.
    """
    places = query_places(queries)
    order = np.argsort(places)
    queries, places = queries[order], places[order]
    found = [pa.table({QUERY_KEY: pa.array([], pa.int64()), ITEM_ID: pa.array([], pa.string())})]
    trained = np.zeros(len(queries), dtype=bool)
    for pairs in at_once(lambda span: span.pairs(places), spans):
        at = np.searchsorted(places, pairs[QUERY_PLACE].to_numpy())
        trained[at[pairs[TRAINED_ON].to_numpy()]] = True  # also by a row that is no pair
        table = pa.table({QUERY_KEY: queries[at], ITEM_ID: pairs[ITEM_ID]})
        found.append(table.filter(pa.array(pair_mask(pairs, heads))))
    table = pa.concat_tables(found)
    return table.append_column(QUERY_TRAINED, pc.is_in(table[QUERY_KEY], value_set=pa.array(queries[trained])))


def _whole_queries(places: np.ndarray, most: int) -> int:
    """Return the number of rows of the first complete queries: at most `most`, but at least the first query."""
    if not most:
        return 0
    begins = np.flatnonzero(np.append(True, places[1:] != places[:-1]))
    ends = np.append(begins[1:], len(places))
    fitting = ends[ends <= most]
    return int(fitting[-1] if len(fitting) else ends[0])
