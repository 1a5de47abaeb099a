"""The holdout queries that whole releases are searched with: the newest ones, none of which was trained on."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import open_folder
from tasks.contracts.references import RowsRef
from tasks.data.rows import CORE, ROWS_KIND
from tasks.worker.training.pairs import pair_mask, split_holdout

BATCH_ROWS = 8192


def holdout_queries(store: Store, refs: Sequence[RowsRef], config: Config) -> pa.Table:
    """Return at most `release.queries` holdout rows whose query and item belong together, oldest first.

    They have the core columns, and the features of `features.query` as far as their span has them.

    Raises:
        MissingFolder, CorruptFolder: the rows of a span are gone or damaged.
    """
    wanted, most = [*CORE, *config.features.query], config.release.queries
    parts: list[pa.Table] = []
    for ref in reversed(refs):
        if (left := most - sum(part.num_rows for part in parts)) <= 0:
            break
        folder, manifest = open_folder(store, ref.prefix, ROWS_KIND)
        of_span = [
            part for entry in manifest.files for part in _held(pq.ParquetFile(folder / entry.name), wanted, config)
        ]
        if of_span:
            held = pa.concat_tables(of_span, promote_options="permissive")
            parts.insert(0, held.slice(max(0, held.num_rows - left)))
    rows = pa.concat_tables([pa.schema(CORE).empty_table(), *parts], promote_options="permissive")
    for name in wanted:
        if name not in rows.column_names:  # no span has it
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


def _held(file: pq.ParquetFile, wanted: Sequence[str], config: Config) -> list[pa.Table]:
    """Return the holdout rows of a file, which is read a part at a time."""
    there = [name for name in wanted if name in file.schema_arrow.names]
    found = []
    with file:
        for batch in file.iter_batches(BATCH_ROWS, columns=there):
            _, held = split_holdout(pa.Table.from_batches([batch]), config.evaluate.holdout_share)
            found.append(held.filter(pa.array(np.asarray(pair_mask(held, config.heads), dtype=bool))))
    return found
