"""Compare two releases: their items, and their answers to the same holdout queries."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.references import HoldoutRule, RowsRef
from tasks.contracts.search import Changes, ListedItem, QueryChange, SharedSearch
from tasks.data.label_columns import pair_mask
from tasks.data.query_places import hash_queries
from tasks.data.rows import CONTENT, CORE, ITEM, ITEM_ID, QUERY
from tasks.worker.catalogue.records import connect
from tasks.worker.rows.holdout import HeldSpan, at_once, pairs_of_queries
from tasks.worker.search.consumer import Searched
from tasks.worker.search.index import ABSENT, Index


def holdout_queries(store: Store, refs: Sequence[RowsRef], config: Config) -> pa.Table:
    """Return at most `release.queries` holdout rows that are pairs, oldest first.

    Columns: the core columns, the features of `features.query`, and `features.entity`.

    Raises:
        MissingFolder, CorruptFolder: the rows of a span are missing or damaged.
        DataError: a span lacks a feature.
    """
    left, parts = config.release.queries, [pa.schema(CORE).empty_table()]
    entity = [config.features.entity] if config.features.entity else []
    columns = list(dict.fromkeys([*config.features.query, *entity]))
    share = HoldoutRule.of(config.evaluate, refs).measured
    for ref in reversed(refs):
        held = HeldSpan(store, ref, share)
        parts.insert(1, held.newest(columns, left, lambda rows: np.asarray(pair_mask(rows, config.heads), dtype=bool)))
        left -= parts[1].num_rows
        if not left:
            break
    return pa.concat_tables(parts, promote_options="permissive")


def known_pairs(store: Store, refs: Sequence[RowsRef], config: Config, queries: pa.Table) -> pa.Table:
    """Return the items that any row of the spans pairs with the queries, as evaluate looks them up for its rows.

    Returns:
        QUERY_KEY, int64, and ITEM_ID, string.

    Raises:
        MissingFolder, CorruptFolder: the pairs of a span are missing or damaged.
    """
    share = HoldoutRule.of(config.evaluate, refs).measured
    keys = np.unique(hash_queries(queries[QUERY].to_pylist()))
    return pairs_of_queries(at_once(lambda ref: HeldSpan(store, ref, share), refs), keys, config.heads)


BATCH_ITEMS = 2**20


def shared_items(before: Index, after: Index) -> tuple[np.ndarray, np.ndarray]:
    """Return for each release bool (vectors,): True if the other one has the item too, by its id."""
    found = np.zeros(before.vectors, dtype=bool), np.zeros(after.vectors, dtype=bool)
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch, connect(Path(scratch)) as database:
        _register(database, before, after, [])
        both = database.sql(
            f"SELECT earlier.place, later.place FROM earlier JOIN later USING ({ITEM_ID})"
        ).to_arrow_reader(BATCH_ITEMS)
        for batch in both:
            for mask, places in zip(found, batch.columns, strict=True):
                mask[places.to_numpy()] = True
    return found


def _register(database: duckdb.DuckDBPyConnection, before: Index, after: Index, columns: list[str]) -> None:
    """Make the tables `earlier` and `later`, with item id, place and the columns, strings; each can be read once.

    DuckDB gets the live items from the index: it does not know which of several files counts.
    """
    fields = {ITEM_ID: pa.string(), **dict.fromkeys(columns, pa.string()), "place": pa.int64()}
    for name, index in (("earlier", before), ("later", after)):
        tables = index.tables([ITEM_ID, *columns])
        batches = (
            batch
            for first, table in tables
            for batch in table.append_column("place", pa.array(np.arange(first, first + table.num_rows)))
            .cast(pa.schema(fields))
            .to_batches()
        )
        database.register(name, pa.RecordBatchReader.from_batches(pa.schema(fields), batches))


SAMPLE = 2000  # items in both releases whose vectors are compared
LISTED = 10  # new items, gone items, wins and losses listed at most
HITS = 5  # hits shown per query


def compare(
    before: Searched, after: Searched, queries: pa.Table, numbers: tuple[int, int | None], shared: SharedSearch
) -> Changes:
    """Return the changes between two releases.

    Args:
        queries: the holdout rows with which both were searched.
        numbers: release numbers, before and after.
        shared: the result of `compare_models`.
    """
    gains = _gains(before.found.ranks, after.found.ranks)
    return Changes(
        before=numbers[0],
        after=numbers[1],
        queries=queries.num_rows,
        metrics_before=before.metrics,
        metrics_after=after.metrics,
        shared=shared,
        items_before=before.index.vectors,
        items_after=after.index.vectors,
        overlap_at_10=_overlap(before.hit_ids(), after.hit_ids()),
        wins=_changed(before, after, queries, gains),
        losses=_changed(before, after, queries, -gains),
        **_items(before.index, after.index),
    )


def _gains(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the change of 1 / rank of each query's item, float64 (queries,); 0 unless both releases have the item."""
    both = (before != ABSENT) & (after != ABSENT)
    gained: np.ndarray = np.where(both, 1.0 / after - 1.0 / before, 0.0)
    return gained


def _overlap(before: list[list[str]], after: list[list[str]]) -> float | None:
    shares = [len(set(one) & set(other)) / max(len(other), 1) for one, other in zip(before, after, strict=True)]
    return float(np.mean(shares)) if shares else None


def _changed(before: Searched, after: Searched, queries: pa.Table, gains: np.ndarray) -> tuple[QueryChange, ...]:
    """Return the queries with the largest gains, each query and item once."""
    rows: dict[tuple[str, str], int] = {}
    for row in np.argsort(-gains, kind="stable").tolist():
        if gains[row] <= 0 or len(rows) == LISTED:
            break
        rows.setdefault((queries[QUERY][row].as_py(), queries[ITEM_ID][row].as_py()), row)
    chosen = list(rows.values())
    hits = [side.index.hits(side.found, chosen, HITS) for side in (before, after)]
    return tuple(
        QueryChange(
            query=queries[QUERY][row].as_py(),
            item_id=queries[ITEM_ID][row].as_py(),
            text=queries[ITEM][row].as_py(),
            rank_before=int(before.found.ranks[row]),
            rank_after=int(after.found.ranks[row]),
            before=earlier,
            after=later,
        )
        for row, earlier, later in zip(chosen, *hits, strict=True)
    )


def _items(before: Index, after: Index) -> dict[str, Any]:
    """Return the fields of `Changes` about items; DuckDB joins them on disk, in one pass."""
    chosen = f"arg_min({{0}}.{ITEM_ID}, md5({{0}}.{ITEM_ID}), {{1}}) FILTER ({{2}})"  # a sample that is always the same
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch, connect(Path(scratch)) as database:
        _register(database, before, after, [CONTENT])
        new, gone = f"earlier.{ITEM_ID} IS NULL", f"later.{ITEM_ID} IS NULL"
        found = database.sql(
            f"SELECT count(*) FILTER ({new}), count(*) FILTER ({gone}), "
            f"count(*) FILTER (earlier.{CONTENT} <> later.{CONTENT}), {chosen.format('later', LISTED, new)}, "
            f"{chosen.format('earlier', LISTED, gone)}, "
            f"{chosen.format('later', SAMPLE, f'NOT ({new}) AND NOT ({gone})')} "
            f"FROM earlier FULL JOIN later USING ({ITEM_ID})"
        ).fetchall()[0]
    return {
        "new_items": found[0],
        "gone_items": found[1],
        "changed_items": found[2],
        "same_item_cosine": _cosine(before, after, found[5] or []),
        "new": _listed(after, found[3] or []),
        "gone": _listed(before, found[4] or []),
    }


def _listed(index: Index, item_ids: Sequence[str]) -> tuple[ListedItem, ...]:
    places = index.places_of(item_ids)
    items = index.items(places)
    return tuple(items[place] for place in places.tolist())


def _cosine(before: Index, after: Index, item_ids: Sequence[str]) -> float | None:
    if not item_ids or before.width != after.width:
        return None
    one, other = (index.at(index.places_of(item_ids)) for index in (before, after))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)  # float16 is not exactly of unit length
    return float(((one * other).sum(axis=1) / lengths).mean())
