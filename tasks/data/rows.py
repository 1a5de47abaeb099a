"""The rows of a span: the columns that every stage knows, how to read them, and which rows are held out.

Ingest writes them, validate cleans them, and all later stages read them with `read_rows`.
"""

import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import open_folder
from tasks.contracts.references import RowsRef
from tasks.foundation.errors import DataError

ROW_ID = "row_id"  # string, unique within a span
TIME = "time"  # timestamp[us, UTC]
QUERY = "query"  # string
ITEM = "item"  # string: the text of the item
ITEM_ID = "item_id"  # string; rows with one item_id are about one item
LABEL = "label"  # float64, may be null

CORE = {
    ROW_ID: pa.string(),
    TIME: pa.timestamp("us", tz="UTC"),
    QUERY: pa.string(),
    ITEM: pa.string(),
    ITEM_ID: pa.string(),
    LABEL: pa.float64(),
}
# Any other column keeps its source name and is float64, bool or string.

SPAN_KIND = "span"
ROWS_KIND = "rows"


def read_rows(store: Store, refs: Sequence[RowsRef], columns: Sequence[str]) -> pa.Table:
    """Read validated rows of spans into one table, in the order of `refs`, with the core columns and `columns`.

    Raises:
        DataError: a span lacks one of `columns`; names span and column.
    """
    wanted = list(dict.fromkeys([*CORE, *columns]))
    tables = []
    for ref in refs:
        folder, manifest = open_folder(store, ref.prefix, ROWS_KIND)
        for entry in manifest.files:
            schema = pq.read_schema(folder / entry.name)
            if missing := [column for column in wanted if column not in schema.names]:
                raise DataError(
                    f"span {ref.span.name}: no column {missing[0]!r}, which the configuration uses as a feature "
                    f"or slice; it has {', '.join(schema.names)}"
                )
            tables.append(pq.read_table(folder / entry.name, columns=wanted))
    return pa.concat_tables(tables, promote_options="permissive")


def distinct_items(rows: pa.Table) -> pa.Table:
    """Return one row per item, the last one, in the order of item ids."""
    order = pa.array(range(rows.num_rows), pa.int64())
    last = rows.select([ITEM_ID]).append_column("order", order).group_by(ITEM_ID).aggregate([("order", "max")])
    return rows.take(last.sort_by(ITEM_ID)["order_max"])


def is_holdout(row_id: str, share: float) -> bool:
    """Return whether a row is held out: a hash of its id decides, so other rows never change the answer."""
    digest = hashlib.blake2b(row_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
