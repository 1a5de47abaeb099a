"""The holdout queries that whole releases are searched with: the newest ones, none of which was trained on."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.references import RowsRef
from tasks.data.holdout import read_sides
from tasks.data.label_columns import pair_mask
from tasks.data.rows import CORE


def holdout_queries(store: Store, refs: Sequence[RowsRef], config: Config) -> pa.Table:
    """Return at most `release.queries` holdout rows whose query and item belong together, oldest first.

    They have the core columns, the features of `features.query`, and `features.entity`.

    Raises:
        MissingFolder, CorruptFolder: the rows of a span are gone or damaged.
        DataError: a span lacks a feature.
    """
    left, parts = config.release.queries, [pa.schema(CORE).empty_table()]
    entity = [config.features.entity] if config.features.entity else []
    columns = list(dict.fromkeys([*config.features.query, *entity]))
    for _, held in read_sides(store, refs, HoldoutRule.of(config.evaluate, refs), columns, newest_first=True):
        pairs = held.filter(pa.array(np.asarray(pair_mask(held, config.heads), dtype=bool)))
        parts.insert(1, pairs.slice(max(0, pairs.num_rows - left)))
        left -= parts[1].num_rows
        if not left:
            break
    return pa.concat_tables(parts, promote_options="permissive")
