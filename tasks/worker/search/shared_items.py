"""The items that two releases hold with the same content: among them two models meet, apart from their catalogues."""

import tempfile
from pathlib import Path

import numpy as np

from tasks.data.items import CONTENT
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.records import connect, literal
from tasks.worker.search.index import Index

BATCH_ITEMS = 2**20


def shared_items(before: Index, after: Index) -> tuple[np.ndarray, np.ndarray]:
    """Return which vectors of each release are of such items, bool (vectors,) each; DuckDB joins them on the disk."""
    found = np.zeros(before.vectors, dtype=bool), np.zeros(after.vectors, dtype=bool)
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch, connect(Path(scratch)) as database:
        for name, index in (("earlier", before), ("later", after)):
            parts = [
                f"SELECT {ITEM_ID}, {CONTENT}, file_row_number + {start} AS place "
                f"FROM read_parquet({literal(str(path))}, file_row_number = true)"
                for path, start in zip(index.paths, index.starts.tolist(), strict=False)
            ]
            database.sql(" UNION ALL ".join(parts)).create_view(name)
        both = database.sql(
            f"SELECT earlier.place, later.place FROM earlier JOIN later USING ({ITEM_ID}, {CONTENT})"
        ).to_arrow_reader(BATCH_ITEMS)
        for batch in both:
            for mask, places in zip(found, batch.columns, strict=True):
                mask[places.to_numpy()] = True
    return found
