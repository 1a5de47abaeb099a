"""The holdout of a span: written once, and read as a number of rows, or as the pairs of some queries.

So no later stage reads all rows to find it. Beside it are the query-item pairs of all rows of the span, from which an
evaluation finds other relevant items, and hashes of the texts of its training rows. DuckDB sorts in bounded memory.

A query's place is a hash of its normalised text. The first file holds the lowest places, and each further file as many
rows as all files before it, so reading the queries up to any place reads at most about twice their rows.
"""

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from configs.schema.validation import BeforeConfig
from infra.store.base import Store
from infra.store.manifest import commit_by_content, open_file, open_manifest
from tasks.contracts.evaluation import ENOUGH_SPANS, QUERY_KEY, QUERY_TRAINED, usual_rows
from tasks.contracts.outcomes import Check
from tasks.contracts.references import QUERY_AND_ITEM, HoldoutRule, RowsRef
from tasks.data.holdout import Piece, left_out_ids, pieces_of, split_by_places
from tasks.data.label_columns import pair_mask
from tasks.data.query_places import QUERY_PLACE, hash_queries, query_places
from tasks.data.rows import (
    CORE,
    ITEM,
    ITEM_ID,
    LABEL,
    QUERY,
    below_share,
    group_hashes,
    hold_places,
    other_columns,
    read_rows,
)
from tasks.foundation.errors import DataError
from tasks.foundation.nouns import plural
from tasks.worker.catalogue.records import connect, literal
from tasks.worker.checks.verdicts import check_share, not_judged
from tasks.worker.process.cores import Cores
from tasks.worker.rows.drift import MIN_ROWS

FIRST_ROWS = 1024  # approximate rows of the first file


def first_places(rows: int) -> np.ndarray:
    """Return the first place of each file in a folder of `rows` rows, uint64 (files,)."""
    halvings = max(0, math.ceil(math.log2(max(1, rows) / FIRST_ROWS)))
    return np.array([0, *(2 ** (63 - halvings + number) for number in range(1, halvings + 1))], dtype=np.uint64)


def files_of(places: np.ndarray, rows: int) -> np.ndarray:
    """Return the file number of each place, int64 (places,), in a folder of `rows` rows."""
    return np.searchsorted(first_places(rows), places, side="right") - 1


pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

HELD_KIND = "held"
ROWS, PAIRS = "rows", "pairs"  # prefixes of file names
TRAINED = "trained.parquet"  # distinct TEXTS_HASH of the training rows
# Columns added to the held-out rows, beside QUERY_PLACE, by which they are sorted:
HOLD_PLACE = "(hold place)"  # uint64, from `hold_places`: the row is held out while this is below the share
NUMBER = "(number)"  # int64: number of the row in its span
# The pairs have QUERY_PLACE, ITEM_ID, LABEL, and
TRAINED_ON = "(trained on)"  # bool: a training row of the span has the pair
# Column of the training rows:
TEXTS_HASH = "(texts hash)"  # uint64: the group hash of the group QUERY_AND_ITEM

_AT_ONCE = 8192  # rows in memory and at most in a row group; fixed, so that the same rows give the same files


def write_held(
    store: Store,
    ref: RowsRef,
    rule: HoldoutRule,
    prefix: str,
    scratch: Path,
    cores: Cores,
    kept_out: str | None = None,
) -> RowsRef:
    """Write the holdout folder of a span; return the reference with its key.

    Args:
        ref: with its `sides`, if the span was compared with others.
        prefix: start of the folder's key; a hash of the files follows.
        scratch: a local folder for temporary files.
        kept_out: key of the golden set whose texts no training row has, if any.

    Raises:
        MissingFolder, CorruptFolder: the rows or their `sides` are missing or damaged.
    """
    drafts, folder = scratch / f"{ref.span.name}.held-drafts", scratch / f"{ref.span.name}.held"
    for made in (drafts, folder):
        made.mkdir(parents=True)
    held, pairs, trained = _draft(store, ref, rule, drafts, cores)
    with connect(scratch) as database:
        by_place = f"{_name(QUERY_PLACE)}, {_name(NUMBER)}"
        rows_in = _write(database, f"SELECT * FROM {_of(held)}", by_place, held, folder, ROWS)
        names = ", ".join(_name(name) for name in (QUERY_PLACE, ITEM_ID, LABEL))
        trained_on = f"bool_or({_name(TRAINED_ON)}) AS {_name(TRAINED_ON)}"
        distinct = f"SELECT {names}, {trained_on} FROM {_of(pairs)} GROUP BY {names}"
        pairs_in = _write(database, distinct, names, pairs, folder, PAIRS)
        hashes = _name(TEXTS_HASH)
        distinct = f"SELECT DISTINCT {hashes} FROM {_of(trained)} ORDER BY {hashes}"
        with pq.ParquetWriter(folder / TRAINED, pq.read_schema(trained)) as writer:
            for table in tables_of(database, distinct, writer.schema):
                writer.write_table(table)
    facts = {
        "span": ref.span.name,
        "share": rule.measured,
        "kept_out": kept_out,
        "rows_in": rows_in,
        "pairs_in": pairs_in,
    }
    # In a file too, so that other facts give another folder.
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    return ref.model_copy(update={"held": commit_by_content(store, prefix, folder, HELD_KIND, facts)})


def file_name(what: str, number: int) -> str:
    """Return the name of a file, e.g. `rows-03.parquet`; `number` is in the order of places."""
    return f"{what}-{number:02d}.parquet"


def _draft(store: Store, ref: RowsRef, rule: HoldoutRule, folder: Path, cores: Cores) -> list[Path]:
    """Write the held-out rows with their places, the pairs of all rows, and the texts of the training rows."""
    pieces = pieces_of(read_rows(store, [ref], other_columns(store, ref)), left_out_ids(store, ref))
    paths = [folder / name for name in ("rows.parquet", "pairs.parquet", TRAINED)]
    writers: list[pq.ParquetWriter] = []
    try:
        for _, tables in cores.map(functools.partial(_drafted, rule=rule), pieces, ref.rows):
            writers = writers or [
                pq.ParquetWriter(path, table.schema) for path, table in zip(paths, tables, strict=True)
            ]
            for writer, table in zip(writers, tables, strict=True):
                writer.write_table(table)
    finally:
        for writer in writers:
            writer.close()
    return paths


def _drafted(piece: Piece, rule: HoldoutRule) -> tuple[pa.Table, pa.Table, pa.Table]:
    first, rows, left_out = piece
    places = hold_places(rows, rule.group)
    added = {
        QUERY_PLACE: query_places(hash_queries(rows[QUERY].to_pylist())),
        HOLD_PLACE: places,
        TEXTS_HASH: group_hashes(rows, QUERY_AND_ITEM),
        NUMBER: np.arange(first, first + rows.num_rows),
    }
    placed = rows
    for name, values in added.items():
        placed = placed.append_column(name, pa.array(values))
    training, held = split_by_places(placed, places, rule, left_out)
    trained = pc.is_in(placed[NUMBER], value_set=training[NUMBER].combine_chunks())
    pairs = placed.select([QUERY_PLACE, ITEM_ID, LABEL]).append_column(TRAINED_ON, trained)
    return held.drop_columns(TEXTS_HASH), pairs, training.select([TEXTS_HASH])


def _write(
    database: duckdb.DuckDBPyConnection, query: str, order: str, draft: Path, folder: Path, what: str
) -> list[int]:
    """Write the rows of a query into files by their places; return the number of rows of each file."""
    ((rows,),) = database.sql(f"SELECT count(*) FROM ({query})").fetchall()
    schema, counts = pq.read_schema(draft), [0] * len(first_places(rows))
    writers = [pq.ParquetWriter(folder / file_name(what, number), schema) for number in range(len(counts))]
    try:
        for table in tables_of(database, f"{query} ORDER BY {order}", schema):
            files = files_of(table[QUERY_PLACE].to_numpy(), rows)
            for number in np.unique(files):
                part = table.filter(pa.array(files == number))
                writers[number].write_table(part)
                counts[number] += part.num_rows
    finally:
        for writer in writers:
            writer.close()
    return counts


def tables_of(database: duckdb.DuckDBPyConnection, sorted_rows: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a query, _AT_ONCE at a time, because DuckDB's batch sizes depend on its threads."""
    waiting = schema.empty_table()
    for batch in database.sql(sorted_rows).to_arrow_reader(_AT_ONCE):
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch]).cast(schema)])
        while waiting.num_rows >= _AT_ONCE:
            yield waiting.slice(0, _AT_ONCE)
            waiting = waiting.slice(_AT_ONCE)
    yield waiting


def _of(path: Path) -> str:
    return f"read_parquet({literal(str(path))})"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


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
            self._expect(columns, table)
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

    def newest(self, columns: Sequence[str], most: int, wanted: Callable[[pa.Table], np.ndarray]) -> pa.Table:
        """Return the last `most` rows of the span that `wanted` selects, in its order: the core columns, and `columns`.

        Some thousand rows, and the found ones, are in memory at a time.

        Args:
            wanted: returns bool (rows,) for some rows.

        Raises:
            DataError: the span lacks one of `columns`.
        """
        found: pa.Table | None = None
        for number in range(len(self._rows_in)):
            path = open_file(self._store, self._prefix, self._manifest, file_name(ROWS, number))
            with pq.ParquetFile(path, pre_buffer=False) as file:
                found = file.schema_arrow.empty_table() if found is None else found  # a small span holds out no row
                self._expect(columns, found)
                for batch in file.iter_batches(_AT_ONCE):
                    rows = pa.Table.from_batches([batch])
                    if not self._whole:
                        rows = rows.filter(pa.array(below_share(rows[HOLD_PLACE].to_numpy(), self.share)))
                    rows = pa.concat_tables([found, rows.filter(pa.array(wanted(rows)))])
                    found = rows.sort_by(NUMBER).slice(max(0, rows.num_rows - most))
        assert found is not None, "a holdout has a file at least"
        return found.select([*CORE, *dict.fromkeys(columns)])

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

    def _expect(self, columns: Sequence[str], table: pa.Table) -> None:
        """Raise DataError if the span lacks one of the columns."""
        if missing := [name for name in columns if name not in table.column_names]:
            raise DataError(
                f"span {self.ref.span.name}: no column {missing[0]!r}, which the configuration uses as a feature, "
                f"slice or group; it has {', '.join(self.names(table))}"
            )

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
        why = f"{plural(len(history), 'span')} before; {ENOUGH_SPANS} are needed"
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
        return not_judged(
            MISSING, limits.missing, f"{plural(len(before) - 1, 'span')} before; {ENOUGH_SPANS} are needed"
        )
    missing, span, rows, usual = max(found)
    sentence = f"{plural(rows, 'clean row')} in span {span}, and {usual:.0f} are usual: {missing:.2%} are missing"
    advice = "Is the export whole? Rows that come later: millrace ingest --merge."
    return check_share(MISSING, missing, limits.missing, "before.missing", sentence, advice)


def _again(store: Store, history: Sequence[RowsRef], files: Sequence[Path], limits: BeforeConfig) -> Check:
    one_before, last = (HeldSpan(store, ref, 0.0) for ref in history[-ENOUGH_SPANS:])
    texts = np.unique(np.concatenate([np.zeros(0, np.uint64), *_texts(files)]))
    of_last = last.trained_texts()
    if min(len(texts), len(of_last)) < MIN_ROWS:
        why = (
            f"{plural(len(texts), 'text')} in the window, {len(of_last)} in the span before; {MIN_ROWS} each are needed"
        )
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
