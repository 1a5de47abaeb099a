"""Which items are known to belong to a query, as sorted hashes of query and item: eight bytes for each pair."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from configs.schema.training import HeadsConfig
from tasks.data.items import hash_of
from tasks.data.rows import ITEM, ITEM_ID, QUERY
from tasks.worker.ranking.relevant import query_keys
from tasks.worker.training.pairs import pair_mask

PAIRS_AT_ONCE = 2**22  # in memory before equal ones are put together
_ODD = np.uint64(0x9E3779B97F4A7C15)


class KnownPairs:
    """The pairs of some rows: of a query with an item, and of a query with the text of an item."""

    def __init__(self, rows: Iterable[pa.Table], heads: HeadsConfig) -> None:
        found, waiting = [np.zeros(0, dtype=np.uint64)], 0
        for table in rows:
            pairs = table.filter(pa.array(pair_mask(table, heads)))
            queries = query_keys(pairs[QUERY].to_pylist())
            found += [_joined(queries, id_hashes(pairs[ITEM_ID])), _joined(queries, text_hashes(pairs[ITEM]))]
            waiting += 2 * len(queries)
            if waiting > PAIRS_AT_ONCE:
                found, waiting = [np.unique(np.concatenate(found))], 0
        self._sorted = np.unique(np.concatenate(found))

    def has(self, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return whether each pair is known, bool; int64 hashes of queries, and of ids or texts, of shapes that fit."""
        wanted = _joined(queries, items)
        if not len(self._sorted):
            return np.zeros(wanted.shape, dtype=bool)
        place = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return self._sorted[place] == wanted


def id_hashes(item_ids: pa.ChunkedArray) -> np.ndarray:
    """Return a hash of each item id, int64 (items,)."""
    return np.array([hash_of(item_id) for item_id in item_ids.to_pylist()], dtype=np.uint64).view(np.int64)


def text_hashes(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a hash of each normalised text, int64 (texts,), as `query_keys` makes them."""
    return query_keys(texts.to_pylist())


def _joined(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return one number for each pair, uint64. Both hashes are uniform, so an odd factor is enough to mix them."""
    return queries.view(np.uint64) * _ODD + items.view(np.uint64)
