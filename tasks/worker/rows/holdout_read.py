"""Read the holdout of spans: a number of rows, or the pairs of some queries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from configs.schema.validation import BeforeConfig
from infra.store.base import Store
from infra.store.manifest import open_file, open_manifest
from tasks.contracts.checkpoints import QUERY_AND_ITEM
from tasks.contracts.evaluation import ENOUGH_SPANS, QUERY_KEY, QUERY_TRAINED, usual_rows
from tasks.contracts.outcomes import Check
from tasks.contracts.references import RowsRef
from tasks.data.label_columns import pair_mask
from tasks.data.rows import CORE, ITEM, ITEM_ID, QUERY, below_share, group_hashes
from tasks.foundation.errors import DataError
from tasks.worker.checks.verdicts import check_share, not_judged
from tasks.worker.rows.drift import MIN_ROWS
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


MISSING, AGAIN = "rows as many as before", "rows new"


def judge_before(
    store: Store, history: Sequence[RowsRef], window: Mapping[str, int], files: Sequence[Path], limits: BeforeConfig
) -> list[Check]:
    """Return the check of missing rows, and the check of rows that the previous span has too.

    Args:
        history: the spans before, oldest first.
        window: number of clean rows by span, oldest first.
        files: Parquet files of the clean rows.

    Raises:
        MissingFolder, CorruptFolder: the holdout folder of an earlier span is missing or damaged.
    """
    missing = _missing(history, window, limits)
    if len(history) < ENOUGH_SPANS:
        why = f"{len(history)} spans before; {ENOUGH_SPANS} are needed"
        return [missing, not_judged(AGAIN, limits.again, why)]
    return [missing, _again(store, history, files, limits)]


def _missing(history: Sequence[RowsRef], window: Mapping[str, int], limits: BeforeConfig) -> Check:
    """Return the check of the window's span that lacks most rows; earlier spans of the window are before it too."""
    before, found = [ref.rows for ref in history], []
    for span, rows in window.items():
        if (usual := usual_rows(before)) is not None:
            found.append((max(0.0, 1 - rows / usual), span, rows, usual))
        before.append(rows)
    if not found:
        return not_judged(MISSING, limits.missing, f"{len(before) - 1} spans before; {ENOUGH_SPANS} are needed")
    missing, span, rows, usual = max(found)
    sentence = f"{rows} clean rows in span {span}, and {usual:.0f} are usual: {missing:.2%} are missing"
    advice = "Is the export whole? Rows that come later: millrace ingest --merge."
    return check_share(MISSING, missing, limits.missing, "before.missing", sentence, advice)


def _again(store: Store, history: Sequence[RowsRef], files: Sequence[Path], limits: BeforeConfig) -> Check:
    one_before, last = (HeldSpan(store, ref, 0.0) for ref in history[-ENOUGH_SPANS:])
    texts = np.unique(np.concatenate([np.zeros(0, np.uint64), *_texts(files)]))
    of_last = last.trained_texts()
    if min(len(texts), len(of_last)) < MIN_ROWS:
        why = f"{len(texts)} texts in the window and {len(of_last)} in the span before; {MIN_ROWS} each are needed"
        return not_judged(AGAIN, limits.again, why)
    share, before = float(last.trained(texts).mean()), float(one_before.trained(of_last).mean())
    name = last.ref.span.name
    sentence = f"{share:.2%} of the window's queries with their items were in span {name} too, {before:.2%} were usual"
    advice = f"Was {name} exported once more?"
    return check_share(AGAIN, max(0.0, share - before), limits.again, "before.again", sentence, advice, "more")


def _texts(files: Sequence[Path]) -> Iterator[np.ndarray]:
    """Yield the hashes of the rows' query and item, uint64, piece by piece."""
    for path in files:
        for batch in pq.ParquetFile(path).iter_batches(columns=[QUERY, ITEM]):
            yield group_hashes(pa.Table.from_batches([batch]), QUERY_AND_ITEM)
