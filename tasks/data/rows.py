"""The rows of a span: the columns that every stage knows, how to read them, and which rows are held out.

Ingest writes them, validate cleans them, and all later stages read them with `read_rows`.
"""

import hashlib
from collections.abc import Iterator, Sequence

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

BATCH_ROWS = 8192  # in memory at once, of a span of any size

SPAN_KIND = "span"
ROWS_KIND = "rows"


def read_rows(
    store: Store, refs: Sequence[RowsRef], columns: Sequence[str], newest_first: bool = False
) -> Iterator[pa.Table]:
    """Yield validated rows of spans, some thousand at a time, with the core columns and `columns`.

    Args:
        refs: the spans, oldest first. The rows are in their order.
        newest_first: the tables come in the opposite order, the last rows of the last span first; the rows within a
            table are in order.

    Raises:
        DataError: a span lacks one of `columns`; names span and column.
    """
    wanted = list(dict.fromkeys([*CORE, *columns]))
    for ref in reversed(refs) if newest_first else refs:
        folder, manifest = open_folder(store, ref.prefix, ROWS_KIND)
        for entry in reversed(manifest.files) if newest_first else manifest.files:
            with pq.ParquetFile(folder / entry.name, pre_buffer=False) as file:
                if missing := [column for column in wanted if column not in file.schema_arrow.names]:
                    raise DataError(
                        f"span {ref.span.name}: no column {missing[0]!r}, which the configuration uses as a feature "
                        f"or slice; it has {', '.join(file.schema_arrow.names)}"
                    )
                if newest_first:
                    for group in reversed(range(file.num_row_groups)):
                        yield file.read_row_group(group, wanted).select(wanted)
                else:
                    for batch in file.iter_batches(BATCH_ROWS, columns=wanted):
                        yield pa.Table.from_batches([batch]).select(wanted)


def distinct_items(rows: pa.Table) -> pa.Table:
    """Return one row per item, the last one, in the order of item ids."""
    order = pa.array(range(rows.num_rows), pa.int64())
    last = rows.select([ITEM_ID]).append_column("order", order).group_by(ITEM_ID).aggregate([("order", "max")])
    return rows.take(last.sort_by(ITEM_ID)["order_max"])


def is_holdout(row_id: str, share: float) -> bool:
    """Return whether a row is held out: a hash of its id decides, so other rows never change the answer."""
    digest = hashlib.blake2b(row_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
