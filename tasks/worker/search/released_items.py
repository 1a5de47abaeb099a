"""The items of a release, as mining looks at them: their vectors, ids and texts."""

from typing import NamedTuple

import numpy as np

from infra.store.base import Store
from tasks.data.items import TEXT
from tasks.data.rows import ITEM_ID
from tasks.worker.search.index import Index
from tasks.worker.training.tokenised import id_keys, text_keys


class ReleasedItems(NamedTuple):
    """The vectors of a release; keys of the ids and of the texts of its items by place, int64 (vectors,)."""

    vectors: Index
    ids: np.ndarray
    texts: np.ndarray
    order: np.ndarray  # int64 (vectors,): the places in the order of the keys of their ids

    @classmethod
    def open(cls, store: Store, prefix: str, model_version: str, memory_bytes: int) -> "ReleasedItems":
        """Open the vectors; arguments and errors are those of `Index`."""
        index = Index(store, prefix, model_version, memory_bytes)
        ids, texts = np.zeros(index.vectors, dtype=np.int64), np.zeros(index.vectors, dtype=np.int64)
        for first, items in index.tables([ITEM_ID, TEXT]):
            here = slice(first, first + items.num_rows)
            ids[here], texts[here] = id_keys(items[ITEM_ID]), text_keys(items[TEXT])
        return cls(index, ids, texts, np.argsort(ids, kind="stable"))

    def places_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the place of each item by the key of its id, int64 (items,); -1 where it has no vector."""
        if not len(self.order):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=self.order), len(self.order) - 1)
        places = self.order[at]
        return np.where(self.ids[places] == ids, places, -1)
