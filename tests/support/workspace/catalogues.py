"""Catalogues built from made-up rows and feeds, in a workspace of their own."""

import datetime as dt
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.references import CatalogueRef, FeedRef, RowsRef, SpanRef
from tasks.data.rows import FEED_KIND, ROWS_KIND
from tasks.worker.catalogue.build import build
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.sources import Sources
from tests.support.workspace.jobs import tiny_config

TIME = pa.timestamp("us", tz="UTC")


def config(*overrides: str) -> Config:
    features = "features={numeric: [price], categorical: [colour], query: []}"
    return tiny_config(features, "model.interaction.kind=both", *overrides)


def day(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, number, tzinfo=dt.UTC)


class World:
    """A workspace to which rows and feeds are added."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = DirectoryStore(folder / "workspace"), folder
        self._numbers = itertools.count(1)

    def rows(self, *rows: dict[str, Any]) -> RowsRef:
        """One span of validated rows; each is `id`, `text`, `day`, and features."""
        number = next(self._numbers)
        table = pa.table(
            {
                "item_id": [row["id"] for row in rows],
                "item": [row["text"] for row in rows],
                "time": pa.array([day(row["day"]) for row in rows], TIME),
                "price": pa.array([row.get("price") for row in rows], pa.float64()),
                "colour": pa.array([row.get("colour") for row in rows], pa.string()),
            }
        )
        prefix = f"runs/r{number}/validate/rows/2026-01"
        self._commit(prefix, table, ROWS_KIND)
        return RowsRef(span=SpanRef(name="2026-01", version=number), prefix=prefix, rows=len(rows))

    def feed(self, *rows: dict[str, Any], name: str = "2026-01") -> FeedRef:
        """A version of an item feed; each row is `id`, `text`, `day`, and `deleted`."""
        number = next(self._numbers)
        table = pa.table(
            {
                "item_id": [row["id"] for row in rows],
                "item": pa.array([row.get("text") for row in rows], pa.string()),
                "time": pa.array([day(row["day"]) for row in rows], TIME),
                "deleted": [row.get("deleted", False) for row in rows],
            }
        )
        ref = FeedRef(name=name, version=number)
        self._commit(ref.prefix, table, FEED_KIND)
        return ref

    def _commit(self, prefix: str, table: pa.Table, kind: str) -> None:
        source = self.folder / prefix
        source.mkdir(parents=True)
        pq.write_table(table, source / "part-00000.parquet")
        commit(self.store, prefix, source, kind, {"rows": table.num_rows})

    def build(
        self, *sources: RowsRef | FeedRef, bases: Sequence[CatalogueRef] = (), settings: tuple[str, ...] = ()
    ) -> CatalogueRef:
        rows = tuple(each for each in sources if isinstance(each, RowsRef))
        feeds = tuple(each for each in sources if isinstance(each, FeedRef))
        return build(self.store, Sources(rows, feeds), bases, config(*settings))

    def items(self, ref: CatalogueRef) -> dict[str, dict[str, Any]]:
        """The live items, by id."""
        catalogue = Catalogue(self.store, ref)
        tables = [table for number in range(ref.partitions) for table in catalogue.items(number, 10)]
        found = [row for table in tables for row in table.to_pylist()]
        assert len(found) == ref.items
        return {row["item_id"]: row for row in found}
