"""The holdout queries that whole releases are searched with: the newest ones, none of which was trained on."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.references import RowsRef
from tasks.data.rows import CORE, read_rows
from tasks.worker.training.pairs import pair_mask, split_holdout


def holdout_queries(store: Store, refs: Sequence[RowsRef], config: Config) -> pa.Table:
    """Return at most `release.queries` holdout rows whose query and item belong together, oldest first.

    They have the core columns and the features of `features.query`.

    Raises:
        MissingFolder, CorruptFolder: the rows of a span are gone or damaged.
        DataError: a span lacks a feature.
    """
    left, parts = config.release.queries, [pa.schema(CORE).empty_table()]
    for rows in read_rows(store, refs, config.features.query, newest_first=True):
        _, held = split_holdout(rows, config.evaluate.holdout_share)
        pairs = held.filter(pa.array(np.asarray(pair_mask(held, config.heads), dtype=bool)))
        parts.insert(1, pairs.slice(max(0, pairs.num_rows - left)))
        left -= parts[1].num_rows
        if not left:
            break
    return pa.concat_tables(parts, promote_options="permissive")
