"""Chooses a part of a catalogue: named items and a sample of the others."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import open_files
from tasks.contracts.references import CatalogueRef
from tasks.data.items import CATALOGUE_KIND, CONTENT, TEXT, is_deleted_name
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.records import connect, literal, quoted


def choose(store: Store, ref: CatalogueRef, named: Sequence[str], others: int, features: Sequence[str]) -> pa.Table:
    """Return the live items among `named` and `others` more, by item id; memory holds only these.

    The others are the items with the lowest id hashes: a larger sample contains a smaller one, and a new item replaces
    at most one.

    Args:
        features: further columns; null if the catalogue lacks them.

    Returns:
        The columns ITEM_ID, TEXT, CONTENT, and the features.

    Raises:
        MissingFolder, CorruptFolder: the catalogue is missing or damaged.
    """
    files = [path for path in open_files(store, ref.prefix, CATALOGUE_KIND) if not is_deleted_name(path.name)]
    there = set(pq.read_schema(files[0]).names)
    columns = [ITEM_ID, TEXT, CONTENT, *dict.fromkeys(features)]
    selected = ", ".join(quoted(name) if name in there else f"NULL::DOUBLE AS {quoted(name)}" for name in columns)
    wanted = ", ".join(quoted(name) for name in columns)
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch, connect(Path(scratch)) as database:
        database.register("named", pa.table({ITEM_ID: pa.array(named, pa.string())}))
        return database.sql(f"""
            WITH items AS NOT MATERIALIZED (
                SELECT {selected}, md5_number_upper({ITEM_ID}) AS place,
                    {ITEM_ID} IN (SELECT {ITEM_ID} FROM named) AS own
                FROM read_parquet([{", ".join(literal(str(path)) for path in files)}])
            ), others AS (
                SELECT {wanted} FROM items WHERE NOT own ORDER BY place, {ITEM_ID} LIMIT {others}
            )
            SELECT {wanted} FROM items WHERE own UNION ALL FROM others ORDER BY {ITEM_ID}
        """).to_arrow_table()
