"""The items that are known to be right for the rows' queries, looked up in the pairs that validate wrote."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from configs.schema.training import HeadsConfig
from tasks.contracts.evaluation import QUERY_KEY
from tasks.data.label_pairs import pair_mask
from tasks.data.rows import ITEM_ID, QUERY
from tasks.worker.evaluation.rows import MeasuredRows
from tasks.worker.model.relevant import query_keys
from tasks.worker.rows.holdout_order import query_places
from tasks.worker.rows.holdout_read import at_once
from tasks.worker.rows.holdout_write import QUERY_PLACE

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


def find_known_pairs(rows: MeasuredRows, heads: HeadsConfig) -> pa.Table:
    """Return the items that any row of the spans, trained on or held out, pairs with the rows' queries, each once.

    The pairs of the golden set are among them.

    Returns:
        QUERY_KEY, int64, and ITEM_ID, string.
    """
    queries = np.unique(rows.facts[QUERY_KEY].to_numpy())
    places = query_places(queries)
    order = np.argsort(places)
    queries, places = queries[order], places[order]
    golden = rows.table.filter(pc.invert(rows.holdout))
    found = [pa.table({QUERY_KEY: query_keys(golden[QUERY].to_pylist()), ITEM_ID: golden[ITEM_ID]})]
    for pairs in at_once(lambda span: span.pairs(places), rows.spans):
        pairs = pairs.filter(pa.array(pair_mask(pairs, heads)))
        keys = queries[np.searchsorted(places, pairs[QUERY_PLACE].to_numpy())]
        found.append(pa.table({QUERY_KEY: keys, ITEM_ID: pairs[ITEM_ID]}))
    return pa.concat_tables(found).group_by([QUERY_KEY, ITEM_ID]).aggregate([])
