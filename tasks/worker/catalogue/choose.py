"""Chooses a part of a catalogue: items that are named, and a sample of the others."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import open_folder
from tasks.contracts.references import CatalogueRef
from tasks.data.items import CATALOGUE_KIND, CONTENT, TEXT, is_deleted_name
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.database import connect
from tasks.worker.catalogue.records import literal, quoted


def choose(store: Store, ref: CatalogueRef, named: Sequence[str], others: int, features: Sequence[str]) -> pa.Table:
    """Return the live items among `named`, and `others` more, by item id; only they are ever in memory.

    The others are those with the lowest hash of their id, so a larger number adds to a smaller one, and a new
    item takes the place of at most one.

    Args:
        features: columns to return after ITEM_ID, TEXT and CONTENT; one that the catalogue lacks is null.

    Raises:
        MissingFolder, CorruptFolder: the catalogue is gone or damaged.
    """
    folder, manifest = open_folder(store, ref.prefix, CATALOGUE_KIND)
    files = [folder / entry.name for entry in manifest.files if not is_deleted_name(entry.name)]
    there = set(pq.read_schema(files[0]).names)
    columns = [ITEM_ID, TEXT, CONTENT, *dict.fromkeys(features)]
    select = ", ".join(quoted(name) if name in there else f"NULL::DOUBLE AS {quoted(name)}" for name in columns)
    items = f"read_parquet([{', '.join(literal(str(path)) for path in files)}])"
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch, connect(Path(scratch)) as database:
        database.register("named", pa.table({ITEM_ID: pa.array(named, pa.string())}))
        return database.sql(f"""
            SELECT {select} FROM {items}
            WHERE {ITEM_ID} IN (SELECT {ITEM_ID} FROM named) OR {ITEM_ID} IN (
                SELECT {ITEM_ID} FROM {items} WHERE {ITEM_ID} NOT IN (SELECT {ITEM_ID} FROM named)
                ORDER BY md5_number_upper({ITEM_ID}), {ITEM_ID} LIMIT {others})
            ORDER BY {ITEM_ID}
        """).to_arrow_table()
