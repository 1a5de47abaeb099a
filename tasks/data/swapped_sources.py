"""A log given as a feed, or a feed as a log: refused by its signs, since both can be read without an error."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import open_file, open_manifest
from tasks.data.files.names import named_like
from tasks.data.files.survey import Survey, cell
from tasks.data.join import FEED_ROWS
from tasks.data.rows import BATCH_ROWS, FEED_KIND, ITEM, ITEM_ID, QUERY, normal_text
from tasks.data.source_spans import BuiltSpan, ItemTexts
from tasks.data.span_versions import list_feeds
from tasks.foundation.errors import DataError

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_LEAST = 20  # rows or ids that show a sign
_NEARLY_ALL = 0.9  # share of rows whose query is the text of their own item
_SHARED = 0.2  # share of texts that several ids have, in a log; a feed has a few equal titles
_ROWS = 2_000  # rows of a log that are compared with the feed


def refuse_feed_as_log(store: Store, source: PurePath, built: Sequence[BuiltSpan]) -> None:
    """Refuse rows whose queries are the texts of their own items, mapped or in the item feed.

    Raises:
        DataError: nine tenths of the rows are; names the file, an example and the option for a feed.
    """
    rows = _first_rows(built)
    rows = rows.filter(pc.and_(pc.is_valid(rows[QUERY]), pc.is_valid(rows[ITEM_ID])))
    one_each = len(rows) == pc.count_distinct(rows[ITEM_ID]).as_py()
    queries, ids, items = (rows[name].to_pylist() for name in (QUERY, ITEM_ID, ITEM))
    if all(item is None for item in items):
        texts = _texts(store, rows[ITEM_ID]) if one_each else {}  # in a log of clicks, items have several rows
        items = [texts.get(each) for each in ids]
    both = [(query, item) for query, item in zip(queries, items, strict=True) if item is not None]
    same = [query for query, item in both if normal_text(query) == normal_text(item)]
    if len(both) >= _LEAST and len(same) >= _NEARLY_ALL * len(both):
        raise DataError(
            f"{source}: the query of {len(same):,} of {len(both):,} rows is the text of their own item, such as "
            f"{same[0]!r}, so that a model would learn nothing. Is it the item feed? Give it as --items FILE with "
            "--map id=COLUMN,text=COLUMN; if it is a log, map the column with the words of the search as query"
        )


def refuse_log_as_feed(source: PurePath, mapping: Mapping[str, str], items: ItemTexts, survey: Survey) -> None:
    """Refuse records of which most ids have several texts, if other ids have these too, or they are searches by name.

    Raises:
        DataError: it looks like a log; names the file, an id with two texts and the option for a log.
    """
    changed, total = items.with_several_texts(), items.ids()
    if changed < _LEAST or changed * 2 <= total:
        return
    ids, texts = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for row in survey.sample:
        each, text = cell(row, mapping["id"]), cell(row, mapping["text"])
        if each is not None and text is not None:
            ids[text].add(each)
            texts[each].add(text)
    shared = sum(len(each) > 1 for each in ids.values()) > _SHARED * len(ids)
    named = named_like(mapping["text"], "query") and not named_like(mapping["text"], "item")
    if shared or named:
        several = sorted(max(texts.values(), key=len))[:2]
        raise DataError(
            f"{source}: {changed:,} of {total:,} ids have several texts, such as {' and '.join(map(repr, several))}, "
            "and only the newest would count. Is it a log of searches? Give it as --source FILE with --map "
            "query=COLUMN,item_id=COLUMN; if it is a feed, map the column that names each record as id"
        )


def _first_rows(built: Sequence[BuiltSpan]) -> pa.Table:
    """Return the first rows of the largest span."""
    largest = max(built, key=lambda each: each.rows)
    with pq.ParquetFile(min(largest.folder.glob("*.parquet")), pre_buffer=False) as file:
        return pa.Table.from_batches([next(file.iter_batches(_ROWS, columns=[QUERY, ITEM, ITEM_ID]))])


def _texts(store: Store, ids: pa.ChunkedArray) -> dict[str, str]:
    """Return the texts of items in the newest spans of the feed."""
    found: dict[str, str] = {}
    read = 0
    for feed in reversed(list_feeds(store)):
        manifest = open_manifest(store, feed.prefix, FEED_KIND)
        for entry in manifest.files:
            with pq.ParquetFile(open_file(store, feed.prefix, manifest, entry.name), pre_buffer=False) as file:
                for batch in file.iter_batches(16 * BATCH_ROWS, columns=[ITEM_ID, ITEM]):
                    read += len(batch)
                    some = batch.filter(pc.is_in(batch[ITEM_ID], value_set=ids))
                    for each, text in zip(some[ITEM_ID].to_pylist(), some[ITEM].to_pylist(), strict=True):
                        if text is not None:
                            found.setdefault(each, text)
        if read >= FEED_ROWS or len(found) == len(ids):
            break
    return found
