"""The items of a release for mining: vectors, and keys of ids and texts."""

from typing import NamedTuple

import numpy as np
import torch

from infra.store.base import Store
from tasks.data.items import TEXT
from tasks.data.rows import ITEM_ID
from tasks.worker.search.index import Index
from tasks.worker.training.tokenised import id_keys, text_keys


class ReleasedItems(NamedTuple):
    """The vectors of a release; keys of the item ids and texts by place, int64 (vectors,) each."""

    vectors: Index
    ids: np.ndarray
    texts: np.ndarray
    order: np.ndarray  # int64 (vectors,): places sorted by id key

    @classmethod
    def open(
        cls, store: Store, prefix: str, model_version: str, memory_bytes: int, device: torch.device, sha256: str | None
    ) -> "ReleasedItems":
        """Open the vectors; for arguments and errors see `Index`."""
        index = Index(store, prefix, model_version, memory_bytes, sha256, device)
        ids, texts = np.zeros(index.vectors, dtype=np.int64), np.zeros(index.vectors, dtype=np.int64)
        for first, items in index.tables([ITEM_ID, TEXT]):
            here = slice(first, first + items.num_rows)
            ids[here], texts[here] = id_keys(items[ITEM_ID]), text_keys(items[TEXT])
        return cls(index, ids, texts, np.argsort(ids, kind="stable"))

    def places_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the place of each item, int64 (items,), by its id key; -1 without a vector."""
        if not len(self.order):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=self.order), len(self.order) - 1)
        places = self.order[at]
        return np.where(self.ids[places] == ids, places, -1)
