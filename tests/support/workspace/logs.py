"""Hand-made logs of ids and item feeds."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.references import FeedRef, SpanRef
from tasks.contracts.spans import first_day
from tasks.data.rows import CORE, DELETED, FEED_KIND, OF_FEED, SPAN_KIND, TEXTS

ITEM_TYPES = {**CORE, DELETED: pa.bool_(), "price": pa.float64(), "brand": pa.string(), "locale": pa.string()}


def click(number: int, item_id: str | None, span: str = "2026-03", **more: Any) -> dict[str, Any]:
    start = dt.datetime.combine(first_day(span), dt.time(), dt.UTC)
    row = {"row_id": f"{span}-{number:05d}", "time": start + dt.timedelta(minutes=number), "query": f"lamp {number}"}
    return row | {"item_id": item_id, "item": None, "label": None} | more


def item(item_id: str, text: str | None, day: str = "2026-01-01", **more: Any) -> dict[str, Any]:
    time = dt.datetime.fromisoformat(f"{day}T00:00:00+00:00")
    known = {"row_id": f"{item_id}-{day}", "time": time, "item_id": item_id, "item": text, DELETED: text is None}
    return known | {"price": 9.5, "brand": "acme", "locale": "de"} | more


def write_log(store: DirectoryStore, folder: Path, span: SpanRef, rows: Sequence[dict[str, Any]], **types: Any) -> None:
    facts = {"rows": len(rows), "labels": 0, "columns": {name: str(kind) for name, kind in {**CORE, **types}.items()}}
    _write(store, folder, span.prefix, SPAN_KIND, rows, {**CORE, **types}, {**facts, TEXTS: OF_FEED})


def write_feed(
    store: DirectoryStore, folder: Path, feed: FeedRef, items: Sequence[dict[str, Any]], **types: Any
) -> FeedRef:
    kinds = {name: kind for name, kind in {**ITEM_TYPES, **types}.items() if kind is not None}
    facts = {"rows": len(items), "columns": {name: str(kind) for name, kind in kinds.items()}}
    _write(store, folder, feed.prefix, FEED_KIND, items, kinds, facts)
    return feed


def _write(
    store: DirectoryStore,
    folder: Path,
    prefix: str,
    kind: str,
    rows: Sequence[dict[str, Any]],
    types: dict[str, Any],
    facts: dict[str, Any],
) -> None:
    table = pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()})
    made = folder / "made" / prefix.replace("/", "-")
    made.mkdir(parents=True)
    half = max(len(table) // 2, 1)
    pq.write_table(table.slice(0, half), made / "part-00000.parquet")
    pq.write_table(table.slice(half), made / "part-00001.parquet")
    commit(store, prefix, made, kind, facts)
