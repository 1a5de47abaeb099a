"""The training rows of a run as arrays, without their texts, and which items belong to each query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists


@dataclass(frozen=True)
class Positives:
    """The keys of the items that belong to each query with several of them.

    `offsets` int64 (queries + 1,): those of query q are `keys[offsets[q]:offsets[q + 1]]`, int64, distinct.
    """

    offsets: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, query_key: np.ndarray, key: np.ndarray, pair: np.ndarray) -> Positives:
        """Return the positives among rows; int64 (rows,) from 0, likewise, and float32 (rows,)."""
        queries = int(query_key.max(initial=-1)) + 1
        belongs = np.unique(np.stack([query_key, key])[:, pair > 0], axis=1)
        counts = np.bincount(belongs[0], minlength=queries)
        several = counts > 1  # the only item of a query is excluded as its own
        belongs = belongs[:, several[belongs[0]]]
        offsets = np.concatenate([[0], np.cumsum(np.where(several, counts, 0))])
        return cls(offsets.astype(np.int64), belongs[1])

    def among(self, query_key: np.ndarray, batch_key: np.ndarray) -> np.ndarray:
        """Return whether each item of a batch belongs to each query, bool (queries, items).

        The time grows with the positives of these queries, and not with the product of queries and items.
        """
        known = np.zeros((len(query_key), len(batch_key)), dtype=bool)
        queries, row_of = np.unique(query_key, return_inverse=True)
        counts = self.offsets[queries + 1] - self.offsets[queries]
        if not counts.any():
            return known
        places = np.repeat(self.offsets[queries] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        keys, column_of = np.unique(batch_key, return_inverse=True)
        wanted = self.keys[places]
        column = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = keys[column] == wanted
        table = np.zeros((len(queries), len(keys)), dtype=bool)
        table[np.repeat(np.arange(len(queries)), counts)[hit], column[hit]] = True
        return table[row_of][:, column_of]


@dataclass(frozen=True)
class HardNegatives:
    """Items that some pairs of a run get as extra negatives.

    `of_row` int32 (rows, per_query): numbers of items, -1 where there are fewer. `item_key` and `text_key` int64
    (items,) are those of `Pairs`, -1 where no row has the item or the text.
    """

    of_row: np.ndarray
    tokens: TokenLists
    features: FeatureArrays
    item_key: np.ndarray
    text_key: np.ndarray


@dataclass(frozen=True)
class Pairs:
    """All training rows of a run in memory, without their texts, as arrays of the same length.

    `item_key` int64 is equal for rows about one item, `text_key` int64 for rows with one normalised item text, and
    `query_key` int64 for rows with one normalised query; `positives` has the items, and the texts, of each query;
    `pair` float32 is 1 where query and item belong together; `label_class` int64 is 0, 1 or -1 for unlabelled;
    `label_weight` float32 is what a row counts in the loss of its class, 0 for unlabelled.
    """

    query: TokenLists
    item: TokenLists
    query_features: FeatureArrays
    item_features: FeatureArrays
    item_key: np.ndarray
    text_key: np.ndarray
    query_key: np.ndarray
    positives: tuple[Positives, Positives]
    pair: np.ndarray
    label_class: np.ndarray
    label_weight: np.ndarray

    def __len__(self) -> int:
        return len(self.query)
